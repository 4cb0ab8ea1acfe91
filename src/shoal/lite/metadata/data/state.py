"""The state of the cluster after the records of the metadata log. Records in, state out.

Pure: no clock, no disk, no randomness. The same records give the same state everywhere: at the
active controller, at the others, and at brokers, which follow the log. Only `apply` changes a
`ClusterState`; all other code reads. A snapshot is a shorter list of records for the same state.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from shoal.lite.base.settings import TOPIC_SETTINGS
from shoal.lite.metadata.data.records import (
    NO_LEADER,
    BrokerRecord,
    BrokerRemovedRecord,
    ClusterRecord,
    ConfigRecord,
    PartitionRecord,
    ProducerIdsRecord,
    Record,
    SnapshotEndRecord,
    TopicRecord,
    TopicRemovedRecord,
)
from shoal.lite.metadata.rules.features import FEATURE, feature_levels

TOPIC = "topic"
BROKER = "broker"
ALL_BROKERS = ""
CLUSTER = "cluster"
# The epochs of mirrors: the owner is the topic, the names of settings are partitions.
MIRROR = "mirror"

MIN_INSYNC = "min.insync.replicas"
UNCLEAN_ELECTION = "unclean.leader.election.enable"
# The controller and leaders must agree on these, so they cannot be set for a single broker.
CLUSTER_WIDE = (MIN_INSYNC, UNCLEAN_ELECTION)


@dataclass(slots=True)
class Topic:
    """A topic and its partitions, by number."""

    name: str
    topic_id: UUID
    partitions: dict[int, PartitionRecord] = field(default_factory=dict)


class ClusterState:
    """The state after all records so far."""

    def __init__(self) -> None:
        self.cluster_id = ""
        self.brokers: dict[int, BrokerRecord] = {}
        self.topics: dict[str, Topic] = {}
        self.topic_names: dict[UUID, str] = {}
        self.next_producer_id = 0
        # How many records of the log were applied: equal numbers mean equal states.
        self.applied_count = 0
        # By broker: how many partitions it leads, and how many replicas it has.
        self.leader_counts: Counter[int] = Counter()
        self.replica_counts: Counter[int] = Counter()
        # Elections of replicas that may lack committed records, since the last snapshot.
        self.unclean_elections = 0
        self._configs: dict[tuple[str, str], dict[str, str]] = {}
        self._appliers: dict[type, Callable[[Any], None]] = {
            ClusterRecord: self._apply_cluster,
            BrokerRecord: self._apply_broker,
            BrokerRemovedRecord: self._apply_broker_removed,
            TopicRecord: self._apply_topic,
            PartitionRecord: self._apply_partition,
            TopicRemovedRecord: self._apply_topic_removed,
            ConfigRecord: self._apply_config,
            ProducerIdsRecord: self._apply_producer_ids,
            SnapshotEndRecord: self._apply_snapshot_end,
        }

    def apply(self, record: Record) -> None:
        self.applied_count += 1
        self._appliers[type(record)](record)

    def snapshot(self) -> list[Record]:
        """Records that make an empty state equal to this one."""
        records: list[Record] = [ClusterRecord(self.cluster_id)] if self.cluster_id else []
        records += self.brokers.values()
        for topic in self.topics.values():
            records.append(TopicRecord(topic.topic_id, topic.name))
            records += topic.partitions.values()
        for (owner_kind, owner), values in self._configs.items():
            records += [
                ConfigRecord(owner_kind, owner, name, value) for name, value in values.items()
            ]
        records.append(ProducerIdsRecord(self.next_producer_id))
        records.append(SnapshotEndRecord(self.applied_count))
        return records

    # Brokers

    def is_active(self, broker_id: int) -> bool:
        """Whether a broker may lead and be in sync."""
        broker = self.brokers.get(broker_id)
        return broker is not None and not broker.fenced and not broker.shutting_down

    def active_brokers(self) -> list[BrokerRecord]:
        """The brokers that may lead and be in sync: those in the metadata of clients."""
        return [broker for broker in self.brokers.values() if self.is_active(broker.broker_id)]

    def live_epochs(self) -> dict[int, int]:
        """The brokers that may lead and be in sync, with their epochs."""
        return {broker.broker_id: broker.epoch for broker in self.active_brokers()}

    # Partitions

    def partitions(self) -> Iterator[PartitionRecord]:
        """Every partition, in its state when it is yielded."""
        for topic in self.topics.values():
            for index in range(len(topic.partitions)):
                yield topic.partitions[index]

    def partition(self, topic_id: UUID, index: int) -> PartitionRecord:
        """A partition that exists; `KeyError` if it does not."""
        return self.topics[self.topic_names[topic_id]].partitions[index]

    def can_serve(self, partition: PartitionRecord, broker_id: int) -> bool:
        """Whether a replica may lead and be in sync, if its log is complete."""
        return self.is_active(broker_id) and broker_id not in partition.failed

    # Settings

    def topic_configs(self, name: str) -> dict[str, str]:
        """The settings that override defaults for a topic."""
        return self._configs.get((TOPIC, name), {})

    def broker_configs(self, owner: str) -> dict[str, str]:
        """The dynamic settings of a broker, by its id as text, or of all of them."""
        return self._configs.get((BROKER, owner), {})

    def cluster_configs(self) -> dict[str, str]:
        """The settings that the controllers were started with."""
        return self._configs.get((CLUSTER, ""), {})

    def mirror_epoch(self, topic: str, partition: int) -> int:
        """The epoch of the mirror that writes to a partition; -1 if none did."""
        return int(self._configs.get((MIRROR, topic), {}).get(str(partition), -1))

    def features(self) -> dict[str, int]:
        """The finalized feature levels."""
        return feature_levels(self._configs.get((FEATURE, ""), {}))

    def cluster_wide_value(self, topic: str, name: str) -> str:
        """The value that a setting of `CLUSTER_WIDE` has for a topic, at every node."""
        for values in (
            self.topic_configs(topic),
            self.broker_configs(ALL_BROKERS),
            self.cluster_configs(),
        ):
            if name in values:
                return values[name]
        return TOPIC_SETTINGS[name].default or ""

    def min_insync(self, partition: PartitionRecord) -> int:
        """How many replicas must be in sync to commit anything; the same at all nodes.

        Never more than the topic has replicas. During a reassignment that is the smaller of the
        numbers before and after it: added replicas count once the reassignment is complete.
        """
        name = self.topic_names[partition.topic_id]
        wanted = int(self.cluster_wide_value(name, MIN_INSYNC))
        settled = len(partition.replicas) - len(partition.adding)
        return min(wanted, settled, len(partition.target_replicas))

    def allows_unclean_election(self, partition: PartitionRecord) -> bool:
        name = self.topic_names[partition.topic_id]
        return self.cluster_wide_value(name, UNCLEAN_ELECTION).strip().lower() == "true"

    # Records

    def _apply_cluster(self, record: ClusterRecord) -> None:
        self.cluster_id = record.cluster_id

    def _apply_broker(self, record: BrokerRecord) -> None:
        self.brokers[record.broker_id] = record

    def _apply_broker_removed(self, record: BrokerRemovedRecord) -> None:
        del self.brokers[record.broker_id]

    def _apply_topic(self, record: TopicRecord) -> None:
        self.topics[record.name] = Topic(record.name, record.topic_id)
        self.topic_names[record.topic_id] = record.name

    def _apply_partition(self, record: PartitionRecord) -> None:
        partitions = self.topics[self.topic_names[record.topic_id]].partitions
        before = partitions.get(record.partition)
        if before is not None:
            self._count(before, -1)
            self.unclean_elections += _is_unclean(before, record)
        self._count(record, 1)
        partitions[record.partition] = record

    def _apply_topic_removed(self, record: TopicRemovedRecord) -> None:
        name = self.topic_names.pop(record.topic_id)
        for partition in self.topics.pop(name).partitions.values():
            self._count(partition, -1)
        self._configs.pop((TOPIC, name), None)
        self._configs.pop((MIRROR, name), None)

    def _count(self, partition: PartitionRecord, sign: int) -> None:
        if partition.leader != NO_LEADER:
            self.leader_counts[partition.leader] += sign
        for broker_id in partition.replicas:
            self.replica_counts[broker_id] += sign

    def _apply_config(self, record: ConfigRecord) -> None:
        configs = self._configs.setdefault((record.owner_kind, record.owner), {})
        if record.value is None:
            configs.pop(record.name, None)
        else:
            configs[record.name] = record.value

    def _apply_producer_ids(self, record: ProducerIdsRecord) -> None:
        self.next_producer_id = record.next_producer_id

    def _apply_snapshot_end(self, record: SnapshotEndRecord) -> None:
        self.applied_count = record.applied_count


def _is_unclean(before: PartitionRecord, after: PartitionRecord) -> bool:
    """Whether the new leader may lack committed records."""
    return (
        after.leader not in (NO_LEADER, before.leader)
        and after.leader not in before.in_sync
        and after.leader not in before.eligible
    )
