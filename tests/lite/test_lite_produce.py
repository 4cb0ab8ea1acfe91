"""What a broker says to each kind of batch, by Kafka's error codes; what is refused leaves nothing.

The codes are those that Apache Kafka 4.3.1 gives.
"""

import time
from collections.abc import Callable

import pytest

from shoal.lite.base.codes import Code
from shoal.wire.api_keys import ApiKey
from shoal.wire.batch import Batch
from shoal.wire.produce import ProducePartition, decode_produce_response
from shoal.wire.records.crc import crc32c
from shoal.wire.records.records import ControlType, Record, encode_batch, encode_control_batch
from support.lite.batches import batch_of, values_of
from support.lite.client import PlainClient, at

Spoil = Callable[[bytearray], bytearray]
HOUR_MS = 3_600_000
_A_MINUTE_MS = 60_000


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def edit_header(batch: bytearray, **changes: int) -> bytearray:
    Batch(memoryview(batch)).edit(**changes)
    return batch


def with_byte(batch: bytearray, position: int, value: int) -> bytearray:
    batch[position] = value
    return batch


def with_last_offset_delta(batch: bytearray, delta: int) -> bytearray:
    """A header field that `edit` does not know, with a new checksum."""
    batch[23:27] = delta.to_bytes(4, "big", signed=True)
    batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
    return batch


REFUSED: list[tuple[str, Spoil, Code]] = [
    ("base offset", lambda b: edit_header(b, base_offset=5), Code.INVALID_RECORD),
    ("flipped bit", lambda b: with_byte(b, len(b) - 1, b[-1] ^ 1), Code.CORRUPT_MESSAGE),
    ("old format", lambda b: with_byte(b, 16, 1), Code.INVALID_RECORD),
    ("unknown format", lambda b: with_byte(b, 16, 9), Code.INVALID_RECORD),
    ("control bit", lambda b: edit_header(b, attributes=0x20), Code.INVALID_RECORD),
    ("unknown codec", lambda b: edit_header(b, attributes=7), Code.UNSUPPORTED_COMPRESSION_TYPE),
    ("no sequence", lambda b: edit_header(b, producer_id=5, producer_epoch=0), Code.INVALID_RECORD),
    ("gap", lambda b: with_last_offset_delta(b, 7), Code.INVALID_RECORD),
    ("negative delta", lambda b: with_last_offset_delta(b, -3), Code.INVALID_RECORD),
    ("two batches", lambda b: b + b, Code.INVALID_RECORD),
    ("cut", lambda b: b[:-1], Code.INVALID_RECORD),
    ("less than a header", lambda b: b[:60], Code.INVALID_RECORD),
    ("nothing", lambda _: bytearray(), Code.INVALID_RECORD),
    ("tiny length", lambda b: with_byte(b, 11, 0), Code.CORRUPT_MESSAGE),
    ("too large", lambda _: batch_of(bytes(1_048_588)), Code.MESSAGE_TOO_LARGE),
    (
        "future",
        lambda _: batch_of(b"x", timestamp_ms=now_ms() + 2 * HOUR_MS),
        Code.INVALID_TIMESTAMP,
    ),
]


@pytest.mark.parametrize(
    ("spoil", "code"), [pytest.param(spoil, code, id=name) for name, spoil, code in REFUSED]
)
def test_a_wrong_batch_gets_kafkas_code_and_leaves_nothing(
    client: PlainClient, topic: str, spoil: Spoil, code: Code
) -> None:
    answer = client.produce(topic, spoil(batch_of(b"a", b"b")))
    assert (answer.error_code, answer.base_offset) == (code, -1)
    assert answer.error_message
    [fetched] = client.fetch(at(topic, 0)).partitions
    assert (fetched.high_watermark, len(fetched.records)) == (0, 0)
    assert client.produce(topic, batch_of(b"a")).base_offset == 0


def test_control_records_are_for_brokers_only(client: PlainClient, topic: str) -> None:
    marker = encode_control_batch(
        ControlType.COMMIT,
        producer_id=3,
        producer_epoch=0,
        coordinator_epoch=0,
        timestamp=now_ms(),
    )
    Batch(memoryview(marker)).edit(attributes=0x20)
    assert client.produce(topic, marker).error_code == Code.INVALID_RECORD


def test_unknown_topics_and_partitions(client: PlainClient, topic: str) -> None:
    batch = batch_of(b"a")
    assert client.produce("nowhere", batch).error_code == Code.UNKNOWN_TOPIC_OR_PARTITION
    answer = client.produce(topic, batch, partition=1)
    assert answer.error_code == Code.UNKNOWN_TOPIC_OR_PARTITION
    answer = client.produce(topic, batch, partition=-1)
    assert answer.error_code == Code.UNKNOWN_TOPIC_OR_PARTITION


def test_zstd_needs_version_7(client: PlainClient, topic: str) -> None:
    old = client.produce(topic, batch_of(b"a", codec=4), version=6)
    assert old.error_code == Code.UNSUPPORTED_COMPRESSION_TYPE
    assert client.produce(topic, batch_of(b"a", codec=4), version=7).error_code == 0


def test_a_transactional_batch_without_a_transaction_fails_the_whole_request(
    client: PlainClient, topic: str
) -> None:
    records = [Record(0, now_ms(), None, b"x")]
    options = {"producer_id": 4, "producer_epoch": 0, "base_sequence": 0}
    transactional = encode_batch(records, is_transactional=True, **options)  # type: ignore[arg-type]
    client.create_topic(f"{topic}-b")
    client.send_produce(
        [
            ProducePartition(f"{topic}-b", 0, batch_of(b"innocent")),
            ProducePartition(topic, 0, transactional),
        ]
    )
    answers = decode_produce_response(9, client.receive_frame())
    assert {answer.error_code for answer in answers} == {53}
    answer = client.produce(topic, transactional, transactional_id="t")
    assert answer.error_code == Code.INVALID_PRODUCER_ID_MAPPING


