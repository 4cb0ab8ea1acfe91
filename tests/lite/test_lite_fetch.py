"""Reading: limits, long polls, offsets and epochs that are wrong, topics by id."""

import time
import uuid

import pytest

from shoal.lite.base.codes import Code
from shoal.wire.api_keys import ApiKey
from shoal.wire.fetch import decode_fetch_response
from support.lite.batches import NOW_MS, batch_of, values_of
from support.lite.client import TIMEOUT_MS, PlainClient, at


def test_a_fetch_waits_for_data_and_no_longer(
    client: PlainClient, bootstrap: str, topic: str
) -> None:
    started = time.monotonic()
    client.send_fetch(at(topic, 0), max_wait_ms=20_000)
    with PlainClient(bootstrap) as producer:
        time.sleep(0.1)
        producer.produce(topic, batch_of(b"late"))
    [fetched] = decode_fetch_response(12, client.receive_frame()).partitions
    assert values_of(bytes(fetched.records)) == [b"late"]
    assert time.monotonic() - started < 15


def test_a_fetch_without_data_ends_in_time(client: PlainClient, topic: str) -> None:
    started = time.monotonic()
    [fetched] = client.fetch(at(topic, 0), max_wait_ms=300).partitions
    assert (fetched.error_code, fetched.high_watermark, len(fetched.records)) == (0, 0, 0)
    assert 0.25 < time.monotonic() - started < 30


def test_a_fetch_waits_for_as_much_as_it_wants(
    client: PlainClient, bootstrap: str, topic: str
) -> None:
    batch = batch_of(b"x" * 100)
    client.send_fetch(at(topic, 0), max_wait_ms=20_000, min_bytes=3 * len(batch))
    with PlainClient(bootstrap) as producer:
        for _ in range(3):
            producer.produce(topic, batch_of(b"x" * 100))
    [fetched] = decode_fetch_response(12, client.receive_frame()).partitions
    assert len(fetched.records) == 3 * len(batch)


def test_a_topic_that_goes_away_ends_the_wait(
    client: PlainClient, bootstrap: str, topic: str
) -> None:
    client.send_fetch(at(topic, 0), max_wait_ms=20_000)
    with PlainClient(bootstrap) as admin:
        deleted = admin.request(
            ApiKey.DELETE_TOPICS, 5, topic_names=[topic], timeout=TIMEOUT_MS
        ).responses
    assert [result.error_code for result in deleted] == [0]
    [fetched] = decode_fetch_response(12, client.receive_frame()).partitions
    assert fetched.error_code == Code.UNKNOWN_TOPIC_OR_PARTITION


def test_limits_of_a_fetch(client: PlainClient, topic: str) -> None:
    client.create_topic(f"{topic}-b")
    size = len(batch_of(b"x" * 1000))
    for name in (topic, f"{topic}-b"):
        for _ in range(4):
            client.produce(name, batch_of(b"x" * 1000))

    def sizes(*, max_bytes: int, partition_bytes: int) -> list[int]:
        wanted = [at(name, 0, max_bytes=partition_bytes) for name in (topic, f"{topic}-b")]
        fetched = client.fetch(*wanted, max_bytes=max_bytes).partitions
        return [len(partition.records) for partition in fetched]

    assert sizes(max_bytes=1 << 20, partition_bytes=1 << 20) == [4 * size, 4 * size]
    assert sizes(max_bytes=1 << 20, partition_bytes=2 * size + 1) == [2 * size, 2 * size]
    assert sizes(max_bytes=5 * size, partition_bytes=1 << 20) == [4 * size, size]
    # The first batch of the first partition comes whole, those of others do not (KIP-74).
    assert sizes(max_bytes=1 << 20, partition_bytes=1) == [size, 0]
    assert sizes(max_bytes=1, partition_bytes=1 << 20) == [size, 0]
    assert sizes(max_bytes=0, partition_bytes=0) == [size, 0]


@pytest.mark.parametrize("offset", [-1, 3, 1 << 60])
def test_an_offset_out_of_range_is_told_at_once(
    client: PlainClient, topic: str, offset: int
) -> None:
    client.produce(topic, batch_of(b"a", b"b"))
    started = time.monotonic()
    [fetched] = client.fetch(at(topic, offset), max_wait_ms=20_000).partitions
    assert fetched.error_code == Code.OFFSET_OUT_OF_RANGE
    assert time.monotonic() - started < 15


def test_leader_epochs(client: PlainClient, topic: str) -> None:
    def code(epoch: int) -> int:
        wanted = at(topic, 0)._replace(leader_epoch=epoch)
        return client.fetch(wanted).partitions[0].error_code

    assert code(-1) == 0
    assert code(0) == 0
    assert code(1) == Code.UNKNOWN_LEADER_EPOCH


