"""Batches for tests of the mirror, and a target that counts sequences as Kafka does."""

import time
from dataclasses import dataclass, field

from shoal.client.codes import Code
from shoal.client.results import ProduceResult
from shoal.mirror.handlers import RecordColumns
from shoal.model.findings import Outcome
from shoal.model.topics import TopicPartition
from shoal.wire.batch import Batch
from shoal.wire.records.records import Record, decode_records, encode_batch

LAST_BATCHES = 5


def records_of(base_offset: int, count: int, *, size: int = 10) -> list[Record]:
    """Records whose values tell their offsets."""
    return [
        Record(
            offset=base_offset + index,
            timestamp=1_700_000_000_000 + base_offset + index,
            key=f"key-{base_offset + index}".encode(),
            value=f"{base_offset + index:0{size}d}".encode(),
            headers=(("h", b"v"), ("none", None)),
        )
        for index in range(count)
    ]


def stored_batch(base_offset: int, count: int, **options: object) -> bytearray:
    """A batch as a source's log holds it."""
    return encode_batch(
        records_of(base_offset, count),
        base_offset=base_offset,
        leader_epoch=3,
        keep_offsets=True,
        **options,  # type: ignore[arg-type]
    )


def record_set(*batches: bytearray) -> memoryview:
    return memoryview(bytearray(b"".join(batches)))


@dataclass
class SequencedTarget:
    """A partition of a broker, as far as idempotent producers see it."""

    values: list[bytes] = field(default_factory=list)
    batches: list[bytes] = field(default_factory=list)
    last_sequence: int | None = None
    limit_bytes: int = 1 << 30
    _cached: list[tuple[int, int, int]] = field(default_factory=list)

    def append(self, batch: Batch) -> ProduceResult:
        try:
            batch.check_crc()
        except Exception:  # noqa: BLE001 - whatever is wrong, a broker calls it corrupt
            return ProduceResult(Outcome.FAILED, Code.CORRUPT_MESSAGE)
        if batch.size > self.limit_bytes:
            return ProduceResult(Outcome.FAILED, Code.MESSAGE_TOO_LARGE)
        assert batch.base_offset == 0
        assert batch.record_count == batch.last_offset_delta + 1
        span = (batch.base_sequence, batch.last_sequence)
        for first, last, offset in self._cached:
            if (first, last) == span:
                return ProduceResult(Outcome.OK, base_offset=offset)
        expected = None if self.last_sequence is None else (self.last_sequence + 1) & 0x7FFFFFFF
        if expected is not None and batch.base_sequence != expected:
            return ProduceResult(Outcome.FAILED, Code.OUT_OF_ORDER_SEQUENCE_NUMBER)
        offset = len(self.values)
        self.values += [record.value or b"" for record in decode_records(batch)]
        self.batches.append(bytes(batch.view))
        self.last_sequence = batch.last_sequence
        self._cached = [*self._cached, (*span, offset)][-LAST_BATCHES:]
        return ProduceResult(Outcome.OK, base_offset=offset)

    def restart(self) -> None:
        """Of what it remembers only the last batch is left."""
        self._cached = self._cached[-1:]

    def forget_producer(self) -> None:
        """As after producer.id.expiration.ms: the next batch may have any sequence."""
        self._cached = []
        self.last_sequence = None


def pass_slowly(partition: TopicPartition, batch: Batch) -> Batch:
    """A handler that makes a mirror slow."""
    time.sleep(0.003)
    return batch


def shout(partition: TopicPartition, batch: RecordColumns) -> RecordColumns:
    """A handler of records: values get a mark; odd ones are left out."""
    even = [not int(value or b"0") % 2 for value in batch.values]
    batch.values = [(value or b"") + b"!" for value in batch.values]
    return batch.select(even)
