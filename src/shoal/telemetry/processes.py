"""CPU time and resident memory of processes, read from `/proc`; nothing where that is missing."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from shoal.model.events import ProcessUsage

_PROC: Final = Path("/proc")
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def read_usage(name: str, pid: int) -> ProcessUsage | None:
    """What a process has used so far; None if it has ended, or if there is no `/proc`."""
    try:
        status = (_PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    # After the command name, which may contain any character.
    fields = status[status.rindex(b")") + 2 :].split()
    if fields[0] in (b"Z", b"X"):
        return None
    ticks = int(fields[11]) + int(fields[12])
    return ProcessUsage(name, pid, ticks / _TICKS_PER_S, int(fields[21]) * _PAGE_BYTES)


def read_usages(processes: Iterable[tuple[str, int]]) -> list[ProcessUsage]:
    """The usage of those that run, by their names; process id 0 stands for none."""
    found = (read_usage(name, pid) for name, pid in processes if pid)
    return [each for each in found if each is not None]
