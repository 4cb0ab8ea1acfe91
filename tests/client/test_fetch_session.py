"""A client's fetch session: what a request contains, what an answer means, and what ends it."""

from collections.abc import Iterator
from uuid import UUID

import pytest

from shoal.client.admin import NewTopic
from shoal.client.client import Client
from shoal.client.codes import Code
from shoal.client.consume.fetch_session import (
    FINAL_EPOCH,
    FULL_EPOCH,
    LAST_EPOCH,
    Fetched,
    FetchSession,
)
from shoal.client.consume.raw_fetch import partition_at
from shoal.client.errors import ConnectionLost
from shoal.lite.cluster import LiteCluster
from shoal.model.topics import TopicPartition
from shoal.systems.apache.apache import ApacheCluster
from shoal.wire.api_keys import ApiKey
from shoal.wire.batch import iter_batches
from shoal.wire.fetch import FetchedPartition, FetchPartition, FetchRequest, FetchResponse
from shoal.wire.records.records import Record, encode_batch
from support.client.fast import client_of
from support.client.scripted import Asked, ScriptedCluster, fetch_answer, hang_up

T, U = UUID(int=7), UUID(int=8)
SESSION = 55


def at(
    partition: int, offset: int = 0, topic_id: UUID | None = T, topic: str = "t"
) -> FetchPartition:
    return FetchPartition(topic, topic_id, partition, offset, 1000)


def tp(partition: int) -> TopicPartition:
    return TopicPartition("t", partition)


def answer(
    *partitions: int, session_id: int = SESSION, error: int = 0, records: bytes = b"", code: int = 0
) -> FetchResponse:
    parts = [
        FetchedPartition("", T, number, error_code=code, records=memoryview(records))
        for number in partitions
    ]
    return FetchResponse(session_id, error, parts)


def begin_session(count: int = 3) -> FetchSession:
    """A session of some partitions at offset 0, all of which the broker has."""
    session = FetchSession()
    session.set_all([at(number) for number in range(count)])
    session.next_request(uses_ids=True)
    session.on_answer(answer(*range(count)))
    return session


def numbers(session: FetchSession, *, uses_ids: bool = True) -> tuple[int, list[int], list[int]]:
    """The epoch of the next request, and the partitions that it has and forgets."""
    request = session.next_request(uses_ids=uses_ids)
    return (
        request.session_epoch,
        [part.partition for part in request.partitions],
        [part.partition for part in request.forgotten],
    )


def test_the_first_request_has_all_partitions_and_the_next_ones_only_changes() -> None:
    session = FetchSession()
    session.set_all([at(0), at(1), at(2)])
    assert numbers(session) == (FULL_EPOCH, [0, 1, 2], [])
    assert session.on_answer(answer(0, 1, 2)) is not None
    assert numbers(session) == (1, [], [])
    session.on_answer(answer())
    session.set_all([at(0), at(1, 9), at(3)])
    assert numbers(session) == (2, [1, 3], [2])
    assert session.get_asked_offset(tp(1)) == 9
    assert session.get_asked_offset(tp(2)) is None


def test_changes_that_cancel_each_other_are_not_sent() -> None:
    session = begin_session()
    session.put(at(3))
    session.remove(tp(3))
    session.remove(tp(1))
    session.put(at(1))
    assert numbers(session) == (1, [], [])


def test_changes_during_a_request_are_in_the_next_one() -> None:
    session = begin_session()
    session.put(at(0, 5))
    session.next_request(uses_ids=True)
    session.put(at(0, 6))
    session.remove(tp(1))
    assert session.get_asked_offset(tp(0)) == 5
    session.on_answer(answer())
    assert numbers(session) == (2, [0], [1])


@pytest.mark.parametrize(("records", "code"), [(b"x", 0), (b"", Code.OFFSET_OUT_OF_RANGE)])
def test_a_partition_that_was_answered_and_not_consumed_is_asked_again(
    records: bytes, code: int
) -> None:
    session = begin_session()
    session.next_request(uses_ids=True)
    fetched = session.on_answer(answer(1, records=records, code=code))
    assert fetched is not None
    assert list(fetched) == [tp(1)]
    assert numbers(session) == (2, [1], [])


@pytest.mark.parametrize(
    ("code", "named"),
    [
        (Code.FETCH_SESSION_ID_NOT_FOUND, 0),
        (Code.INVALID_FETCH_SESSION_EPOCH, SESSION),
        (Code.FETCH_SESSION_TOPIC_ID_ERROR, SESSION),
        (Code.INCONSISTENT_TOPIC_ID, SESSION),
    ],
)
def test_an_error_of_the_session_leads_to_a_full_request(code: int, named: int) -> None:
    session = begin_session()
    session.put(at(0, 5))
    session.next_request(uses_ids=True)
    assert session.on_answer(answer(error=code, session_id=0)) is None
    request = session.next_request(uses_ids=True)
    assert (request.session_id, request.session_epoch) == (named, FULL_EPOCH)
    assert sorted(part.partition for part in request.partitions) == [0, 1, 2]


def test_a_partition_with_an_inconsistent_id_and_a_lost_answer_lead_to_a_full_request() -> None:
    session = begin_session()
    session.next_request(uses_ids=True)
    session.on_answer(answer(1, code=Code.INCONSISTENT_TOPIC_ID))
    assert numbers(session) == (FULL_EPOCH, [0, 1, 2], [])
    session.reset()
    assert numbers(session) == (FULL_EPOCH, [0, 1, 2], [])


def test_a_broker_without_room_gets_everything_every_time() -> None:
    session = begin_session(2)
    for _ in range(2):
        session.reset()
        assert numbers(session) == (FULL_EPOCH, [0, 1], [])
        session.on_answer(answer(0, 1, session_id=0))
    session.put(at(0, 5))
    assert numbers(session) == (FULL_EPOCH, [1, 0], [])


