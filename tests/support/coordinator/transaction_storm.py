"""A transactional copy whose coordinators die again and again, and a judge of what came of it.

The *copier* numbers messages. Each transaction writes the same ten numbers to every partition of
a topic and commits, for a group, the next number. Every fifth is aborted on purpose. When its
session is lost it starts another with the same transactional id and goes on from the group's
committed number, as a consume-transform-produce loop does.

The judge reads committed data alone: every partition must hold all numbers below the group's
committed one, once, in order, and nothing else.
"""

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from shoal.client.admin import NewTopic
from shoal.client.client import Client
from shoal.client.consume.consumer import RawConsumer
from shoal.client.errors import ClientError
from shoal.client.produce.transactions import TransactionalSession
from shoal.client.results import EARLIEST, LATEST
from shoal.lite.cluster import LiteCluster
from shoal.model.topics import TopicPartition
from shoal.wire.api_keys import ApiKey
from shoal.wire.records.records import Record, decode_records, encode_batch

TOPIC = "copy"
GROUP = "copier"
NAME = "copier"
PARTITIONS = 3
AT_ONCE = 10
PATIENCE_S = 60.0
_COORDINATORS = {"transaction": (1, NAME), "group": (0, GROUP)}


@dataclass
class StormOutcome:
    """What was done and what is there."""

    kills: dict[str, int] = field(default_factory=lambda: {"transaction": 0, "group": 0})
    committed: int = 0
    aborted: int = 0
    # Sessions that were lost with the fate of their transaction unknown to them.
    lost_sessions: int = 0
    last_number: int = 0
    problems: list[str] = field(default_factory=list)


