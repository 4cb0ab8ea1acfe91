"""What each idempotent producer has written to a partition, and which batch may come next.

Apache Kafka's rules, which its clients rely on:
- The last five batches of a producer are remembered. One that comes again, with the same
  epoch, first and last sequence, is a duplicate: it is acknowledged with its old offset.
- Otherwise its first sequence must follow the last one written; sequences wrap from 2³¹-1
  to 0. Anything else is out of order.
- An older epoch is refused. A newer epoch starts at sequence 0.
- A producer that the partition does not know may start with any sequence.
- A producer is forgotten some time after the *timestamp* of its last batch, not after its
  writing: old data leaves no state behind.

Pure: the log asks `check` before it writes and tells `record` after it has written.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from shoal.lite.codes import Code, Refused
from shoal.lite.log.header import BatchHeader
from shoal.wire.batch import NO_PRODUCER_ID, sequence_after

REMEMBERED_BATCHES = 5


class WrittenBatch(NamedTuple):
    """One batch of a producer, where it lies in the log."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp_ms: int


@dataclass(slots=True)
class Producer:
    """One producer's recent past; never without a batch."""

    epoch: int
    batches: deque[WrittenBatch] = field(default_factory=lambda: deque(maxlen=REMEMBERED_BATCHES))


class ProducerStates:
    """The producers of one partition."""

    __slots__ = ("_producers",)

    def __init__(self) -> None:
        self._producers: dict[int, Producer] = {}

    def __len__(self) -> int:
        return len(self._producers)

    def check(self, header: BatchHeader) -> WrittenBatch | None:
        """The earlier copy of a duplicate; None if the batch is to be written; else `Refused`."""
        producer = self._producers.get(header.producer_id)
        if producer is None:
            return None
        if header.producer_epoch == producer.epoch:
            return self._check_same_epoch(header, producer)
        if header.producer_epoch < producer.epoch:
            raise Refused(
                Code.INVALID_PRODUCER_EPOCH,
                f"producer {header.producer_id} is at epoch {producer.epoch}, "
                f"this batch has epoch {header.producer_epoch}",
            )
        if header.base_sequence != 0:
            raise _out_of_order(header, "a new epoch starts at 0")
        return None

    def _check_same_epoch(self, header: BatchHeader, producer: Producer) -> WrittenBatch | None:
        expected = sequence_after(producer.batches[-1].last_sequence, 1)
        if header.base_sequence == expected:
            return None
        for batch in producer.batches:
            if (
                batch.first_sequence == header.base_sequence
                and batch.last_sequence == header.last_sequence
            ):
                return batch
        raise _out_of_order(header, f"{expected} comes next")

    def record(self, header: BatchHeader, base_offset: int) -> None:
        """Note a batch that now lies in the log at `base_offset`."""
        if header.producer_id == NO_PRODUCER_ID:
            return
        producer = self._producers.get(header.producer_id)
        if producer is None or producer.epoch != header.producer_epoch:
            producer = Producer(header.producer_epoch)
            self._producers[header.producer_id] = producer
        producer.batches.append(
            WrittenBatch(
                header.base_sequence,
                header.last_sequence,
                base_offset,
                base_offset + header.last_offset_delta,
                header.max_timestamp,
            )
        )

    def cut_end(self, end_offset: int) -> bool:
        """Forget the batches at `end_offset` and behind it, which are cut off the log.

        Says whether what is left is what the log tells. It is not if a producer has no batch
        left here: its earlier ones may still be in the log. A producer with fewer than five
        left is as good as one with five: of its last five the missing ones are cut off.
        """
        for producer in self._producers.values():
            while producer.batches and producer.batches[-1].base_offset >= end_offset:
                producer.batches.pop()
        return all(producer.batches for producer in self._producers.values())

    def forget_older_than(self, timestamp_ms: int) -> None:
        """Drop producers whose last batch is older."""
        expired = [
            producer_id
            for producer_id, producer in self._producers.items()
            if producer.batches[-1].timestamp_ms < timestamp_ms
        ]
        for producer_id in expired:
            del self._producers[producer_id]


def _out_of_order(header: BatchHeader, expectation: str) -> Refused:
    return Refused(
        Code.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"producer {header.producer_id}, epoch {header.producer_epoch}: "
        f"sequence {header.base_sequence} is out of order, {expectation}",
    )
