"""Thousands of partitions come, expire and go beside a writer that has nothing to do with them.

On a busy machine anyone may wait for the CPU or the disk, so time is not judged by the clock, but
by how long a broker's event loop was held up by its own work, and by what the cluster did: nobody
missed a heartbeat, and no follower fell behind. The longest gap of a writer is measured by
`make bench-lite-bulk`.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

import pytest
from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
)

from shoal.lite.cluster import LiteCluster
from support.lite.clusters import Load, admin_of, create_topic, eventually, in_sync, read

PARTITIONS = 2500
EXPIRING = 500
EVERYONE = {1, 2, 3}
LONGEST_HOLD_MS = 500
PATIENCE_S = 600.0


@pytest.fixture
def cluster() -> Iterator[LiteCluster]:
    with LiteCluster(brokers=3) as running:
        yield running


class SmallestInSync:
    """Looks at the in-sync replicas of a partition again and again."""

    def __init__(self, cluster: LiteCluster, topic: str) -> None:
        self.seen: set[frozenset[int]] = set()
        self._cluster = cluster
        self._topic = topic
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._end.wait(1.0):
            self.seen.add(frozenset(in_sync(self._cluster, self._topic)))


def folder_count(cluster: LiteCluster, topic: str) -> int:
    return sum(
        path.name.startswith(f"{topic}-")
        for folder in cluster.log_dirs().values()
        for path in folder.iterdir()
    )


def leader_epochs(cluster: LiteCluster, topic: str) -> set[str]:
    """What the replicas know of who led; each line but the first two is an epoch."""
    return {
        (folder / f"{topic}-0" / "leader-epoch-checkpoint").read_text()
        for folder in cluster.log_dirs().values()
    }


@contextmanager
def expect_undisturbed(cluster: LiteCluster) -> Iterator[Load]:
    """A steady writer: what is done beside it costs no election and no replica."""
    create_topic(cluster, "steady", 1, 3)
    with Load(cluster, "steady") as load, SmallestInSync(cluster, "steady") as watched:
        yield load
        load.goes_on()
    load.check(cluster)
    assert leader_epochs(cluster, "steady") == {"0\n1\n0 0\n"}
    assert watched.seen == {frozenset(EVERYONE)}
    assert in_sync(cluster, "steady") == EVERYONE
    holds_ms = {node.id: node.longest_hold_ms for node in cluster.status()}
    assert max(holds_ms.values()) < LONGEST_HOLD_MS, holds_ms
    assert min(holds_ms.values()) > 0


@pytest.mark.slow
@pytest.mark.long
def test_thousands_of_partitions_come_and_go_beside_a_steady_writer(cluster: LiteCluster) -> None:
    with expect_undisturbed(cluster) as load:
        create_topic(cluster, "big", PARTITIONS, 3)
        load.goes_on()
        eventually(lambda: folder_count(cluster, "big") == 3 * PARTITIONS, PATIENCE_S)
        load.goes_on()
        with admin_of(cluster) as admin:
            admin.delete_topics(["big"], request_timeout=60)["big"].result(60)
        load.goes_on()
        eventually(lambda: folder_count(cluster, "big") == 0, PATIENCE_S)
        with admin_of(cluster) as admin:
            assert "big" not in admin.list_topics(timeout=60).topics


def write_old_records(cluster: LiteCluster, topic: str, partitions: int) -> None:
    """One record in each partition, of a time that any retention has passed."""
    failed: list[KafkaError] = []

    def on_delivery(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failed.append(error)

    settings = {"bootstrap.servers": cluster.bootstrap, "acks": "all", "log_level": 0}
    with Producer(settings) as producer:
        for index in range(partitions):
            producer.produce(topic, b"old", partition=index, timestamp=1, on_delivery=on_delivery)
        assert producer.flush(PATIENCE_S) == 0
    assert failed == []


def expire(cluster: LiteCluster, topic: str) -> None:
    """Let all records of a topic be too old, from now on."""
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    entry = ConfigEntry("retention.ms", "1000", incremental_operation=AlterConfigOpType.SET)
    resource.add_incremental_config(entry)
    with admin_of(cluster) as admin:
        admin.incremental_alter_configs([resource])[resource].result(60)


def count_expired(cluster: LiteCluster, topic: str) -> int:
    """How many replicas have written down that they begin behind their only record."""
    return sum(
        path.read_text() == "0\n1\n0 1\n"
        for folder in cluster.log_dirs().values()
        for path in folder.glob(f"{topic}-*/log-start-offset-checkpoint")
    )


@pytest.mark.slow
@pytest.mark.long
def test_hundreds_of_partitions_expire_beside_a_steady_writer() -> None:
    properties = {"log.retention.check.interval.ms": "200"}
    with (
        LiteCluster(brokers=3, properties=properties) as cluster,
        expect_undisturbed(cluster) as load,
    ):
        create_topic(cluster, "old", EXPIRING, 3, retention_ms="-1")
        write_old_records(cluster, "old", EXPIRING)
        assert count_expired(cluster, "old") == 0
        load.goes_on()
        expire(cluster, "old")
        load.goes_on()
        eventually(lambda: count_expired(cluster, "old") == 3 * EXPIRING, PATIENCE_S)
        assert read(cluster, "old", EXPIRING) == {index: [] for index in range(EXPIRING)}
