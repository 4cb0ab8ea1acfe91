"""What each producer has written to a partition, which batch may come next, what is undecided.

Apache Kafka's rules, which its clients rely on:
- The last five batches of a producer are remembered. One that comes again, with the same
  epoch, first and last sequence, is a duplicate: it is acknowledged with its old offset.
- Otherwise its first sequence must follow the last one written; sequences wrap from 2³¹-1
  to 0. Anything else is out of order.
- An older epoch is refused. A newer epoch starts at sequence 0.
- A producer that the partition does not know may start with any sequence.
- A producer is forgotten some time after the *timestamp* of its last batch, not after its
  writing: old data leaves no state behind. One with an open transaction is never forgotten.
- A transaction begins with a producer's first transactional batch and ends with a marker. While
  it is open, the producer may write nothing outside of it.
- A marker of an older coordinator is refused, so that one that was replaced decides nothing.

The *first unstable offset* is where the earliest transaction begins whose end is not known, or
not yet on all in-sync replicas: readers of committed data read up to there.

Pure: the log asks before it writes and tells after it has written. What followers fetch, and
what is read again at a start, is told only: it was judged when it was written first.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from shoal.lite.base.codes import Code, Refused
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
    """One batch of a producer, where it lies in the log."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp_ms: int


class EndedTransaction(NamedTuple):
    """A transaction that had records here, from its first batch to its marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool
    # Nothing below it was undecided once this one had ended.
    last_stable_offset: int


@dataclass(slots=True)
class Producer:
    """One producer's recent past; without batches if only markers of its epoch are there."""

    epoch: int = NO_PRODUCER_EPOCH
    batches: deque[WrittenBatch] = field(default_factory=lambda: deque(maxlen=REMEMBERED_BATCHES))
    coordinator_epoch: int = NO_COORDINATOR_EPOCH
    # Where its open transaction begins.
    first_offset: int = NO_OFFSET
    # Of its last batch or marker.
    timestamp_ms: int = NO_TIMESTAMP

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    def renew(self, epoch: int) -> None:
        """Batches of another epoch say nothing about those of this one."""
        if epoch != self.epoch:
            self.epoch = epoch
            self.batches.clear()


