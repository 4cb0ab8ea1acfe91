"""The client against scripted brokers: finding the cluster, metadata, retries, raw calls."""

import asyncio
import contextlib
import logging
import socket
from typing import Any

import pytest
import scramp

from shoal.client.client import Client
from shoal.client.cluster.coordinators import Coordinator, CoordinatorType
from shoal.client.codes import Code
from shoal.client.errors import (
    AuthenticationFailed,
    ClientClosed,
    ConnectionLost,
    KafkaError,
    NoBrokersAvailable,
    RequestTimedOut,
    UnsupportedByBroker,
)
from shoal.client.results import LATEST, MAX_TIMESTAMP
from shoal.client.transport.first_answer import AllFailed, race
from shoal.model.errors import ShoalError, UsageError
from shoal.model.findings import Outcome
from shoal.model.topics import TopicPartition
from shoal.wire.api_keys import ApiKey
from shoal.wire.batch import Batch, iter_batches
from shoal.wire.errors import Unencodable
from shoal.wire.fetch import FetchedPartition
from shoal.wire.messages import request_class
from shoal.wire.produce import ProduceAnswer, encode_produce_response
from shoal.wire.records.records import Record, encode_batch
from support.client.fast import FAST, T0, T1, client_of
from support.client.scripted import (
    Asked,
    ScriptedCluster,
    Values,
    fetch_answer,
    hang_up,
    refuse_all,
    stay_silent,
)
from support.client.waiting import eventually


def batch(records: int = 2) -> bytearray:
    return encode_batch([Record(i, 0, None, b"value") for i in range(records)])


# Finding the cluster


async def test_the_first_address_that_answers_wins() -> None:
    async with ScriptedCluster(brokers=2) as cluster:
        with socket.socket() as deaf, socket.socket() as unused:
            deaf.bind(("127.0.0.1", 0))
            deaf.listen()  # accepts and says nothing
            unused.bind(("127.0.0.1", 0))
            addresses = [
                f"127.0.0.1:{unused.getsockname()[1]}",
                f"127.0.0.1:{deaf.getsockname()[1]}",
                cluster.bootstrap,
            ]
            async with Client(FAST | {"bootstrap.servers": ",".join(addresses)}) as client:
                assert client.cluster.cluster_id == "scripted"
                assert sorted(client.cluster.brokers) == [1, 2]


async def test_all_dead_names_each_and_why() -> None:
    with socket.socket() as one, socket.socket() as deaf:
        one.bind(("127.0.0.1", 0))
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        refused = f"127.0.0.1:{one.getsockname()[1]}"
        silent = f"127.0.0.1:{deaf.getsockname()[1]}"
        client = Client(
            {
                "bootstrap.servers": f"{refused},{silent}",
                "socket.connection.setup.timeout.ms": 200,
            }
        )
        with pytest.raises(NoBrokersAvailable) as nobody:
            await client.start()
        assert [address for address, _ in nobody.value.reasons] == [refused, silent]
        assert "connection refused" in nobody.value.reasons[0][1]
        assert "did not complete the handshake within 200 ms" in nobody.value.reasons[1][1]
        with pytest.raises(ClientClosed):
            await client.metadata(["t"])


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "a frame of 1213486160 bytes exceeds the limit"),
        (b"\0\0\0\6\0\0\0\1\0\0", "ApiVersionsResponse"),
        (b"\0\0\0\7\0\0\0\1\0\x23\xff", "closed the connection"),
    ],
)
async def test_a_port_that_is_not_kafkas_is_said_to_be_none(said: bytes, why: str) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(said)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(NoBrokersAvailable) as nobody:
            await Client(FAST | {"bootstrap.servers": f"127.0.0.1:{port}"}).start()
        assert why in str(nobody.value)


async def test_a_start_that_is_cancelled_leaves_nothing() -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        client = Client({"bootstrap.servers": f"127.0.0.1:{deaf.getsockname()[1]}"})
        starting = asyncio.create_task(client.start())
        await asyncio.sleep(0.05)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert not client.pool._links


async def test_the_bootstrap_list_is_used_again_when_all_known_brokers_are_gone() -> None:
    async with ScriptedCluster(brokers=1) as cluster:
        client = client_of(cluster)
        async with client:
            await client.metadata(["t"])
            await cluster.nodes[0].stop()
            with pytest.raises(NoBrokersAvailable):
                await client.metadata(["t"], refresh=True)
            await cluster.nodes[0].start()
            again = await client.with_retries(lambda: client.metadata(["t"], refresh=True))
            assert again.leader(T0) == 1


