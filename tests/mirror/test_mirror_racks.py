"""A mirror with `client.rack` at a source whose leaders name nearer replicas."""

from collections.abc import Iterator

import pytest

from shoal.client.client import Client
from shoal.client.consume.fetch_session import Fetched
from shoal.lite.broker.fetch.preferred_replica import RACK_AWARE
from shoal.lite.cluster import LiteCluster
from shoal.mirror.config import MirrorConfig
from support.client.topic_reader import read_topic
from support.lite.clusters import create_topic, eventually, in_sync, partition_of
from support.mirror.runs import fill, running, values

PROPERTIES = {"broker.rack": "a,b,c", "replica.selector.class": RACK_AWARE}
RACKS = {1: "a", 2: "b", 3: "c"}


@pytest.fixture
def source() -> Iterator[LiteCluster]:
    with LiteCluster(brokers=3, properties=PROPERTIES) as cluster:
        yield cluster


@pytest.fixture
def fetched_brokers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Which brokers the mirror's partitions were fetched from, in order."""
    nodes: list[int] = []
    fetch_in_session = Client.fetch_in_session

    async def count(client: Client, node_id: int, *args: object, **options: object) -> Fetched:
        nodes.append(node_id)
        return await fetch_in_session(client, node_id, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Client, "fetch_in_session", count)
    return nodes


@pytest.mark.parametrize("delivery", ["idempotent", "compare-and-append"])
async def test_a_mirror_reads_from_its_rack_and_from_the_leader_when_that_is_gone(
    source: LiteCluster, target: LiteCluster, fetched_brokers: list[int], delivery: str
) -> None:
    topic = f"near-{delivery}"
    create_topic(source, topic, 1, 3)
    leader = partition_of(source, topic).leader
    follower = leader % 3 + 1
    config = MirrorConfig(
        {"bootstrap.servers": source.bootstrap, "client.rack": RACKS[follower]},
        {"bootstrap.servers": target.bootstrap, "client.rack": "somewhere"},
        (topic,),
        name=topic,
        delivery=delivery,
    )
    fill(source.bootstrap, topic, values("first"))
    async with running(config) as mirror:
        await mirror.copied(20)
        await mirror.until(lambda _status: follower in fetched_brokers)
        fetched_brokers.clear()
        fill(source.bootstrap, topic, values("second"))
        await mirror.copied(40)
        # A fetch that waits takes half a second: what is asked more often is asked in vain.
        assert set(fetched_brokers) == {follower}
        source.kill(follower)
        fill(source.bootstrap, topic, values("third"))
        await mirror.copied(60)
        assert leader in fetched_brokers
        source.restart(follower)
        eventually(lambda: in_sync(source, topic) == {1, 2, 3})
        fill(source.bootstrap, topic, values("fourth"))
        await mirror.copied(80)
    found = read_topic(target.bootstrap, topic, partitions=1, count=80)
    expected = [*values("first"), *values("second"), *values("third"), *values("fourth")]
    assert [record.value for record in found.partitions[0]] == [one.encode() for one in expected]


async def test_a_start_after_another_one_follows_too(
    source: LiteCluster, target: LiteCluster
) -> None:
    """What is read at the start of a mirror, of source and target, is read with the rack too."""
    topic = "again"
    create_topic(source, topic, 3, 3)
    config = MirrorConfig(
        {"bootstrap.servers": source.bootstrap, "client.rack": "b"},
        {"bootstrap.servers": target.bootstrap, "client.rack": "b"},
        (topic,),
        name=topic,
    )
    for name in ("first", "second"):
        for number in range(3):
            fill(source.bootstrap, topic, values(f"{name}-{number}"), partition=number)
        async with running(config) as mirror:
            status = await mirror.copied(60)
            assert not status.parked
    found = read_topic(target.bootstrap, topic, partitions=3, count=120)
    assert [len(records) for records in found.partitions.values()] == [40, 40, 40]
