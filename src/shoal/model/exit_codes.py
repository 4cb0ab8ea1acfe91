"""Exit codes of every command, stable and documented in `docs/reference/exit-codes.md`."""

from enum import IntEnum


class ExitCode(IntEnum):
    PROVEN = 0
    UNEXPECTED = 1
    USAGE = 2
    UNREACHABLE = 3
    VIOLATED = 4
    INCONCLUSIVE = 5
    THRESHOLDS_FAILED = 99
    INVALID_CONFIG = 104
    INTERRUPTED = 105
