"""How a log was left, and what of it can be trusted."""

from collections.abc import Sequence
from enum import Enum


class Ended(Enum):
    """How the process that last had the log open ended."""

    CLEANLY = "cleanly"
    # Killed, but the machine went on: all that was written is there, only the tail may be torn.
    KILLED = "killed"
    # The machine went down, or nobody knows: anything that was not flushed may be missing.
    UNKNOWN = "unknown"


def trusted_count(bases: Sequence[int], ended: Ended, recovery_point: int) -> int:
    """How many segments from the first on are as they were written."""
    if ended is Ended.CLEANLY:
        return len(bases)
    if ended is Ended.KILLED:
        return len(bases) - 1
    return sum(1 for end_offset in bases[1:] if end_offset <= recovery_point)
