"""Entries of a segment's two indexes, in Apache Kafka's formats, and how to search them.

    offset index   last offset of a batch minus the segment's base   4 bytes
                   where that batch begins in the file               4
    time index     the largest timestamp up to some batch            8
                   last offset of the batch that has it, minus base  4

Rules of this file:
- Indexes are sparse and only hints: the log is right, they are rebuilt from it when in doubt.
- Entries ascend in both columns, so either column can be searched.
- The same search serves entries in memory (the segment being written) and in a file (all
  others, which keep nothing in memory).
"""

import struct
from bisect import bisect_right
from collections.abc import Sequence
from typing import Protocol, overload

OFFSET_ENTRY = struct.Struct(">II")
TIME_ENTRY = struct.Struct(">qI")

Entry = tuple[int, int]


class Entries(Protocol):
    """Pairs of numbers, by place; the last is `entries[-1]`, if there is one."""

    def __len__(self) -> int: ...
    def __getitem__(self, place: int, /) -> Entry: ...


class MemoryEntries(Sequence[Entry]):
    """Entries in the bytes that a file would hold."""

    __slots__ = ("_layout", "data")

    def __init__(self, layout: struct.Struct, data: bytes = b"") -> None:
        """A cut last entry, as a crash may leave it, is dropped."""
        self._layout = layout
        self.data = bytearray(data[: len(data) - len(data) % layout.size])

    def __len__(self) -> int:
        return len(self.data) // self._layout.size

    @overload
    def __getitem__(self, place: int, /) -> Entry: ...
    @overload
    def __getitem__(self, place: slice, /) -> Sequence[Entry]: ...
    def __getitem__(self, place: int | slice, /) -> Entry | Sequence[Entry]:
        if isinstance(place, slice):
            return [self[index] for index in range(*place.indices(len(self)))]
        start = place * self._layout.size
        if place < 0:
            start += len(self.data)
        if not 0 <= start < len(self.data):
            raise IndexError(place)
        return self._layout.unpack_from(self.data, start)

    def append(self, first: int, second: int) -> None:
        self.data += self._layout.pack(first, second)


def position_before_offset(entries: Entries, relative_offset: int) -> int:
    """Where to begin looking for the batch that holds an offset: never behind that batch.

    An entry names the last offset of its batch, so an entry at or below the wanted offset
    stands at that batch or before it.
    """
    place = bisect_right(range(len(entries)), relative_offset, key=lambda i: entries[i][0])
    return entries[place - 1][1] if place else 0


def position_before_position(entries: Entries, position: int) -> int:
    """The last known beginning of a batch that is not behind `position`."""
    place = bisect_right(range(len(entries)), position, key=lambda i: entries[i][1])
    return entries[place - 1][1] if place else 0


def relative_offset_before_time(entries: Entries, timestamp_ms: int) -> int:
    """An offset before which every record is older than `timestamp_ms`.

    The entry is the last one that is strictly older: everything up to its offset is older too.
    """
    place = bisect_right(range(len(entries)), timestamp_ms - 1, key=lambda i: entries[i][0])
    return entries[place - 1][1] if place else 0


class IndexBuilder:
    """Decides which batches get entries, as Apache Kafka does: one every so many bytes."""

    __slots__ = (
        "_base_offset",
        "_bytes_since_entry",
        "_interval_bytes",
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

    def resume(self, *, offsets: bytes, times: bytes) -> None:
        """Take over entries that were written earlier and are known to be right."""
        self.offsets = MemoryEntries(OFFSET_ENTRY, offsets)
        self.times = MemoryEntries(TIME_ENTRY, times)
        if self.times:
            self.max_timestamp_ms, relative_offset = self.times[-1]
            self.max_timestamp_offset = self._base_offset + relative_offset

    def add(self, position: int, size: int, *, last_offset: int, max_timestamp_ms: int) -> None:
        """Note a batch that begins at `position`."""
        if max_timestamp_ms > self.max_timestamp_ms:
            self.max_timestamp_ms = max_timestamp_ms
            self.max_timestamp_offset = last_offset
        if self._bytes_since_entry > self._interval_bytes:
            self.offsets.append(last_offset - self._base_offset, position)
            self._add_time()
            self._bytes_since_entry = 0
        self._bytes_since_entry += size

    def seal(self) -> None:
        """The last entry of a time index is the largest timestamp of its segment."""
        if self.max_timestamp_ms >= 0:
            self._add_time()

    def _add_time(self) -> None:
        if not self.times or self.max_timestamp_ms > self.times[-1][0]:
            self.times.append(self.max_timestamp_ms, self.max_timestamp_offset - self._base_offset)
