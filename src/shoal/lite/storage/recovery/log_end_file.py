"""The exact log end of each log of a broker, to tell data loss from a torn write after a kill.

A kill can tear the batch that is being written. Nothing is lost then, because the batch was not
acknowledged. The same file with an older batch missing has lost data. Only the recorded log end can
tell the two cases apart.

Rules of this file:
- A mark is raised after the write, and lowered before a truncation: everything below it was in the
  file.
- The marks of all logs are in one file that is mapped into memory. Setting one needs no system
  call, and the kernel keeps it when the process is killed.
- After a power loss the marks are ignored: they may be older or newer than the logs.
- The file is next to the folders of the logs, so that a missing folder is detected too. If the file
  itself is missing or damaged, no log end is known.
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
# Topic id, partition, and log end offset plus one; 0 marks a free slot.
_SLOT: Final = Struct(">16sQQ")
_END: Final = Struct(">Q")
_END_POSITION: Final = 24
_FIRST_SLOTS: Final = 128

Key = tuple[UUID, int]


class LogEndMark:
    """The mark of one log. `known` is its value when the process started, or None."""

    __slots__ = ("_marks", "_position", "known")

    def __init__(self, marks: "LogEndFile", position: int, known: int | None) -> None:
        self._marks = marks
        self._position = position
        self.known = known

    def set(self, end_offset: int) -> None:
        _END.pack_into(self._marks.content, self._position, end_offset + 1)


class NoLogEndMark(LogEndMark):
    """For a log without a mark."""

    __slots__ = ()

    def __init__(self) -> None:
        self.known = None

    def set(self, end_offset: int) -> None:
        pass


class LogEndFile:
    """The file of a broker; one process uses it at a time."""

    def __init__(self, folder: Path, *, is_trusted: bool) -> None:
        """`is_trusted`: there was no power loss since the last process ended."""
        self._path = folder / FILE_NAME
        found = self._path.stat().st_size if self._path.exists() else 0
        size = max(found // _SLOT.size, _FIRST_SLOTS) * _SLOT.size
        self.content = self._map_file(min(found, size), size)
        self._slots: dict[Key, int] = {}
        self._known: dict[Key, int] = {}
        self._free: list[int] = []
        for position in range(0, size, _SLOT.size):
            self._read(position, is_trusted=is_trusted)

    def _read(self, position: int, *, is_trusted: bool) -> None:
        topic_id, partition, end = _SLOT.unpack_from(self.content, position)
        key = UUID(bytes=topic_id), partition
        if not end or key in self._slots:
            self._free.append(position)
            return
        self._slots[key] = position
        if is_trusted:
            self._known[key] = end - 1

    def of(self, key: Key) -> LogEndMark:
        """The mark of a log; its value does not change until it is set."""
        position = self._slots.get(key)
        if position is None:
            if not self._free:
                self._grow()
            position = self._slots[key] = self._free.pop()
            _SLOT.pack_into(self.content, position, key[0].bytes, key[1], 1)
        return LogEndMark(self, position + _END_POSITION, self._known.get(key))

    def drop(self, key: Key) -> None:
        """Remove the mark of a deleted log."""
        self._known.pop(key, None)
        position = self._slots.pop(key, None)
        if position is not None:
            _SLOT.pack_into(self.content, position, bytes(16), 0, 0)
            self._free.append(position)

    def keep(self, keys: Collection[Key]) -> None:
        """Remove the marks of all other logs."""
        for key in self._slots.keys() - keys:
            self.drop(key)

    def _map_file(self, size: int, new_size: int) -> mmap.mmap:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            # Write zeros instead of extending the file: a full disk must fail here, not in `set`.
            write_whole(descriptor, bytes(new_size - size), size)
            return mmap.mmap(descriptor, new_size)
        finally:
            os.close(descriptor)

    def _grow(self) -> None:
        size = len(self.content)
        self.content = self._map_file(size, 2 * size)
        self._free += range(size, 2 * size, _SLOT.size)

    def close(self) -> None:
        """Sync the marks to disk, and close the file."""
        self.content.flush()
        self.content.close()
