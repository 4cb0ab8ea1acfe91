"""What a broker makes of each field of a batch that a mirror forgot to rewrite, and of sequences.

Row by row what raw mirrors rely on: which code, and that nothing was written.
"""

import time
from collections.abc import Callable, Iterator

import pytest

from shoal.wire.api_keys import ApiKey
from shoal.wire.batch import (
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    Batch,
    iter_batches,
)
from shoal.wire.produce import ProducePartition, decode_produce_response
from shoal.wire.records.crc import crc32c
from shoal.wire.records.records import BatchOptions, Record, decode_records, encode_batch
from support.lite.client import PlainClient, at

NewTopic = Callable[..., str]
CORRUPT, INVALID_TIMESTAMP, OUT_OF_ORDER, OLD_EPOCH = 2, 32, 45, 47
INVALID_MAPPING, NOT_AUTHORIZED, INVALID_RECORD = 49, 53, 87


@pytest.fixture
def client(bootstrap: str) -> Iterator[PlainClient]:
    with PlainClient(bootstrap) as plain:
        yield plain


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def batch(count: int = 2, **options: int) -> bytearray:
    given: BatchOptions = {}
    given.update(options)  # type: ignore[typeddict-item]
    return encode_batch([Record(i, now_ms(), b"k", b"value") for i in range(count)], **given)


def idempotent_batch(
    producer_id: int, sequence: int, *, epoch: int = 0, count: int = 1
) -> bytearray:
    return batch(count, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)


def batch_with(**fields: int) -> bytearray:
    data = batch()
    Batch(memoryview(data)).edit(**fields)
    return data


def batch_with_wrong_count(last_offset_delta: int) -> bytearray:
    data = batch()
    data[23:27] = last_offset_delta.to_bytes(4, "big")
    data[17:21] = crc32c(memoryview(data)[21:]).to_bytes(4, "big")
    return data


def make_damaged_batch() -> bytearray:
    data = batch()
    data[-1] ^= 1
    return data


def end_of(client: PlainClient, topic: str) -> int:
    return int(client.fetch(at(topic, 0)).partitions[0].high_watermark)


@pytest.mark.parametrize(
    ("make", "code"),
    [
        pytest.param(lambda: batch_with(base_offset=7), INVALID_RECORD, id="base offset"),
        pytest.param(lambda: batch_with(leader_epoch=99), 0, id="leader epoch"),
        pytest.param(
            lambda: batch_with(producer_id=9, producer_epoch=0, base_sequence=-1),
            INVALID_RECORD,
            id="producer without a sequence",
        ),
        pytest.param(
            lambda: batch_with(attributes=TRANSACTIONAL_BIT), NOT_AUTHORIZED, id="transactional"
        ),
        pytest.param(lambda: batch_with(attributes=CONTROL_BIT), INVALID_RECORD, id="control"),
        pytest.param(lambda: batch_with(attributes=TIMESTAMP_TYPE_BIT), 0, id="append time"),
        pytest.param(lambda: batch_with(attributes=DELETE_HORIZON_BIT), 0, id="delete horizon"),
        pytest.param(make_damaged_batch, CORRUPT, id="stale checksum"),
        pytest.param(lambda: batch_with_wrong_count(5), INVALID_RECORD, id="last offset delta"),
        pytest.param(lambda: batch_with_wrong_count(0), INVALID_RECORD, id="too many records"),
        pytest.param(lambda: batch() + batch(), INVALID_RECORD, id="two batches"),
        pytest.param(bytearray, INVALID_RECORD, id="no batch"),
    ],
)
def test_a_field_as_it_was_fetched(
    client: PlainClient, topic: str, make: Callable[[], bytearray], code: int
) -> None:
    assert client.produce(topic, make()).error_code == code
    assert end_of(client, topic) == (0 if code else 2)


def test_append_time_becomes_create_time(client: PlainClient, topic: str) -> None:
    assert client.produce(topic, batch_with(attributes=TIMESTAMP_TYPE_BIT)).error_code == 0
    [kept] = iter_batches(client.fetch(at(topic, 0)).partitions[0].records)
    kept.check_crc()
    assert kept.attributes == 0
    assert len(decode_records(kept)) == 2


def test_append_time_is_refused_where_the_topic_has_it(
    client: PlainClient, new_topic: NewTopic
) -> None:
    topic = new_topic(message_timestamp_type="LogAppendTime")
    answer = client.produce(topic, batch_with(attributes=TIMESTAMP_TYPE_BIT))
    assert (answer.error_code, end_of(client, topic)) == (INVALID_TIMESTAMP, 0)


def test_one_transactional_batch_fails_the_whole_request(
    client: PlainClient, new_topic: NewTopic
) -> None:
    innocent, guilty = new_topic(), new_topic()
    client.send_produce(
        [
            ProducePartition(innocent, 0, batch()),
            ProducePartition(guilty, 0, batch_with(attributes=TRANSACTIONAL_BIT)),
        ]
    )
    answers = decode_produce_response(9, client.receive_frame())
    assert {answer.error_code for answer in answers} == {NOT_AUTHORIZED}
    assert (end_of(client, innocent), end_of(client, guilty)) == (0, 0)