async def test_an_old_broker_is_met_halfway() -> None:
    async with ScriptedCluster() as cluster:
        cluster.ranges[ApiKey.API_VERSIONS] = (0, 2)
        cluster.ranges[ApiKey.METADATA] = (0, 4)
        async with client_of(cluster) as client:
            await client.metadata(["t"])
            asked = [one.header for one in cluster.asked]
            assert [one.api_version for one in asked if one.api_key == 18] == [4, 2]
            assert {one.api_version for one in asked if one.api_key == 3} == {4}
            assert client.newest(ApiKey.METADATA) == 4
            assert client.newest(ApiKey.METADATA, at_most=2) == 2
            with pytest.raises(UnsupportedByBroker, match="does not serve DESCRIBE_CONFIGS"):
                client.newest(ApiKey.DESCRIBE_CONFIGS)


async def test_a_client_in_good_health_asks_for_versions_and_metadata_once() -> None:
    async with ScriptedCluster() as cluster, client_of(cluster) as client:
        await client.metadata(["t"])
        await asyncio.gather(*(client.metadata(["t"]) for _ in range(20)))
        assert cluster.count(ApiKey.API_VERSIONS) == 1
        assert cluster.count(ApiKey.METADATA) == 2  # at the start, and for the topic
        assert not asyncio.all_tasks() - {asyncio.current_task()} - _server_tasks(cluster)


def _server_tasks(cluster: ScriptedCluster) -> set[asyncio.Task[None]]:
    return {task for node in cluster.nodes for task in node._tasks}


async def test_many_who_need_a_refresh_share_one() -> None:
    async with ScriptedCluster() as cluster, client_of(cluster) as client:
        await client.metadata(["t"])
        before = cluster.count(ApiKey.METADATA)
        client.invalidate_metadata()
        await asyncio.gather(*(client.metadata(["t"]) for _ in range(20)))
        assert cluster.count(ApiKey.METADATA) == before + 1


async def test_old_metadata_is_asked_for_again() -> None:
    async with ScriptedCluster() as cluster, client_of(cluster, metadata_max_age_ms=50) as client:
        await client.metadata(["t"])
        before = cluster.count(ApiKey.METADATA)
        await asyncio.sleep(0.08)
        await client.metadata(["t"])
        assert cluster.count(ApiKey.METADATA) == before + 1


async def test_all_topics_are_listed_on_request() -> None:
    async with ScriptedCluster() as cluster, client_of(cluster) as client:
        everything = await client.metadata()
        assert everything.partitions_of("t") == [T0, T1]
        assert cluster.bodies(ApiKey.METADATA)[-1].topics is None


@pytest.mark.slow
async def test_one_silent_broker_does_not_hold_up_a_refresh() -> None:
    async with ScriptedCluster(brokers=2) as cluster, client_of(cluster) as client:
        await client.metadata(["t"])
        cluster.answer_once(ApiKey.METADATA, stay_silent)
        began = asyncio.get_running_loop().time()
        await client.metadata(["t"], refresh=True)
        assert asyncio.get_running_loop().time() - began < 20


async def test_waiting_for_a_leader() -> None:
    async with ScriptedCluster(brokers=2) as cluster, client_of(cluster) as client:
        cluster.logs[T0].leader = -1
        waiting = asyncio.create_task(client.leader(T0))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        cluster.logs[T0].leader = 2
        assert await waiting == 2


async def test_no_leader_in_time_is_said() -> None:
    async with ScriptedCluster() as cluster:
        cluster.logs[T0].leader = -1
        async with client_of(cluster, default_api_timeout_ms=100) as client:
            with pytest.raises(KafkaError, match=r"t-0: LEADER_NOT_AVAILABLE \(5\)"):
                await client.leader(T0)
            with pytest.raises(KafkaError, match=r"nowhere-0: UNKNOWN_TOPIC_OR_PARTITION"):
                await client.leader(TopicPartition("nowhere", 0))


# Connections


async def test_a_lost_connection_is_made_again() -> None:
    async with ScriptedCluster() as cluster, client_of(cluster) as client:
        await client.metadata(["t"])
        cluster.nodes[0].cut()
        await eventually(lambda: client.pool.ready(1) is None)
        await client.metadata(["t"], refresh=True)
        assert cluster.nodes[0].connections == 2


