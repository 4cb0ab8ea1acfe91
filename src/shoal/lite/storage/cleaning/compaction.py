"""Which records of a compacted log are kept, and how their batches change. Pure.

Apache Kafka's rules:
- The last record of each key is kept. Records that are not below the last stable offset, that are
  in the active segment, or that are younger than `min.compaction.lag.ms` are not touched.
- A log is compacted when its dirty part, which no compaction has seen yet, is more than
  `min.cleanable.dirty.ratio` of the cleanable part, or is older than `max.compaction.lag.ms`.
- A tombstone, a record without a value, is kept until its batch's delete horizon:
  `delete.retention.ms` after compaction first met it (KIP-534). So is the marker of a transaction
  that has no records left.
- Records of aborted transactions are removed.
- A batch keeps its base offset, last offset, producer and sequence. The last batch of a producer is
  kept even if it is empty, so that duplicates are still recognised.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop
from typing import Final, NamedTuple

from shoal.lite.base.log_settings import LogSettings
from shoal.lite.storage.header import HEADER_SIZE, BatchHeader
from shoal.lite.storage.state.producer_state import EndedTransaction, ProducerStates
from shoal.wire.batch import DELETE_HORIZON_BIT, NO_TIMESTAMP, Batch
from shoal.wire.records.records import (
    BatchOptions,
    ControlType,
    Record,
    decode_control,
    decode_records,
    encode_batch,
    write_header,
)

# The largest distance of offsets in a segment of Apache Kafka.
_MOST_OFFSETS: Final = (1 << 31) - 1


class CleanableSegment(NamedTuple):
    """What decides about the compaction of a segment; the next one begins at `end_offset`."""

    base_offset: int
    end_offset: int
    size_bytes: int
    newest_ms: int


def cleanable_until(
    segments: Sequence[CleanableSegment],
    settings: LogSettings,
    *,
    first_dirty: int,
    stable_offset: int,
    now_ms: int,
) -> int | None:
    """The offset up to which the log should be compacted; None if it is not due.

    `segments` are the sealed ones.
    """
    if not settings.compacts:
        return None
    clean_bytes = dirty_bytes = 0
    until = first_dirty
    oldest_ms: int | None = None
    for segment in segments:
        is_young = now_ms - segment.newest_ms < settings.min_compaction_lag_ms
        if segment.end_offset > stable_offset or (is_young and settings.min_compaction_lag_ms):
            break
        if segment.end_offset <= first_dirty:
            clean_bytes += segment.size_bytes
            continue
        dirty_bytes += segment.size_bytes
        until = segment.end_offset
        oldest_ms = segment.newest_ms if oldest_ms is None else min(oldest_ms, segment.newest_ms)
    if not dirty_bytes or oldest_ms is None:
        return None
    is_overdue = now_ms - oldest_ms > settings.max_compaction_lag_ms
    is_dirty = dirty_bytes / (clean_bytes + dirty_bytes) > settings.min_cleanable_dirty_ratio
    return until if is_dirty or is_overdue else None


def group_segments(segments: Sequence[CleanableSegment], settings: LogSettings) -> list[list[int]]:
    """The indexes of consecutive segments that fit into one new segment each."""
    groups: list[list[int]] = []
    size_bytes = 0
    for index, segment in enumerate(segments):
        fits = (
            bool(groups)
            and size_bytes + segment.size_bytes <= settings.segment_bytes
            and segment.end_offset - segments[groups[-1][0]].base_offset <= _MOST_OFFSETS
        )
        if fits:
            groups[-1].append(index)
            size_bytes += segment.size_bytes
        else:
            groups.append([index])
            size_bytes = segment.size_bytes
    return groups


def last_batches(producers: ProducerStates) -> dict[int, tuple[int | None, int]]:
    """Each producer's epoch and last data offset, which is None if only markers are left."""
    return {
        producer_id: (
            producer.batches[-1].last_offset if producer.batches else None,
            producer.epoch,
        )
        for producer_id, producer in producers.items()
    }