def test_a_foreign_transaction(client: PlainClient, topic: str) -> None:
    foreign = batch(producer_id=4, producer_epoch=0, base_sequence=0, is_transactional=True)
    answer = client.produce(topic, foreign, transactional_id="nobody")
    assert answer.error_code in {INVALID_MAPPING, 19}  # 19 while the coordinator is found
    assert end_of(client, topic) == 0


def new_id(client: PlainClient) -> int:
    """A producer id that nobody has; a fresh cluster is asked more than once."""
    for _ in range(100):
        answer = client.request(
            ApiKey.INIT_PRODUCER_ID, 1, transactional_id=None, transaction_timeout=1000
        )
        if answer.error_code == 0:
            return int(answer.producer_id)
        time.sleep(0.05)
    raise AssertionError(answer)


def test_the_last_five_batches_are_known_again(client: PlainClient, topic: str) -> None:
    producer = new_id(client)
    for number in range(7):
        answer = client.produce(topic, idempotent_batch(producer, number * 2, count=2))
        assert (answer.error_code, answer.base_offset) == (0, number * 2)
    for number in range(2, 7):
        again = client.produce(topic, idempotent_batch(producer, number * 2, count=2))
        assert (again.error_code, again.base_offset) == (0, number * 2)
    too_old = client.produce(topic, idempotent_batch(producer, 2, count=2))
    other_boundaries = client.produce(topic, idempotent_batch(producer, 12))
    ahead = client.produce(topic, idempotent_batch(producer, 16))
    assert [a.error_code for a in (too_old, other_boundaries, ahead)] == [OUT_OF_ORDER] * 3
    assert client.produce(topic, idempotent_batch(producer, 14)).error_code == 0
    assert end_of(client, topic) == 15


def test_a_partition_takes_any_first_sequence(client: PlainClient, topic: str) -> None:
    assert client.produce(topic, idempotent_batch(123_456_789, 63)).error_code == 0
    assert client.produce(topic, idempotent_batch(123_456_789, 62)).error_code == OUT_OF_ORDER
    assert client.produce(topic, idempotent_batch(123_456_789, 64)).error_code == 0


def test_a_first_batch_that_was_refused_leaves_a_hole(client: PlainClient, topic: str) -> None:
    producer = new_id(client)
    first = idempotent_batch(producer, 0)
    first[-1] ^= 1
    assert client.produce(topic, first).error_code == CORRUPT
    assert client.produce(topic, idempotent_batch(producer, 1)).error_code == 0
    assert client.produce(topic, idempotent_batch(producer, 0)).error_code == OUT_OF_ORDER


def test_sequences_wrap(client: PlainClient, topic: str) -> None:
    last = (1 << 31) - 1
    assert client.produce(topic, idempotent_batch(77, last - 1, count=2)).error_code == 0
    assert client.produce(topic, idempotent_batch(77, 0, count=3)).error_code == 0
    assert client.produce(topic, idempotent_batch(77, 3)).error_code == 0
    assert client.produce(topic, idempotent_batch(78, last, count=4)).error_code == 0
    assert client.produce(topic, idempotent_batch(78, 3)).error_code == 0


def test_epochs(client: PlainClient, topic: str) -> None:
    producer = new_id(client)
    assert client.produce(topic, idempotent_batch(producer, 5, epoch=3)).error_code == 0
    assert client.produce(topic, idempotent_batch(producer, 6, epoch=2)).error_code == OLD_EPOCH
    assert client.produce(topic, idempotent_batch(producer, 6, epoch=4)).error_code == OUT_OF_ORDER
    assert client.produce(topic, idempotent_batch(producer, 0, epoch=4)).error_code == 0
    assert client.produce(topic, idempotent_batch(producer, 6, epoch=3)).error_code == OLD_EPOCH


def test_an_old_id_without_a_transactional_id_is_ignored(client: PlainClient) -> None:
    producer = new_id(client)
    answer = client.request(
        ApiKey.INIT_PRODUCER_ID,
        4,
        transactional_id=None,
        transaction_timeout=1000,
        producer_id=producer,
        producer_epoch=3,
    )
    assert answer.error_code == 0
    assert answer.producer_id != producer
    assert answer.producer_epoch == 0


def test_another_connection_goes_on_with_the_same_producer(
    client: PlainClient, bootstrap: str, topic: str
) -> None:
    producer = new_id(client)
    assert client.produce(topic, idempotent_batch(producer, 0, count=3)).error_code == 0
    with PlainClient(bootstrap) as other:
        assert other.produce(topic, idempotent_batch(producer, 3)).error_code == 0
        again = other.produce(topic, idempotent_batch(producer, 0, count=3))
        assert (again.error_code, again.base_offset) == (0, 0)


def test_producers_are_described(client: PlainClient, topic: str) -> None:
    producer = new_id(client)
    assert client.produce(topic, idempotent_batch(producer, 0, epoch=2, count=3)).error_code == 0
    response = client.request(
        ApiKey.DESCRIBE_PRODUCERS, 0, topics=[{"name": topic, "partition_indexes": [0, 7]}]
    )
    known, unknown = response.topics[0].partitions
    [state] = known.active_producers
    assert (state.producer_id, state.producer_epoch, state.last_sequence) == (producer, 2, 2)
    assert (state.current_txn_start_offset, state.coordinator_epoch) == (-1, -1)
    assert (known.error_code, unknown.error_code) == (0, 3)
