"""One file of record batches and its two indexes.

    00000000000000000042.log         batches, one after the other; the first has offset ≥ 42
    00000000000000000042.index       entries of the offset index
    00000000000000000042.timeindex   entries of the time index

Rules of this file:
- Only the last segment of a log is written to; its indexes live in memory. `seal` writes them
  and lets go of the memory; a sealed segment searches its index files where they lie.
- Positions and offsets that leave a segment are those of whole batches.
- Errors of the disk come out as `OSError`: the log decides what they mean.
"""

import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from shoal.lite.log.files import sync_folder, write_whole
from shoal.lite.log.header import BatchHeader
from shoal.lite.log.indexes import (
    OFFSET_ENTRY,
    TIME_ENTRY,
    Entries,
    Entry,
    IndexBuilder,
    position_before_offset,
    position_before_position,
    relative_offset_before_time,
)
from shoal.lite.log.scan import LARGEST_RELATIVE_OFFSET, Found, headers, valid_headers

LOG_SUFFIX = ".log"
OFFSET_INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"


class Span(NamedTuple):
    """Whole batches: where they begin in the file, and how many bytes they are."""

    position: int
    size: int


class FileEntries:
    """Index entries searched in their file, a few small reads per search."""

    __slots__ = ("_count", "_descriptor", "_layout")

    def __init__(self, descriptor: int, layout: struct.Struct) -> None:
        self._descriptor = descriptor
        self._layout = layout
        self._count = os.fstat(descriptor).st_size // layout.size

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, place: int, /) -> Entry:
        index = place + self._count if place < 0 else place
        data = os.pread(self._descriptor, self._layout.size, index * self._layout.size)
        return self._layout.unpack(data)


