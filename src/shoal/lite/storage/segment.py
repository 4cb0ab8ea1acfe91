"""One file of record batches and its indexes.

    00000000000000000042.log         batches, one after the other; the first has offset ≥ 42
    00000000000000000042.index       entries of the offset index
    00000000000000000042.timeindex   entries of the time index
    00000000000000000042.txnindex    aborted transactions, if it has any: see `transaction_index`

Rules of this file:
- Only the last segment of a log is active, that is, written to; its indexes are in memory. `seal`
  writes them to files and frees the memory; a sealed segment is searched in its index files.
- All positions and offsets in the interface are those of complete batches.
- I/O errors are raised as `OSError`, damage as `DamagedLog`; the log decides what they mean.
- An entry of the offset index is used only if its batch exists; a damaged or missing index is
  rebuilt from the log.
"""

import logging
import os
import random
import struct
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from shoal.lite.base.log_settings import LogSettings
from shoal.lite.storage.disk import read, sync, write_whole
from shoal.lite.storage.files import sync_folder, write_file
from shoal.lite.storage.header import HEADER_SIZE, BatchHeader, unpack_header
from shoal.lite.storage.indexes import (
    OFFSET_ENTRY,
    TIME_ENTRY,
    Entries,
    FileEntries,
    IndexBuilder,
    IndexEntry,
    relative_offset_before_time,
)
from shoal.lite.storage.scan import (
    LARGEST_RELATIVE_OFFSET,
    DamagedLog,
    LocatedBatch,
    headers,
    valid_headers,
    whole_headers,
)
from shoal.lite.storage.slices import LogSlice, OpenFile
from shoal.lite.storage.state.transaction_index import TRANSACTION_INDEX_SUFFIX, TransactionIndex
from shoal.lite.storage.units import whole_units_end
from shoal.wire.batch import CHECKED_START, LENGTH_END, MAGIC
from shoal.wire.records.crc import crc32c

LOG_SUFFIX = ".log"
OFFSET_INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
# The maximum number of batches whose positions are cached.
_MAX_KNOWN_POSITIONS = 64
# Columns of the offset index.
_RELATIVE_OFFSET, _POSITION = 0, 1
# The interval between entries of an index that a reader rebuilds.
_REBUILD_INTERVAL_BYTES = 4096
_logger = logging.getLogger(__name__)