def test_a_recreated_topic_is_forgotten_by_its_old_id() -> None:
    session = begin_session(1)
    session.put(at(0, 0, U))
    request = session.next_request(uses_ids=True)
    assert [part.topic_id for part in request.partitions] == [U]
    assert [part.topic_id for part in request.forgotten] == [T]
    # An answer about the former topic is of no use.
    assert session.on_answer(answer(0, records=b"old")) == {}


def test_names_instead_of_ids_begin_another_session() -> None:
    session = begin_session(2)
    session.put(at(2, topic_id=None))
    assert not session.has_ids
    assert numbers(session, uses_ids=False) == (FULL_EPOCH, [0, 1, 2], [])
    session.remove(tp(2))
    assert session.has_ids


def test_a_full_answer_without_a_partition_is_an_error_of_that_partition() -> None:
    session = FetchSession()
    session.set_all([at(0), at(1)])
    session.next_request(uses_ids=True)
    fetched = session.on_answer(answer(0))
    assert fetched is not None
    assert fetched[tp(1)].error_code == Code.UNKNOWN_SERVER_ERROR


def test_the_epoch_wraps_to_one() -> None:
    session = begin_session(1)
    session._epoch = LAST_EPOCH
    session.on_answer(answer())
    assert numbers(session) == (1, [], [])


def test_the_end_of_a_session_is_sent_once() -> None:
    session = begin_session(1)
    request = session.end()
    assert request is not None
    assert (request.session_id, request.session_epoch) == (SESSION, FINAL_EPOCH)
    assert session.end() is None
    assert FetchSession().end() is None


# On the wire


async def test_a_lost_answer_is_followed_by_a_full_request() -> None:
    async with ScriptedCluster() as cluster, client_of(cluster) as client:
        await client.metadata(["t"])
        session = FetchSession()
        session.set_all([at(0), at(1)])

        def grant(asked: Asked) -> object:
            return fetch_answer(asked, [FetchedPartition("", T, n) for n in (0, 1)], SESSION)

        cluster.answer_once(ApiKey.FETCH, grant, hang_up, grant)
        await client.fetch_in_session(1, session)
        session.put(at(1, 4))
        with pytest.raises(ConnectionLost):
            await client.fetch_in_session(1, session)
        await client.fetch_in_session(1, session)
        await client.end_fetch_session(1, session)
        requests: list[FetchRequest] = cluster.bodies(ApiKey.FETCH)
        assert [
            (each.session_id, each.session_epoch, [p.partition for p in each.partitions])
            for each in requests
        ] == [
            (0, FULL_EPOCH, [0, 1]),
            (SESSION, 1, [1]),
            (SESSION, FULL_EPOCH, [0, 1]),
            (SESSION, FINAL_EPOCH, []),
        ]


@pytest.fixture(scope="module")
def lite() -> Iterator[LiteCluster]:
    properties = {"max.incremental.fetch.session.cache.slots": "2"}
    with LiteCluster(properties=properties) as running:
        yield running


def count_records(fetched: Fetched) -> dict[int, int]:
    return {
        one.partition: sum(batch.record_count for batch in iter_batches(part.records))
        for one, part in fetched.items()
        if len(part.records)
    }


async def check_session(client: Client, topic: str) -> None:
    """What a broker must do with a session, from its first request to its end."""
    await client.admin.create_topics([NewTopic(topic, 3, 1)])
    cluster = await client.metadata([topic], refresh=True)
    tps = [TopicPartition(topic, number) for number in range(3)]
    node = await client.leader(tps[0])
    for one in tps:
        await client.leader(one)
    cluster = client.cluster

    async def add(number: int) -> None:
        batch = encode_batch([Record(0, 1_700_000_000_000, None, b"value")])
        assert (await client.produce({tps[number]: batch}, acks=-1))[tps[number]].is_ok

    async def fetch(wait_ms: int = 0) -> dict[int, int]:
        return count_records(
            await client.fetch_in_session(node, session, max_wait_ms=wait_ms, min_bytes=1)
        )

    session = FetchSession()
    session.set_all([partition_at(cluster, one, 0, 1 << 20) for one in tps])
    assert await fetch() == {}
    assert session.session_id > 0
    await add(1)
    assert await fetch(5000) == {1: 1}
    assert await fetch() == {1: 1}, "it was not consumed"
    session.put(partition_at(cluster, tps[1], 1, 1 << 20))
    assert await fetch() == {}
    session.remove(tps[2])
    await add(2)
    await add(0)
    assert await fetch(5000) == {0: 1}
    session.put(partition_at(cluster, tps[2], 0, 1 << 20))
    assert await fetch(5000) == {0: 1, 2: 1}
    # The broker loses the session: the same call gets the records by a full fetch.
    last = session.session_id
    other = FetchSession()
    other._session_id = last
    await client.end_fetch_session(node, other)
    assert await fetch(5000) == {0: 1, 2: 1}
    assert session.session_id not in (0, last)
    await client.end_fetch_session(node, session)
    assert session.session_id == 0


@pytest.mark.slow
async def test_sessions_of_kafka_lite(lite: LiteCluster) -> None:
    async with Client({"bootstrap.servers": lite.bootstrap}) as client:
        # More than there is room for: each one is ended.
        for number in range(4):
            await check_session(client, f"session-{number}")


@pytest.mark.apache
@pytest.mark.xdist_group("apache")
async def test_sessions_of_apache_kafka(apache_cluster: ApacheCluster) -> None:
    async with Client({"bootstrap.servers": apache_cluster.bootstrap}) as client:
        await check_session(client, "fetch-session")
