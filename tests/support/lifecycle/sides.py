"""One cluster of a play and what can be done to it, by confluent-kafka's admin client.

Every call returns when the cluster's metadata shows what was asked for.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from shoal.systems.clusters import Cluster
from shoal.wire.batch import iter_batches

# Only a play that fails waits for so long: brokers of a busy machine take their time.
PATIENCE_S: Final = 180.0
_QUIET: Final = {"log_level": 0}
_PAUSE_S: Final = 0.05
# Of one call of `send` and the next: adaptive depth joins the first and passes on the second.
BATCH_RECORDS: Final = (2, 100)


class SideFailed(Exception):
    """A cluster did not do what a play needs."""


def wait_until(is_so: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + patience_s
    while not is_so():
        if time.monotonic() > deadline:
            raise SideFailed(f"not within {patience_s:.0f} s: {what}")
        time.sleep(_PAUSE_S)


class Side:
    """The source or the target."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.sends = 0  # calls of `send` since the play began

    @property
    def bootstrap(self) -> str:
        return self.cluster.bootstrap

    @contextmanager
    def admin(self) -> Iterator[AdminClient]:
        with AdminClient({"bootstrap.servers": self.bootstrap, **_QUIET}) as admin:
            yield admin

    # Topics

    def create(
        self,
        topics: Iterable[str],
        *,
        partitions: int = 1,
        replicas: Sequence[int] | None = None,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        """Topics on these brokers, the first of which leads; anywhere, if none are named."""
        names = list(topics)
        placement = (
            {"replication_factor": -1}
            if replicas is None
            else {"replica_assignment": [list(replicas)] * partitions}
        )
        new = [
            NewTopic(name, partitions, config=dict(configs or {}), **placement) for name in names
        ]
        with self.admin() as admin:
            for future in admin.create_topics(new).values():
                future.result(PATIENCE_S)
        wait_until(lambda: self._have_leaders(names, partitions), f"leaders of {names}")

    def delete(self, topics: Iterable[str], patience_s: float = PATIENCE_S) -> None:
        """Returns when they are gone, or after some time: a mirror may have made them again."""
        names = [name for name in topics if name in self.topics()]
        if not names:
            return
        with self.admin() as admin:
            for future in admin.delete_topics(names).values():
                future.result(PATIENCE_S)
        with suppress(SideFailed):
            wait_until(lambda: not set(names) & self.topics(), f"{names} are deleted", patience_s)

    def grow(self, topics: Iterable[str], count: int) -> None:
        names = list(topics)
        with self.admin() as admin:
            asked = admin.create_partitions([NewPartitions(name, count) for name in names])
            for future in asked.values():
                future.result(PATIENCE_S)
        wait_until(lambda: self._have_leaders(names, count), f"{count} partitions of {names}")

    def set_configs(self, topics: Iterable[str], configs: Mapping[str, str]) -> None:
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in configs.items()
        ]
        resources = [
            ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries) for name in topics
        ]
        with self.admin() as admin:
            for future in admin.incremental_alter_configs(resources).values():
                future.result(PATIENCE_S)

    def delete_records(self, places: Mapping[tuple[str, int], int]) -> None:
        """Move log starts to these offsets; -1 is the end.

        Leaders learn some time after the controller that a topic is not compacted any more.
        """
        wanted = [TopicPartition(*place, offset) for place, offset in places.items()]

        def try_it() -> bool:
            with self.admin() as admin:
                try:
                    for future in admin.delete_records(wanted).values():
                        future.result(PATIENCE_S)
                except KafkaException as error:
                    if error.args[0].code() != KafkaError.POLICY_VIOLATION:
                        raise
                    return False
            return True

        wait_until(try_it, f"records of {sorted(places)} may be deleted")

    def topics(self) -> set[str]:
        with self.admin() as admin:
            found = admin.list_topics(timeout=PATIENCE_S).topics
            return {name for name, topic in found.items() if topic.error is None}

    def _have_leaders(self, names: Sequence[str], count: int) -> bool:
        with self.admin() as admin, suppress(KafkaException):
            found = admin.list_topics(timeout=PATIENCE_S).topics
            return all(
                name in found
                and len(found[name].partitions) >= count
                and all(part.leader >= 0 for part in found[name].partitions.values())
                for name in names
            )
        return False

    def leader_of(self, topic: str) -> int:
        with self.admin() as admin, suppress(KafkaException, KeyError):
            found = admin.list_topics(topic, timeout=PATIENCE_S).topics[topic]
            return int(found.partitions[0].leader)
        return -1

    def in_sync(self, topic: str) -> set[int]:
        with self.admin() as admin, suppress(KafkaException, KeyError):
            found = admin.list_topics(topic, timeout=PATIENCE_S).topics[topic]
            return set(found.partitions[0].isrs)
        return set()

    # Records

    def send(
        self,
        records: Iterable[tuple[tuple[str, int], str]],
        *,
        value_bytes: int = 20,
        age_ms: int = 0,
        **more: str,
    ) -> None:
        """Records by their places and identities, in tiny or large batches, in turn.

        All are acknowledged.
        """
        create_ms = time.time_ns() // 1_000_000 - age_ms
        # Idempotent: a repetition would stand in the source twice, or in another order.
        batch_records = BATCH_RECORDS[self.sends % len(BATCH_RECORDS)]
        self.sends += 1
        settings: dict[str, str | int] = {"linger.ms": 20, "batch.num.messages": batch_records}
        settings["enable.idempotence"] = "true"
        settings |= {name.replace("_", "."): value for name, value in more.items()}
        failed: list[str] = []
        with Producer({"bootstrap.servers": self.bootstrap, **settings, **_QUIET}) as producer:
            for (topic, number), identity in records:
                producer.produce(
                    topic,
                    identity.ljust(value_bytes, "."),
                    identity,
                    partition=number,
                    timestamp=create_ms,
                    on_delivery=lambda error, _: failed.append(str(error)) if error else None,
                )
                producer.poll(0)
            left = producer.flush(PATIENCE_S)
        if failed or left:
            raise SideFailed(f"{len(failed) + left} records were not written: {failed[:1]}")

    # Brokers

    def kill(self, node_id: int) -> None:
        self.cluster.kill(node_id)

    def restart(self, node_id: int) -> None:
        self.cluster.restart(node_id)

    def heal(self) -> None:
        """Start what is down."""
        up = {node.id for node in self.cluster.nodes() if node.pid}
        for node_id in (self.cluster.log_dirs() or {}).keys() - up:
            self.cluster.restart(node_id)

    def cut(self, node_id: int, topics: Iterable[str], keep_share: float = 0.5) -> None:
        """Take the end of logs away, as a failed disk would; the broker is down meanwhile."""
        folder = (self.cluster.log_dirs() or {})[node_id]
        self.cluster.kill(node_id)
        for topic in topics:
            _cut_log(folder / f"{topic}-0", keep_share)
        self.cluster.restart(node_id)
        wait_until(lambda: self._have_leaders(list(topics), 1), f"{topics} are back")


def _cut_log(folder: Path, keep_share: float) -> None:
    """Keep so many of the batches; what was derived from the log goes with the rest."""
    (file,) = folder.glob("*.log")
    batches = list(iter_batches(memoryview(bytearray(file.read_bytes()))))
    kept = batches[: max(1, int(len(batches) * keep_share))]
    with file.open("r+b") as log:
        log.truncate(sum(batch.size for batch in kept))
    for derived in ("*.index", "*.timeindex", "*.txnindex", "*.snapshot"):
        for path in folder.glob(derived):
            path.unlink()
