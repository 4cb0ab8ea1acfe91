"""Fetching to the byte: sessions, limits and waiting, as any Kafka does it."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from shoal.wire.api_keys import ApiKey
from shoal.wire.fetch import FetchPartition, ForgottenPartition, decode_fetch_response
from support.lite.batches import batch_of
from support.lite.client import PlainClient, at

NO_SESSION, FULL, FINAL = 0, 0, -1
SESSION_NOT_FOUND, WRONG_SESSION_EPOCH, SESSION_TOPIC_ID_ERROR = 70, 71, 106
NewTopic = Callable[..., str]


@pytest.fixture
def client(bootstrap: str) -> Iterator[PlainClient]:
    with PlainClient(bootstrap) as plain:
        yield plain


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def send(client: PlainClient, topic: str, *values: bytes, partition: int = 0) -> None:
    batch = batch_of(*values, timestamp_ms=now_ms())
    assert client.produce(topic, batch, partition=partition).error_code == 0


def at_partition(topic: str, partition: int, offset: int) -> FetchPartition:
    return at(topic, offset)._replace(partition=partition)


class Session:
    """A fetch session, played by hand."""

    def __init__(self, client: PlainClient, *partitions: FetchPartition) -> None:
        self._client = client
        first = client.fetch(*partitions, session_epoch=FULL)
        assert first.error_code == 0
        self.session_id = first.session_id
        self.first = first.partitions
        self.epoch = 1

    def next(self, *changed: FetchPartition, **more: Any) -> Any:
        response = self._client.fetch(
            *changed, session_id=self.session_id, session_epoch=self.epoch, **more
        )
        self.epoch += 1
        assert response.error_code == 0
        assert response.session_id == self.session_id
        return {(item.topic, item.partition): item for item in response.partitions}


def test_a_session_tells_only_what_is_new(client: PlainClient, new_topic: NewTopic) -> None:
    topic = new_topic(3)
    send(client, topic, b"a", partition=1)
    wanted = [at_partition(topic, partition, 0) for partition in range(3)]
    session = Session(client, *wanted)
    assert session.session_id > 0
    assert len(session.first) == 3
    # Nothing has changed but what was read: the client says where it goes on.
    assert session.next(at_partition(topic, 1, 1)) == {}
    assert session.next() == {}
    send(client, topic, b"b", partition=2)
    news = session.next(max_wait_ms=5000)
    assert set(news) == {(topic, 2)}
    assert news[topic, 2].high_watermark == 1
    assert len(news[topic, 2].records) > 0
    # The same again, as the client did not go on.
    assert set(session.next()) == {(topic, 2)}
    assert session.next(at_partition(topic, 2, 1)) == {}


def test_a_session_forgets_and_learns_partitions(client: PlainClient, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    send(client, topic, b"a", partition=0)
    send(client, topic, b"b", partition=1)
    session = Session(client, at_partition(topic, 0, 0))
    both = session.next(at_partition(topic, 1, 0))
    assert set(both) == {(topic, 0), (topic, 1)}
    rest = session.next(forgotten=[ForgottenPartition(topic, None, 0)])
    assert set(rest) == {(topic, 1)}
    # A session without partitions ends.
    gone = client.fetch(
        session_id=session.session_id,
        session_epoch=session.epoch,
        forgotten=[ForgottenPartition(topic, None, 1)],  # type: ignore[arg-type]
    )
    assert (gone.error_code, gone.session_id, gone.partitions) == (0, NO_SESSION, [])
    again = client.fetch(session_id=session.session_id, session_epoch=session.epoch + 1)
    assert again.error_code == SESSION_NOT_FOUND


def test_errors_are_told_again_and_again(client: PlainClient, topic: str) -> None:
    session = Session(client, at(topic, 7))
    assert [item.error_code for item in session.first] == [1]
    assert [item.error_code for item in session.next().values()] == [1]
    send(client, topic, b"a")
    assert [item.error_code for item in session.next(at(topic, 0)).values()] == [0]


def test_a_session_out_of_turn_is_refused(client: PlainClient, topic: str) -> None:
    unknown = client.fetch(at(topic, 0), session_id=12345, session_epoch=1)
    assert (unknown.error_code, unknown.partitions) == (SESSION_NOT_FOUND, [])
    session = Session(client, at(topic, 0))
    wrong = client.fetch(session_id=session.session_id, session_epoch=5)
    assert wrong.error_code == WRONG_SESSION_EPOCH
    session.next()
    repeated = client.fetch(session_id=session.session_id, session_epoch=1)
    assert repeated.error_code == WRONG_SESSION_EPOCH
    by_id = client.fetch(session_id=session.session_id, session_epoch=session.epoch, version=13)
    assert by_id.error_code == SESSION_TOPIC_ID_ERROR
    closed = client.fetch(at(topic, 0), session_id=session.session_id, session_epoch=FINAL)
    assert (closed.error_code, closed.session_id) == (0, NO_SESSION)
    after = client.fetch(session_id=session.session_id, session_epoch=session.epoch)
    assert after.error_code == SESSION_NOT_FOUND


def test_the_log_start_is_news(client: PlainClient, topic: str) -> None:
    send(client, topic, b"a", b"b")
    session = Session(client, at(topic, 2))
    assert session.next() == {}
    deleted = client.request(
        ApiKey.DELETE_RECORDS,
        2,
        topics=[{"name": topic, "partitions": [{"partition_index": 0, "offset": 1}]}],
        timeout=5000,
    )
    assert deleted.topics[0].partitions[0].error_code == 0
    [news] = session.next().values()
    assert (news.log_start_offset, news.high_watermark, len(news.records)) == (1, 2, 0)


def test_a_wait_ends_with_enough_bytes(client: PlainClient, bootstrap: str, topic: str) -> None:
    send(client, topic, b"first")
    [whole] = client.fetch(at(topic, 0)).partitions
    one_batch_bytes = len(whole.records)
    client.send_fetch(at(topic, 0), min_bytes=one_batch_bytes * 3, max_wait_ms=20_000)
    with PlainClient(bootstrap) as writer:
        send(writer, topic, b"other")
        send(writer, topic, b"third")
    [fetched] = decode_fetch_response(12, client.receive_frame()).partitions
    assert len(fetched.records) == one_batch_bytes * 3


def test_limits_count_whole_batches(client: PlainClient, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    for partition in range(2):
        for number in range(4):
            send(client, topic, b"%d" % number * 1000, partition=partition)
    both = [at_partition(topic, partition, 0) for partition in range(2)]
    [first, second] = client.fetch(*both, max_bytes=1).partitions
    assert len(first.records) > 1000  # the first batch comes whole, whatever the limit
    assert len(second.records) == 0
    small = [item._replace(max_bytes=1) for item in both]
    [first, second] = client.fetch(*small).partitions
    assert len(first.records) > 1000
    assert len(second.records) <= 1
    [first, _] = client.fetch(both[0]._replace(max_bytes=2500), both[1]).partitions
    assert 2000 < len(first.records) <= 2500
