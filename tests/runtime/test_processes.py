"""Telling processes apart and seeing them pause, with and without /proc."""

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from shoal.runtime import processes
from shoal.runtime.processes import ProcessIdentity


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["/bin/sleep", "60"]) as process:
        yield process
        process.kill()


@pytest.fixture(params=["proc", "ps"])
def _both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_HAS_PROC", request.param == "proc")


@pytest.mark.usefixtures("_both_ways")
def test_a_process_is_known_as_long_as_it_lives(sleeper: subprocess.Popen[bytes]) -> None:
    identity = ProcessIdentity.of(sleeper.pid)
    assert identity is not None
    assert identity.is_alive()
    assert not identity.is_paused()
    assert identity.send(signal.SIGKILL)
    assert identity.wait_until_ended(
        60
    )  # a zombie by now, because its parent has not waited for it
    assert not identity.send(signal.SIGKILL)
    assert ProcessIdentity.of(sleeper.pid) is None
    assert not identity.pause()


@pytest.mark.usefixtures("_both_ways")
def test_a_pause_is_seen_and_ends(sleeper: subprocess.Popen[bytes]) -> None:
    identity = ProcessIdentity.of(sleeper.pid)
    assert identity is not None
    assert identity.pause()
    assert identity.is_paused()
    assert identity.send(signal.SIGCONT)
    assert not identity.wait_until_ended(0.05)
    assert not identity.is_paused()


def test_a_recycled_id_is_another_process(sleeper: subprocess.Popen[bytes]) -> None:
    successor = ProcessIdentity(sleeper.pid, "an earlier start")
    assert not successor.is_alive()
    assert not successor.is_paused()
    assert not successor.send(signal.SIGKILL)
    assert sleeper.poll() is None


def test_a_command_name_with_blanks_and_brackets_does_not_confuse() -> None:
    me = ProcessIdentity.of(os.getpid())
    assert me is not None
    command = ["/bin/bash", "-c", "exec -a 'x) S 1 (y' sleep 60"]
    with subprocess.Popen(command) as odd:
        identity = ProcessIdentity.of(odd.pid)
        odd.kill()
    assert identity is not None
    assert identity != me