async def test_an_idle_connection_is_replaced() -> None:
    async with (
        ScriptedCluster() as cluster,
        client_of(cluster, connections_max_idle_ms=30) as client,
    ):
        await asyncio.sleep(0.06)
        await client.metadata(["t"], refresh=True)
        assert cluster.nodes[0].connections == 2


async def test_attempts_to_connect_back_off_and_are_shared() -> None:
    async with (
        ScriptedCluster(brokers=2) as cluster,
        client_of(cluster, reconnect_backoff_ms=100) as client,
    ):
        await client.metadata(["t"])
        await cluster.nodes[1].stop()
        loop = asyncio.get_running_loop()
        began = loop.time()
        failures = await asyncio.gather(
            *(client.pool.link(2) for _ in range(5)), return_exceptions=True
        )
        assert {type(failure) for failure in failures} == {ConnectionLost}
        assert len({id(failure) for failure in failures}) == 1, "one attempt for all"
        with pytest.raises(ConnectionLost):
            await client.pool.link(2)
        assert loop.time() - began >= 0.08


async def test_a_broker_that_moved_is_found_at_its_new_address() -> None:
    async with ScriptedCluster(brokers=2) as cluster, client_of(cluster) as client:
        await client.metadata(["t"])
        await client.pool.link(2)
        await cluster.nodes[1].stop()
        cluster.nodes[1].port = 0
        await cluster.nodes[1].start()
        await client.metadata(["t"], refresh=True)
        link = await client.pool.link(2)
        assert link.connection.address == f"127.0.0.1:{cluster.nodes[1].port}"


async def test_closing_while_requests_wait_leaves_nothing() -> None:
    async with ScriptedCluster() as cluster:
        client = client_of(cluster)
        await client.start()
        cluster.answer_once(ApiKey.FETCH, stay_silent)
        waiting = asyncio.create_task(client.fetch_from(1, {T0: 0}))
        await eventually(lambda: cluster.count(ApiKey.FETCH))
        await client.close()
        with pytest.raises(ConnectionLost):
            await waiting
        with pytest.raises(ClientClosed):
            await client.request(request_class(ApiKey.LIST_GROUPS, 0)())
        await client.close()


async def test_any_message_of_kio_can_be_sent() -> None:
    async with ScriptedCluster() as cluster, client_of(cluster) as client:
        message = request_class(ApiKey.INIT_PRODUCER_ID, 1)
        from datetime import timedelta

        response = await client.request(
            message(transactional_id=None, transaction_timeout=timedelta(seconds=1)), node_id=1
        )
        assert response.producer_id == 1001


# Raw fetch


async def test_fetch_asks_all_leaders_at_once_and_names_topics_by_id() -> None:
    async with ScriptedCluster(brokers=2) as cluster, client_of(cluster) as client:
        await client.produce({T0: batch(), T1: batch(3)})
        fetched = await client.fetch({T0: 0, T1: 0}, max_wait_ms=10)
        assert {tp: part.high_watermark for tp, part in fetched.items()} == {T0: 2, T1: 3}
        assert [b.record_count for b in iter_batches(fetched[T1].records)] == [3]
        requests = [asked for asked in cluster.asked if asked.header.api_key == ApiKey.FETCH]
        assert {asked.node_id for asked in requests} == {1, 2}
        assert {asked.version for asked in requests} == {17}
        assert all(p.topic_id == cluster.topic_id for r in requests for p in r.body.partitions)


async def test_fetch_names_topics_by_name_where_there_is_no_id() -> None:
    async with ScriptedCluster() as cluster:
        cluster.topic_id = None
        async with client_of(cluster) as client:
            fetched = await client.fetch({T0: 0})
            assert fetched[T0].error_code == 0
            assert cluster.asked[-1].version == 12


async def test_errors_of_partitions_stay_in_the_answer_and_metadata_is_refreshed() -> None:
    async with ScriptedCluster(brokers=2) as cluster, client_of(cluster) as client:
        await client.metadata(["t"])
        cluster.logs[T0].leader = 2
        cluster.logs[T0].epoch = 1
        first = await client.fetch({T0: 0, T1: 0})
        assert first[T0].error_code == Code.NOT_LEADER_OR_FOLLOWER
        assert first[T1].error_code == 0
        second = await client.fetch({T0: 0, T1: 0})
        assert second[T0].error_code == 0