class Segment:
    """One open segment. `size` is the length of its valid part, which is all of the file."""

    __slots__ = (
        "_builder",
        "_descriptor",
        "_flushed_size",
        "_folder",
        "_name_is_durable",
        "_stem",
        "base_offset",
        "last_time",
        "size",
    )

    def __init__(self, folder: Path, base_offset: int) -> None:
        """Open the segment, sealed; a missing file is made. Call `resume` or `rebuild` to write."""
        self._folder = folder
        self._stem = f"{base_offset:020d}"
        self.base_offset = base_offset
        self._descriptor = os.open(self._path(LOG_SUFFIX), os.O_RDWR | os.O_CREAT, 0o644)
        self.size = os.fstat(self._descriptor).st_size
        self._builder: IndexBuilder | None = None
        self._name_is_durable = False
        self._flushed_size = -1
        # The largest timestamp of a sealed segment, and the last offset of the batch with it.
        self.last_time: tuple[int, int] = (-1, base_offset)

    def _path(self, suffix: str) -> Path:
        return self._folder / f"{self._stem}{suffix}"

    def read_at(self, position: int, count: int) -> bytes:
        return os.pread(self._descriptor, count, position)

    # Opening

    def create_index(self, interval_bytes: int) -> None:
        """Begin with empty indexes: for a segment that has just been made."""
        self._builder = IndexBuilder(self.base_offset, interval_bytes)
        for suffix in (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            self._path(suffix).write_bytes(b"")

    def rebuild(self, interval_bytes: int, visit: Callable[[BatchHeader], None]) -> tuple[int, int]:
        """Check every batch, cut the file behind the last valid one, make the indexes anew.

        Returns the offset after the last valid batch and how many bytes were cut off.
        """
        builder = IndexBuilder(self.base_offset, interval_bytes)
        next_offset = self.base_offset
        end = 0
        for position, header in valid_headers(self.read_at, self.size, self.base_offset):
            _index(builder, position, header)
            visit(header)
            next_offset = header.last_offset + 1
            end = position + header.size
        cut_bytes = self.size - end
        if cut_bytes:
            os.ftruncate(self._descriptor, end)
            os.fsync(self._descriptor)
            self.size = end
        self._builder = builder
        return next_offset, cut_bytes

    def resume(self, interval_bytes: int) -> int:
        """Go on after a clean end: take the indexes as they are. Returns the next offset."""
        builder = IndexBuilder(self.base_offset, interval_bytes)
        builder.resume(
            offsets=self._path(OFFSET_INDEX_SUFFIX).read_bytes(),
            times=self._path(TIME_INDEX_SUFFIX).read_bytes(),
        )
        next_offset = self.base_offset
        start = builder.offsets[-1][1] if builder.offsets else 0
        for _, header in headers(self.read_at, start, self.size):
            next_offset = header.last_offset + 1
        self._builder = builder
        return next_offset

    def has_indexes(self) -> bool:
        return all(
            self._path(suffix).exists() for suffix in (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)
        )

    def open_sealed(self) -> None:
        """Learn what a sealed segment must know without its indexes in memory."""
        with self._entries(TIME_INDEX_SUFFIX, TIME_ENTRY) as times:
            if len(times):
                timestamp_ms, relative_offset = times[-1]
                self.last_time = (timestamp_ms, self.base_offset + relative_offset)

    # Writing

    def has_room(self, size: int, last_offset: int, segment_bytes: int) -> bool:
        """Whether one more batch may go in; an empty segment takes any."""
        return self.size == 0 or (
            self.size + size <= segment_bytes
            and last_offset - self.base_offset <= LARGEST_RELATIVE_OFFSET
        )

    def append(self, view: memoryview, *, last_offset: int, max_timestamp_ms: int) -> None:
        """Write one batch behind the others; after an `OSError` the file is as it was."""
        builder = self._builder
        assert builder is not None, "a sealed segment is not written to"  # noqa: S101
        position = self.size
        try:
            write_whole(self._descriptor, view, position)
        except OSError:
            os.ftruncate(self._descriptor, position)
            raise
        builder.add(position, len(view), last_offset=last_offset, max_timestamp_ms=max_timestamp_ms)
        self.size = position + len(view)

    def seal(self) -> None:
        """Write the indexes and let go of them."""
        builder = self._builder
        if builder is None:
            return
        builder.seal()
        self._path(OFFSET_INDEX_SUFFIX).write_bytes(builder.offsets.data)
        self._path(TIME_INDEX_SUFFIX).write_bytes(builder.times.data)
        self.last_time = (builder.max_timestamp_ms, builder.max_timestamp_offset)
        self._builder = None

    def flush(self) -> None:
        """Force what was written to the disk, if it is not there yet."""
        if self._flushed_size == self.size and self._name_is_durable:
            return
        os.fsync(self._descriptor)
        self._flushed_size = self.size
        if not self._name_is_durable:
            sync_folder(self._folder)
            self._name_is_durable = True

    def close(self) -> None:
        """Seal and let go of the file."""
        try:
            self.seal()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Let go of the file and leave the indexes as they are on disk."""
        os.close(self._descriptor)

    def delete(self) -> None:
        """Close and remove all files."""
        self.abandon()
        for suffix in (LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            self._path(suffix).unlink(missing_ok=True)

    # Reading

    @property
    def max_time(self) -> tuple[int, int]:
        """The largest timestamp, and the last offset of the first batch that has it."""
        builder = self._builder
        if builder is None:
            return self.last_time
        return builder.max_timestamp_ms, builder.max_timestamp_offset

    @contextmanager
    def _entries(self, suffix: str, layout: struct.Struct) -> Iterator[Entries]:
        builder = self._builder
        if builder is not None:
            yield builder.offsets if layout is OFFSET_ENTRY else builder.times
            return
        descriptor = os.open(self._path(suffix), os.O_RDONLY)
        try:
            yield FileEntries(descriptor, layout)
        finally:
            os.close(descriptor)

    def batches(self, position: int = 0) -> Iterator[Found]:
        """Every batch from the one at `position`, which must begin there."""
        return headers(self.read_at, position, self.size)

    def locate(self, offset: int) -> Found | None:
        """The first batch whose last offset is not below `offset`; None if all are."""
        with self._entries(OFFSET_INDEX_SUFFIX, OFFSET_ENTRY) as entries:
            start = position_before_offset(entries, offset - self.base_offset)
        for found in self.batches(start):
            if found[1].last_offset >= offset:
                return found
        return None

    def locate_time(self, timestamp_ms: int, from_offset: int) -> Found | None:
        """The first batch at or behind `from_offset` that has a record at least that new."""
        with self._entries(TIME_INDEX_SUFFIX, TIME_ENTRY) as times:
            older_until = self.base_offset + relative_offset_before_time(times, timestamp_ms)
        start = self.locate(max(older_until, from_offset))
        if start is None:
            return None
        for found in self.batches(start[0]):
            if found[1].max_timestamp >= timestamp_ms:
                return found
        return None

    def span(self, first: Found, end: int, max_bytes: int) -> Span:
        """Whole batches from `first` up to `end`, at most `max_bytes`, at least `first`."""
        start, header = first
        if header.size >= max_bytes:
            return Span(start, header.size)
        if end - start <= max_bytes:
            return Span(start, end - start)
        target = start + max_bytes
        with self._entries(OFFSET_INDEX_SUFFIX, OFFSET_ENTRY) as entries:
            boundary = position_before_position(entries, target)
        boundary = max(boundary, start + header.size)
        for position, found in self.batches(boundary):
            if position + found.size > target:
                break
            boundary = position + found.size
        return Span(start, boundary - start)


def _index(builder: IndexBuilder, position: int, header: BatchHeader) -> None:
    builder.add(
        position,
        header.size,
        last_offset=header.last_offset,
        max_timestamp_ms=header.max_timestamp,
    )
