"""Telling a process from another that later got the same id, and seeing what it does.

A process is named by its id and its start mark: an opaque text that two processes
with the same id never share. Works for processes that are not our children.
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
_HAS_PROC: Final = (_PROC / "self/stat").exists()  # Linux has it, macOS has not
_POLL_EVERY_S: Final = 0.002


class _Sight(NamedTuple):
    start_mark: str
    is_paused: bool


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process, for good: it never stands for a successor with the same id."""

    pid: Annotated[int, "pid"]
    start_mark: Annotated[str, "start_mark"]

    @classmethod
    def of(cls, pid: int) -> Self | None:
        """The identity of a living process; None if there is none with this id."""
        sight = _look_at(pid)
        return None if sight is None else cls(pid, sight.start_mark)

    def is_alive(self) -> bool:
        sight = _look_at(self.pid)
        return sight is not None and sight.start_mark == self.start_mark

    def is_paused(self) -> bool:
        """True if this very process is stopped by a signal, with all its threads."""
        sight = _look_at(self.pid)
        return sight is not None and sight == (self.start_mark, True)

    def send(self, number: signal.Signals) -> bool:
        """Sends a signal if this very process lives; says whether it did."""
        if not self.is_alive():
            return False
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True

    def wait_until_ended(self, timeout_s: float) -> bool:
        """True as soon as the process is gone, False if it outlives the time."""
        deadline = time.monotonic() + timeout_s
        while self.is_alive():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def pause(self, timeout_s: float = 5.0) -> bool:
        """SIGSTOP, returning once the process really stands still; False if it never does.

        The kernel stops thread after thread, and until the last one stands the process may
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


def _look_at(pid: int) -> _Sight | None:
    """The process as it is now; None for dead ones and zombies."""
    return _look_in_proc(pid) if _HAS_PROC else _look_with_ps(pid)


def _look_in_proc(pid: int) -> _Sight | None:
    try:
        fields = _stat_fields(_PROC / str(pid) / "stat")
    except OSError:
        return None
    state, start_ticks = fields[0], fields[19].decode()
    if state in (b"Z", b"X"):
        return None
    # Ticks count from the boot, so they repeat after a restart of the machine.
    return _Sight(f"{_boot_id()}/{start_ticks}", state == b"T" and _all_threads_stand(pid))


def _all_threads_stand(pid: int) -> bool:
    for thread in (_PROC / str(pid) / "task").iterdir():
        with suppress(OSError):  # a thread may end just now
            if _stat_fields(thread / "stat")[0] not in (b"T", b"Z", b"X"):
                return False
    return True


def _stat_fields(file: Path) -> list[bytes]:
    """The fields of a stat file after the name of the command, which may hold anything."""
    status = file.read_bytes()
    return status[status.rindex(b")") + 2 :].split()


def machine_clock() -> str:
    """A name that two processes share if they read the same clock, and else never."""
    return _boot_id() if _HAS_PROC else socket.gethostname()


@cache
def _boot_id() -> str:
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def _look_with_ps(pid: int) -> _Sight | None:
    command = ["ps", "-o", "stat=,lstart=", "-p", str(pid)]
    environment = {"LC_ALL": "C", "TZ": "UTC", "PATH": os.environ.get("PATH", os.defpath)}
    answer = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, timeout=10
    )
    state, _, started = answer.stdout.strip().partition(" ")
    if answer.returncode != 0 or state.startswith("Z"):
        return None
    return _Sight(started.strip(), state.startswith("T"))
