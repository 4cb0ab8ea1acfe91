"""Reads from followers, and what waits for followers: deletions."""

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition

from shoal.lite.base.codes import Code
from shoal.lite.broker.fetch.preferred_replica import RACK_AWARE
from shoal.lite.cluster import LiteCluster
from shoal.wire.api_keys import ApiKey
from shoal.wire.fetch import FetchedPartition, FetchPartition
from support.lite.batches import values_of
from support.lite.client import PlainClient
from support.lite.clusters import (
    PATIENCE_S,
    create_topic,
    eventually,
    in_sync,
    partition_of,
    send,
)

PROPERTIES = {
    "broker.rack": "a,b,c",
    "replica.selector.class": RACK_AWARE,
    "replica.lag.time.max.ms": "1500",
}


@pytest.fixture(scope="module")
def racks() -> Iterator[LiteCluster]:
    with LiteCluster(brokers=3, properties=PROPERTIES) as cluster:
        yield cluster


def client_of(cluster: LiteCluster, broker_id: int) -> PlainClient:
    node = next(node for node in cluster.nodes() if node.id == broker_id)
    return PlainClient(f"{node.host}:{node.port}")


def fetch_from(
    cluster: LiteCluster,
    broker_id: int,
    topic: str,
    *,
    offset: int = 0,
    version: int = 12,
    **more: str,
) -> FetchedPartition:
    wanted = FetchPartition(topic, None, 0, offset, 1 << 20)
    with client_of(cluster, broker_id) as client:
        return client.fetch(wanted, version=version, **more).partitions[0]


def test_followers_serve_what_is_committed(racks: LiteCluster) -> None:
    create_topic(racks, "t", 1, 3)
    assert send(racks, "t", b"a", b"b") == [None, None]
    leader = partition_of(racks, "t").leader
    for follower in {1, 2, 3} - {leader}:
        eventually(lambda broker_id=follower: fetch_from(racks, broker_id, "t").high_watermark == 2)  # type: ignore[misc]
        answer = fetch_from(racks, follower, "t")
        assert (answer.error_code, values_of(bytes(answer.records))) == (0, [b"a", b"b"])
        assert fetch_from(racks, follower, "t", offset=3).error_code == Code.OFFSET_OUT_OF_RANGE
        old = fetch_from(racks, follower, "t", version=10)
        assert old.error_code == Code.NOT_LEADER_OR_FOLLOWER


def test_a_follower_gives_nothing_that_is_not_committed() -> None:
    with LiteCluster(brokers=3, profile="strict") as cluster:
        create_topic(cluster, "t", 1, 3)
        assert send(cluster, "t", b"a") == [None]
        leader = partition_of(cluster, "t").leader
        follower, paused = sorted({1, 2, 3} - {leader})
        cluster.pause(paused)
        # The first may still go to the held fetch of the paused follower; it is never answered.
        for value in (b"b", b"c", b"d"):
            assert send(cluster, "t", value, acks=1) == [None]
        with client_of(cluster, follower) as client:
            eventually(lambda: _end_of_log(cluster, follower) == _end_of_log(cluster, leader))
            answer = client.fetch(FetchPartition("t", None, 0, 0, 1 << 20), version=12)
        assert values_of(bytes(answer.partitions[0].records)) == [b"a"]
        assert answer.partitions[0].high_watermark == 1
        cluster.resume(paused)


def _end_of_log(cluster: LiteCluster, broker_id: int) -> int:
    folder = cluster.log_dirs()[broker_id] / "t-0"
    return sum(path.stat().st_size for path in folder.glob("*.log"))


def test_the_leader_sends_consumers_to_their_rack(racks: LiteCluster) -> None:
    create_topic(racks, "near", 1, 3)
    assert send(racks, "near", b"a") == [None]
    leader = partition_of(racks, "near").leader
    for broker_id, rack in ((1, "a"), (2, "b"), (3, "c")):
        if broker_id == leader:
            answer = fetch_from(racks, leader, "near", rack_id=rack)
            assert (answer.preferred_read_replica, values_of(bytes(answer.records))) == (-1, [b"a"])
        else:
            # Only a follower that is known to have the offset is preferred.
            eventually(
                lambda broker_id=broker_id, rack=rack: (  # type: ignore[misc]
                    fetch_from(racks, leader, "near", rack_id=rack).preferred_read_replica
                    == broker_id
                )
            )
            assert len(fetch_from(racks, leader, "near", rack_id=rack).records) == 0
    assert fetch_from(racks, leader, "near", rack_id="elsewhere").preferred_read_replica == -1
    assert fetch_from(racks, leader, "near").preferred_read_replica == -1


