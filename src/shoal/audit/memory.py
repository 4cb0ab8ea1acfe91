"""Memory that is used over and over again.

A cell takes hundreds of arrays of a few megabytes, one after another. By default glibc returns
each of them to the kernel at once and gets fresh pages for the next, zeroed one by one, which
costs a third of an audit's CPU. Here it is told to keep what was freed. Elsewhere nothing changes.
"""

import ctypes
import functools
from contextlib import suppress
from typing import Final

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_LARGEST_KEPT_BYTES: Final = 32 << 20  # glibc allows no more
_MOST_KEPT_BYTES: Final = 1 << 30


@functools.cache
def keep_freed_memory() -> None:
    """Once for each process."""
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT_BYTES)
        libc.mallopt(_M_TRIM_THRESHOLD, _MOST_KEPT_BYTES)
