"""The group consumer: its callbacks, and what it may do in each state."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import pytest

from shoal.client import Client, GroupConsumer, GroupMember
from shoal.client.cluster.coordinators import Coordinator, CoordinatorType
from shoal.client.codes import Code
from shoal.client.errors import ClientError, KafkaError
from shoal.client.groups.group_offsets import OffsetCommit, commit_offsets, fetch_committed_offsets
from shoal.client.groups.membership import Membership
from shoal.lite.cluster import LiteCluster
from shoal.model.errors import ConfigError, UsageError
from shoal.model.topics import TopicPartition
from shoal.wire.api_keys import ApiKey
from support.client.waiting import eventually
from support.lite.batches import batch_of
from support.lite.client import PlainClient

pytestmark = pytest.mark.slow

_numbers = count(1)
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[LiteCluster]:
    with LiteCluster() as running:
        yield running


@pytest.fixture
def topic(cluster: LiteCluster) -> str:
    """A topic with two partitions and a record in each."""
    name = f"topic-{next(_numbers)}"
    with PlainClient(cluster.bootstrap) as client:
        client.create_topic(name, 2)
        for partition in range(2):
            assert client.produce(name, batch_of(b"a"), partition=partition).error_code == 0
    return name


@asynccontextmanager
async def member_of(
    cluster: LiteCluster, topic: str, events: list[str] | None = None, **settings: Any
) -> AsyncIterator[GroupConsumer]:
    """A member of the group that is named like the topic; its callbacks append to `events`."""
    properties = {
        "bootstrap.servers": cluster.bootstrap,
        "group.id": topic,
        "auto.offset.reset": "earliest",
        "heartbeat.interval.ms": "50",
        "session.timeout.ms": "30000",
        **{name.replace("_", "."): value for name, value in settings.items()},
    }
    recorded: list[str] = [] if events is None else events

    def note(word: str) -> Any:
        def on(partitions: frozenset[TopicPartition]) -> None:
            recorded.append(f"{word} {' '.join(str(tp.partition) for tp in sorted(partitions))}")

        return on

    async with Client(properties) as client:
        consumer = GroupConsumer(
            client,
            [topic],
            on_assigned=note("assigned"),
            on_revoked=note("revoked"),
            on_lost=note("lost"),
        )
        async with consumer:
            yield consumer


async def read(consumer: GroupConsumer, count: int) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(found) < count:
            found += [(r.partition, r.record.offset) for r in await consumer.poll_records(200)]
    return sorted(found)


async def remove(cluster: LiteCluster, group: str, member_id: str) -> None:
    """An administrator throws a member out."""

    def leave() -> None:
        with PlainClient(cluster.bootstrap) as client:
            members = [{"member_id": member_id, "group_instance_id": None, "reason": None}]
            client.request(ApiKey.LEAVE_GROUP, 5, group_id=group, members=members)

    await asyncio.to_thread(leave)


async def test_it_reads_commits_and_goes_on(cluster: LiteCluster, topic: str) -> None:
    events: list[str] = []
    async with member_of(cluster, topic, events) as consumer:
        assert await read(consumer, 2) == [(0, 0), (1, 0)]
        assert consumer.positions == {TopicPartition(topic, 0): 1, TopicPartition(topic, 1): 1}
        await consumer.commit()
        assert {commit.offset for commit in (await consumer.fetch_committed()).values()} == {1}
        await consumer.commit({TopicPartition(topic, 1): OffsetCommit(0, "again")})
        assert consumer.member.generation_id == 1
    assert events == ["assigned 0 1", "revoked 0 1"]
    async with member_of(cluster, topic) as consumer:
        assert await read(consumer, 1) == [(1, 0)]
        found = await consumer.fetch_committed([TopicPartition(topic, 1)])
        assert found == {TopicPartition(topic, 1): OffsetCommit(0, "again")}


async def test_who_is_thrown_out_has_lost_everything_and_comes_back(
    cluster: LiteCluster, topic: str
) -> None:
    events: list[str] = []
    async with member_of(cluster, topic, events) as consumer:
        await read(consumer, 2)
        known = consumer.member.member_id
        await remove(cluster, topic, known)
        with pytest.raises(KafkaError) as refused:
            await consumer.commit()
        assert refused.value.code == Code.UNKNOWN_MEMBER_ID
        assert await read(consumer, 2) == [(0, 0), (1, 0)]
        assert consumer.member.member_id not in {"", known}
        await consumer.commit()
    assert events == ["assigned 0 1", "lost 0 1", "assigned 0 1", "revoked 0 1"]


async def test_no_heartbeat_is_sent_while_it_joins(
    cluster: LiteCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer would be an error: the member would join again, or lose what it is given."""
    course: list[object] = []
    ask, assign = Coordinator.ask, Membership._assign_partitions

    async def ask_and_note(coordinator: Coordinator, key: ApiKey, *rest: Any, **more: Any) -> Any:
        course.append(key)
        return await ask(coordinator, key, *rest, **more)

    async def assign_late(membership: Membership, response: Any) -> Any:
        course.append("begin")
        await asyncio.sleep(0.5)  # of ten heartbeats
        course.append("end")
        return await assign(membership, response)

    events: list[str] = []
    async with member_of(cluster, topic, events) as consumer:
        await read(consumer, 2)
        monkeypatch.setattr(Coordinator, "ask", ask_and_note)
        monkeypatch.setattr(Membership, "_assign_partitions", assign_late)
        await remove(cluster, topic, consumer.member.member_id)
        await eventually(lambda: not consumer.member.member_id, within_s=PATIENCE_S)
        assert await read(consumer, 2) == [(0, 0), (1, 0)]
        assert course[course.index("begin") :][:2] == ["begin", "end"]
        assert course.count("begin") == 1
        await eventually(lambda: course[-1] == ApiKey.HEARTBEAT, within_s=PATIENCE_S)
    assert events == ["assigned 0 1", "lost 0 1", "assigned 0 1", "revoked 0 1"]


