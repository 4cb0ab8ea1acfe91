"""What a topic's settings do to batches on their way in, to the byte, on any Kafka."""

import time
from collections.abc import Callable, Iterator

import pytest

from shoal.wire.batch import Batch, iter_batches
from shoal.wire.produce import ProduceAnswer
from shoal.wire.records.records import BatchOptions, Record, decode_records, encode_batch
from support.lite.client import PlainClient, at

CODECS = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
MESSAGE_TOO_LARGE, INVALID_TIMESTAMP, INVALID_RECORD = 10, 32, 87
NewTopic = Callable[..., str]


@pytest.fixture
def client(bootstrap: str) -> Iterator[PlainClient]:
    with PlainClient(bootstrap) as plain:
        yield plain


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def batch_of(*keys: bytes | None, ago_ms: tuple[int, ...] = (), **options: int) -> bytearray:
    times = [now_ms() - ago for ago in ago_ms or [0] * len(keys)]
    header: BatchOptions = {"codec": options.get("codec", 0)}
    records = [
        Record(0, at_ms, key, b"value " * 40, (("h", b"x"),))
        for key, at_ms in zip(keys, times, strict=True)
    ]
    return encode_batch(records, **header)


def read_stored(client: PlainClient, topic: str) -> list[Batch]:
    [fetched] = client.fetch(at(topic, 0)).partitions
    return list(iter_batches(fetched.records))


@pytest.mark.parametrize("sent", CODECS)
@pytest.mark.parametrize("wanted", [*CODECS, "producer"])
def test_a_topic_may_have_a_codec_of_its_own(
    client: PlainClient, new_topic: NewTopic, sent: str, wanted: str
) -> None:
    topic = new_topic(compression_type=wanted)
    batch = batch_of(b"a", b"b", None, codec=CODECS[sent])
    assert client.produce(topic, bytearray(batch)).error_code == 0
    [kept] = read_stored(client, topic)
    kept.check_crc()
    assert kept.codec == CODECS[sent if wanted == "producer" else wanted]
    before = decode_records(Batch(memoryview(batch)))
    assert [(r.key, r.value, r.timestamp, r.headers) for r in decode_records(kept)] == [
        (r.key, r.value, r.timestamp, r.headers) for r in before
    ]
    assert (kept.last_offset_delta, kept.record_count, kept.producer_id) == (2, 3, -1)


def test_the_size_counts_before_and_after_packing(client: PlainClient, new_topic: NewTopic) -> None:
    topic = new_topic(compression_type="uncompressed", max_message_bytes="400")
    small_once_packed = batch_of(b"a", b"b", b"c", codec=CODECS["gzip"])
    assert len(small_once_packed) < 400
    assert client.produce(topic, small_once_packed).error_code == MESSAGE_TOO_LARGE
    assert client.produce(topic, batch_of(b"a", b"b", b"c")).error_code == MESSAGE_TOO_LARGE
    assert client.produce(topic, batch_of(b"a")).error_code == 0
    assert len(read_stored(client, topic)) == 1


@pytest.mark.parametrize("codec", CODECS.values())
def test_compacted_topics_want_keys(client: PlainClient, new_topic: NewTopic, codec: int) -> None:
    topic = new_topic(cleanup_policy="compact")
    answer = client.produce(topic, batch_of(b"a", None, b"b", None, codec=codec))
    assert answer.error_code == INVALID_RECORD
    assert [error.batch_index for error in answer.record_errors] == [1, 3]
    assert client.produce(topic, batch_of(b"a", b"", codec=codec)).error_code == 0
    [kept] = read_stored(client, topic)
    assert kept.record_count == 2


HOUR_MS = 3_600_000


@pytest.mark.parametrize("codec", [0, 4])
def test_timestamps_have_limits(client: PlainClient, new_topic: NewTopic, codec: int) -> None:
    topic = new_topic(
        message_timestamp_before_max_ms=str(HOUR_MS), message_timestamp_after_max_ms=str(HOUR_MS)
    )

    def send_with_age(*ago_ms: int) -> ProduceAnswer:
        batch = batch_of(*[b"k"] * len(ago_ms), ago_ms=ago_ms, codec=codec)
        return client.produce(topic, batch)

    assert send_with_age(0, HOUR_MS // 2, -HOUR_MS // 2).error_code == 0
    past = send_with_age(0, 2 * HOUR_MS)
    assert past.error_code == INVALID_TIMESTAMP
    assert [error.batch_index for error in past.record_errors] == [1]
    assert send_with_age(0, -2 * HOUR_MS).error_code == INVALID_TIMESTAMP
    assert len(read_stored(client, topic)) == 1


def test_the_future_has_a_limit_by_default(client: PlainClient, topic: str) -> None:
    assert client.produce(topic, batch_of(b"k", ago_ms=(-2 * HOUR_MS,))).error_code == (
        INVALID_TIMESTAMP
    )
    assert client.produce(topic, batch_of(b"k", ago_ms=(1000 * HOUR_MS,))).error_code == 0


@pytest.mark.parametrize("codec", [0, 3])
def test_append_time(client: PlainClient, new_topic: NewTopic, codec: int) -> None:
    topic = new_topic(message_timestamp_type="LogAppendTime", compression_type="lz4")
    began_ms = now_ms()
    batch = batch_of(b"a", b"b", ago_ms=(HOUR_MS, 2 * HOUR_MS), codec=codec)
    answer = client.produce(topic, batch)
    assert answer.error_code == 0
    assert began_ms <= answer.append_time_ms <= now_ms()
    [kept] = read_stored(client, topic)
    kept.check_crc()
    assert kept.timestamp_type == 1
    assert {record.timestamp for record in decode_records(kept)} == {answer.append_time_ms}
    # Only brokers set that time.
    stamped = batch_of(b"a")
    Batch(memoryview(stamped)).edit(attributes=1 << 3)
    assert client.produce(topic, stamped).error_code == INVALID_TIMESTAMP