@pytest.mark.parametrize("acks", [2, -2, 100])
def test_unknown_acks(client: PlainClient, topic: str, acks: int) -> None:
    answer = client.produce(topic, batch_of(b"a"), acks=acks)
    assert answer.error_code == Code.INVALID_REQUIRED_ACKS


def test_acks_0_gets_no_answer_but_is_written(client: PlainClient, topic: str) -> None:
    client.send_produce([ProducePartition(topic, 0, batch_of(b"a"))], acks=0)
    assert client.produce(topic, batch_of(b"b"), acks=1).base_offset == 1
    [fetched] = client.fetch(at(topic, 0)).partitions
    assert values_of(bytes(fetched.records)) == [b"a", b"b"]


def test_acks_0_that_fails_costs_the_connection(client: PlainClient) -> None:
    client.send_produce([ProducePartition("nowhere", 0, batch_of(b"a"))], acks=0)
    assert client.is_hung_up()


def test_partitions_of_one_request_fail_by_themselves(client: PlainClient, topic: str) -> None:
    client.send_produce(
        [
            ProducePartition(topic, 0, batch_of(b"a")),
            ProducePartition(topic, 1, batch_of(b"b")),
            ProducePartition("nowhere", 0, batch_of(b"c")),
        ]
    )
    answers = decode_produce_response(9, client.receive_frame())
    assert [(answer.topic, answer.error_code) for answer in answers] == [
        (topic, 0),
        (topic, 3),
        ("nowhere", 3),
    ]


def test_answers_come_in_the_order_of_the_requests(client: PlainClient, topic: str) -> None:
    for i in range(50):
        client.send_produce([ProducePartition(topic, 0, batch_of(b"%d" % i))])
    offsets = [decode_produce_response(9, client.receive_frame())[0].base_offset for _ in range(50)]
    assert offsets == list(range(50))


def test_idempotent_producers(client: PlainClient, topic: str) -> None:
    new = client.request(
        ApiKey.INIT_PRODUCER_ID, 0, transactional_id=None, transaction_timeout=_A_MINUTE_MS
    )
    producer_id = new.producer_id
    assert (new.error_code, new.producer_epoch) == (0, 0)

    def produce(sequence: int, *, epoch: int = 0, count: int = 1) -> tuple[int, int]:
        values = [b"%d" % (sequence + i) for i in range(count)]
        batch = batch_of(*values, timestamp_ms=now_ms(), producer=(producer_id, epoch, sequence))
        answer = client.produce(topic, batch)
        return answer.error_code, answer.base_offset

    assert produce(0, count=3) == (0, 0)
    assert produce(3) == (0, 3)
    assert produce(0, count=3) == (0, 0)
    assert produce(3) == (0, 3)
    assert produce(5) == (Code.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert produce(4) == (0, 4)
    assert produce(5, epoch=1) == (Code.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert produce(0, epoch=1) == (0, 5)
    assert produce(5) == (Code.INVALID_PRODUCER_EPOCH, -1)
    [fetched] = client.fetch(at(topic, 0)).partitions
    assert values_of(bytes(fetched.records)) == [b"0", b"1", b"2", b"3", b"4", b"0"]


def test_producer_ids_are_never_given_twice(client: PlainClient) -> None:
    given = [
        client.request(
            ApiKey.INIT_PRODUCER_ID,
            4,
            transactional_id=None,
            transaction_timeout=_A_MINUTE_MS,
            producer_id=3,
            producer_epoch=1,
        ).producer_id
        for _ in range(1200)
    ]
    assert len(set(given)) == 1200


def test_log_append_time(client: PlainClient) -> None:
    client.create_topic("appended", message_timestamp_type="LogAppendTime")
    before = now_ms()
    answer = client.produce("appended", batch_of(b"a", b"b", timestamp_ms=5, codec=1))
    assert answer.append_time_ms >= before
    [fetched] = client.fetch(at("appended", 0)).partitions
    batch = Batch(fetched.records)
    batch.check_crc()
    assert (batch.timestamp_type, batch.max_timestamp) == (1, answer.append_time_ms)
    spoiled = edit_header(batch_of(b"c"), attributes=0x08)
    assert client.produce("appended", spoiled).error_code == Code.INVALID_TIMESTAMP


def test_a_producers_append_time_bit_is_cleared(client: PlainClient, topic: str) -> None:
    assert client.produce(topic, edit_header(batch_of(b"a"), attributes=0x08)).error_code == 0
    [fetched] = client.fetch(at(topic, 0)).partitions
    batch = Batch(fetched.records)
    batch.check_crc()
    assert batch.attributes == 0


def test_limits_of_topics(client: PlainClient) -> None:
    client.create_topic("small", max_message_bytes="200")
    assert client.produce("small", batch_of(bytes(100))).error_code == 0
    assert client.produce("small", batch_of(bytes(200))).error_code == Code.MESSAGE_TOO_LARGE
    client.create_topic("tiny.segments", segment_bytes="200")
    answer = client.produce("tiny.segments", batch_of(bytes(200)))
    assert answer.error_code == Code.RECORD_LIST_TOO_LARGE
    client.create_topic("past", message_timestamp_before_max_ms="1000")
    assert client.produce("past", batch_of(b"x", timestamp_ms=5)).error_code == 32
    # As in Apache Kafka, a topic cannot ask for more replicas than it has.
    client.create_topic("many", min_insync_replicas="2")
    assert client.produce("many", batch_of(b"x")).error_code == Code.NONE
    assert client.produce("many", batch_of(b"x"), acks=1).error_code == 0
