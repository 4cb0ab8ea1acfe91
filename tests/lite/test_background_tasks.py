"""Background work of brokers fails unexpectedly: it is logged, counted, and work continues."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from shoal.lite.base.dial import NodeAddress
from shoal.lite.cluster import LiteCluster, NodeStatus
from shoal.lite.partitions.cleaner import LogCleaner
from shoal.lite.partitions.housekeeping import Housekeeper
from shoal.lite.partitions.partition import Partition
from shoal.lite.partitions.replica_fetcher import ReplicaFetcher
from shoal.lite.partitions.sessions.fetch_session import FetcherIdentity
from shoal.model.errors import UsageError
from support.lite.clusters import (
    Load,
    create_topic,
    eventually,
    in_sync,
    partition_of,
    replicas_are_equal,
    send,
)

EVERYONE = {1, 2, 3}


class FailingOnce(dict[Any, Partition]):
    """Partitions that cannot be listed the first time."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def values(self) -> Any:
        self.calls += 1
        if self.calls == 1:
            raise LookupError("unexpected")
        return super().values()

    def of_leader(self, _: int) -> list[Partition]:
        return list(self.values())


async def calls_reach(partitions: FailingOnce, count: int) -> bool:
    for _ in range(3000):
        if partitions.calls >= count:
            return True
        await asyncio.sleep(0.01)
    return False


async def test_a_cleaner_continues_after_an_unexpected_error() -> None:
    partitions = FailingOnce()
    cleaner = LogCleaner(partitions, on_log_failed=lambda _: None)
    cleaner.configure(10, is_enabled=True)
    assert await calls_reach(partitions, 3)
    await cleaner.stop()


async def test_a_housekeeper_continues_after_an_unexpected_error() -> None:
    partitions = FailingOnce()
    partitions.calls = -1  # it is asked once for the pause
    housekeeper = Housekeeper(partitions, on_log_failed=lambda _: None)
    housekeeper.configure(10)
    housekeeper.start()
    assert await calls_reach(partitions, 6)
    await housekeeper.stop()


async def test_housekeeping_is_done_however_often_the_metadata_changes() -> None:
    partitions = FailingOnce()
    partitions.calls = 1
    housekeeper = Housekeeper(partitions, on_log_failed=lambda _: None)
    housekeeper.configure(200)
    housekeeper.start()
    for _ in range(500):
        housekeeper.configure(200)
        await asyncio.sleep(0.01)
        if partitions.calls >= 6:
            break
    assert partitions.calls >= 6
    await housekeeper.stop()


async def test_a_replica_fetcher_continues_after_an_unexpected_error() -> None:
    partitions = FailingOnce()
    fetcher = ReplicaFetcher(
        NodeAddress(2, "127.0.0.1", 1),
        FetcherIdentity(1, 1, 100),
        partitions.of_leader,
        lambda _: None,
    )
    assert await calls_reach(partitions, 2)
    await fetcher.close()


PROPERTIES = {
    "log.cleaner.backoff.ms": "50",
    "log.retention.check.interval.ms": "50",
    "replica.lag.time.max.ms": "2000",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiteCluster]:
    folder = tmp_path_factory.mktemp("cluster")
    with LiteCluster(brokers=3, directory=folder, properties=PROPERTIES) as running:
        yield running


def status_of(cluster: LiteCluster, broker_id: int) -> NodeStatus:
    return next(node for node in cluster.status() if node.id == broker_id)


def fail_and_check(cluster: LiteCluster, broker_id: int, task: str) -> None:
    """Let a task fail; see the counter in the status and the line with its traceback."""
    before = status_of(cluster, broker_id).failures.get(task, 0)
    cluster.fail_task(broker_id, task)
    eventually(lambda: status_of(cluster, broker_id).failures.get(task, 0) == before + 1)
    log = (cluster.log_dirs()[broker_id].parent / f"broker-{broker_id}.log").read_text()
    assert f"{task} failed with an unexpected error: InjectedFailure" in log
    assert "Traceback (most recent call last)" in log


def test_a_replica_fetcher_is_restarted(cluster: LiteCluster) -> None:
    create_topic(cluster, "fetched", 1, 3)
    leader = partition_of(cluster, "fetched").leader
    with Load(cluster, "fetched") as load:
        for follower in EVERYONE - {leader}:
            fail_and_check(cluster, follower, f"replica fetcher from broker {leader}")
        load.goes_on()
        eventually(lambda: in_sync(cluster, "fetched") == EVERYONE)
        load.goes_on()
    load.check(cluster)
    eventually(lambda: replicas_are_equal(cluster, "fetched"))


def files_of(cluster: LiteCluster, name: str) -> list[Path]:
    return [path for folder in cluster.log_dirs().values() for path in folder.glob(name)]


def continue_cleaning(cluster: LiteCluster) -> None:
    create_topic(
        cluster,
        "compacted",
        1,
        3,
        cleanup_policy="compact",
        segment_bytes="1048576",
        min_cleanable_dirty_ratio="0.01",
    )
    with Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0}) as producer:
        for _ in range(8):
            producer.produce("compacted", b"v" * 400_000, key=b"k", partition=0)
        assert producer.flush(60) == 0
    eventually(lambda: len(files_of(cluster, "compacted-0/cleaner-offset-checkpoint")) == 3)


def continue_expiring(cluster: LiteCluster) -> None:
    create_topic(cluster, "expiring", 1, 3, retention_ms="1")
    send(cluster, "expiring", b"a", b"b")
    eventually(lambda: len(files_of(cluster, "expiring-0/log-start-offset-checkpoint")) == 3)


def continue_heartbeats(cluster: LiteCluster) -> None:
    create_topic(cluster, "beating", 1, 3)
    with Load(cluster, "beating") as load:
        load.goes_on()
    load.check(cluster)


def write_high_watermarks(cluster: LiteCluster) -> None:
    create_topic(cluster, "marked", 1, 3)
    send(cluster, "marked", b"a", b"b")

    def are_written() -> bool:
        texts = [path.read_text() for path in files_of(cluster, "replication-offset-checkpoint")]
        return len(texts) == 3 and all("marked 0 2" in text for text in texts)

    eventually(are_written)


@pytest.mark.parametrize(
    ("task", "work"),
    [
        ("log cleaner", continue_cleaning),
        ("housekeeping", continue_expiring),
        ("heartbeat", continue_heartbeats),
        ("high watermark checkpoint", write_high_watermarks),
    ],
)
@pytest.mark.quick("housekeeping-continue_expiring", "log cleaner-continue_cleaning")
def test_work_continues_after_a_task_failed(
    cluster: LiteCluster, task: str, work: Callable[[LiteCluster], None]
) -> None:
    for broker_id in EVERYONE:
        fail_and_check(cluster, broker_id, task)
    work(cluster)


def test_a_task_that_does_not_run_is_refused(cluster: LiteCluster) -> None:
    with pytest.raises(UsageError, match="no background task 'weather forecast'"):
        cluster.fail_task(1, "weather forecast")
