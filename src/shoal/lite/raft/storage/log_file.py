"""The file of a member's log: entries as record batches, one behind the other.

Rules of this file:
- A write is on the disk when the call returns.
- The file may end in a torn write. `recover` cuts off what is not a whole, undamaged, fitting
  batch. Nothing in there was ever promised, for a promise waits for the sync.
- What `recover` returns is on the disk too: a process that was killed may have left bytes that
  only the kernel knows.
"""

import logging
import os
from bisect import bisect_left
from pathlib import Path

from shoal.lite.raft.errors import require
from shoal.lite.raft.model import Entry
from shoal.lite.raft.storage.codec import decode_entry, encode_entry
from shoal.lite.storage.disk import sync, write_whole
from shoal.lite.storage.files import DamagedFile, replace_file
from shoal.lite.storage.scan import valid_headers
from shoal.model.errors import WireError
from shoal.wire.batch import Batch

_SUFFIX = ".log"
_logger = logging.getLogger(__name__)


class LogFile:
    """An open log. Where each entry begins is kept in memory, their content is not."""

    def __init__(self, folder: Path, base_offset: int) -> None:
        """Open the file, which must exist; call `recover` next."""
        self.path = log_path(folder, base_offset)
        self.base_offset = base_offset
        self.end_offset = base_offset
        self._offsets: list[int] = []
        self._positions: list[int] = []
        self._size = 0
        self._descriptor = os.open(self.path, os.O_RDWR)

    @classmethod
    def newest(cls, folder: Path) -> "LogFile":
        """An older one is left only by a crash behind a snapshot."""
        bases = [int(path.stem) for path in folder.glob(f"*{_SUFFIX}")]
        if not bases:
            raise DamagedFile(f"the log in {folder} is missing")
        return cls(folder, max(bases))

    def recover(self) -> list[Entry]:
        """All entries that are whole; the file is cut behind them."""
        file_size = os.fstat(self._descriptor).st_size
        entries: list[Entry] = []
        for position, header in valid_headers(self._read_at, file_size, self.base_offset):
            try:
                entry = decode_entry(Batch(memoryview(self._read_at(position, header.size))))
            except WireError:
                break
            if header.base_offset != self.end_offset:
                break
            if entries and entry.epoch < entries[-1].epoch:
                break
            entries.append(entry)
            self._note(entry, position)
            self._size = position + header.size
        if self._size < file_size:
            _logger.warning("%s: cut %d bytes of a torn end", self.path, file_size - self._size)
            os.ftruncate(self._descriptor, self._size)
        sync(self._descriptor)
        return entries

    def _note(self, entry: Entry, position: int) -> None:
        self._offsets.append(self.end_offset)
        self._positions.append(position)
        self.end_offset += entry.count

    def append(self, entries: tuple[Entry, ...]) -> None:
        """Write entries behind the others, in one piece."""
        data = bytearray()
        for entry in entries:
            batch = encode_entry(entry, self.end_offset)
            self._note(entry, self._size + len(data))
            data += batch
        write_whole(self._descriptor, data, self._size)
        sync(self._descriptor)
        self._size += len(data)

    def truncate_to(self, offset: int) -> None:
        """Cut, and force that to the disk: what follows must not mix with what was there."""
        place = self._place(offset)
        self._size = self._position(place)
        self.end_offset = offset
        del self._offsets[place:]
        del self._positions[place:]
        os.ftruncate(self._descriptor, self._size)
        sync(self._descriptor)

    def has_boundary(self, offset: int) -> bool:
        """Whether an entry begins at `offset`, or the log ends there."""
        place = bisect_left(self._offsets, offset)
        return offset == self.end_offset or self._offsets[place : place + 1] == [offset]

    def bytes_from(self, offset: int) -> bytes:
        """Everything from the entry that begins at `offset`."""
        start = self._position(self._place(offset))
        return self._read_at(start, self._size - start)

    def _place(self, offset: int) -> int:
        require(self.has_boundary(offset), f"no entry of {self.path} begins at {offset}")
        return bisect_left(self._offsets, offset)

    def _position(self, place: int) -> int:
        return self._positions[place] if place < len(self._positions) else self._size

    def _read_at(self, position: int, count: int) -> bytes:
        return os.pread(self._descriptor, count, position)

    def close(self) -> None:
        os.close(self._descriptor)


def log_path(folder: Path, base_offset: int) -> Path:
    return folder / f"{base_offset:020d}{_SUFFIX}"


def create_log(folder: Path, base_offset: int, content: bytes = b"") -> None:
    """A new file with whole batches, or none. It is there whole, or not at all."""
    replace_file(log_path(folder, base_offset), content)
