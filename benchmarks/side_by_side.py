"""Kafka Lite and Apache Kafka on the same machine at the same time, for what compares them.

All processes of a cluster count: for Kafka Lite the supervisor, which is the controller, and
the fork server too; Apache Kafka's nodes are broker and controller in one.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path

import psutil
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from benchmarks.harness import Side, Work
from shoal.systems.apache.apache import ApacheCluster
from shoal.systems.clusters import Cluster
from shoal.systems.lite import LiteSystem

PARTITIONS = 6
# Deleted topics give their space back soon; everything else is as people run it.
_APACHE_PROPERTIES = {"log.segment.delete.delay.ms": "1000", "num.partitions": str(PARTITIONS)}
_PATIENCE_S = 60.0
_numbers = count(1)


class System:
    """One of the two, running."""

    def __init__(self, name: str, cluster: Cluster) -> None:
        self.name = name
        self.cluster = cluster
        self.bootstrap = cluster.bootstrap

    def broker_pids(self) -> list[int]:
        return [node.pid for node in self.cluster.nodes() if node.pid]

    def root_pids(self) -> Sequence[int]:
        """The processes from which all others of the cluster descend."""
        pids = self.broker_pids()
        if self.cluster.engine == "lite":
            # Brokers are children of the fork server, which is a child of the supervisor.
            return [psutil.Process(pids[0]).parents()[1].pid]
        return pids

    def create_topic(self, replication_factor: int, partitions: int = PARTITIONS) -> str:
        """A new topic whose partitions all have leaders and full in-sync sets."""
        return create_topic(self.bootstrap, partitions, replication_factor)

    def delete_topic(self, topic: str) -> None:
        delete_topic(self.bootstrap, topic)

    def side(self, run: Callable[["System"], int | Work]) -> Side:
        """A side of a case, of which the cluster's CPU counts and nothing else."""
        return Side(self.name, lambda: run(self), self.root_pids, counts_this_process=False)


def create_topic(bootstrap: str, partitions: int, replication_factor: int = 1) -> str:
    """A new topic whose partitions all have leaders and full in-sync sets."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    topic = f"bench-{next(_numbers)}"
    admin.create_topics([NewTopic(topic, partitions, replication_factor)])[topic].result()
    deadline = time.monotonic() + _PATIENCE_S
    while not _is_ready(admin, topic, partitions, replication_factor):
        assert time.monotonic() < deadline, f"{topic} is not ready"
        time.sleep(0.05)
    return topic


def delete_topic(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.delete_topics([topic])[topic].result()


def _is_ready(admin: AdminClient, topic: str, partitions: int, replication_factor: int) -> bool:
    found = admin.list_topics(topic, timeout=_PATIENCE_S).topics[topic].partitions
    return len(found) == partitions and all(
        partition.leader >= 0 and len(partition.isrs) == replication_factor
        for partition in found.values()
    )


def lite(brokers: int) -> LiteSystem:
    return LiteSystem(brokers=brokers)


def apache(brokers: int) -> ApacheCluster:
    # With as many in-sync replicas demanded as Kafka Lite demands by default.
    least = {"min.insync.replicas": "2"} if brokers > 1 else {}
    return ApacheCluster(brokers=brokers, properties=_APACHE_PROPERTIES | least)


@contextmanager
def both(brokers: int) -> Iterator[tuple[System, System]]:
    """Ours and theirs, with so many brokers each."""
    with ExitStack() as stack:
        ours = System("Kafka Lite", stack.enter_context(lite(brokers)))
        theirs = System("Apache Kafka", stack.enter_context(apache(brokers)))
        yield ours, theirs


def all_pids(system: System) -> list[int]:
    """Every process of a cluster."""
    roots = [psutil.Process(pid) for pid in system.root_pids()]
    return [each.pid for root in roots for each in (root, *root.children(recursive=True))]


def proportional_bytes(pids: Sequence[int]) -> int:
    """Memory of processes, with what several share divided among them (PSS, Linux)."""
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
    return total
