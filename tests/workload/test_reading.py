"""From fetched bytes to deliveries: positions, control and aborted batches, damage."""

import numpy as np
import pytest

from shoal.model.ledger import ABORTED, COMMITTED
from shoal.model.topics import TopicPartition
from shoal.wire.batch import LOG_APPEND_TIME, TIMESTAMP_TYPE_BIT, Batch
from shoal.wire.fetch import AbortedTransaction, FetchedPartition
from shoal.wire.records.columns import encode_columns
from shoal.wire.records.records import ControlType, encode_control_batch
from shoal.workload.envelope import Envelope, MessageKind
from shoal.workload.envelope_columns import MessageWriter
from shoal.workload.receive.reading import LogReader, WithheldBatch

LOG = TopicPartition("t", 0)
OTHER = TopicPartition("t", 1)


def batch_of(numbers: range, *, base_offset: int, **options: int) -> bytearray:
    column = np.arange(numbers.start, numbers.stop, dtype=np.int64)
    writer = MessageWriter(Envelope("r", "p", "t", 120), 1)
    written = writer.write(column, column * 0, column, sent_ns=5_000_000)
    return encode_columns(
        values=written.values,
        keys=written.keys,
        headers=written.headers,
        timestamps=np.full(len(column), 7, np.int64),
        base_offset=base_offset,
        is_transactional="producer_id" in options,
        **options,  # type: ignore[arg-type]
    )


def answer(*batches: bytes | bytearray, **more: object) -> FetchedPartition:
    records = memoryview(bytearray().join(batches))
    return FetchedPartition("t", None, 0, records=records, **more)  # type: ignore[arg-type]


def reader(position: int = 0, isolation: str = "read_uncommitted") -> LogReader:
    return LogReader("r", ["t"], {LOG: position, OTHER: 0}, isolation=isolation)


def test_positions_move_and_messages_come_out() -> None:
    logs = reader()
    cut = batch_of(range(3, 4), base_offset=13)[:-1]
    found = logs.advance(LOG, answer(batch_of(range(3), base_offset=10), cut))
    found += logs.advance(OTHER, answer(batch_of(range(5, 7), base_offset=0)))
    assert logs.positions == {LOG: 13, OTHER: 2}
    delivered = logs.decode(found)
    assert delivered.log.tolist() == [0, 0, 0, 1, 1]
    assert delivered.batch.tolist() == [0, 0, 0, 1, 1]
    assert delivered.offset.tolist() == [10, 11, 12, 0, 1]
    assert delivered.messages.sequence.tolist() == [0, 1, 2, 5, 6]
    assert delivered.timestamp_us.tolist() == [7000] * 5
    assert delivered.append_us.tolist() == [-1] * 5
    assert delivered.messages.intact.all()


def test_records_before_the_position_are_left_out() -> None:
    logs = reader(position=12)
    first, second = batch_of(range(5), base_offset=10), batch_of(range(5, 8), base_offset=15)
    delivered = logs.decode(logs.advance(LOG, answer(first, second)))
    assert delivered.offset.tolist() == [12, 13, 14, 15, 16, 17]
    assert logs.advance(LOG, answer(first, second)) == []
    assert logs.positions[LOG] == 18


def test_append_times_are_known_where_the_topic_stamps_them() -> None:
    stamped = batch_of(range(2), base_offset=0)
    batch = Batch(memoryview(stamped))
    batch.edit(attributes=batch.attributes | TIMESTAMP_TYPE_BIT, max_timestamp=99)
    assert batch.timestamp_type == LOG_APPEND_TIME
    logs = reader()
    delivered = logs.decode(logs.advance(LOG, answer(stamped)))
    assert delivered.append_us.tolist() == [99_000, 99_000]


@pytest.mark.parametrize(
    ("isolation", "seen", "aborted"),
    [
        ("read_uncommitted", [0, 1, 2, 3, 4], []),
        ("read_committed", [1, 3, 4], [(0, 1), (4, 5)]),
    ],
)
def test_aborted_and_control_batches(
    isolation: str, seen: list[int], aborted: list[tuple[int, int]]
) -> None:
    def of_producer(sequence: int, producer_id: int) -> bytearray:
        ours = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0}
        return batch_of(range(sequence, sequence + 1), base_offset=sequence * 2, **ours)

    def marker(offset: int, producer_id: int, kind: ControlType) -> bytearray:
        return encode_control_batch(
            kind,
            base_offset=offset,
            producer_id=producer_id,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp=0,
        )

    logs = reader(isolation=isolation)
    logs.withheld = []
    found = logs.advance(
        LOG,
        answer(
            of_producer(0, 7),
            of_producer(1, 8),
            of_producer(2, 7),
            marker(5, 7, ControlType.ABORT),
            of_producer(3, 7),
            marker(7, 7, ControlType.COMMIT),
            of_producer(4, 8),
            marker(9, 8, ControlType.COMMIT),
            aborted=[AbortedTransaction(7, 0)],
        ),
    )
    assert logs.decode(found).messages.sequence.tolist() == seen
    assert logs.positions[LOG] == 10
    ranges = [*((low, high, ABORTED) for low, high in aborted), (5, 6, ABORTED)]
    ranges += [(7, 8, COMMITTED), (9, 10, COMMITTED)]
    assert sorted(logs.withheld) == sorted(WithheldBatch(0, *found) for found in ranges)


def test_a_batch_that_cannot_be_taken_apart_stops_nobody() -> None:
    broken = batch_of(range(4), base_offset=3)
    broken[61] = 0xFF  # the length of the first record
    good = batch_of(range(4, 6), base_offset=7)
    logs = reader(position=4)
    delivered = logs.decode(logs.advance(LOG, answer(broken, good)))
    assert delivered.offset.tolist() == [4, 5, 6, 7, 8]
    assert delivered.batch.tolist() == [0, 0, 0, 1, 1]
    expected = [MessageKind.UNREADABLE] * 3 + [MessageKind.MESSAGE] * 2
    assert delivered.messages.kind.tolist() == expected
    assert delivered.messages.intact.tolist() == [False] * 3 + [True] * 2
    assert len(logs.decode([])) == 0
