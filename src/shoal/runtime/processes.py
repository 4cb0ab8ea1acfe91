"""Identifies processes even if their id is reused, and reads their state.

A process is identified by its id and its start mark: an opaque string that differs between two
processes with the same id. Works for processes that are not children of this one.
"""

import os
import signal
import socket
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Final, NamedTuple, Self

_PROC: Final = Path("/proc")
_HAS_PROC: Final = (_PROC / "self/stat").exists()  # on Linux, not on macOS
_POLL_EVERY_S: Final = 0.002


class _ProcessState(NamedTuple):
    start_mark: str
    is_paused: bool


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process, never a later one with the same id."""

    pid: Annotated[int, "pid"]
    start_mark: Annotated[str, "start_mark"]

    @classmethod
    def of(cls, pid: int) -> Self | None:
        """The identity of a living process; None if no process has this id."""
        state = _read_process(pid)
        return None if state is None else cls(pid, state.start_mark)

    def is_alive(self) -> bool:
        state = _read_process(self.pid)
        return state is not None and state.start_mark == self.start_mark

    def is_paused(self) -> bool:
        """True if this process is stopped by a signal, with all its threads."""
        state = _read_process(self.pid)
        return state is not None and state == (self.start_mark, True)

    def send(self, number: signal.Signals) -> bool:
        """Send a signal if this process is alive; returns whether it was sent."""
        if not self.is_alive():
            return False
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True

    def wait_until_ended(self, timeout_s: float) -> bool:
        """Wait for the process to end; False if it is still alive after the time."""
        deadline = time.monotonic() + timeout_s
        while self.is_alive():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def pause(self, timeout_s: float = 5.0) -> bool:
        """Send SIGSTOP and wait until the process is stopped; False if it does not stop in time.

        The kernel stops thread after thread; until the last one is stopped, the process may
        still answer.
        """
        deadline = time.monotonic() + timeout_s
        if not self.send(signal.SIGSTOP):
            return False
        while not self.is_paused():
            if time.monotonic() > deadline or not self.is_alive():
                return False
            time.sleep(_POLL_EVERY_S)
        return True


def _read_process(pid: int) -> _ProcessState | None:
    """The state of a process now; None for dead processes and zombies."""
    return _read_from_proc(pid) if _HAS_PROC else _read_with_ps(pid)


def _read_from_proc(pid: int) -> _ProcessState | None:
    try:
        fields = _stat_fields(_PROC / str(pid) / "stat")
    except OSError:
        return None
    state, start_ticks = fields[0], fields[19].decode()
    if state in (b"Z", b"X"):
        return None
    # Ticks count from the boot, so they repeat after a restart of the machine.
    return _ProcessState(
        f"{_boot_id()}/{start_ticks}", state == b"T" and _are_all_threads_stopped(pid)
    )


def _are_all_threads_stopped(pid: int) -> bool:
    for thread in (_PROC / str(pid) / "task").iterdir():
        with suppress(OSError):  # a thread may end just now
            if _stat_fields(thread / "stat")[0] not in (b"T", b"Z", b"X"):
                return False
    return True


def _stat_fields(file: Path) -> list[bytes]:
    """The fields of a stat file after the command name, which may contain any character."""
    status = file.read_bytes()
    return status[status.rindex(b")") + 2 :].split()


def machine_clock() -> str:
    """A name that two processes share exactly if they read the same clock."""
    return _boot_id() if _HAS_PROC else socket.gethostname()


@cache
def _boot_id() -> str:
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def _read_with_ps(pid: int) -> _ProcessState | None:
    command = ["ps", "-o", "stat=,lstart=", "-p", str(pid)]
    environment = {"LC_ALL": "C", "TZ": "UTC", "PATH": os.environ.get("PATH", os.defpath)}
    answer = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, timeout=10
    )
    state, _, started = answer.stdout.strip().partition(" ")
    if answer.returncode != 0 or state.startswith("Z"):
        return None
    return _ProcessState(started.strip(), state.startswith("T"))
