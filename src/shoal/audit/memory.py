"""Settings of a process that runs many tasks, so that each task costs less.

A cell allocates hundreds of arrays of a few megabytes, one after another. By default glibc returns
each of them to the kernel at once and gets new, zeroed pages for the next, which costs a third of
an audit's CPU. `keep_freed_memory` makes glibc keep the freed memory. On other systems nothing
changes.

After each task PySpark runs the garbage collector over all objects of a worker. Most of them belong
to modules that stay loaded; without those, a collection takes a twentieth of the time.
"""

import ctypes
import functools
import gc
from contextlib import suppress
from typing import Final

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_LARGEST_KEPT_BYTES: Final = 32 << 20  # the largest that glibc allows
_MOST_KEPT_BYTES: Final = 1 << 30


@functools.cache
def keep_freed_memory() -> None:
    """Make glibc keep freed memory. Has an effect once per process."""
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT_BYTES)
        libc.mallopt(_M_TRIM_THRESHOLD, _MOST_KEPT_BYTES)


@functools.cache
def freeze_loaded_objects() -> None:
    """Exclude all current objects from garbage collection. Has an effect once per process.

    Call it after the first task: nearly all modules are loaded then.
    """
    gc.collect()
    gc.freeze()