async def test_a_dead_leader_does_not_stop_the_others() -> None:
    async with ScriptedCluster(brokers=2) as cluster, client_of(cluster) as client:
        await client.metadata(["t"])
        await cluster.nodes[1].stop()
        fetched = await client.fetch({T0: 0, T1: 0})
        assert fetched[T0].error_code == 0
        assert fetched[T1].error_code == Code.NETWORK_EXCEPTION
        with pytest.raises(ConnectionLost):
            await client.fetch_from(2, {T1: 0})


async def test_a_leaderless_partition_is_said_without_asking() -> None:
    async with ScriptedCluster() as cluster, client_of(cluster) as client:
        cluster.logs[T0].leader = -1
        fetched = await client.fetch({T0: 0})
        assert fetched[T0].error_code == Code.LEADER_NOT_AVAILABLE
        assert cluster.count(ApiKey.FETCH) == 0


async def test_a_partition_that_the_answer_forgot_is_an_error() -> None:
    def forgetful(asked: Asked) -> Any:
        return fetch_answer(asked, [FetchedPartition("", cluster.topic_id, 0)])

    async with ScriptedCluster() as cluster, client_of(cluster) as client:
        await client.metadata(["t"])
        cluster.answer_once(ApiKey.FETCH, forgetful)
        fetched = await client.fetch_from(1, {T0: 0, T1: 0})
        assert fetched[T0].error_code == 0
        assert fetched[T1].error_code == Code.UNKNOWN_SERVER_ERROR


async def test_a_fetch_that_waits_does_not_hold_up_other_requests() -> None:
    async with ScriptedCluster() as cluster, client_of(cluster) as client:
        await client.metadata(["t"])
        cluster.answer_once(ApiKey.FETCH, stay_silent)
        waiting = asyncio.create_task(client.fetch_from(1, {T0: 0}))
        await eventually(lambda: cluster.count(ApiKey.FETCH))
        results = await client.produce({T0: batch()})
        assert results[T0].is_ok
        waiting.cancel()


async def test_an_unknown_isolation_level_is_refused() -> None:
    async with ScriptedCluster() as cluster, client_of(cluster) as client:
        with pytest.raises(UsageError, match="isolation must be one of"):
            await client.fetch({T0: 0}, isolation="serializable")


# Raw produce


async def test_produce_sends_one_request_to_each_leader() -> None:
    async with ScriptedCluster(brokers=2, partitions=6) as cluster, client_of(cluster) as client:
        tps = [TopicPartition("t", number) for number in range(6)]
        results = await client.produce({tp: batch() for tp in tps})
        assert {result.outcome for result in results.values()} == {Outcome.OK}
        assert cluster.count(ApiKey.PRODUCE) == 2
        stored = Batch(memoryview(cluster.logs[tps[5]].batches[0]))
        assert stored.record_count == 2


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        (Code.MESSAGE_TOO_LARGE, Outcome.FAILED),
        (Code.NOT_ENOUGH_REPLICAS, Outcome.FAILED),
        (Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND, Outcome.UNKNOWN),
        (Code.REQUEST_TIMED_OUT, Outcome.UNKNOWN),
    ],
)
async def test_refusals_are_told_from_doubts(code: int, outcome: Outcome) -> None:
    async with ScriptedCluster() as cluster, client_of(cluster) as client:
        cluster.answer_once(ApiKey.PRODUCE, refuse_all(code))
        results = await client.produce({T0: batch()})
        assert (results[T0].outcome, results[T0].error_code) == (outcome, code)


async def test_a_lost_answer_is_unknown_and_a_refused_connection_is_failed() -> None:
    async with ScriptedCluster(brokers=2) as cluster, client_of(cluster) as client:
        await client.metadata(["t"])
        cluster.answer_once(ApiKey.PRODUCE, hang_up)
        lost = (await client.produce_to(1, {T0: batch()}))[T0]
        assert lost.outcome is Outcome.UNKNOWN
        assert isinstance(lost.error(T0), ConnectionLost)
        await cluster.nodes[1].stop()
        unsent = (await client.produce_to(2, {T1: batch()}))[T1]
        assert unsent.outcome is Outcome.FAILED