class ProducerStates:
    """The producers of one partition."""

    __slots__ = ("_changed_offset", "_open", "_producers", "_unreplicated")

    def __init__(self) -> None:
        self._producers: dict[int, Producer] = {}
        # Where open transactions begin, by producer; in the order of their offsets.
        self._open: dict[int, int] = {}
        # First and last offset of those whose marker may not be on all in-sync replicas yet.
        self._unreplicated: list[tuple[int, int]] = []
        # The last offset at which a transaction began or a marker lies.
        self._changed_offset = NO_OFFSET

    def __len__(self) -> int:
        return len(self._producers)

    def items(self) -> Iterator[tuple[int, Producer]]:
        """Every producer by its id, to be read only."""
        return iter(self._producers.items())

    # Before the writing

    def check(self, header: BatchHeader) -> WrittenBatch | None:
        """The earlier copy of a duplicate; None if the batch is to be written; else `Refused`."""
        producer = self._producers.get(header.producer_id)
        if producer is None:
            return None
        if (
            header.producer_epoch == producer.epoch
            and producer.batches
            and header.base_sequence == (producer.batches[-1].last_sequence + 1) & SEQUENCE_MASK
            and producer.first_offset < 0
        ):
            return None  # nearly always
        duplicate = self._check_sequence(header, producer)
        if duplicate is None and producer.first_offset >= 0 and not header.is_transactional:
            raise Refused(
                Code.INVALID_TXN_STATE,
                f"producer {header.producer_id} has an open transaction, and sent a batch "
                "outside of it",
            )
        return duplicate

    def _check_sequence(self, header: BatchHeader, producer: Producer) -> WrittenBatch | None:
        if header.producer_epoch == producer.epoch:
            return self._check_same_epoch(header, producer)
        self.check_epoch(header.producer_id, header.producer_epoch)
        if header.base_sequence != 0:
            raise _out_of_order(header, "a new epoch starts at 0")
        return None

    def _check_same_epoch(self, header: BatchHeader, producer: Producer) -> WrittenBatch | None:
        expected = sequence_after(producer.last_sequence, 1)
        if header.base_sequence == expected:
            return None
        duplicate = _same(producer, header)
        if duplicate is None:
            raise _out_of_order(header, f"{expected} comes next")
        return duplicate

    def check_epoch(self, producer_id: int, epoch: int, *, allows_equal: bool = True) -> None:
        """`Refused` if the producer is known at a later epoch."""
        producer = self._producers.get(producer_id)
        if producer is None or epoch > producer.epoch or (allows_equal and epoch == producer.epoch):
            return
        raise Refused(
            Code.INVALID_PRODUCER_EPOCH,
            f"producer {producer_id} is at epoch {producer.epoch}, this is of epoch {epoch}",
        )

    def check_coordinators_batch(self, header: BatchHeader) -> None:
        """`Refused` if a coordinator may not write this batch for a producer.

        Coordinators write offsets in the name of producers, who count them in no sequence.
        """
        self.check_epoch(header.producer_id, header.producer_epoch)

    def check_marker(
        self, producer_id: int, epoch: int, coordinator_epoch: int, *, is_bumped: bool = False
    ) -> None:
        """`Refused` if a transaction may not be ended so.

        Since the second protocol (KIP-890) a marker's epoch is above that of its transaction
        (`is_bumped`): one that is not has been written before.
        """
        self.check_epoch(producer_id, epoch, allows_equal=not is_bumped)
        producer = self._producers.get(producer_id)
        if producer is not None and coordinator_epoch < producer.coordinator_epoch:
            raise Refused(
                Code.TRANSACTION_COORDINATOR_FENCED,
                f"a coordinator of epoch {producer.coordinator_epoch} has ended transactions of "
                f"producer {producer_id}; this one is of epoch {coordinator_epoch}",
            )

    def has_open_transaction(self, producer_id: int, epoch: int) -> bool:
        producer = self._producers.get(producer_id)
        return producer is not None and producer.first_offset >= 0 and producer.epoch == epoch

    def is_duplicate(self, header: BatchHeader) -> bool:
        """Whether the very same batch is among those that are remembered."""
        producer = self._producers.get(header.producer_id)
        return (
            producer is not None
            and producer.epoch == header.producer_epoch
            and _same(producer, header) is not None
        )

    def is_ahead(self, header: BatchHeader) -> bool:
        """Whether something of its producer is missing before a batch."""
        producer = self._producers.get(header.producer_id)
        if producer is None or producer.epoch != header.producer_epoch:
            return False
        distance = (header.base_sequence - sequence_after(producer.last_sequence, 1)) % (1 << 31)
        return 0 < distance < 1 << 30

    def knows_batches_of(self, producer_id: int) -> bool:
        producer = self._producers.get(producer_id)
        return producer is not None and bool(producer.batches)

    # After the writing

    def record(self, header: BatchHeader, base_offset: int) -> None:
        """Note a batch of data that now lies in the log at `base_offset`."""
        producer_id = header.producer_id
        if producer_id < 0:
            return
        producer = self._producers.get(producer_id)
        if producer is None:
            producer = self._producers[producer_id] = Producer()
        if header.producer_epoch != producer.epoch:
            producer.renew(header.producer_epoch)
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
        """Note a marker that now lies at `offset`; what it ends, if that had records here."""
        producer = self._producers.setdefault(header.producer_id, Producer())
        producer.renew(header.producer_epoch)
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

    def restore(self, producer_id: int, producer: Producer) -> None:
        """Take over a producer as a snapshot has it."""
        self._producers[producer_id] = producer
        if producer.first_offset >= 0:
            self._open[producer_id] = producer.first_offset
            self._open = dict(sorted(self._open.items(), key=lambda item: item[1]))
            self._changed_offset = max(self._changed_offset, producer.first_offset)

    def restored_at(self, offset: int) -> None:
        """What comes from a snapshot may have changed anywhere below it."""
        self._changed_offset = max(self._changed_offset, offset - 1)

    def first_unstable_offset(self, high_watermark: int) -> int:
        """What readers of committed data may not reach; the high watermark if all is decided."""
        first_open = next(iter(self._open.values()), high_watermark)
        if not self._unreplicated:
            return min(first_open, high_watermark)
        self.replicated(high_watermark)
        return min(first_open, high_watermark, *(span[0] for span in self._unreplicated))

    def replicated(self, high_watermark: int) -> None:
        """Everything below is on all in-sync replicas."""
        if self._unreplicated:
            self._unreplicated = [span for span in self._unreplicated if span[1] >= high_watermark]

    def cut_end(self, end_offset: int) -> bool:
        """Forget the batches at `end_offset` and behind it, which are cut off the log.

        Says whether what is left is what the log tells. It is not if a transaction began or
        ended there, nor if a producer has no batch left here: its earlier ones may still be in
        the log. A producer with fewer than five left is as good as one with five: of its last
        five the missing ones are cut off.
        """
        is_right = self._changed_offset < end_offset
        for producer in self._producers.values():
            while producer.batches and producer.batches[-1].base_offset >= end_offset:
                producer.batches.pop()
                is_right = is_right and bool(producer.batches)
        return is_right

    def forget_older_than(self, timestamp_ms: int) -> None:
        """Drop producers whose last batch is older."""
        expired = [
            producer_id
            for producer_id, producer in self._producers.items()
            if producer.first_offset < 0 and producer.timestamp_ms < timestamp_ms
        ]
        for producer_id in expired:
            del self._producers[producer_id]


def _same(producer: Producer, header: BatchHeader) -> WrittenBatch | None:
    wanted = header.base_sequence, header.last_sequence
    for batch in producer.batches:
        if (batch.first_sequence, batch.last_sequence) == wanted:
            return batch
    return None


def _out_of_order(header: BatchHeader, expectation: str) -> Refused:
    return Refused(
        Code.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"producer {header.producer_id}, epoch {header.producer_epoch}: "
        f"sequence {header.base_sequence} is out of order, {expectation}",
    )
