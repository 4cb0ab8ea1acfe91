"""Reading with `client.rack` where leaders name a nearer replica: followed, and given up again."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from shoal.client.admin import NewTopic
from shoal.client.client import Client
from shoal.client.codes import Code
from shoal.client.consume import raw_fetch
from shoal.client.consume.consumer import RawConsumer
from shoal.client.consume.fetch_session import Fetched
from shoal.lite.broker.fetch.preferred_replica import RACK_AWARE
from shoal.lite.cluster import LiteCluster
from shoal.model.topics import TopicPartition
from shoal.wire.api_keys import ApiKey
from shoal.wire.batch import Batch
from shoal.wire.records.records import Record, decode_records, encode_batch

pytestmark = pytest.mark.slow

RACKS = {1: "a", 2: "b", 3: "c"}
PROPERTIES = {"broker.rack": "a,b,c", "replica.selector.class": RACK_AWARE}
PATIENCE_S = 60
MANY = 1_000_000


@pytest.fixture(scope="module")
def racks() -> Iterator[LiteCluster]:
    with LiteCluster(brokers=3, properties=PROPERTIES) as cluster:
        yield cluster


@pytest.fixture
def fetched_brokers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Which brokers were sent a fetch, in order."""
    nodes: list[int] = []
    fetch_from = raw_fetch.fetch_from

    async def count(core: Client, node_id: int, *args: object, **options: object) -> Fetched:
        nodes.append(node_id)
        return await fetch_from(core, node_id, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(raw_fetch, "fetch_from", count)
    monkeypatch.setattr("shoal.client.consume.consumer.fetch_from", count)
    return nodes


@pytest.fixture
async def near(racks: LiteCluster, request: pytest.FixtureRequest) -> AsyncIterator["Near"]:
    """A topic, and a client in the rack of one of its followers."""
    topic = request.node.name.replace("[", "-").rstrip("]")
    tp = TopicPartition(topic, 0)
    async with Client({"bootstrap.servers": racks.bootstrap}) as maker:
        await maker.admin.create_topics([NewTopic(topic, 1, 3)])
        leader = await maker.leader(tp)
        values = [Record(number, 5, None, b"%d" % number) for number in range(10)]
        assert (await maker.produce({tp: encode_batch(values)}))[tp].is_ok
    follower = leader % 3 + 1
    settings = {
        "bootstrap.servers": racks.bootstrap,
        "client.rack": RACKS[follower],
        "client.id": topic,
        "fetch.max.wait.ms": 100,
        "isolation.level": "read_uncommitted",
    }
    async with Client(settings) as client:
        near = Near(client, tp, leader, follower)
        await near.until_named()
        yield near
    racks.heal()


class Near:
    """What a test of one topic needs."""

    def __init__(self, client: Client, tp: TopicPartition, leader: int, follower: int) -> None:
        self.client = client
        self.tp = tp
        self.leader = leader
        self.follower = follower

    async def until_named(self) -> None:
        """The leader names a follower as soon as it knows that it has all records."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                part = (await self.client.fetch_from(self.leader, {self.tp: 0}))[self.tp]
                if part.preferred_read_replica == self.follower:
                    assert not part.records
                    return
                await asyncio.sleep(0.05)

    async def values(self) -> list[int]:
        part = (await self.client.fetch({self.tp: 0}))[self.tp]
        assert part.error_code == Code.NONE
        return [int(record.value or b"") for record in decode_records(Batch(part.records))]


async def test_a_raw_fetch_follows_the_preferred_replica(
    near: Near, fetched_brokers: list[int]
) -> None:
    assert await near.values() == list(range(10))
    assert fetched_brokers == [near.leader, near.follower]
    # From now on that one is asked first.
    assert await near.values() == list(range(10))
    assert fetched_brokers == [near.leader, near.follower, near.follower]


@pytest.mark.parametrize(
    "code", [Code.OFFSET_OUT_OF_RANGE, Code.NOT_LEADER_OR_FOLLOWER, Code.UNKNOWN_SERVER_ERROR]
)
async def test_a_raw_fetch_goes_back_to_the_leader(
    near: Near, fetched_brokers: list[int], racks: LiteCluster, code: int
) -> None:
    options = {"times": MANY, "client_id": near.tp.topic}
    racks.fail_requests(near.follower, ApiKey.FETCH, error=code, **options)  # type: ignore[arg-type]
    assert await near.values() == list(range(10))
    assert fetched_brokers == [near.leader, near.follower, near.leader]
    assert await near.values() == list(range(10))
    assert fetched_brokers == [near.leader, near.follower, near.leader, near.leader]


async def test_a_raw_fetch_survives_a_replica_that_hangs_up(
    near: Near, fetched_brokers: list[int], racks: LiteCluster
) -> None:
    racks.fail_requests(near.follower, ApiKey.FETCH, times=MANY, client_id=near.tp.topic)
    assert await near.values() == list(range(10))
    assert fetched_brokers == [near.leader, near.follower, near.leader]


async def test_a_consumer_does_not_spin_while_its_replica_fails(
    near: Near, fetched_brokers: list[int], racks: LiteCluster
) -> None:
    options = {"times": MANY, "client_id": near.tp.topic}
    error = Code.OFFSET_OUT_OF_RANGE
    racks.fail_requests(near.follower, ApiKey.FETCH, error=error, **options)  # type: ignore[arg-type]
    async with RawConsumer(near.client, {near.tp: 0}) as consumer, asyncio.timeout(PATIENCE_S):
        seen: list[int] = []
        while not seen:
            seen += [item.offset for item in await consumer.poll()]
        assert seen == [9]
        before = len(fetched_brokers)
        await consumer.poll(timeout_ms=1_000)
        # Each fetch waits for 100 ms at the leader, which is not asked to name a replica.
        assert len(fetched_brokers) - before <= 20