async def test_a_time_out_is_unknown() -> None:
    async with ScriptedCluster() as cluster, client_of(cluster, request_timeout_ms=100) as client:
        await client.metadata(["t"])
        cluster.answer_once(ApiKey.PRODUCE, stay_silent)
        result = (await client.produce({T0: batch()}))[T0]
        assert result.outcome is Outcome.UNKNOWN
        assert isinstance(result.error(T0), RequestTimedOut)


async def test_an_unreadable_answer_is_unknown() -> None:
    def rubbish(asked: Asked) -> Any:
        return [asked.header.correlation_id.to_bytes(4, "big") + b"\xff" * 9]

    async with ScriptedCluster() as cluster, client_of(cluster) as client:
        cluster.answer_once(ApiKey.PRODUCE, rubbish)
        result = (await client.produce({T0: batch()}))[T0]
        assert result.outcome is Outcome.UNKNOWN
        assert (await client.produce({T0: batch()}))[T0].is_ok


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 0), (2,), ()])
async def test_answers_belong_to_their_partitions_in_any_order(order: tuple[int, ...]) -> None:
    tps = [TopicPartition("t", number) for number in range(3)]

    def answer(asked: Asked) -> Any:
        answers = [ProduceAnswer("t", number, 0, 100 + number, -1, 0) for number in order]
        version = asked.header.api_version
        correlation_id = asked.header.correlation_id
        return [encode_produce_response(version, correlation_id=correlation_id, answers=answers)]

    async with ScriptedCluster(partitions=3) as cluster, client_of(cluster) as client:
        await client.metadata(["t"])
        cluster.answer_once(ApiKey.PRODUCE, answer)
        results = await client.produce_to(1, {tp: batch() for tp in tps})
    assert list(results) == tps
    for number, tp in enumerate(tps):
        if number in order:
            assert (results[tp].outcome, results[tp].base_offset) == (Outcome.OK, 100 + number)
        else:
            assert results[tp].outcome is Outcome.UNKNOWN


async def test_a_produce_without_a_task_needs_an_open_connection() -> None:
    async with ScriptedCluster() as cluster, client_of(cluster) as client:
        await client.metadata(["t"])
        assert client.begin_produce_to(1, {T0: batch()}, acks=-1) is None
        assert (await client.produce_to(1, {T0: batch()}))[T0].is_ok
        call = client.begin_produce_to(1, {T0: batch()}, acks=-1)
        assert call is not None
        await call.answer
        assert call.results()[T0].base_offset == 2
        cluster.answer_once(ApiKey.PRODUCE, hang_up)
        call = client.begin_produce_to(1, {T0: batch()}, acks=-1)
        assert call is not None
        with pytest.raises(ConnectionLost):
            await call.answer
        assert call.results()[T0].outcome is Outcome.UNKNOWN


async def test_without_acks_everything_that_left_is_unknown() -> None:
    async with ScriptedCluster() as cluster, client_of(cluster) as client:
        result = (await client.produce({T0: batch()}, acks=0))[T0]
        assert (result.outcome, result.error_code) == (Outcome.UNKNOWN, 0)
        await eventually(lambda: cluster.logs[T0].end == 2)


async def test_no_leader_means_that_nothing_was_sent() -> None:
    async with ScriptedCluster() as cluster, client_of(cluster) as client:
        cluster.logs[T0].leader = -1
        result = (await client.produce({T0: batch()}))[T0]
        assert (result.outcome, result.error_code) == (Outcome.FAILED, Code.LEADER_NOT_AVAILABLE)


async def test_what_cannot_be_encoded_is_the_callers_error() -> None:
    async with ScriptedCluster() as cluster, client_of(cluster) as client:
        with pytest.raises(Unencodable):
            await client.produce_to(1, {T0: batch()}, acks=1 << 20)


# List offsets


def list_offsets_answer(*parts: tuple[int, int, int]) -> Values:
    return {
        "topics": [
            {
                "name": "t",
                "partitions": [
                    {
                        "partition_index": number,
                        "error_code": code,
                        "timestamp": 7,
                        "offset": offset,
                        "leader_epoch": 1,
                    }
                    for number, code, offset in parts
                ],
            }
        ]
    }


