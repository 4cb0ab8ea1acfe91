"""The state of each producer in a partition: its last batches, its epoch, its open transaction.

Apache Kafka's rules, which its clients rely on:
- The last five batches of a producer are kept, to recognise duplicates.
- A producer expires some time after the *timestamp* of its last batch, not after the time of the
  write: old data leaves no state. A producer with an open transaction never expires.
- A transaction begins with a producer's first transactional batch and ends with a marker.

The *first unstable offset* is the start of the earliest transaction whose marker is not written, or
not yet on all in-sync replicas: read_committed consumers read up to there.

Pure: the log calls `record` after a write. Whether a batch may be written is decided before it,
by the leader alone: see `admission` in `partitions`. Batches that followers fetch, and batches that
are read again at a start, are only recorded.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from shoal.lite.storage.header import BatchHeader
from shoal.wire.batch import (
    NO_PRODUCER_EPOCH,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    SEQUENCE_MASK,
    TRANSACTIONAL_BIT,
    sequence_after,
)
from shoal.wire.records.records import ControlMarker, ControlType

REMEMBERED_BATCHES = 5
NO_OFFSET = -1
NO_COORDINATOR_EPOCH = -1


class WrittenBatch(NamedTuple):
    """One batch of a producer, and its offsets in the log."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp_ms: int


class EndedTransaction(NamedTuple):
    """A transaction with records in this partition, from its first batch to its marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool
    # The last stable offset after this transaction ended.
    last_stable_offset: int


@dataclass(slots=True)
class ProducerState:
    """The state of one producer; without batches if only markers of its epoch exist."""

    epoch: int = NO_PRODUCER_EPOCH
    batches: deque[WrittenBatch] = field(default_factory=lambda: deque(maxlen=REMEMBERED_BATCHES))
    coordinator_epoch: int = NO_COORDINATOR_EPOCH
    # The start of its open transaction.
    first_offset: int = NO_OFFSET
    # Of its last batch or marker.
    timestamp_ms: int = NO_TIMESTAMP

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    def find_duplicate(self, header: BatchHeader) -> WrittenBatch | None:
        """The batch of this epoch with the same first and last sequence."""
        wanted = header.base_sequence, header.last_sequence
        for batch in self.batches:
            if (batch.first_sequence, batch.last_sequence) == wanted:
                return batch
        return None

    def reset_for_epoch(self, epoch: int) -> None:
        """Begin an epoch: the sequences of another epoch's batches do not matter."""
        if epoch != self.epoch:
            self.epoch = epoch
            self.batches.clear()


