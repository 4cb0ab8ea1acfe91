"""All reads, writes and syncs of log files, and the faults that tests inject into them.

A fault is one value for the whole process; without one it costs one comparison per write.

Rules of this file:
- A write is complete, or it raises `OSError` after writing a part or nothing, as a real disk does.
- A slow disk blocks the whole process, because that is what a slow disk does to it.
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
    """The injected fault of this process's disk. Errors are named as in `errno`: EIO, ENOSPC."""

    # The error of every read, of every write, and of every sync.
    reads: Annotated[str | None, "reads"] = None
    writes: Annotated[str | None, "writes"] = None
    syncs: Annotated[str | None, "syncs"] = None
    # The delay before each write and each sync.
    delay_ms: Annotated[float, "delay_ms"] = 0
    # How many bytes can still be written before the disk is full (ENOSPC).
    room_bytes: Annotated[int | None, "room_bytes"] = None

    def __post_init__(self) -> None:
        for name in (self.reads, self.writes, self.syncs):
            if name is not None and not hasattr(errno, name):
                raise ConfigError(f"{name!r} is not a disk error", remedy="use EIO or ENOSPC")
        if not 0 <= self.delay_ms <= _LONGEST_DELAY_MS:
            message = f"a disk delay of {self.delay_ms} ms is not possible"
            raise ConfigError(message, remedy="use 0 to 3600000 ms, which is one hour")
        room_bytes = 0 if self.room_bytes is None else self.room_bytes
        if room_bytes < 0 or int(room_bytes) != room_bytes:
            raise ConfigError(f"room_bytes={room_bytes} is not valid", remedy="use 0 or more")

    def read(self, descriptor: int, count: int, position: int) -> bytes:
        _raise(self.reads)
        return os.pread(descriptor, count, position)

    def write(self, descriptor: int, data: memoryview, position: int) -> int:
        """Write as much as this disk accepts; returns the number of bytes."""
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
    """Inject a fault into the disk of this process; None removes it."""
    global _fault  # noqa: PLW0603 - a process has one disk
    _fault = fault


def read(descriptor: int, count: int, position: int) -> bytes:
    """Read `count` bytes at `position`; fewer only at the end of the file."""
    if _fault is not None:
        return _fault.read(descriptor, count, position)
    return os.pread(descriptor, count, position)


def write_whole(descriptor: int, data: Data, position: int) -> None:
    """Write all of `data` at `position`, or raise `OSError`."""
    written = _write(descriptor, data, position)
    if written == len(data):
        return
    # A full disk accepts a part of the data; the next write raises the error.
    view = memoryview(data)
    while written < len(view):
        written += _write(descriptor, view[written:], position + written)


def _write(descriptor: int, data: Data, position: int) -> int:
    if _fault is not None:
        return _fault.write(descriptor, memoryview(data), position)
    return os.pwrite(descriptor, data, position)


def sync(descriptor: int) -> None:
    """Sync the file to disk."""
    if _fault is not None:
        _fault.sync(descriptor)
    else:
        os.fsync(descriptor)


def _raise(name: str | None) -> None:
    if name is not None:
        number = getattr(errno, name)
        raise OSError(number, os.strerror(number))