async def test_offsets_are_asked_for_again_where_a_leader_cannot_tell_yet() -> None:
    async with ScriptedCluster() as cluster, client_of(cluster) as client:
        cluster.answer_once(
            ApiKey.LIST_OFFSETS,
            list_offsets_answer((0, 0, 10), (1, Code.OFFSET_NOT_AVAILABLE, -1)),
            list_offsets_answer((1, 0, 20)),
        )
        offsets = await client.list_offsets({T0: LATEST, T1: LATEST})
        assert {tp: found.offset for tp, found in offsets.items()} == {T0: 10, T1: 20}
        again = cluster.bodies(ApiKey.LIST_OFFSETS)[1]
        assert [p.partition_index for p in again.topics[0].partitions] == [1]


async def test_the_youngest_timestamp_needs_a_broker_that_knows_it() -> None:
    async with ScriptedCluster() as cluster:
        cluster.ranges[ApiKey.LIST_OFFSETS] = (1, 6)
        async with client_of(cluster) as client:
            with pytest.raises(UnsupportedByBroker, match="LIST_OFFSETS"):
                await client.list_offsets({T0: MAX_TIMESTAMP})


async def test_an_error_that_will_not_pass_is_raised() -> None:
    async with ScriptedCluster() as cluster, client_of(cluster) as client:
        cluster.answer_once(
            ApiKey.LIST_OFFSETS, list_offsets_answer((0, Code.TOPIC_AUTHORIZATION_FAILED, -1))
        )
        with pytest.raises(KafkaError, match=r"t-0: TOPIC_AUTHORIZATION_FAILED \(29\)"):
            await client.list_offsets({T0: LATEST})


# Coordinators and admin


async def test_a_coordinator_that_moves_is_followed() -> None:
    async with ScriptedCluster(brokers=2) as cluster, client_of(cluster) as client:
        coordinator = Coordinator(client, CoordinatorType.TRANSACTION, "id")

        def moved(asked: Asked) -> Values:
            cluster.coordinator = 2
            return {"error_code": Code.NOT_COORDINATOR, "producer_id": -1, "producer_epoch": -1}

        loading = {"error_code": 14, "producer_id": -1, "producer_epoch": -1}
        cluster.answer_once(ApiKey.INIT_PRODUCER_ID, loading, moved)
        values = {"transactional_id": "id", "transaction_timeout": 1000}
        await coordinator.call(ApiKey.INIT_PRODUCER_ID, values)
        asked = [a.node_id for a in cluster.asked if a.header.api_key == ApiKey.INIT_PRODUCER_ID]
        assert asked == [1, 1, 2]
        assert await coordinator.node_id() == 2


async def test_a_change_that_was_done_by_a_lost_try_counts_as_done() -> None:
    def topics(code: int) -> Values:
        return {
            "topics": [
                {
                    "name": "new",
                    "topic_id": None,
                    "error_code": code,
                    "error_message": "as it is",
                    "configs": [],
                }
            ]
        }

    async with ScriptedCluster() as cluster, client_of(cluster) as client:
        from shoal.client.admin import NewTopic

        cluster.answer_once(ApiKey.CREATE_TOPICS, hang_up, topics(Code.TOPIC_ALREADY_EXISTS))
        assert await client.admin.create_topics([NewTopic("new", 1, 1)]) == {"new": None}
        cluster.answer_once(ApiKey.CREATE_TOPICS, topics(Code.TOPIC_ALREADY_EXISTS))
        with pytest.raises(KafkaError, match=r"new: TOPIC_ALREADY_EXISTS \(36\): as it is"):
            await client.admin.create_topics([NewTopic("new", 1, 1)])


async def test_a_controller_that_moves_is_followed() -> None:
    def not_me(asked: Asked) -> Values:
        cluster.controller = 2
        refused = {"name": "t", "topic_id": None, "error_code": 41, "error_message": None}
        return {"responses": [refused]}

    async with ScriptedCluster(brokers=2) as cluster, client_of(cluster) as client:
        fine = {"name": "t", "topic_id": None, "error_code": 0, "error_message": None}
        cluster.answer_once(ApiKey.DELETE_TOPICS, not_me, {"responses": [fine]})
        await client.admin.delete_topics(["t"])
        asked = [a.node_id for a in cluster.asked if a.header.api_key == ApiKey.DELETE_TOPICS]
        assert asked == [1, 2]


# Logging in


