"""The file of a member's log: entries as record batches, one after the other.

Rules of this file:
- A write is on the disk when the call returns.
- The file may end in a torn write. `recover` truncates everything after the last whole,
  undamaged batch that fits. Nothing in that part was ever acknowledged, for an acknowledgement
  waits for the sync.
- What `recover` returns is on the disk too: a killed process may have left bytes that are only
  in the page cache.
"""

import logging
import os
from bisect import bisect_left
from pathlib import Path

from shoal.lite.raft.errors import require
from shoal.lite.raft.model import RaftEntry
from shoal.lite.raft.storage.codec import decode_entry, encode_entry
from shoal.lite.raft.storage.small_files import RESTORE_DISK
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
    def open_newest(cls, folder: Path) -> "LogFile":
        """Open the newest log; an older one is left by a crash while a snapshot was stored."""
        bases = [int(path.stem) for path in folder.glob(f"*{_SUFFIX}")]
        if not bases:
            raise DamagedFile(f"the log in {folder} is missing", remedy=RESTORE_DISK)
        return cls(folder, max(bases))

    def recover(self) -> list[RaftEntry]:
        """Return all whole entries, and truncate the file after them."""
        file_size = os.fstat(self._descriptor).st_size
        entries: list[RaftEntry] = []
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
            self._index_entry(entry, position)
            self._size = position + header.size
        if self._size < file_size:
            _logger.warning(
                "%s: truncated %d bytes of an incomplete write at the end",
                self.path,
                file_size - self._size,
            )
            os.ftruncate(self._descriptor, self._size)
        sync(self._descriptor)
        return entries

    def _index_entry(self, entry: RaftEntry, position: int) -> None:
        self._offsets.append(self.end_offset)
        self._positions.append(position)
        self.end_offset += entry.count

    def append(self, entries: tuple[RaftEntry, ...]) -> None:
        """Append entries in one write."""
        data = bytearray()
        for entry in entries:
            batch = encode_entry(entry, self.end_offset)
            self._index_entry(entry, self._size + len(data))
            data += batch
        write_whole(self._descriptor, data, self._size)
        sync(self._descriptor)
        self._size += len(data)

    def truncate_to(self, offset: int) -> None:
        """Truncate and sync: later entries must not mix with the removed ones."""
        index = self._index_of(offset)
        self._size = self._position(index)
        self.end_offset = offset
        del self._offsets[index:]
        del self._positions[index:]
        os.ftruncate(self._descriptor, self._size)
        sync(self._descriptor)

    def has_boundary(self, offset: int) -> bool:
        """Whether an entry begins at `offset`, or the log ends there."""
        index = bisect_left(self._offsets, offset)
        return offset == self.end_offset or self._offsets[index : index + 1] == [offset]

    def bytes_from(self, offset: int) -> bytes:
        """Everything from the entry that begins at `offset`."""
        start = self._position(self._index_of(offset))
        return self._read_at(start, self._size - start)

    def _index_of(self, offset: int) -> int:
        require(self.has_boundary(offset), f"no entry of {self.path} begins at {offset}")
        return bisect_left(self._offsets, offset)

    def _position(self, index: int) -> int:
        return self._positions[index] if index < len(self._positions) else self._size

    def _read_at(self, position: int, count: int) -> bytes:
        return os.pread(self._descriptor, count, position)

    def close(self) -> None:
        os.close(self._descriptor)


def log_path(folder: Path, base_offset: int) -> Path:
    return folder / f"{base_offset:020d}{_SUFFIX}"


def create_log(folder: Path, base_offset: int, content: bytes = b"") -> None:
    """Create a log file with whole batches, or an empty one. It appears atomically."""
    replace_file(log_path(folder, base_offset), content)
