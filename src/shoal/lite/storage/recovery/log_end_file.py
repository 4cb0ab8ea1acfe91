"""Up to where each log of a broker is written, told exactly: by that a loss is known from a kill.

A kill can tear the batch that is being written, and nobody misses it: it was told to no one. The
same file with an older batch cut off has lost something. Only who knows how far the file was
written can tell the two apart.

Rules of this file:
- A mark is set after the write, and taken back before a cut: what lies below it was in the file.
- The marks of all logs are in one file that is mapped into memory. Setting one costs no call of
  the system, and what was set is in the kernel's hands when the process is killed.
- After a power loss nobody believes the marks: they may be older or newer than the logs.
- The file lies beside the folders of the logs, so that a folder that is gone is missed too. If it
  is itself gone or damaged, nothing is known.
"""

import mmap
import os
from collections.abc import Collection
from pathlib import Path
from struct import Struct
from typing import Final
from uuid import UUID

from shoal.lite.storage.disk import write_whole

FILE_NAME: Final = "log-ends"
# A topic's id, the partition, and the end of its log plus one; 0 is a slot that is free.
_SLOT: Final = Struct(">16sQQ")
_END: Final = Struct(">Q")
_END_POSITION: Final = 24
_FIRST_SLOTS: Final = 128

Key = tuple[UUID, int]


class EndMark:
    """The mark of one log. `known` is what was there when its process began, if anything."""

    __slots__ = ("_marks", "_position", "known")

    def __init__(self, marks: "EndMarks", position: int, known: int | None) -> None:
        self._marks = marks
        self._position = position
        self.known = known

    def set(self, end_offset: int) -> None:
        _END.pack_into(self._marks.content, self._position, end_offset + 1)


class NoMark(EndMark):
    """For a log that nobody keeps a mark of."""

    __slots__ = ()

    def __init__(self) -> None:
        self.known = None

    def set(self, end_offset: int) -> None:
        pass


class EndMarks:
    """The file of a broker; one process has it at a time."""

    def __init__(self, folder: Path, *, is_believed: bool) -> None:
        """`is_believed`: the machine went on since the last process ended."""
        self._path = folder / FILE_NAME
        found = self._path.stat().st_size if self._path.exists() else 0
        size = max(found // _SLOT.size, _FIRST_SLOTS) * _SLOT.size
        self.content = self._mapped(min(found, size), size)
        self._slots: dict[Key, int] = {}
        self._known: dict[Key, int] = {}
        self._free: list[int] = []
        for position in range(0, size, _SLOT.size):
            self._read(position, is_believed=is_believed)

    def _read(self, position: int, *, is_believed: bool) -> None:
        topic_id, partition, end = _SLOT.unpack_from(self.content, position)
        key = UUID(bytes=topic_id), partition
        if not end or key in self._slots:
            self._free.append(position)
            return
        self._slots[key] = position
        if is_believed:
            self._known[key] = end - 1

    def of(self, key: Key) -> EndMark:
        """The mark of a log, which stays as it is until it is set."""
        position = self._slots.get(key)
        if position is None:
            if not self._free:
                self._grow()
            position = self._slots[key] = self._free.pop()
            _SLOT.pack_into(self.content, position, key[0].bytes, key[1], 1)
        return EndMark(self, position + _END_POSITION, self._known.get(key))

    def drop(self, key: Key) -> None:
        """A log is deleted."""
        self._known.pop(key, None)
        position = self._slots.pop(key, None)
        if position is not None:
            _SLOT.pack_into(self.content, position, bytes(16), 0, 0)
            self._free.append(position)

    def keep(self, keys: Collection[Key]) -> None:
        """Forget the logs that are not among these."""
        for key in self._slots.keys() - keys:
            self.drop(key)

    def _mapped(self, size: int, new_size: int) -> mmap.mmap:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            # Written, not just made longer: a full disk must not show when a mark is set.
            write_whole(descriptor, bytes(new_size - size), size)
            return mmap.mmap(descriptor, new_size)
        finally:
            os.close(descriptor)

    def _grow(self) -> None:
        size = len(self.content)
        self.content = self._mapped(size, 2 * size)
        self._free += range(size, 2 * size, _SLOT.size)

    def close(self) -> None:
        """Bring the marks to the disk, like the logs."""
        self.content.flush()
        self.content.close()