class TransactionStorm:
    """One run over a cluster of three brokers."""

    def __init__(self, cluster: LiteCluster, seed: int) -> None:
        self._cluster = cluster
        self._chance = random.Random(seed)
        self.outcome = StormOutcome()
        self._tps = [TopicPartition(TOPIC, index) for index in range(PARTITIONS)]
        self._is_over = False

    def _client(self) -> Client:
        return Client({"bootstrap.servers": self._cluster.bootstrap, "request.timeout.ms": "5000"})

    async def run(self, kills: int, say: Callable[[str], None] = lambda _: None) -> StormOutcome:
        async with self._client() as client:
            await client.admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])
            copier = asyncio.create_task(self._copy())
            try:
                for number in range(kills):
                    await self._progress(copier)
                    await asyncio.sleep(self._chance.uniform(0.0, 0.3))
                    what = self._chance.choice(list(_COORDINATORS))
                    node = await self._coordinator(client, what)
                    say(f"kill {number + 1} of {kills}: {what} coordinator, broker {node}")
                    await asyncio.to_thread(self._cluster.kill, node)
                    await asyncio.sleep(self._chance.uniform(0.0, 0.3))
                    await asyncio.to_thread(self._cluster.restart, node)
                    self.outcome.kills[what] += 1
            finally:
                self._is_over = True
                await asyncio.wait_for(copier, PATIENCE_S)
            await self._judge(client)
        return self.outcome

    async def _progress(self, copier: "asyncio.Task[None]") -> None:
        """Until a transaction has ended since the last kill: every kill meets a living copier."""
        before = self.outcome.committed
        deadline_s = time.monotonic() + PATIENCE_S
        while self.outcome.committed == before and not copier.done():
            if time.monotonic() > deadline_s:
                self.outcome.problems.append(f"no transaction commits within {PATIENCE_S:g} s")
                return
            await asyncio.sleep(0.01)

    # The copier

    async def _copy(self) -> None:
        while not self._is_over:
            async with self._client() as client:
                try:
                    async with TransactionalSession(client, NAME) as session:
                        await self._copy_in(client, session)
                except ClientError:
                    self.outcome.lost_sessions += 1

    async def _copy_in(self, client: Client, session: TransactionalSession) -> None:
        # Behind the start of the session: whatever the last one left is decided by now.
        number = await self._read_committed_offset(client)
        while not self._is_over:
            session.begin()
            batch = _batch(range(number, number + AT_ONCE))
            results = await session.produce({tp: bytearray(batch) for tp in self._tps})
            is_written = all(result.is_ok for result in results.values())
            if is_written:
                await session.send_offsets({self._tps[0]: number + AT_ONCE}, GROUP)
            if not is_written or self._chance.random() < 0.2:
                await session.abort()
                self.outcome.aborted += 1
            else:
                await session.commit()
                number += AT_ONCE
                self.outcome.committed += 1

    async def _read_committed_offset(self, client: Client) -> int:
        deadline_s = time.monotonic() + PATIENCE_S
        values = {
            "groups": [
                {
                    "group_id": GROUP,
                    "member_id": None,
                    "member_epoch": -1,
                    "topics": [{"name": TOPIC, "partition_indexes": [0]}],
                }
            ],
            "require_stable": True,
        }
        while time.monotonic() < deadline_s:
            try:
                node = await self._coordinator(client, "group")
                answer = await client.call(
                    ApiKey.OFFSET_FETCH, values, node_id=node, at_least=8, at_most=9
                )
                [group] = answer.groups
                if group.error_code == 0 and group.topics[0].partitions[0].error_code == 0:
                    return max(0, int(group.topics[0].partitions[0].committed_offset))
            except ClientError:
                pass
            await asyncio.sleep(0.05)
        raise TimeoutError("the group's committed offset is not available")

    async def _coordinator(self, client: Client, what: str) -> int:
        key_type, key = _COORDINATORS[what]
        deadline_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline_s:
            try:
                answer = await client.call(
                    ApiKey.FIND_COORDINATOR, {"key": key, "key_type": key_type}, at_most=3
                )
                if answer.error_code == 0:
                    return int(answer.node_id)
            except ClientError:
                pass
            await asyncio.sleep(0.05)
        raise TimeoutError(f"there is no {what} coordinator")

    # The judge

    async def _judge(self, client: Client) -> None:
        outcome = self.outcome
        # Ends what the last session may have left open.
        async with TransactionalSession(client, NAME):
            outcome.last_number = await self._read_committed_offset(client)
        expected = list(range(outcome.last_number))
        if outcome.last_number < outcome.committed * AT_ONCE:
            outcome.problems.append(
                f"{outcome.committed} commits were acknowledged, {outcome.last_number} is next"
            )
        for tp in self._tps:
            await self._await_stable(client, tp)
            found = await _read_committed_numbers(client, tp)
            if found != expected:
                outcome.problems.append(_difference(tp, expected, found))

    async def _await_stable(self, client: Client, tp: TopicPartition) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline_s:
            stable = await client.list_offsets({tp: LATEST}, isolation="read_committed")
            end = await client.list_offsets({tp: LATEST})
            if stable[tp].offset == end[tp].offset:
                return
            await asyncio.sleep(0.05)
        self.outcome.problems.append(f"{tp}: a transaction stays open")


def _batch(numbers: range) -> bytearray:
    now_ms = time.time_ns() // 1_000_000
    return encode_batch([Record(0, now_ms, None, str(number).encode()) for number in numbers])


async def _read_committed_numbers(client: Client, tp: TopicPartition) -> list[int]:
    end = (await client.list_offsets({tp: LATEST}, isolation="read_committed"))[tp].offset
    found: list[int] = []
    async with RawConsumer(client, {tp: EARLIEST}, isolation="read_committed") as consumer:
        while consumer.positions[tp] < end:
            for item in await consumer.poll(200):
                found += [int(record.value or b"") for record in decode_records(item.value)]
    return found


def _difference(tp: TopicPartition, expected: list[int], found: list[int]) -> str:
    missing = sorted(set(expected) - set(found))
    extra = sorted(set(found) - set(expected))
    twice = len(found) - len(set(found))
    return (
        f"{tp}: {len(missing)} lost (first {missing[:3]}), {len(extra)} not committed "
        f"(first {extra[:3]}), {twice} twice, in order: {found == sorted(found)}"
    )
