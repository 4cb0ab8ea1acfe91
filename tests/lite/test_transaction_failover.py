"""The coordinator dies in every state of a transaction: nothing is lost, nothing half applied."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from shoal.client.admin import NewTopic
from shoal.client.client import Client
from shoal.client.consume.consumer import RawConsumer
from shoal.client.produce.transactions import TransactionalSession
from shoal.client.results import EARLIEST, LATEST
from shoal.lite.cluster import LiteCluster
from shoal.model.topics import TopicPartition
from shoal.wire.api_keys import ApiKey
from shoal.wire.records.records import Record, decode_records, encode_batch

PATIENCE_S = 60.0
GROUP = "group"
# When the coordinator dies, and how the transaction ends.
MOMENTS = (
    ("empty", True),
    ("ongoing", True),
    ("ongoing", False),
    ("prepared", True),
    ("prepared", False),
    ("complete", True),
)


def batch(value: str) -> bytearray:
    return encode_batch([Record(0, time.time_ns() // 1_000_000, None, value.encode())])


def client_of(cluster: LiteCluster) -> Client:
    return Client({"bootstrap.servers": cluster.bootstrap, "request.timeout.ms": "5000"})


async def coordinator_of(client: Client, name: str) -> int:
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        answer = await client.call(ApiKey.FIND_COORDINATOR, {"key": name, "key_type": 1}, at_most=3)
        if answer.error_code == 0 or time.monotonic() > deadline_s:
            return int(answer.node_id)
        await asyncio.sleep(0.02)


async def read_committed_values(client: Client, tp: TopicPartition) -> list[str]:
    end = (await client.list_offsets({tp: LATEST}, isolation="read_committed"))[tp].offset
    values: list[str] = []
    async with RawConsumer(client, {tp: EARLIEST}, isolation="read_committed") as consumer:
        while consumer.positions[tp] < end:
            for item in await consumer.poll(200):
                values += [(r.value or b"").decode() for r in decode_records(item.value)]
    return values


async def until(is_so: Callable[[], Awaitable[bool]]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not await is_so():
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.05)


async def is_stable(client: Client, tps: list[TopicPartition]) -> bool:
    stable = await client.list_offsets(dict.fromkeys(tps, LATEST), isolation="read_committed")
    ends = await client.list_offsets(dict.fromkeys(tps, LATEST))
    return all(stable[tp].offset == ends[tp].offset for tp in tps)


async def read_committed_offset(client: Client, tp: TopicPartition) -> int:
    found = await client.call(ApiKey.FIND_COORDINATOR, {"key": GROUP, "key_type": 0}, at_most=3)
    answer = await client.call(
        ApiKey.OFFSET_FETCH,
        {"group_id": GROUP, "topics": [{"name": tp.topic, "partition_indexes": [tp.partition]}]},
        node_id=int(found.node_id),
        at_most=5,
    )
    return int(answer.topics[0].partitions[0].committed_offset)


async def agree_on(client: Client, level: int) -> None:
    update = {"feature": "transaction.version", "max_version_level": level, "upgrade_type": 2}
    values = {"timeout": 10_000, "feature_updates": [update], "validate_only": False}
    assert (await client.call(ApiKey.UPDATE_FEATURES, values, at_least=1)).error_code == 0


class Play:
    """A producer, and the death of its coordinator at a chosen moment."""

    def __init__(self, cluster: LiteCluster, client: Client, tps: list[TopicPartition]) -> None:
        self.cluster = cluster
        self.client = client
        self.tps = tps
        self.number = 0

    async def kill_coordinator(self, name: str) -> None:
        node = await coordinator_of(self.client, name)
        await asyncio.to_thread(self.cluster.kill, node)
        await asyncio.to_thread(self.cluster.restart, node)

    async def write(self, session: TransactionalSession, word: str) -> None:
        results = await session.produce({tp: batch(word) for tp in self.tps})
        assert all(result.is_ok for result in results.values()), results

    async def transaction(self, moment: str, *, commits: bool) -> str:
        """One transaction with the death at this moment; returns its word."""
        self.number += 1
        word, name = f"{moment}-{commits}", f"id-{self.number}"
        async with TransactionalSession(self.client, name) as session:
            if moment == "empty":
                await self.kill_coordinator(name)
            session.begin()
            await self.write(session, word)
            if moment == "ongoing":
                await self.kill_coordinator(name)
            await self.write(session, word)
            await session.send_offsets({self.tps[0]: self.number}, GROUP)
            if moment == "prepared":
                self._lose_markers()
            await (session.commit() if commits else session.abort())
            if moment in {"prepared", "complete"}:
                await self.kill_coordinator(name)
            await asyncio.to_thread(self.cluster.heal)
            await until(lambda: is_stable(self.client, self.tps))
            session.begin()
            await self.write(session, f"{word}-next")
            await session.commit()
            await until(lambda: is_stable(self.client, self.tps))
        return word

    def _lose_markers(self) -> None:
        for node_id in (1, 2, 3):
            self.cluster.fail_requests(node_id, ApiKey.WRITE_TXN_MARKERS, times=1_000_000)


@pytest.mark.parametrize("level", [0, 2])
@pytest.mark.quick("2")
async def test_the_coordinator_dies_in_every_state(level: int) -> None:
    expected: list[str] = []
    with LiteCluster(brokers=3) as cluster:
        async with client_of(cluster) as admin:
            await agree_on(admin, level)
            await admin.admin.create_topics([NewTopic("t", 2, 3)])
        async with client_of(cluster) as client:
            play = Play(cluster, client, [TopicPartition("t", 0), TopicPartition("t", 1)])
            offset = -1
            for moment, commits in MOMENTS:
                word = await play.transaction(moment, commits=commits)
                expected += [word, word] * commits + [f"{word}-next"]
                offset = play.number if commits else offset
            found = [await read_committed_values(client, tp) for tp in play.tps]
            last = await read_committed_offset(client, play.tps[0])
    assert found == [expected, expected]
    assert last == offset