class ProducerStates:
    """The producers of one partition."""

    __slots__ = ("_changed_offset", "_open", "_unreplicated", "by_id")

    def __init__(self) -> None:
        # Only the methods of this class change it.
        self.by_id: dict[int, ProducerState] = {}
        # The start of each open transaction by producer id, in the order of offsets.
        self._open: dict[int, int] = {}
        # First and last offset of transactions whose marker is not known to be replicated.
        self._unreplicated: list[tuple[int, int]] = []
        # The last offset where a transaction began or ended.
        self._changed_offset = NO_OFFSET

    def __len__(self) -> int:
        return len(self.by_id)

    def items(self) -> Iterator[tuple[int, ProducerState]]:
        """Every producer by id; do not change them."""
        return iter(self.by_id.items())

    # Questions before a write

    def has_open_transaction(self, producer_id: int, epoch: int) -> bool:
        producer = self.by_id.get(producer_id)
        return producer is not None and producer.first_offset >= 0 and producer.epoch == epoch

    def is_duplicate(self, header: BatchHeader) -> bool:
        """Whether the same batch is among the last five of its producer."""
        producer = self.by_id.get(header.producer_id)
        return (
            producer is not None
            and producer.epoch == header.producer_epoch
            and producer.find_duplicate(header) is not None
        )

    def is_ahead(self, header: BatchHeader) -> bool:
        """Whether batches of the producer are missing before this one."""
        producer = self.by_id.get(header.producer_id)
        if producer is None or producer.epoch != header.producer_epoch:
            return False
        distance = (header.base_sequence - sequence_after(producer.last_sequence, 1)) % (1 << 31)
        return 0 < distance < 1 << 30

    def knows_batches_of(self, producer_id: int) -> bool:
        producer = self.by_id.get(producer_id)
        return producer is not None and bool(producer.batches)

    # After a write

    def record(self, header: BatchHeader, base_offset: int) -> None:
        """Record a data batch that was written at `base_offset`."""
        producer_id = header.producer_id
        if producer_id < 0:
            return
        producer = self.by_id.get(producer_id)
        if producer is None:
            producer = self.by_id[producer_id] = ProducerState()
        if header.producer_epoch != producer.epoch:
            producer.reset_for_epoch(header.producer_epoch)
        producer.timestamp_ms = header.max_timestamp
        first_sequence, count = header.base_sequence, header.last_offset_delta
        last_sequence = (first_sequence + count) & SEQUENCE_MASK
        producer.batches.append(
            WrittenBatch(
                first_sequence,
                last_sequence,
                base_offset,
                base_offset + count,
                header.max_timestamp,
            )
        )
        if header.attributes & TRANSACTIONAL_BIT and producer.first_offset < 0:
            producer.first_offset = self._open[producer_id] = base_offset
            self._changed_offset = base_offset

    def record_marker(
        self, header: BatchHeader, offset: int, marker: ControlMarker
    ) -> EndedTransaction | None:
        """Record a marker written at `offset`; returns the transaction that it ends, if any."""
        producer = self.by_id.setdefault(header.producer_id, ProducerState())
        producer.reset_for_epoch(header.producer_epoch)
        producer.timestamp_ms = header.max_timestamp
        producer.coordinator_epoch = marker.coordinator_epoch or 0
        first_offset, producer.first_offset = producer.first_offset, NO_OFFSET
        self._changed_offset = offset
        self._open.pop(header.producer_id, None)
        if first_offset < 0:
            return None
        self._unreplicated.append((first_offset, offset))
        return EndedTransaction(
            header.producer_id,
            first_offset,
            offset,
            marker.type == ControlType.ABORT,
            next(iter(self._open.values()), offset + 1),
        )

    def restore(self, producer_id: int, producer: ProducerState) -> None:
        """Add a producer from a snapshot."""
        self.by_id[producer_id] = producer
        if producer.first_offset >= 0:
            self._open[producer_id] = producer.first_offset
            self._open = dict(sorted(self._open.items(), key=lambda item: item[1]))
            self._changed_offset = max(self._changed_offset, producer.first_offset)

    def on_snapshot_restored(self, offset: int) -> None:
        """Assume changes up to `offset`: a snapshot does not say where they happened."""
        self._changed_offset = max(self._changed_offset, offset - 1)

    def first_unstable_offset(self, high_watermark: int) -> int:
        """The end of what read_committed consumers may read; at most the high watermark."""
        first_open = next(iter(self._open.values()), high_watermark)
        if not self._unreplicated:
            return min(first_open, high_watermark)
        self.on_high_watermark(high_watermark)
        return min(first_open, high_watermark, *(span[0] for span in self._unreplicated))

    def on_high_watermark(self, high_watermark: int) -> None:
        """All in-sync replicas have everything below the high watermark."""
        if self._unreplicated:
            self._unreplicated = [span for span in self._unreplicated if span[1] >= high_watermark]

    def truncate_from_end(self, end_offset: int) -> bool:
        """Remove the batches at or above `end_offset`, which the log truncates.

        Returns whether the remaining state is correct; otherwise it must be restored from the
        log. It is not correct if a transaction began or ended there, or if a producer has no
        batch left here: its earlier ones may still be in the log. Fewer than five batches are
        enough otherwise: the missing ones of the last five are truncated.
        """
        is_correct = self._changed_offset < end_offset
        for producer in self.by_id.values():
            while producer.batches and producer.batches[-1].base_offset >= end_offset:
                producer.batches.pop()
                is_correct = is_correct and bool(producer.batches)
        return is_correct

    def forget_older_than(self, timestamp_ms: int) -> None:
        """Remove producers whose last batch is older."""
        expired = [
            producer_id
            for producer_id, producer in self.by_id.items()
            if producer.first_offset < 0 and producer.timestamp_ms < timestamp_ms
        ]
        for producer_id in expired:
            del self.by_id[producer_id]
