"""Whether the clock of this machine is good enough to measure latencies."""

import ctypes
import sys
import time
from typing import Final

TOLERATED_DRIFT_US: Final = 2_000

_TIME_ERROR: Final = 5
_TIMEX_BYTES: Final = 512  # more than the kernel's struct timex, which it fills


def wall_drift_us(duration_s: float) -> int:
    """How far the wall clock moved against the monotonic one in `duration_s`: 0 unless it jumps."""
    wall_ns, steady_ns = time.time_ns(), time.monotonic_ns()
    time.sleep(duration_s)
    return (time.time_ns() - wall_ns - (time.monotonic_ns() - steady_ns)) // 1000


def is_synchronised() -> bool | None:
    """Whether the kernel reports a synchronised clock; None if it does not report that."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        library = ctypes.CDLL(None, use_errno=True)
        # A timex of zeros only reads the state.
        state = int(library.adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES)))
    except (OSError, AttributeError):
        return None
    return None if state < 0 else state != _TIME_ERROR