async def test_a_removed_member_commits_nothing_once_its_heartbeat_knows(
    cluster: LiteCluster, topic: str
) -> None:
    async with member_of(cluster, topic) as consumer:
        await read(consumer, 2)
        await remove(cluster, topic, consumer.member.member_id)
        await eventually(lambda: not consumer.member.member_id, within_s=PATIENCE_S)
        # The group is empty now: a commit without a member id would be accepted.
        with pytest.raises(KafkaError, match="not a member of group") as refused:
            await consumer.commit()
        assert refused.value.code == Code.UNKNOWN_MEMBER_ID
        assert await consumer.fetch_committed() == {}
        assert await read(consumer, 2) == [(0, 0), (1, 0)]


async def test_who_does_not_poll_leaves(cluster: LiteCluster, topic: str) -> None:
    events: list[str] = []
    async with member_of(cluster, topic, events, max_poll_interval_ms="200") as consumer:
        await read(consumer, 2)

        def is_alone() -> bool:
            with PlainClient(cluster.bootstrap) as client:
                [group] = client.request(ApiKey.DESCRIBE_GROUPS, 0, groups=[topic]).groups
                return bool(group.group_state == "Empty")

        await eventually(is_alone, within_s=PATIENCE_S)
        await read(consumer, 2)
    assert events[:3] == ["assigned 0 1", "lost 0 1", "assigned 0 1"]


async def test_without_a_commit_and_without_a_rule_it_does_not_guess(
    cluster: LiteCluster, topic: str
) -> None:
    async with member_of(cluster, topic, auto_offset_reset="none") as consumer:
        with pytest.raises(ClientError, match="has no committed offset for"):
            await consumer.poll_records(100)
        places = [TopicPartition(topic, index) for index in range(2)]
        async with Client({"bootstrap.servers": cluster.bootstrap}) as client:
            coordinator = Coordinator(client, CoordinatorType.GROUP, topic)
            with pytest.raises(KafkaError) as refused:
                await commit_offsets(coordinator, topic, dict.fromkeys(places, 1))
            assert refused.value.code == Code.UNKNOWN_MEMBER_ID
        await consumer.commit(dict.fromkeys(places, 1))
        assert await consumer.poll_records(100) == []
        consumer.seek(places[1], 0)
        assert await read(consumer, 1) == [(1, 0)]


async def test_a_group_that_manages_itself(cluster: LiteCluster, topic: str) -> None:
    place = TopicPartition(topic, 0)
    async with Client({"bootstrap.servers": cluster.bootstrap}) as client:
        coordinator = Coordinator(client, CoordinatorType.GROUP, f"{topic}-alone")
        assert await fetch_committed_offsets(coordinator, f"{topic}-alone", [place]) == {}
        await commit_offsets(coordinator, f"{topic}-alone", {place: 4}, member=GroupMember())
        found = await fetch_committed_offsets(coordinator, f"{topic}-alone", [place])
        assert found == {place: OffsetCommit(4)}


async def test_a_fenced_member_stops(cluster: LiteCluster, topic: str) -> None:
    async with member_of(cluster, topic, group_instance_id="one") as first:
        await read(first, 2)
        async with member_of(cluster, topic, group_instance_id="one") as second:
            await read(second, 2)
            with pytest.raises(KafkaError) as fenced:
                await read(first, 1)
            assert fenced.value.code == Code.FENCED_INSTANCE_ID
            await second.commit()


async def test_what_cannot_be_a_member(cluster: LiteCluster, topic: str) -> None:
    async with Client({"bootstrap.servers": cluster.bootstrap}) as client:
        with pytest.raises(ConfigError, match=r"group\.id is missing"):
            GroupConsumer(client, [topic])
    settings = {"bootstrap.servers": cluster.bootstrap, "group.id": topic}
    async with Client(settings) as client:
        with pytest.raises(UsageError):
            GroupConsumer(client, topic)
    settings["partition.assignment.strategy"] = "org.example.Assignor"
    async with Client(settings) as client:
        with pytest.raises(ConfigError, match="is unknown"):
            GroupConsumer(client, [topic])