class Segment:
    """One open segment. `size` is the length of the file, which has only valid batches."""

    __slots__ = (
        "_builder",
        "_file",
        "_first_timestamp_ms",
        "_flushed_size",
        "_folder",
        "_jitter",
        "_known_positions",
        "_opened_ms",
        "_stem",
        "base_offset",
        "last_time",
        "size",
        "transactions",
    )

    def __init__(self, folder: Path, base_offset: int) -> None:
        """Open the segment as sealed; `resume` or `rebuild` makes it active.

        A missing file is created.
        """
        self._folder = folder
        self._stem = f"{base_offset:020d}"
        self.base_offset = base_offset
        self._file = OpenFile(os.open(self._path(LOG_SUFFIX), os.O_RDWR | os.O_CREAT, 0o644))
        self.size = os.fstat(self._file.descriptor).st_size
        self._builder: IndexBuilder | None = None
        self._flushed_size = -1
        # Positions of batches by base offset: the last ones written, and those where a read
        # stopped. Most reads continue there and need no search.
        self._known_positions: dict[int, int] = {}
        self.transactions = TransactionIndex(self._path(TRANSACTION_INDEX_SUFFIX))
        # The largest timestamp of the first batch; None if it was not read yet.
        self._first_timestamp_ms: int | None = None
        self._opened_ms = wall_ms()
        # The fraction of `segment.jitter.ms` by which this segment is rolled earlier.
        self._jitter = random.random()  # noqa: S311 - spreads work, keeps no secret
        # The largest timestamp of a sealed segment, and the last offset of the batch with it.
        self.last_time: tuple[int, int] = (-1, base_offset)

    def _path(self, suffix: str) -> Path:
        return self._folder / f"{self._stem}{suffix}"

    @property
    def file_name(self) -> str:
        """For messages, after the name of the partition."""
        return self._stem + LOG_SUFFIX

    def read_at(self, position: int, count: int) -> bytes:
        return read(self._file.descriptor, count, position)

    # Opening

    def create_index(self, interval_bytes: int) -> None:
        """Begin with empty indexes: for a new segment."""
        self._builder = IndexBuilder(self.base_offset, interval_bytes)
        for suffix in (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            write_file(self._path(suffix), b"")

    def rebuild(
        self,
        interval_bytes: int,
        visit: Callable[[int, BatchHeader], None],
        *,
        checks_all: bool,
        before_truncation: Callable[[], None] = lambda: None,
    ) -> tuple[int, int]:
        """Truncate the file after the last valid batch, and rebuild the indexes.

        With `checks_all` every checksum is checked, otherwise only that of the last batch.
        `visit` is called with each position and header, and must add aborted transactions again.
        Returns the offset after the last valid batch, and the number of bytes truncated.
        """
        found = valid_headers if checks_all else whole_headers
        builder = IndexBuilder(self.base_offset, interval_bytes)
        self.transactions.delete()
        next_offset = self.base_offset
        end = 0
        for position, header in found(self.read_at, self.size, self.base_offset):
            _index(builder, position, header)
            visit(position, header)
            next_offset = header.last_offset + 1
            end = position + header.size
        truncated_bytes = self.size - end
        if truncated_bytes:
            before_truncation()
            os.ftruncate(self._file.descriptor, end)
            sync(self._file.descriptor)
            self.size = end
        self._builder = builder
        self._write_indexes(builder)
        return next_offset, truncated_bytes

    def resume(self, interval_bytes: int) -> int | None:
        """Make the segment active after a clean shutdown, with its index files as they are.

        Returns the next offset; None if the file changed and does not end with a complete batch.
        """
        builder = IndexBuilder(self.base_offset, interval_bytes)
        builder.resume(
            offsets=self._path(OFFSET_INDEX_SUFFIX).read_bytes(),
            times=self._path(TIME_INDEX_SUFFIX).read_bytes(),
        )
        next_offset = self._next_offset(builder.offsets)
        if next_offset is not None:
            self._builder = builder
        return next_offset

    def has_indexes(self) -> bool:
        return all(
            self._path(suffix).exists() for suffix in (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)
        )

    def _next_offset(self, offsets: Entries) -> int | None:
        """The offset after the last batch, found from the last index entry; None if the file does
        not end with a complete batch."""
        next_offset = self.base_offset
        last_entry = offsets.last()
        end = last_entry[1] if last_entry else 0
        if last_entry and end >= self.size:
            return None
        try:
            for position, header in headers(self.read_at, end, self.size, file=self.file_name):
                next_offset = header.last_offset + 1
                end = position + header.size
        except DamagedLog:
            return None
        return next_offset if end == self.size else None

    def open_sealed(self, next_base: int, *, has_gaps: bool) -> bool:
        """Read the largest timestamp, and check where the segment ends.

        False if it does not end where the next segment begins: the file was changed. With
        `has_gaps`, which compaction leaves, it may end before.
        """
        next_offset = self._next_offset(self._offsets)
        if next_offset is None or next_offset > next_base:
            return False
        if next_offset < next_base and not has_gaps:
            return False
        newest = self._times.last()
        if newest is not None:
            self.last_time = (newest[0], self.base_offset + newest[1])
        return True

    # Writing

    def should_roll(
        self, settings: LogSettings, size: int, *, last_offset: int, max_timestamp_ms: int
    ) -> bool:
        """Whether a batch needs a new segment; an empty segment accepts any batch."""
        if self.size == 0:
            return False
        longest_ms = settings.segment_ms
        if settings.segment_jitter_ms:
            longest_ms -= int(self._jitter * min(settings.segment_jitter_ms, longest_ms))
        builder = self._builder
        return (
            self.size + size > settings.segment_bytes
            or last_offset - self.base_offset > LARGEST_RELATIVE_OFFSET
            or self._age_ms(max_timestamp_ms) > longest_ms
            or (builder is not None and builder.is_full(settings.segment_index_bytes))
        )

    def _age_ms(self, max_timestamp_ms: int) -> int:
        """The age of the segment: by its timestamps, or by the clock if it has none."""
        if self._first_timestamp_ms is None:
            # It has a batch: an empty segment accepts any batch.
            _, header = next(self.batches())
            self._first_timestamp_ms = header.max_timestamp
        if self._first_timestamp_ms >= 0:
            return max_timestamp_ms - self._first_timestamp_ms
        return wall_ms() - self._opened_ms

    def append(
        self, view: memoryview, *, base_offset: int, last_offset: int, max_timestamp_ms: int
    ) -> None:
        """Append one batch; after an `OSError` the file is unchanged."""
        builder = self._builder
        assert builder is not None, "a sealed segment is not written to"  # noqa: S101
        position = self.size
        try:
            write_whole(self._file.descriptor, view, position)
        except OSError:
            os.ftruncate(self._file.descriptor, position)
            raise
        builder.add(position, len(view), last_offset=last_offset, max_timestamp_ms=max_timestamp_ms)
        if position == 0:
            self._first_timestamp_ms = max_timestamp_ms
        self._note_start(base_offset, position)
        self.size = position + len(view)

    def append_many(self, view: memoryview, headers: Sequence[BatchHeader]) -> None:
        """Append several batches with one write, at the offsets that their headers have."""
        builder = self._builder
        assert builder is not None, "a sealed segment is not written to"  # noqa: S101
        position = self.size
        try:
            write_whole(self._file.descriptor, view, position)
        except OSError:
            os.ftruncate(self._file.descriptor, position)
            raise
        if position == 0:
            self._first_timestamp_ms = headers[0].max_timestamp
        known = self._known_positions
        for header in headers:
            size = header.batch_length + LENGTH_END
            builder.add(
                position,
                size,
                last_offset=header.base_offset + header.last_offset_delta,
                max_timestamp_ms=header.max_timestamp,
            )
            known[header.base_offset] = position
            position += size
        self.size = position
        while len(known) > _MAX_KNOWN_POSITIONS:
            del known[next(iter(known))]

    def _note_start(self, base_offset: int, position: int) -> None:
        known = self._known_positions
        known[base_offset] = position
        if len(known) > _MAX_KNOWN_POSITIONS:
            del known[next(iter(known))]

    def truncate(self, offset: int, interval_bytes: int) -> int:
        """Remove the batches from the one that contains `offset` on; returns the next offset.

        The segment becomes active, even if it was sealed.
        """
        found = self.locate(offset)
        end = self.size if found is None else found[0]
        builder = IndexBuilder(self.base_offset, interval_bytes)
        next_offset = self.base_offset
        for position, header in headers(self.read_at, 0, end, file=self.file_name):
            _index(builder, position, header)
            next_offset = header.last_offset + 1
        os.ftruncate(self._file.descriptor, end)
        self._known_positions.clear()
        self.transactions.truncate(next_offset)
        self.size = end
        self._flushed_size = -1
        self._first_timestamp_ms = None
        self._builder = builder
        self._write_indexes(builder)
        return next_offset

    def seal(self) -> None:
        """Write the indexes to files, and free their memory."""
        builder = self._builder
        if builder is None:
            return
        builder.seal()
        self._write_indexes(builder)
        self.last_time = (builder.max_timestamp_ms, builder.max_timestamp_offset)
        self._builder = None
        self._known_positions.clear()

    def _write_indexes(self, builder: IndexBuilder) -> None:
        write_file(self._path(OFFSET_INDEX_SUFFIX), builder.offsets.encode())
        write_file(self._path(TIME_INDEX_SUFFIX), builder.times.encode())

    def flush(self) -> None:
        """Sync the records to disk, unless they are synced."""
        if self._flushed_size == self.size:
            return
        sync(self._file.descriptor)
        if self._flushed_size < 0:
            sync_folder(self._folder)
        self._flushed_size = self.size

    @property
    def is_flushed(self) -> bool:
        """Whether all records are on disk."""
        return self._flushed_size == self.size

    @property
    def file(self) -> OpenFile:
        """The `.log` file."""
        return self._file

    @property
    def index_paths(self) -> list[Path]:
        """The index files, whether they exist or not."""
        suffixes = (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)
        return [self._path(suffix) for suffix in suffixes]

    def on_flushed(self, size: int) -> None:
        """The first `size` bytes are on disk."""
        self._flushed_size = max(self._flushed_size, size)

    def close(self) -> None:
        """Seal, and close the file."""
        try:
            self.seal()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the file, and leave the index files as they are; slices stay valid."""
        del self._file

    def delete(self) -> None:
        """Close and remove all files; the `.log` file last, so that no index outlives it."""
        self.abandon()
        self.transactions.delete()
        for suffix in (TIME_INDEX_SUFFIX, OFFSET_INDEX_SUFFIX, LOG_SUFFIX):
            self._path(suffix).unlink(missing_ok=True)

    # Reading

    def range_before(self, offset: int, most_bytes: int) -> tuple[int, int]:
        """Start and end of about `most_bytes` bytes before the batch that contains `offset`."""
        found = self.locate(offset)
        end = self.size if found is None else found[0]
        return self._find_position_before(max(0, end - most_bytes), column=_POSITION), end

    @property
    def max_time(self) -> tuple[int, int]:
        """The largest timestamp, and the last offset of the first batch that has it."""
        builder = self._builder
        if builder is None:
            return self.last_time
        return builder.max_timestamp_ms, builder.max_timestamp_offset

    @property
    def newest_ms(self) -> int:
        """The largest timestamp; without timestamps, the modification time of the file."""
        timestamp_ms, _ = self.max_time
        if timestamp_ms >= 0:
            return timestamp_ms
        return os.fstat(self._file.descriptor).st_mtime_ns // 1_000_000

    @property
    def _offsets(self) -> Entries:
        if self._builder is not None:
            return self._builder.offsets
        return FileEntries(self._path(OFFSET_INDEX_SUFFIX), OFFSET_ENTRY)

    @property
    def _times(self) -> Entries:
        if self._builder is not None:
            return self._builder.times
        return FileEntries(self._path(TIME_INDEX_SUFFIX), TIME_ENTRY)

    def batches(self, position: int = 0) -> Iterator[LocatedBatch]:
        """Every batch from the one that begins at `position`."""
        return headers(self.read_at, position, self.size, file=self.file_name)

    def locate(self, offset: int) -> LocatedBatch | None:
        """The first batch whose last offset is not below `offset`, or None."""
        # An entry has the last offset of its batch, so it points to the batch or to one before.
        start = self._find_position_before(offset - self.base_offset, column=_RELATIVE_OFFSET)
        for found in self.batches(start):
            if found[1].last_offset >= offset:
                return found
        return None

    def _find_position_before(self, value: int, *, column: int) -> int:
        """The position of the last entry in the offset index whose column is not above `value`,
        or 0. A batch begins there."""
        try:
            entry = self._floor(value, column)
            if entry is None:
                return 0
            if entry[column] <= value and self._is_valid_entry(entry):
                return entry[_POSITION]
            reason = f"entry {entry} points to no batch"
        except (OSError, struct.error) as error:
            reason = str(error)
        _logger.warning(
            "%s/%s: rebuilding the damaged offset index: %s",
            self._folder.name,
            self._stem,
            reason,
        )
        self._rebuild_indexes()
        entry = self._floor(value, column)
        return 0 if entry is None else entry[_POSITION]

    def _floor(self, value: int, column: int) -> IndexEntry | None:
        entries = self._offsets
        if column == _POSITION:
            return entries.floor_by_second(value)
        return entries.floor_by_first(value)

    def _is_valid_entry(self, entry: IndexEntry) -> bool:
        """Whether the batch that an entry of the offset index points to exists."""
        relative_offset, position = entry
        head = self.read_at(position, HEADER_SIZE) if position < self.size else b""
        if len(head) < HEADER_SIZE:
            return False
        header = unpack_header(head)
        is_named = header.last_offset - self.base_offset == relative_offset
        return is_named and header.magic == MAGIC

    def _rebuild_indexes(self) -> None:
        """Rebuild the indexes from the batches; `DamagedLog` if those are damaged too."""
        builder = IndexBuilder(self.base_offset, _REBUILD_INTERVAL_BYTES)
        for position, header in self.batches():
            _index(builder, position, header)
        if self._builder is None:
            builder.seal()
        else:
            self._builder = builder
        self._write_indexes(builder)

    def check_batch(self, found: LocatedBatch) -> None:
        """`DamagedLog` if the content of a batch contradicts its checksum."""
        position, header = found
        content = self.read_at(position + CHECKED_START, header.size - CHECKED_START)
        if crc32c(content) != header.crc:
            raise DamagedLog(
                f"in {self.file_name} the batch at offset {header.base_offset} contradicts its "
                "checksum"
            )

    def locate_time(self, timestamp_ms: int, from_offset: int) -> LocatedBatch | None:
        """The first batch from `from_offset` on that has a record at least that new."""
        older_until = self.base_offset + relative_offset_before_time(self._times, timestamp_ms)
        start = self.locate(max(older_until, from_offset))
        if start is None:
            return None
        for found in self.batches(start[0]):
            if found[1].max_timestamp >= timestamp_ms:
                return found
        return None

    def find_known_slice(
        self, offset: int, upper_offset: int | None, max_bytes: int
    ) -> LogSlice | None:
        """The slice between two batches whose positions are cached, or to the end of the segment;
        None if that needs a search."""
        start = self._known_positions.get(offset)
        end = self.size if upper_offset is None else self._known_positions.get(upper_offset)
        if start is None or end is None:
            return None
        if end - start > max_bytes:
            end = self._end_before(start, start + max_bytes)
        return LogSlice(self._file, start, end - start).require_whole() if end > start else None

    def slice(
        self, first: LocatedBatch, end: int, max_bytes: int, *, keeps_units: bool = False
    ) -> LogSlice:
        """Complete batches from `first` up to `end`, at most `max_bytes`, at least `first`.

        With `keeps_units` all units are complete, and there is at least one.
        """
        start, _ = first
        if keeps_units:
            unit_end = whole_units_end(self.batches(start), end, start + max_bytes)
            return LogSlice(self._file, start, unit_end - start).require_whole()
        size = self._slice_end(first, end, max_bytes) - start
        return LogSlice(self._file, start, size).require_whole()

    def _slice_end(self, first: LocatedBatch, end: int, max_bytes: int) -> int:
        start, header = first
        if header.size >= max_bytes:
            return start + header.size
        if end - start <= max_bytes:
            return end
        return max(self._end_before(start, start + max_bytes), start + header.size)

    def _end_before(self, start: int, target: int) -> int:
        """The end of the last batch that ends at or before `target`; `start` if none does.

        A batch must begin at `start`, and one must end after `target`.
        """
        boundary = max(self._find_position_before(target, column=_POSITION), start)
        for position, header in self.batches(boundary):
            boundary = position
            if position + header.size > target:
                self._note_start(header.base_offset, position)
                break
        return boundary


def segment_index_of(segments: Sequence[Segment], offset: int) -> int:
    """The index of the segment that contains `offset`, by base offsets."""
    # Most readers read from the active segment.
    if segments and offset >= segments[-1].base_offset:
        return len(segments) - 1
    following = bisect_right(segments, offset, key=lambda segment: segment.base_offset)
    return max(following - 1, 0)


def wall_ms() -> int:
    """The wall clock in ms, as used for record timestamps."""
    return time.time_ns() // 1_000_000


def _index(builder: IndexBuilder, position: int, header: BatchHeader) -> None:
    builder.add(
        position,
        header.size,
        last_offset=header.last_offset,
        max_timestamp_ms=header.max_timestamp,
    )


def bases_from_start(folder: Path, start_offset: int) -> list[int]:
    """The base offsets of a log's segments; deletes those below the start offset."""
    bases = sorted(int(path.stem) for path in folder.glob(f"*{LOG_SUFFIX}"))
    while len(bases) > 1 and bases[1] <= start_offset:
        Segment(folder, bases.pop(0)).delete()
    return bases
