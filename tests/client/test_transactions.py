"""Transactional sessions against scripted brokers, in both protocols, and their pure states."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from shoal.client.codes import Code
from shoal.client.errors import (
    ClientError,
    KafkaError,
    ProducerFenced,
    RequestTimedOut,
    TransactionFailed,
)
from shoal.client.groups.group_offsets import GroupMember, OffsetCommit
from shoal.client.produce.sequencing import ProducerIdentity
from shoal.client.produce.transaction_state import Phase, TransactionState
from shoal.client.produce.transactions import TransactionalSession
from shoal.model.errors import UsageError
from shoal.model.findings import Outcome
from shoal.model.topics import TopicPartition
from shoal.wire.api_keys import ApiKey
from shoal.wire.batch import Batch
from shoal.wire.records.records import Record, encode_batch
from support.client.fast import T0, T1, client_of
from support.client.scripted import (
    Asked,
    ScriptedCluster,
    Values,
    hang_up,
    refuse_all,
    stay_silent,
)
from support.client.waiting import eventually


def batch() -> bytearray:
    return encode_batch([Record(i, 5, None, b"value") for i in range(2)])


class Coordinator:
    """The transaction coordinator of a scripted cluster."""

    def __init__(self, cluster: ScriptedCluster) -> None:
        self.cluster = cluster
        self.epoch = -1
        self.ends: list[tuple[bool, int]] = []
        handlers: dict[int, Any] = {
            ApiKey.INIT_PRODUCER_ID: self._init,
            ApiKey.ADD_PARTITIONS_TO_TXN: self._add_partitions,
            ApiKey.ADD_OFFSETS_TO_TXN: lambda _: {"error_code": 0},
            ApiKey.TXN_OFFSET_COMMIT: self._offsets,
            ApiKey.END_TXN: self._end,
        }
        cluster.handlers.update(handlers)

    def _init(self, _: Asked) -> Values:
        self.epoch += 1
        return {"error_code": 0, "producer_id": 50, "producer_epoch": self.epoch}

    def _add_partitions(self, asked: Asked) -> Values:
        return {
            "results_by_topic_v3_and_below": [
                {
                    "name": topic.name,
                    "results_by_partition": [
                        {"partition_index": number, "partition_error_code": 0}
                        for number in topic.partitions
                    ],
                }
                for topic in asked.body.v3_and_below_topics
            ]
        }

    def _offsets(self, asked: Asked) -> Values:
        return {
            "topics": [
                {
                    "name": topic.name,
                    "partitions": [
                        {"partition_index": part.partition_index, "error_code": 0}
                        for part in topic.partitions
                    ],
                }
                for topic in asked.body.topics
            ]
        }

    def _end(self, asked: Asked) -> Values:
        body = asked.body
        if body.producer_epoch != self.epoch:
            return {"error_code": Code.PRODUCER_FENCED}
        self.ends.append((body.committed, body.producer_epoch))
        if asked.version >= 5:
            self.epoch += 1
        return {"error_code": 0, "producer_id": 50, "producer_epoch": self.epoch}


@pytest.fixture
async def first_protocol() -> AsyncIterator[tuple[ScriptedCluster, Coordinator]]:
    async with ScriptedCluster(brokers=2) as cluster:
        yield cluster, Coordinator(cluster)


@pytest.fixture
async def second_protocol() -> AsyncIterator[tuple[ScriptedCluster, Coordinator]]:
    async with ScriptedCluster(brokers=2) as cluster:
        cluster.features["transaction.version"] = 2
        yield cluster, Coordinator(cluster)


Scripted = tuple[ScriptedCluster, Coordinator]


def read_stored(cluster: ScriptedCluster, tp: TopicPartition) -> list[Batch]:
    return [Batch(memoryview(data)) for data in cluster.logs[tp].batches]


def numbers(cluster: ScriptedCluster, tp: TopicPartition) -> list[tuple[int, int]]:
    return [(one.producer_epoch, one.base_sequence) for one in read_stored(cluster, tp)]


async def test_first_protocol_announces_partitions_and_keeps_its_epoch(
    first_protocol: Scripted,
) -> None:
    cluster, coordinator = first_protocol
    async with client_of(cluster) as client, TransactionalSession(client, "id") as session:
        assert session.transaction_version == 1
        for _ in range(2):
            async with session.transaction():
                await session.produce({T0: batch(), T1: batch()})
                await session.produce({T0: batch()})
        assert session.identity == ProducerIdentity(50, 0)
    assert coordinator.ends == [(True, 0), (True, 0)]
    assert numbers(cluster, T0) == [(0, 0), (0, 2), (0, 4), (0, 6)]
    assert all(one.is_transactional for one in read_stored(cluster, T0))
    assert cluster.count(ApiKey.ADD_PARTITIONS_TO_TXN) == 2
    produces = [a for a in cluster.asked if a.header.api_key == ApiKey.PRODUCE]
    assert {asked.version for asked in produces} == {11}
    assert {asked.body.transactional_id for asked in produces} == {"id"}
    ends = [a.version for a in cluster.asked if a.header.api_key == ApiKey.END_TXN]
    assert set(ends) == {4}


async def test_second_protocol_announces_nothing_and_gets_a_new_epoch_each_time(
    second_protocol: Scripted,
) -> None:
    cluster, coordinator = second_protocol
    async with client_of(cluster) as client, TransactionalSession(client, "id") as session:
        assert session.transaction_version == 2
        for _ in range(3):
            async with session.transaction():
                await session.produce({T0: batch()})
                await session.produce({T0: batch()})
        assert session.identity == ProducerIdentity(50, 3)
    assert coordinator.ends == [(True, 0), (True, 1), (True, 2)]
    assert numbers(cluster, T0) == [(e, s) for e in range(3) for s in (0, 2)]
    assert cluster.count(ApiKey.ADD_PARTITIONS_TO_TXN) == 0
    asked = {a.header.api_key: a.version for a in cluster.asked}
    assert (asked[ApiKey.PRODUCE], asked[ApiKey.END_TXN]) == (12, 5)


async def test_offsets_go_with_the_transaction(
    first_protocol: Scripted,
) -> None:
    cluster, _ = first_protocol
    async with client_of(cluster) as client, TransactionalSession(client, "id") as session:
        session.begin()
        await session.send_offsets({T0: 5}, "group")
        await session.send_offsets(
            {T0: OffsetCommit(6, "note", 3)},
            "group",
            member=GroupMember(4, "member", None),
        )
        await session.commit()
    assert cluster.count(ApiKey.ADD_OFFSETS_TO_TXN) == 1
    first, second = cluster.bodies(ApiKey.TXN_OFFSET_COMMIT)
    assert first.topics[0].partitions[0].committed_offset == 5
    assert second.topics[0].partitions[0].committed_metadata == "note"
    assert (second.generation_id, second.member_id) == (4, "member")
    versions = {a.version for a in cluster.asked if a.header.api_key == ApiKey.TXN_OFFSET_COMMIT}
    assert versions == {4}


async def test_offsets_in_the_second_protocol_join_by_themselves(
    second_protocol: Scripted,
) -> None:
    cluster, coordinator = second_protocol
    async with client_of(cluster) as client, TransactionalSession(client, "id") as session:
        session.begin()
        await session.send_offsets({T0: 5}, "group")
        await session.commit()
    assert cluster.count(ApiKey.ADD_OFFSETS_TO_TXN) == 0
    versions = {a.version for a in cluster.asked if a.header.api_key == ApiKey.TXN_OFFSET_COMMIT}
    assert versions == {5}
    assert coordinator.ends == [(True, 0)]


async def test_an_error_in_the_body_aborts(second_protocol: Scripted) -> None:
    cluster, coordinator = second_protocol
    async with client_of(cluster) as client, TransactionalSession(client, "id") as session:

        async def fail_in_the_body() -> None:
            async with session.transaction():
                await session.produce({T0: batch()})
                raise KeyError("body")

        with pytest.raises(KeyError):
            await fail_in_the_body()
        async with session.transaction():
            await session.produce({T0: batch()})
    assert coordinator.ends == [(False, 0), (True, 1)]


async def test_an_empty_transaction_asks_nobody(first_protocol: Scripted) -> None:
    cluster, coordinator = first_protocol
    async with client_of(cluster) as client, TransactionalSession(client, "id") as session:
        async with session.transaction():
            pass
        session.begin()
        await session.abort()
    assert coordinator.ends == []
    assert cluster.count(ApiKey.END_TXN) == 0


async def test_a_refused_batch_leaves_only_abort_in_the_first_protocol(
    first_protocol: Scripted,
) -> None:
    await check_that_a_refused_batch_leaves_only_abort(*first_protocol)


async def test_a_refused_batch_leaves_only_abort_in_the_second_protocol(
    second_protocol: Scripted,
) -> None:
    await check_that_a_refused_batch_leaves_only_abort(*second_protocol)


async def check_that_a_refused_batch_leaves_only_abort(
    cluster: ScriptedCluster, coordinator: Coordinator
) -> None:
    async with client_of(cluster) as client, TransactionalSession(client, "id") as session:
        session.begin()
        await session.produce({T0: batch()})
        cluster.answer_once(ApiKey.PRODUCE, refuse_all(Code.MESSAGE_TOO_LARGE))
        results = await session.produce({T0: batch()})
        assert results[T0].outcome is Outcome.FAILED
        with pytest.raises(TransactionFailed, match=r"can only be aborted.*MESSAGE_TOO_LARGE"):
            await session.send(T0, batch())
        with pytest.raises(TransactionFailed):
            await session.commit()
        await session.abort()
        async with session.transaction():
            assert (await session.produce({T0: batch()}))[T0].is_ok
    assert [committed for committed, _ in coordinator.ends] == [False, True]
    # Sequences start at 0 under a newer epoch, in both protocols.
    assert numbers(cluster, T0) == [(0, 0), (1, 0)]


async def test_an_abort_waits_for_what_is_on_its_way(second_protocol: Scripted) -> None:
    cluster, coordinator = second_protocol
    release = asyncio.Event()

    async def slow(asked: Asked) -> Any:
        await release.wait()
        return cluster.handlers[ApiKey.PRODUCE](asked)

    async with client_of(cluster) as client, TransactionalSession(client, "id") as session:
        session.begin()
        cluster.answer_once(ApiKey.PRODUCE, slow)
        future = await session.send(T0, batch())
        await eventually(lambda: cluster.count(ApiKey.PRODUCE))
        aborting = asyncio.create_task(session.abort())
        await asyncio.sleep(0.05)
        assert coordinator.ends == []
        release.set()
        await aborting
        assert coordinator.ends == [(False, 0)]
        assert (await future).outcome is Outcome.UNKNOWN


async def test_starting_waits_out_what_passes(first_protocol: Scripted) -> None:
    cluster, _ = first_protocol
    refusals = [
        {"error_code": code, "producer_id": -1, "producer_epoch": -1} for code in (14, 15, 16, 51)
    ]
    cluster.answer_once(ApiKey.INIT_PRODUCER_ID, *refusals)
    async with client_of(cluster) as client, TransactionalSession(client, "id") as session:
        assert session.identity == ProducerIdentity(50, 0)
        with pytest.raises(UsageError, match="already started"):
            await session.start()


async def test_ends_are_repeated_until_answered(second_protocol: Scripted) -> None:
    cluster, coordinator = second_protocol
    concurrent = {"error_code": 51, "producer_id": -1, "producer_epoch": -1}
    async with client_of(cluster) as client, TransactionalSession(client, "id") as session:
        cluster.answer_once(ApiKey.END_TXN, hang_up, concurrent)
        async with session.transaction():
            await session.produce({T0: batch()})
    assert cluster.count(ApiKey.END_TXN) == 3
    assert coordinator.ends == [(True, 0)]


async def test_a_commit_without_an_answer_leaves_the_session_dead() -> None:
    slow = {"request_timeout_ms": 100, "default_api_timeout_ms": 200}
    async with (
        ScriptedCluster() as cluster,
        client_of(cluster, **slow) as client,
        TransactionalSession(client, "id") as session,
    ):
        Coordinator(cluster)
        cluster.handlers[ApiKey.END_TXN] = stay_silent
        session.begin()
        await session.produce({T0: batch()})
        with pytest.raises(RequestTimedOut):
            await session.commit()
        with pytest.raises(ClientError, match="can no longer be used") as dead:
            session.begin()
        assert dead.value.remedy == "create a new session with the same transactional.id"


async def test_a_commit_that_is_refused_can_be_aborted(first_protocol: Scripted) -> None:
    cluster, coordinator = first_protocol
    async with client_of(cluster) as client, TransactionalSession(client, "id") as session:
        session.begin()
        await session.produce({T0: batch()})
        cluster.answer_once(ApiKey.END_TXN, {"error_code": Code.TRANSACTION_ABORTABLE})
        with pytest.raises(KafkaError, match="TRANSACTION_ABORTABLE"):
            await session.commit()
        await session.abort()
    assert coordinator.ends == [(False, 0)]


async def test_a_fenced_producer_stops(second_protocol: Scripted) -> None:
    cluster, _ = second_protocol
    async with client_of(cluster) as client:
        old = TransactionalSession(client, "id")
        await old.start()
        old.begin()
        await old.produce({T0: batch()})
        new = TransactionalSession(client, "id")
        await new.start()
        with pytest.raises(ProducerFenced, match="a newer producer"):
            await old.commit()
        with pytest.raises(ProducerFenced):
            old.begin()
        await old.close()
        await new.close()


async def test_a_fence_seen_by_a_batch_ends_at_the_coordinator(second_protocol: Scripted) -> None:
    cluster, coordinator = second_protocol
    async with client_of(cluster) as client:
        session = TransactionalSession(client, "id")
        await session.start()
        session.begin()
        cluster.answer_once(ApiKey.PRODUCE, refuse_all(Code.INVALID_PRODUCER_EPOCH))
        coordinator.epoch += 1  # another producer has fenced this one
        await session.produce({T0: batch()})
        with pytest.raises(ProducerFenced):
            await session.abort()
        await session.close()


async def test_a_transaction_that_timed_out_at_the_coordinator_is_left_behind(
    first_protocol: Scripted,
) -> None:
    cluster, coordinator = first_protocol
    async with client_of(cluster) as client, TransactionalSession(client, "id") as session:
        session.begin()
        await session.produce({T0: batch()})
        cluster.answer_once(ApiKey.END_TXN, {"error_code": Code.INVALID_PRODUCER_EPOCH})
        await session.abort()
        assert session.identity == ProducerIdentity(50, 1)
        again = cluster.bodies(ApiKey.INIT_PRODUCER_ID)[-1]
        assert (again.producer_id, again.producer_epoch) == (50, 0)
        async with session.transaction():
            assert (await session.produce({T0: batch()}))[T0].is_ok
    assert coordinator.ends == [(True, 1)]


async def test_closing_aborts_what_is_open(second_protocol: Scripted) -> None:
    cluster, coordinator = second_protocol
    async with client_of(cluster) as client:
        session = TransactionalSession(client, "id")
        await session.start()
        session.begin()
        await session.produce({T0: batch()})
        await session.close()
    assert coordinator.ends == [(False, 0)]


async def test_an_unknown_partition_is_said_and_breaks_nothing(first_protocol: Scripted) -> None:
    cluster, _ = first_protocol
    async with (
        client_of(cluster, default_api_timeout_ms=100) as client,
        TransactionalSession(client, "id") as session,
        session.transaction(),
    ):
        with pytest.raises(KafkaError, match="nowhere-0: UNKNOWN_TOPIC_OR_PARTITION"):
            await session.send(TopicPartition("nowhere", 0), batch())
        assert (await session.produce({T0: batch()}))[T0].is_ok


async def test_an_id_is_needed() -> None:
    async with ScriptedCluster() as cluster, client_of(cluster) as client:
        with pytest.raises(UsageError, match=r"needs a transactional\.id"):
            TransactionalSession(client)


def test_calls_out_of_turn_say_what_is_wrong() -> None:
    state = TransactionState()
    with pytest.raises(UsageError, match=r"cannot call begin\(\): the producer is not started"):
        state.begin()
    state.mark_ready()
    with pytest.raises(UsageError, match=r"cannot call commit\(\): the producer has no open"):
        state.end(is_commit=True)
    with pytest.raises(UsageError, match=r"cannot call send\(\): the producer has no open"):
        state.check_open()
    state.begin()
    with pytest.raises(UsageError, match=r"cannot call begin\(\): .* has an open transaction"):
        state.begin()
    state.end(is_commit=True)
    with pytest.raises(UsageError, match="is ending its transaction"):
        state.check_open()
    state.mark_ended()
    assert state.phase is Phase.READY


def test_the_first_failure_is_the_one_that_is_told() -> None:
    state = TransactionState()
    state.mark_ready()
    state.begin()
    state.fail(ClientError("first"))
    state.fail(ClientError("second"))
    assert state.phase is Phase.BROKEN
    assert "because: first" in str(state.abortable_error())
    state.end(is_commit=False)
    state.mark_ended()
    assert state.failure is None
