"""A broker that is paused, and replaced by the cluster, is not waited for until a time-out."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator

import pytest

from shoal.client.admin import NewTopic
from shoal.client.client import Client
from shoal.client.cluster.metadata import (
    BrokerAddress,
    ClusterMetadata,
    PartitionMetadata,
    TopicMetadata,
)
from shoal.client.codes import Code
from shoal.client.errors import ConnectionLost
from shoal.client.produce.compare_and_append import AppendRequest
from shoal.client.produce.sessions import IdempotentSession
from shoal.client.results import LATEST
from shoal.client.transport import replaced_broker
from shoal.lite.cluster import LiteCluster
from shoal.model.findings import Outcome
from shoal.model.topics import TopicPartition
from shoal.wire.records.records import Record, encode_batch

pytestmark = pytest.mark.slow

TP = TopicPartition("t", 0)
# No request here may end by its own timeout: a test that waits for it does not end.
NEVER_MS = 3_600_000
PATIENCE_S = 120.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[LiteCluster]:
    times = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "200"}
    with LiteCluster(brokers=3, properties=times) as running:
        yield running


def properties(cluster: LiteCluster) -> dict[str, str | int]:
    times = {"request.timeout.ms": NEVER_MS, "delivery.timeout.ms": NEVER_MS}
    return {"bootstrap.servers": cluster.bootstrap, "linger.ms": 0, **times}


def batch(value: bytes) -> bytearray:
    return encode_batch([Record(0, time.time_ns() // 1_000_000, None, value)])


async def in_full(client: Client) -> int:
    """The leader, once all replicas are in sync."""
    if TP.topic not in (await client.metadata(None)).topics:
        await client.admin.create_topics([NewTopic(TP.topic, 1, 3)])
    while True:
        cluster = await client.metadata([TP.topic], refresh=True)
        partition = cluster.partition(TP)
        if partition is not None and len(partition.isr) == 3 and partition.leader >= 0:
            return partition.leader
        await asyncio.sleep(0.05)


async def produce(client: Client, _: IdempotentSession) -> None:
    result = (await client.produce({TP: batch(b"a")}, acks=-1))[TP]
    assert (result.outcome, result.error_code) == (Outcome.UNKNOWN, Code.NETWORK_EXCEPTION)


async def send_in_a_session(_: Client, session: IdempotentSession) -> None:
    assert (await (await session.send(TP, batch(b"b")))).is_ok


async def fetch(client: Client, _: IdempotentSession) -> None:
    assert (await client.fetch({TP: 0}))[TP].error_code == Code.NONE


async def append(client: Client, _: IdempotentSession) -> None:
    result = (await client.compare_and_append({TP: AppendRequest(0, 1, [batch(b"c")])}))[TP]
    assert (result.outcome, result.error_code) == (Outcome.UNKNOWN, Code.NETWORK_EXCEPTION)


async def list_offsets(client: Client, _: IdempotentSession) -> None:
    assert (await client.list_offsets({TP: LATEST}))[TP].offset >= 0


@pytest.mark.parametrize("ask", [produce, send_in_a_session, fetch, append, list_offsets])
@pytest.mark.quick("produce", "fetch")
async def test_a_leader_that_is_paused_is_waited_for_until_another_leads(
    cluster: LiteCluster, ask: Callable[[Client, IdempotentSession], Awaitable[None]]
) -> None:
    async with (
        asyncio.timeout(PATIENCE_S),
        Client(properties(cluster)) as client,
        IdempotentSession(client) as session,
    ):
        leader = await in_full(client)
        # With all connections there: a new one would not get as far as to be waited for.
        await (await session.send(TP, batch(b"before")))
        await client.fetch({TP: 0})
        await client.list_offsets({TP: LATEST})
        cluster.pause(leader)
        try:
            await ask(client, session)
            assert (await client.leader(TP)) != leader
        finally:
            cluster.resume(leader)


async def test_a_replica_that_is_paused_is_read_from_no_more(cluster: LiteCluster) -> None:
    async with asyncio.timeout(PATIENCE_S), Client(properties(cluster)) as client:
        leader = await in_full(client)
        follower = min({1, 2, 3} - {leader})
        await client.fetch_from(follower, {TP: 0}, max_wait_ms=0)
        cluster.pause(follower)
        try:
            with pytest.raises(ConnectionLost, match="does not answer, and other brokers lead"):
                await client.fetch_from(follower, {TP: 0}, max_wait_ms=200)
        finally:
            cluster.resume(follower)


async def test_who_is_only_slow_is_waited_for() -> None:
    # Long enough for the paused one to stay the leader.
    times = {"broker.session.timeout.ms": "600000"}
    with LiteCluster(brokers=3, properties=times) as cluster:
        async with asyncio.timeout(PATIENCE_S), Client(properties(cluster)) as client:
            leader = await in_full(client)
            await client.produce({TP: batch(b"before")}, acks=-1)
            cluster.pause(leader)
            sending = asyncio.create_task(client.produce({TP: batch(b"slow")}, acks=-1))
            await asyncio.sleep(2)
            cluster.resume(leader)
            assert (await sending)[TP].is_ok


async def test_who_is_in_sync_elsewhere_is_waited_for() -> None:
    """The broker must answer another request on the same connection before it can refuse."""
    brokers = {number: BrokerAddress(number, "h", number) for number in (1, 2)}

    def led_by_two(isr: tuple[int, ...]) -> PartitionMetadata:
        return PartitionMetadata(leader=2, leader_epoch=1, replicas=(1, 2), isr=isr)

    def cluster(other: tuple[int, ...]) -> ClusterMetadata:
        partitions = {0: led_by_two((2,)), 1: led_by_two(other)}
        topics = {TP.topic: TopicMetadata(TP.topic, partitions=partitions)}
        return ClusterMetadata(brokers=brokers, topics=topics)

    assert replaced_broker._is_replaced(cluster((2,)), 1, [TP])
    assert not replaced_broker._is_replaced(cluster((1, 2)), 1, [TP])
    assert not replaced_broker._is_replaced(cluster((2,)), 1, [TP, TopicPartition("gone", 0)])
