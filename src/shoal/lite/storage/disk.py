"""The one way in which a broker reads and writes logs and forces them to the disk.

A disk can be made to fail on purpose, to see what a broker does then. That is one value for the
whole process; while there is none, it costs one comparison for each write.

Rules of this file:
- A write is whole, or it is an `OSError` that leaves a part of it or nothing: as on a real disk.
- A slow disk holds up the whole process, for that is what a slow disk does to it.
"""

import errno
import os
import time
from dataclasses import dataclass
from typing import Annotated

from shoal.model.errors import ConfigError

Data = bytes | bytearray | memoryview
_LONGEST_DELAY_MS = 3_600_000


@dataclass(slots=True)
class DiskFault:
    """What is wrong with the disk of this process. Errors are named as in `errno`: EIO, ENOSPC."""

    # Every read of a log, every write, or every forcing to the disk, fails with this error.
    reads: Annotated[str | None, "reads"] = None
    writes: Annotated[str | None, "writes"] = None
    syncs: Annotated[str | None, "syncs"] = None
    # Before a write, and before a forcing, so long.
    delay_ms: Annotated[float, "delay_ms"] = 0
    # So much can still be written; then the disk is full (ENOSPC).
    room_bytes: Annotated[int | None, "room_bytes"] = None

    def __post_init__(self) -> None:
        for name in (self.reads, self.writes, self.syncs):
            if name is not None and not hasattr(errno, name):
                raise ConfigError(f"{name!r} is no error of a disk", remedy="EIO or ENOSPC, say")
        if not 0 <= self.delay_ms <= _LONGEST_DELAY_MS:
            raise ConfigError(f"{self.delay_ms} ms is no delay of a disk", remedy="0 to an hour")
        room_bytes = 0 if self.room_bytes is None else self.room_bytes
        if room_bytes < 0 or int(room_bytes) != room_bytes:
            raise ConfigError(f"no disk has room for {room_bytes} bytes")

    def read(self, descriptor: int, count: int, position: int) -> bytes:
        _raise(self.reads)
        return os.pread(descriptor, count, position)

    def write(self, descriptor: int, data: memoryview, position: int) -> int:
        """Write what this disk lets through; returns how much that was."""
        self._wait()
        _raise(self.writes)
        if self.room_bytes is not None:
            if self.room_bytes == 0 and data:
                _raise("ENOSPC")
            data = data[: self.room_bytes]
            self.room_bytes -= len(data)
        return os.pwrite(descriptor, data, position)

    def sync(self, descriptor: int) -> None:
        self._wait()
        _raise(self.syncs)
        os.fsync(descriptor)

    def _wait(self) -> None:
        if self.delay_ms:
            time.sleep(self.delay_ms / 1000)


_fault: DiskFault | None = None


def set_fault(fault: DiskFault | None) -> None:
    """Let the disk of this process fail from now on; None mends it."""
    global _fault  # noqa: PLW0603 - a process has one disk
    _fault = fault


def read(descriptor: int, count: int, position: int) -> bytes:
    """So many bytes from a position; fewer only at the end of the file."""
    if _fault is not None:
        return _fault.read(descriptor, count, position)
    return os.pread(descriptor, count, position)


def write_whole(descriptor: int, data: Data, position: int) -> None:
    """Write all of `data` at `position`, or raise `OSError`."""
    written = _write(descriptor, data, position)
    if written == len(data):
        return
    # A disk that fills up takes a part and refuses the rest at the next try.
    view = memoryview(data)
    while written < len(view):
        written += _write(descriptor, view[written:], position + written)


def _write(descriptor: int, data: Data, position: int) -> int:
    if _fault is not None:
        return _fault.write(descriptor, memoryview(data), position)
    return os.pwrite(descriptor, data, position)


def sync(descriptor: int) -> None:
    """Force what was written to the disk."""
    if _fault is not None:
        _fault.sync(descriptor)
    else:
        os.fsync(descriptor)


def _raise(name: str | None) -> None:
    if name is not None:
        number = getattr(errno, name)
        raise OSError(number, os.strerror(number))
