"""The aborted transactions of a segment, in one file for each segment that has such a marker.

    00000000000000000042.txnindex, entries of 34 bytes, in Apache Kafka's format:
        version (0)                                                      2 bytes
        producer id                                                      8
        first offset of the transaction                                  8
        offset of its marker, which lies in this segment                 8
        last stable offset after it ended                                8

Rules of this file:
- A segment without entries has no file.
- Entries are in the order of their markers, and last stable offsets do not decrease: a reader may
  stop at the first entry whose last stable offset reaches the end of what it reads.
- Like the other indexes it is a hint until it is known to be valid, and can be rebuilt from the
  log.
"""

import os
import struct
from collections.abc import Iterator
from pathlib import Path

from shoal.lite.storage.disk import write_whole
from shoal.lite.storage.scan import DamagedLog
from shoal.lite.storage.state.producer_state import EndedTransaction

TRANSACTION_INDEX_SUFFIX = ".txnindex"
_ENTRY = struct.Struct(">hqqqq")
_VERSION = 0


class TransactionIndex:
    """The aborted transactions whose markers lie in one segment."""

    __slots__ = ("_path", "_size")

    def __init__(self, path: Path) -> None:
        self._path = path
        self._size = path.stat().st_size if path.exists() else 0
        self._size -= self._size % _ENTRY.size

    def add(self, ended: EndedTransaction) -> None:
        """Append an aborted transaction."""
        entry = _ENTRY.pack(
            _VERSION,
            ended.producer_id,
            ended.first_offset,
            ended.last_offset,
            ended.last_stable_offset,
        )
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            write_whole(descriptor, entry, self._size)
        finally:
            os.close(descriptor)
        self._size += _ENTRY.size

    def __bool__(self) -> bool:
        return self._size > 0

    def __iter__(self) -> Iterator[EndedTransaction]:
        if not self._size:
            return
        data = self._path.read_bytes()[: self._size]
        if len(data) < self._size:
            raise DamagedLog(f"{self._path.name} is shorter than what was written to it")
        for _, producer_id, first, last, last_stable in _ENTRY.iter_unpack(data):
            yield EndedTransaction(producer_id, first, last, True, last_stable)

    def truncate(self, end_offset: int) -> None:
        """Remove the entries of markers at or above `end_offset`."""
        if not self._size:
            return
        kept = sum(1 for entry in self if entry.last_offset < end_offset)
        if kept:
            self._size = kept * _ENTRY.size
            os.truncate(self._path, self._size)
        else:
            self.delete()

    def delete(self) -> None:
        self._path.unlink(missing_ok=True)
        self._size = 0
