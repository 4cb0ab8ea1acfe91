"""Entries of a segment's two indexes, in Apache Kafka's formats, and how to search them.

    offset index   last offset of a batch minus the segment's base   4 bytes
                   where that batch begins in the file               4
    time index     the largest timestamp up to some batch            8
                   last offset of the batch that has it, minus base  4

Rules of this file:
- Indexes are sparse and only hints: they are rebuilt from the log when in doubt.
- Entries ascend in both columns, so either column can be searched.
- Entries of the active segment are in memory; those of all others are searched in their files.
"""

import os
import struct
from array import array
from bisect import bisect_right
from pathlib import Path
from typing import Protocol

OFFSET_ENTRY = struct.Struct(">II")
TIME_ENTRY = struct.Struct(">qI")

IndexEntry = tuple[int, int]


class Entries(Protocol):
    """Pairs of numbers that ascend in both columns."""

    def last(self) -> IndexEntry | None: ...
    def floor_by_first(self, value: int) -> IndexEntry | None: ...
    def floor_by_second(self, value: int) -> IndexEntry | None: ...


class MemoryEntries:
    """The entries of the active segment, in memory."""

    __slots__ = ("_first", "_layout", "_second")

    def __init__(self, layout: struct.Struct, data: bytes = b"") -> None:
        """Read the entries of a file; an incomplete last one, left by a crash, is dropped."""
        self._layout = layout
        self._first = array("q")
        self._second = array("I")
        for first, second in layout.iter_unpack(data[: len(data) - len(data) % layout.size]):
            self.append(first, second)

    def __len__(self) -> int:
        return len(self._first)

    def append(self, first: int, second: int) -> None:
        self._first.append(first)
        self._second.append(second)

    def encode(self) -> bytes:
        """The bytes of an index file."""
        return b"".join(map(self._layout.pack, self._first, self._second))

    def last(self) -> IndexEntry | None:
        return self._entry(len(self._first))

    def floor_by_first(self, value: int) -> IndexEntry | None:
        return self._entry(bisect_right(self._first, value))

    def floor_by_second(self, value: int) -> IndexEntry | None:
        return self._entry(bisect_right(self._second, value))

    def _entry(self, count: int) -> IndexEntry | None:
        """The last of the first `count` entries."""
        return (self._first[count - 1], self._second[count - 1]) if count else None


class FileEntries:
    """The entries of a sealed segment: searched in the file with a few small reads."""

    __slots__ = ("_layout", "_path")

    def __init__(self, path: Path, layout: struct.Struct) -> None:
        self._path = path
        self._layout = layout

    def last(self) -> IndexEntry | None:
        return self._floor(0, None)

    def floor_by_first(self, value: int) -> IndexEntry | None:
        return self._floor(0, value)

    def floor_by_second(self, value: int) -> IndexEntry | None:
        return self._floor(1, value)

    def _floor(self, column: int, value: int | None) -> IndexEntry | None:
        """The last entry, or the last whose column is not above `value`."""
        size = self._layout.size
        descriptor = os.open(self._path, os.O_RDONLY)

        def entry(number: int) -> IndexEntry:
            first, second = self._layout.unpack(os.pread(descriptor, size, number * size))
            return first, second

        try:
            count = os.fstat(descriptor).st_size // size
            if value is not None:
                count = bisect_right(range(count), value, key=lambda number: entry(number)[column])
            return entry(count - 1) if count else None
        finally:
            os.close(descriptor)


def relative_offset_before_time(times: Entries, timestamp_ms: int) -> int:
    """An offset before which every record is older than `timestamp_ms`.

    The entry is the last one that is strictly older: everything up to its offset is older too.
    """
    entry = times.floor_by_first(timestamp_ms - 1)
    return entry[1] if entry else 0


class IndexBuilder:
    """Decides which batches get entries, as Apache Kafka does: one per interval of bytes."""

    __slots__ = (
        "_base_offset",
        "_bytes_since_entry",
        "_interval_bytes",
        "_newest_entry_ms",
        "max_timestamp_ms",
        "max_timestamp_offset",
        "offsets",
        "times",
    )

    def __init__(self, base_offset: int, interval_bytes: int) -> None:
        self._base_offset = base_offset
        self._interval_bytes = interval_bytes
        self._bytes_since_entry = 0
        self.max_timestamp_ms = -1
        # Last offset of the first batch that has the largest timestamp.
        self.max_timestamp_offset = base_offset
        self.offsets = MemoryEntries(OFFSET_ENTRY)
        self.times = MemoryEntries(TIME_ENTRY)
        # The timestamp of the last entry of `times`; None without entries.
        self._newest_entry_ms: int | None = None

    def resume(self, *, offsets: bytes, times: bytes) -> None:
        """Continue with entries that were written earlier and are known to be valid."""
        self.offsets = MemoryEntries(OFFSET_ENTRY, offsets)
        self.times = MemoryEntries(TIME_ENTRY, times)
        newest = self.times.last()
        if newest is not None:
            self.max_timestamp_ms = self._newest_entry_ms = newest[0]
            self.max_timestamp_offset = self._base_offset + newest[1]

    def add(self, position: int, size: int, *, last_offset: int, max_timestamp_ms: int) -> None:
        """Add a batch that begins at `position`."""
        if max_timestamp_ms > self.max_timestamp_ms:
            self.max_timestamp_ms = max_timestamp_ms
            self.max_timestamp_offset = last_offset
        if self._bytes_since_entry > self._interval_bytes:
            self.offsets.append(last_offset - self._base_offset, position)
            if self.max_timestamp_ms != self._newest_entry_ms:
                self._add_time()
            self._bytes_since_entry = 0
        self._bytes_since_entry += size

    def is_full(self, most_bytes: int) -> bool:
        """Whether the indexes have reached their size limit. The time index keeps room for the
        entry that sealing adds."""
        return (
            len(self.offsets) >= most_bytes // OFFSET_ENTRY.size
            or len(self.times) >= most_bytes // TIME_ENTRY.size - 1
        )

    def seal(self) -> None:
        """Add the largest timestamp of the segment as the last entry of the time index."""
        if self.max_timestamp_ms >= 0:
            self._add_time()

    def _add_time(self) -> None:
        newest_ms = self._newest_entry_ms
        if newest_ms is None or self.max_timestamp_ms > newest_ms:
            self.times.append(self.max_timestamp_ms, self.max_timestamp_offset - self._base_offset)
            self._newest_entry_ms = self.max_timestamp_ms
