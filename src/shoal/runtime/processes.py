"""Telling a process from another that later got the same id.

A process is named by its id and its start mark: an opaque text that two processes
with the same id never share. Works for processes that are not our children.
"""

import os
import signal
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Self

_PROC_STATUS: Final = Path("/proc/self/stat")  # Linux has it, macOS has not


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process, for good: it never stands for a successor with the same id."""

    pid: int
    start_mark: str

    @classmethod
    def of(cls, pid: int) -> Self | None:
        """The identity of a living process; None if there is none with this id."""
        mark = start_mark(pid)
        return None if mark is None else cls(pid, mark)

    def is_alive(self) -> bool:
        return start_mark(self.pid) == self.start_mark

    def send(self, number: signal.Signals) -> bool:
        """Sends a signal if this very process lives; says whether it did."""
        if not self.is_alive():
            return False
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True


def start_mark(pid: int) -> str | None:
    """When the process started, in the system's own words; None for dead ones and zombies."""
    if _PROC_STATUS.exists():
        return _start_mark_from_proc(pid)
    return _start_mark_from_ps(pid)


def _start_mark_from_proc(pid: int) -> str | None:
    try:
        status = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # The second field, the command in parentheses, may itself hold spaces and parentheses.
    fields = status[status.rindex(b")") + 2 :].split()
    state, start_ticks = fields[0], fields[19]
    if state in (b"Z", b"X"):
        return None
    # Ticks count from the boot, so they repeat after a restart of the machine.
    return f"{_boot_id()}/{start_ticks.decode()}"


@cache
def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _start_mark_from_ps(pid: int) -> str | None:
    command = ["ps", "-o", "stat=,lstart=", "-p", str(pid)]
    environment = {"LC_ALL": "C", "TZ": "UTC", "PATH": os.environ.get("PATH", os.defpath)}
    answer = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, timeout=10
    )
    state, _, started = answer.stdout.strip().partition(" ")
    if answer.returncode != 0 or state.startswith("Z"):
        return None
    return started.strip()