class TransactionOutcomes:
    """The outcome of transactions, while the batches of a log are read in order."""

    def __init__(self, aborted: Iterable[EndedTransaction]) -> None:
        self._ahead = [(entry.first_offset, entry.producer_id) for entry in aborted]
        heapify(self._ahead)
        # Aborted transactions that are open at this offset: whether a batch was seen.
        self._aborted: dict[int, bool] = {}
        self._committed: set[int] = set()

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether a batch of data belongs to an aborted transaction."""
        if not header.is_transactional:
            return False
        self._advance(header)
        if header.producer_id in self._aborted:
            self._aborted[header.producer_id] = True
            return True
        self._committed.add(header.producer_id)
        return False

    def had_no_batches(self, header: BatchHeader, kind: int | None) -> bool:
        """Whether the transaction that a marker ends has no batches left.

        `kind` is None if compaction has emptied the marker, which it does only then.
        """
        self._advance(header)
        if kind is None:
            self._aborted.pop(header.producer_id, None)
            return True
        if kind == ControlType.ABORT:
            return not self._aborted.pop(header.producer_id, False)
        had_batches = header.producer_id in self._committed
        self._committed.discard(header.producer_id)
        return not had_batches

    def _advance(self, header: BatchHeader) -> None:
        while self._ahead and self._ahead[0][0] <= header.last_offset:
            self._aborted.setdefault(heappop(self._ahead)[1], False)


class KeyMap:
    """The last offset of each key in the dirty part of a log, up to `until`."""

    def __init__(self, first_dirty: int, most_keys: int) -> None:
        self._offsets: dict[bytes, int] = {}
        self._most_keys = most_keys
        self.until = first_dirty

    @property
    def is_full(self) -> bool:
        return len(self._offsets) >= self._most_keys

    def add(self, view: memoryview, header: BatchHeader, outcomes: TransactionOutcomes) -> None:
        """Add the keys of a batch, unless its transaction was aborted."""
        if header.is_control:
            outcomes.had_no_batches(header, _kind_of(decode_records(Batch(view))))
        elif not outcomes.is_aborted(header):
            for record in decode_records(Batch(view)):
                if record.key is not None and record.offset >= self.until:
                    self._offsets[record.key] = record.offset
        self.until = header.last_offset + 1

    def supersedes(self, record: Record) -> bool:
        """Whether a later record has the same key."""
        return record.key is not None and record.offset < self._offsets.get(record.key, -1)


@dataclass(slots=True)
class BatchFilter:
    """Decides what is kept of each batch of a log, in order from its start."""

    keys: KeyMap
    outcomes: TransactionOutcomes
    # See `last_batches`.
    last: dict[int, tuple[int | None, int]]
    now_ms: int
    delete_retention_ms: int

    def filter_batch(self, view: memoryview, header: BatchHeader) -> memoryview | bytearray | None:
        """The batch as it is, or rebuilt without some records; None if it is removed."""
        batch = Batch(view)
        horizon_ms = batch.base_timestamp if batch.has_delete_horizon else None
        is_over = horizon_ms is not None and horizon_ms <= self.now_ms
        records = decode_records(batch)
        if header.is_control:
            had_no_batches = self.outcomes.had_no_batches(header, _kind_of(records))
            keeps = [] if had_no_batches and is_over else records
            needs_horizon = had_no_batches and horizon_ms is None
        else:
            is_aborted = self.outcomes.is_aborted(header)
            keeps = [] if is_aborted else [r for r in records if self._stays(r, is_over=is_over)]
            needs_horizon = horizon_ms is None and any(r.value is None for r in keeps)
        if not keeps:
            return _build_empty_batch(header) if self._is_last_of_producer(header) else None
        if len(keeps) == len(records) and not needs_horizon:
            return view
        if needs_horizon:
            horizon_ms = self.now_ms + self.delete_retention_ms
        return _rebuild_batch(header, keeps, horizon_ms)

    def _stays(self, record: Record, *, is_over: bool) -> bool:
        if record.offset >= self.keys.until:
            return True
        if record.key is None or self.keys.supersedes(record):
            return False
        return record.value is not None or not is_over

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        if header.producer_id not in self.last:
            return False
        last_offset, epoch = self.last[header.producer_id]
        if last_offset is not None:
            return header.last_offset == last_offset
        return header.is_control and header.producer_epoch == epoch


def _kind_of(records: Sequence[Record]) -> int | None:
    """Whether a marker commits or aborts; None if compaction has emptied it."""
    return decode_control(records[0]).type if records else None


def _rebuild_batch(header: BatchHeader, records: list[Record], horizon_ms: int | None) -> bytearray:
    """A batch with the records that stay, and the offsets and producer of the old one.

    From `horizon_ms` on its tombstones may be removed; None if it has none.
    """
    options = _options(header)
    options["codec"] = header.codec
    rebuilt = encode_batch(
        records,
        keep_offsets=True,
        last_offset_delta=header.last_offset_delta,
        base_timestamp=horizon_ms,
        **options,
    )
    max_timestamp = header.max_timestamp
    if not header.has_append_time:
        max_timestamp = max(record.timestamp for record in records)
    attributes = header.attributes
    if horizon_ms is not None:
        attributes |= DELETE_HORIZON_BIT
    Batch(memoryview(rebuilt)).edit(attributes=attributes, max_timestamp=max_timestamp)
    return rebuilt


def _build_empty_batch(header: BatchHeader) -> bytearray:
    """A batch without records, which keeps the producer state of its header."""
    emptied = bytearray(HEADER_SIZE)
    write_header(
        emptied,
        record_count=0,
        last_offset_delta=header.last_offset_delta,
        base_timestamp=NO_TIMESTAMP,
        max_timestamp=header.max_timestamp,
        **_options(header),
    )
    attributes = header.attributes & ~DELETE_HORIZON_BIT
    # An empty records section is not compressed.
    Batch(memoryview(emptied)).edit(attributes=attributes & ~0b111)
    return emptied


def _options(header: BatchHeader) -> BatchOptions:
    return {
        "base_offset": header.base_offset,
        "leader_epoch": header.leader_epoch,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
    }
