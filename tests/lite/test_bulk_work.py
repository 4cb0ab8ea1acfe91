"""Thousands of partitions come and go beside a writer that has nothing to do with them.

On a busy machine anyone may wait for the CPU or the disk, so time is not judged by the clock, but
by how long a broker's event loop was held up by its own work, and by what the cluster did: nobody
missed a heartbeat, and no follower fell behind.
"""

import threading
from collections.abc import Iterator
from typing import Self

import pytest

from shoal.lite.cluster import LiteCluster
from support.lite_clusters import Load, admin_of, create_topic, eventually, in_sync

PARTITIONS = 2500
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


@pytest.mark.slow
def test_thousands_of_partitions_come_and_go_beside_a_steady_writer(cluster: LiteCluster) -> None:
    create_topic(cluster, "steady", 1, 3)
    with Load(cluster, "steady") as load, SmallestInSync(cluster, "steady") as watched:
        create_topic(cluster, "big", PARTITIONS, 3)
        load.goes_on()
        eventually(lambda: folder_count(cluster, "big") == 3 * PARTITIONS, PATIENCE_S)
        load.goes_on()
        with admin_of(cluster) as admin:
            admin.delete_topics(["big"], request_timeout=60)["big"].result(60)
        load.goes_on()
        eventually(lambda: folder_count(cluster, "big") == 0, PATIENCE_S)
        load.goes_on()
    load.check(cluster)
    assert leader_epochs(cluster, "steady") == {"0\n1\n0 0\n"}
    assert watched.seen == {frozenset(EVERYONE)}
    assert in_sync(cluster, "steady") == EVERYONE
    holds_ms = {node.id: node.longest_hold_ms for node in cluster.status()}
    assert max(holds_ms.values()) < LONGEST_HOLD_MS, holds_ms
    assert min(holds_ms.values()) > 0
