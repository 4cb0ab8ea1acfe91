"""What a process that does many tasks need not do for each of them.

A cell takes hundreds of arrays of a few megabytes, one after another. By default glibc returns
each of them to the kernel at once and gets fresh pages for the next, zeroed one by one, which
costs a third of an audit's CPU. Here it is told to keep what was freed. Elsewhere nothing changes.

After each task PySpark looks through all objects of a worker for garbage, most of which are modules
that are there for good; without those it takes a twentieth of the time.
"""

import ctypes
import functools
import gc
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


@functools.cache
def spare_what_is_loaded() -> None:
    """Once for each process, after its first task: then nearly all modules are there."""
    gc.collect()
    gc.freeze()