def scram_handlers(cluster: ScriptedCluster, password: str, lifetime_ms: int = 0) -> None:
    mechanism = scramp.ScramMechanism("SCRAM-SHA-512")
    stored = mechanism.make_auth_info(password)
    servers: list[Any] = []

    def handshake(asked: Asked) -> Values:
        offered = ["SCRAM-SHA-512"]
        code = 0 if asked.body.mechanism in offered else Code.UNSUPPORTED_SASL_MECHANISM
        servers.append(mechanism.make_server(lambda _: stored))
        return {"error_code": code, "mechanisms": offered}

    def authenticate(asked: Asked) -> Values:
        server, said = servers[-1], asked.body.auth_bytes.decode()
        answer = {"error_code": 0, "error_message": None, "session_lifetime": lifetime_ms}
        try:
            if server.stage is None:
                server.set_client_first(said)
                return answer | {"auth_bytes": server.get_server_first().encode()}
            server.set_client_final(said)
        except scramp.ScramException:
            refusal = "invalid credentials"
            return answer | {"error_code": 58, "error_message": refusal, "auth_bytes": b""}
        return answer | {"auth_bytes": server.get_server_final().encode()}

    cluster.handlers[ApiKey.SASL_HANDSHAKE] = handshake
    cluster.handlers[ApiKey.SASL_AUTHENTICATE] = authenticate


SASL = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "SCRAM-SHA-512",
    "sasl_username": "alice",
    "sasl_password": "topsecret",
}


async def test_logging_in_by_scram(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        async with ScriptedCluster() as cluster:
            scram_handlers(cluster, "topsecret")
            async with client_of(cluster, **SASL) as client:
                assert (await client.metadata(["t"])).leader(T0) == 1
                assert "topsecret" not in repr(client)
    assert "topsecret" not in caplog.text


async def test_a_wrong_password_is_said_at_once_and_not_shown() -> None:
    async with ScriptedCluster(brokers=2) as cluster:
        scram_handlers(cluster, "another")
        client = client_of(cluster, **SASL)
        with pytest.raises(AuthenticationFailed, match="invalid credentials") as failed:
            await client.start()
        assert "topsecret" not in str(failed.value)


async def test_a_mechanism_that_is_not_offered_names_those_that_are() -> None:
    async with ScriptedCluster() as cluster:
        scram_handlers(cluster, "topsecret")
        client = client_of(cluster, **SASL | {"sasl_mechanism": "PLAIN"})
        with pytest.raises(AuthenticationFailed, match=r"does not offer.*only SCRAM-SHA-512"):
            await client.start()


async def test_a_session_about_to_end_is_replaced_by_a_new_connection() -> None:
    async with ScriptedCluster() as cluster:
        scram_handlers(cluster, "topsecret", lifetime_ms=100)
        async with client_of(cluster, **SASL) as client:
            await asyncio.sleep(0.12)
            await client.metadata(["t"], refresh=True)
            assert cluster.nodes[0].connections == 2


# Racing


async def test_a_race_takes_the_first_answer_and_cancels_the_rest() -> None:
    cancelled = []

    async def slow() -> str:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            cancelled.append("slow")
            raise
        return "slow"

    async def fails() -> str:
        raise ShoalError("no")

    async def fast() -> str:
        return "fast"

    assert await race([slow, fails, fast], stagger_s=0.01) == "fast"
    assert cancelled == ["slow"]


async def test_a_race_starts_no_more_than_it_needs() -> None:
    started = []

    def runner(name: str) -> Any:
        async def run() -> str:
            started.append(name)
            return name

        return run

    assert await race([runner("a"), runner("b")], stagger_s=1) == "a"
    assert started == ["a"]


async def test_a_race_that_nobody_wins_tells_all_failures_in_order() -> None:
    async def fails(name: str, after_s: float) -> str:
        await asyncio.sleep(after_s)
        raise ShoalError(name)

    with pytest.raises(AllFailed) as failed:
        await race([lambda: fails("a", 0.03), lambda: fails("b", 0)], stagger_s=0.01)
    assert [str(failure) for failure in failed.value.failures] == ["a", "b"]


async def test_a_race_discards_what_came_too_late() -> None:
    discarded: list[str] = []
    go = asyncio.Event()

    async def both(name: str) -> str:
        await go.wait()
        return name

    racing = asyncio.create_task(
        race([lambda: both("a"), lambda: both("b")], stagger_s=0.01, discard=discarded.append)
    )
    await asyncio.sleep(0.05)
    go.set()
    winner = await racing
    assert {winner, *discarded} == {"a", "b"}
    with contextlib.suppress(asyncio.CancelledError):
        racing.cancel()