@pytest.mark.parametrize("rack", ["a", "b", "c"])
def test_a_client_that_names_its_rack_reads_everything(racks: LiteCluster, rack: str) -> None:
    topic = f"rack-{rack}"
    create_topic(racks, topic, 1, 3)
    values = [b"%d" % number for number in range(30)]
    assert send(racks, topic, *values[:20]) == [None] * 20
    settings = {
        "bootstrap.servers": racks.bootstrap,
        "group.id": "g",
        "client.rack": rack,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "log_level": 0,
    }
    seen: list[bytes | None] = []
    with Consumer(settings) as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])

        def has_seen(count: int) -> bool:
            seen.extend(message.value() for message in consumer.consume(100, 0.1))
            return len(seen) >= count

        eventually(lambda: has_seen(20))
        assert send(racks, topic, *values[20:]) == [None] * 10
        eventually(lambda: has_seen(30))
    assert seen == values


def delete(client: PlainClient, topic: str, offset: int, timeout_ms: int) -> tuple[int, int]:
    item = {"partition_index": 0, "offset": offset}
    topics = [{"name": topic, "partitions": [item]}]
    response = client.request(ApiKey.DELETE_RECORDS, 2, topics=topics, timeout=timeout_ms)
    result = response.topics[0].partitions[0]
    return result.error_code, result.low_watermark


def test_a_deletion_waits_for_all_live_replicas() -> None:
    with LiteCluster(brokers=3) as cluster:
        create_topic(cluster, "deleted", 1, 3)
        assert send(cluster, "deleted", b"a", b"b", b"c") == [None] * 3
        leader = partition_of(cluster, "deleted").leader
        follower = min({1, 2, 3} - {leader})
        with client_of(cluster, leader) as client:
            assert delete(client, "deleted", 2, int(PATIENCE_S * 1000)) == (0, 2)
            for broker_id in (1, 2, 3):
                folder = cluster.log_dirs()[broker_id] / "deleted-0"
                text = (folder / "log-start-offset-checkpoint").read_text()
                assert text == "0\n1\n0 2\n"
            cluster.pause(follower)
            # The held fetch of a paused follower is answered, which shows nothing of its progress.
            assert delete(client, "deleted", 3, 200) == (Code.REQUEST_TIMED_OUT, -1)
            cluster.kill(follower)
            assert delete(client, "deleted", 3, int(PATIENCE_S * 1000)) == (0, 3)
        cluster.restart(follower)
        eventually(lambda: in_sync(cluster, "deleted") == {1, 2, 3})


def test_records_of_a_compacted_topic_are_not_deleted(racks: LiteCluster) -> None:
    create_topic(racks, "compacted", 1, 1, cleanup_policy="compact")
    with client_of(racks, partition_of(racks, "compacted").leader) as client:
        assert delete(client, "compacted", -1, 1000) == (Code.POLICY_VIOLATION, -1)


def epoch_end(
    client: PlainClient, topic: str, epoch: int, *, version: int = 4, current: int = -1
) -> tuple[int, int, int]:
    part = {"partition": 0, "current_leader_epoch": current, "leader_epoch": epoch}
    response = client.request(
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        version,
        replica_id=-1,
        topics=[{"topic": topic, "partitions": [part]}],
    )
    result = response.topics[0].partitions[0]
    return result.error_code, result.leader_epoch, result.end_offset


@pytest.mark.parametrize("version", [2, 3, 4])
def test_where_the_records_of_a_leader_end(version: int) -> None:
    with LiteCluster(brokers=2) as cluster:
        create_topic(cluster, "t", 1, 2)
        first = partition_of(cluster, "t").leader
        other = 3 - first
        with client_of(cluster, first) as client:
            assert epoch_end(client, "nowhere", 0, version=version)[0] == 3
            assert epoch_end(client, "t", 0, version=version) == (0, 0, 0)
        assert send(cluster, "t", b"a", b"b") == [None, None]
        cluster.move_leader("t", 0, other)
        assert send(cluster, "t", b"c") == [None]
        with client_of(cluster, other) as client:
            assert epoch_end(client, "t", 0, version=version) == (0, 0, 2)
            assert epoch_end(client, "t", 1, version=version, current=1) == (0, 1, 3)
            assert epoch_end(client, "t", 2, version=version) == (0, -1, -1)
            assert epoch_end(client, "t", -1, version=version) == (0, -1, -1)
            fenced = epoch_end(client, "t", 0, version=version, current=0)
            assert fenced == (Code.FENCED_LEADER_EPOCH, -1, -1)
        with client_of(cluster, first) as client:
            refused = epoch_end(client, "t", 0, version=version)
            assert refused == (Code.NOT_LEADER_OR_FOLLOWER, -1, -1)
