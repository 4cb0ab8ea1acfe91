"""How the previous process of a log ended, and which segments can be trusted after that."""

from collections.abc import Sequence
from enum import Enum


class LastShutdown(Enum):
    """How the last process that had the log open ended."""

    CLEANLY = "cleanly"
    # Killed on the same boot: everything written is there, only the last batch may be torn.
    KILLED = "killed"
    # Power loss, or not known: everything that was not synced may be missing.
    UNKNOWN = "unknown"


def count_trusted(bases: Sequence[int], last_shutdown: LastShutdown, recovery_point: int) -> int:
    """The number of segments, from the first on, that need no check."""
    if last_shutdown is LastShutdown.CLEANLY:
        return len(bases)
    if last_shutdown is LastShutdown.KILLED:
        return len(bases) - 1
    return sum(1 for end_offset in bases[1:] if end_offset <= recovery_point)
