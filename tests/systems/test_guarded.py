"""Guarded processes: they obey, and they never outlive their owner."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from shoal.model.errors import SystemFailure
from shoal.runtime.processes import ProcessIdentity
from shoal.systems.processes.guarded import GuardedProcess, log_excerpt

SLEEP = ("/bin/sleep", "1000")
ENDS_WITHIN_S = 15.0  # what is promised, also on a busy machine

# Starts a guarded process in a temporary folder, says its id, then does what the test wants.
OWNER = """
import os, sys, time
from pathlib import Path
from shoal.systems.processes.guarded import GuardedProcess
node = Path(sys.argv[1]) / "node-1"
node.mkdir(parents=True)
process = GuardedProcess(["/bin/sleep", "1000"], log=node / "log", folder=node, scratch=node)
print(process.pid, flush=True)
"""


@pytest.fixture
def start(tmp_path: Path) -> "Callable[..., GuardedProcess]":
    def make(*command: str) -> GuardedProcess:
        return GuardedProcess(command or SLEEP, log=tmp_path / "log", folder=tmp_path)

    return make


def is_known(pid: int) -> ProcessIdentity:
    identity = ProcessIdentity.of(pid)
    assert identity is not None
    return identity


def test_it_pauses_resumes_and_stops(start: Callable[..., GuardedProcess]) -> None:
    process = start()
    identity = is_known(process.pid)
    process.pause()
    assert identity.is_paused()
    assert process.is_alive()
    process.send(signal.SIGCONT)
    assert not identity.is_paused()
    process.stop(patience_s=5)
    assert not process.is_alive()
    assert process.exit_description() == "killed by signal 15"
    with pytest.raises(SystemFailure, match="is not running: killed by signal 15"):
        process.send(signal.SIGTERM)
    with pytest.raises(SystemFailure, match="cannot pause process"):
        process.pause()
    process.stop(patience_s=5)


def test_a_paused_process_can_be_stopped(start: Callable[..., GuardedProcess]) -> None:
    process = start()
    process.pause()
    process.stop(patience_s=5)
    assert process.exit_description() == "killed by signal 15"


def test_a_deaf_process_is_killed(start: Callable[..., GuardedProcess], tmp_path: Path) -> None:
    deaf = "trap '' TERM; echo deaf; while :; do sleep 0.05; done"
    process = start("/bin/sh", "-c", deaf)
    while "deaf" not in (tmp_path / "log").read_text():
        assert process.is_alive()
    process.stop(patience_s=0.3)
    assert process.exit_description() == "killed by signal 9"


def test_its_exit_code_and_words_are_kept(
    start: Callable[..., GuardedProcess], tmp_path: Path
) -> None:
    process = start("/bin/sh", "-c", "echo good; echo 'ERROR bad' >&2; echo worse; exit 7")
    assert process.wait(100)
    assert process.exit_description() == "exit code 7"
    assert log_excerpt(tmp_path / "log") == "ERROR bad | worse"
    process.kill_and_wait()


def test_a_command_that_is_not_there_is_an_error(start: Callable[..., GuardedProcess]) -> None:
    with pytest.raises(SystemFailure, match=r"cannot start a process: .*No such file"):
        start("/no/such/program")


def test_a_log_that_is_not_there_has_no_words(tmp_path: Path) -> None:
    assert log_excerpt(tmp_path / "none") == "it has no log file"


def test_nothing_of_ours_is_open_there(start: Callable[..., GuardedProcess]) -> None:
    with ExitStack() as opened, socket.create_server(("127.0.0.1", 0)) as server:
        os.set_inheritable(server.fileno(), True)
        process = start()
        opened.callback(process.kill_and_wait)
        for pid in (process.pid, process._guardian.pid):
            assert not psutil.Process(pid).net_connections("all")
        deadline = time.monotonic() + 60  # while it starts, it opens its libraries
        while psutil.Process(process.pid).num_fds() != 3:
            assert time.monotonic() < deadline


def test_it_is_ended_even_if_its_guardian_was_killed(start: Callable[..., GuardedProcess]) -> None:
    process = start()
    identity = is_known(process.pid)
    os.kill(process._guardian.pid, signal.SIGKILL)
    process._guardian.wait()
    assert identity.is_alive()
    process.kill_and_wait()
    assert identity.wait_until_ended(ENDS_WITHIN_S)


def run_owner(tmp_path: Path, then: str) -> tuple[subprocess.Popen[str], ProcessIdentity]:
    command = [sys.executable, "-c", OWNER + textwrap.dedent(then), str(tmp_path / "temporary")]
    owner = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    return owner, is_known(int(owner.stdout.readline()))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_it_dies_with_its_owner(tmp_path: Path, number: signal.Signals) -> None:
    owner, identity = run_owner(tmp_path, "time.sleep(1000)")
    with owner:
        owner.send_signal(number)
    assert identity.wait_until_ended(ENDS_WITHIN_S)


def test_what_a_dead_owner_cannot_clean_up_is_cleaned_up(tmp_path: Path) -> None:
    owner, identity = run_owner(tmp_path, "time.sleep(1000)")
    guardian = is_known(psutil.Process(identity.pid).ppid())
    with owner:
        owner.kill()
    assert guardian.wait_until_ended(ENDS_WITHIN_S)
    assert not (tmp_path / "temporary").exists()


def test_it_dies_although_a_fork_of_its_owner_holds_the_leash(tmp_path: Path) -> None:
    fork = """
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    print(child, flush=True)
    time.sleep(1000)
    """
    owner, identity = run_owner(tmp_path, fork)
    with owner:
        assert owner.stdout is not None
        fork_identity = is_known(int(owner.stdout.readline()))
        owner.kill()
    assert identity.wait_until_ended(ENDS_WITHIN_S)
    assert fork_identity.send(signal.SIGKILL)
    assert fork_identity.wait_until_ended(ENDS_WITHIN_S)
