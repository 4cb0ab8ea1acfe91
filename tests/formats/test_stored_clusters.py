"""Kafka Lite serves everything that is in a folder which an earlier version left behind."""

from pathlib import Path

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    ResourceType,
)

from shoal.lite.cluster import LiteCluster
from support.formats.stored import settle_here, unpack
from support.lite.clusters import (
    PATIENCE_S,
    admin_of,
    await_values,
    eventually,
    in_sync,
    read,
    send,
)

pytestmark = pytest.mark.slow


def values(name: str, count: int, first: int = 0) -> list[bytes]:
    return [f"{name}-{number}".encode() for number in range(first, first + count)]


def settings_of(admin: AdminClient, kind: ResourceType, name: str) -> dict[str, str]:
    [answer] = admin.describe_configs([ConfigResource(kind, name)]).values()
    return {key: entry.value for key, entry in answer.result(PATIENCE_S).items()}


def fetch_committed_offsets(admin: AdminClient, group: str) -> dict[tuple[str, int], int]:
    asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
    found = asked[group].result(PATIENCE_S).topic_partitions
    return {(each.topic, each.partition): each.offset for each in found}


def test_a_quorum_that_was_killed_serves_all_that_it_had(tmp_path: Path) -> None:
    folder = settle_here(unpack("cluster-with-quorum", tmp_path / "cluster"))
    with LiteCluster(directory=folder) as cluster:
        assert [node.id for node in cluster.status()] == [1, 2, 3]
        assert [node.id for node in cluster.controllers()] == [101, 102, 103]
        for topic, replicas in (
            ("orders", {1, 2, 3}),
            ("compacted", {1, 3}),
            ("eligible", {1, 2, 3}),
        ):
            eventually(lambda t=topic, r=replicas: in_sync(cluster, t) == r)  # type: ignore[misc]
        orders = {
            0: values("p0", 40, first=10),  # those below were deleted
            1: values("p1", 30) + values("committed", 5),
        }
        eventually(lambda: read(cluster, "orders", 2) == orders)
        await_values(cluster, "compacted", values("c", 10))
        await_values(cluster, "eligible", values("e", 20))
        with admin_of(cluster) as admin:
            topics = {
                name for name in admin.list_topics(timeout=PATIENCE_S).topics if name[0] != "_"
            }
            assert topics == {"orders", "compacted", "eligible"}
            assert fetch_committed_offsets(admin, "billing") == {
                ("orders", 0): 33,
                ("orders", 1): 7,
            }
            settings = settings_of(admin, ResourceType.TOPIC, "orders")
            assert settings["retention.ms"] == "-1"
            assert settings["min.insync.replicas"] == "2"
            assert settings["max.message.bytes"] == "2000000"
            compacted = settings_of(admin, ResourceType.TOPIC, "compacted")
            assert compacted["cleanup.policy"] == "compact"
            assert settings_of(admin, ResourceType.BROKER, "2")["broker.rack"] == "b"
        go_on(cluster)


def go_on(cluster: LiteCluster) -> None:
    """What writes to the folder from now on continues what was there."""
    assert send(cluster, "eligible", b"more") == [None]
    await_values(cluster, "eligible", [*values("e", 20), b"more"])
    settings = {"bootstrap.servers": cluster.bootstrap, "log_level": 0}
    with Producer({**settings, "transactional.id": "tx-committed"}) as producer:
        producer.init_transactions(PATIENCE_S)
        producer.begin_transaction()
        producer.produce("orders", b"again", partition=1)
        producer.commit_transaction(PATIENCE_S)
    eventually(lambda: read(cluster, "orders", 2)[1][-1] == b"again")
    with Consumer({**settings, "group.id": "billing"}) as consumer:
        [place] = consumer.committed([TopicPartition("orders", 0)], PATIENCE_S)
        assert place.offset == 33
        consumer.commit(offsets=[TopicPartition("orders", 0, 34)], asynchronous=False)
    with admin_of(cluster) as admin:
        assert fetch_committed_offsets(admin, "billing")["orders", 0] == 34