def test_unknown_topics_by_name_and_by_id(client: PlainClient, topic: str) -> None:
    [fetched] = client.fetch(at("nowhere", 0)).partitions
    assert fetched.error_code == Code.UNKNOWN_TOPIC_OR_PARTITION
    [fetched] = client.fetch(at(topic, 0, partition=5)).partitions
    assert fetched.error_code == Code.UNKNOWN_TOPIC_OR_PARTITION
    unknown = at("", 0)._replace(topic_id=uuid.uuid4())
    [fetched] = client.fetch(unknown, version=13).partitions
    assert fetched.error_code == Code.UNKNOWN_TOPIC_ID


def test_a_session_that_was_never_made(client: PlainClient, topic: str) -> None:
    response = client.fetch(at(topic, 0), session_id=77, session_epoch=1)
    assert (response.error_code, response.partitions) == (Code.FETCH_SESSION_ID_NOT_FOUND, [])


def test_a_client_that_leaves_in_the_middle_of_a_wait_leaves_nothing(
    client: PlainClient, bootstrap: str, topic: str
) -> None:
    for _ in range(20):
        with PlainClient(bootstrap) as leaver:
            leaver.send_fetch(at(topic, 0), max_wait_ms=60_000)
    assert client.produce(topic, batch_of(b"a")).base_offset == 0
    assert client.produce(topic, batch_of(b"b")).base_offset == 1


def list_offset(client: PlainClient, topic: str, timestamp: int) -> tuple[int, int, int, int]:
    response = client.request(
        ApiKey.LIST_OFFSETS,
        7,
        replica_id=-1,
        isolation_level=0,
        topics=[{"name": topic, "partitions": [{"partition_index": 0, "timestamp": timestamp}]}],
    )
    found = response.topics[0].partitions[0]
    return found.error_code, found.offset, found.timestamp, found.leader_epoch


def test_offsets_by_time(client: PlainClient, topic: str) -> None:
    assert list_offset(client, topic, -1) == (0, 0, -1, 0)
    assert list_offset(client, topic, -3) == (0, -1, -1, -1)
    assert list_offset(client, topic, 0) == (0, -1, -1, -1)
    client.produce(topic, batch_of(b"a", b"b", b"c", timestamp_ms=NOW_MS, codec=2))
    client.produce(topic, batch_of(b"d", b"e", timestamp_ms=NOW_MS + 10, codec=4))
    client.produce(topic, batch_of(b"f", timestamp_ms=NOW_MS + 5))
    assert list_offset(client, topic, -1) == (0, 6, -1, 0)
    assert list_offset(client, topic, -2) == (0, 0, -1, 0)
    assert list_offset(client, topic, -3) == (0, 4, NOW_MS + 11, 0)
    assert list_offset(client, topic, NOW_MS + 1) == (0, 1, NOW_MS + 1, 0)
    assert list_offset(client, topic, NOW_MS + 4) == (0, 3, NOW_MS + 10, 0)
    assert list_offset(client, topic, NOW_MS + 12) == (0, -1, -1, -1)
    assert list_offset(client, topic, -4)[0] == Code.UNSUPPORTED_VERSION
    assert list_offset(client, "nowhere", -1)[0] == Code.UNKNOWN_TOPIC_OR_PARTITION


def test_deleted_records_are_out_of_range(client: PlainClient, topic: str) -> None:
    for value in (b"a", b"b", b"c"):
        client.produce(topic, batch_of(value))

    def delete(offset: int) -> tuple[int, int]:
        item = {"partition_index": 0, "offset": offset}
        response = client.request(
            ApiKey.DELETE_RECORDS,
            2,
            topics=[{"name": topic, "partitions": [item]}],
            timeout=TIMEOUT_MS,
        )
        result = response.topics[0].partitions[0]
        return result.error_code, result.low_watermark

    assert delete(2) == (0, 2)
    assert delete(1) == (0, 2)
    assert delete(4) == (Code.OFFSET_OUT_OF_RANGE, -1)
    assert client.fetch(at(topic, 1)).partitions[0].error_code == Code.OFFSET_OUT_OF_RANGE
    [fetched] = client.fetch(at(topic, 2)).partitions
    assert (fetched.log_start_offset, values_of(bytes(fetched.records))) == (2, [b"c"])
    assert list_offset(client, topic, -2)[1] == 2
    assert list_offset(client, topic, 0)[1] == 2
    assert delete(-1) == (0, 3)
