"""What the cluster is, as far as the records say. Records in, state out.

Pure: no clock, no disk, no chance. The same records give the same state everywhere. Only
`apply` changes a `ClusterState`; everyone else reads.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from shoal.lite.controller.records import (
    BrokerRecord,
    ClusterRecord,
    ConfigRecord,
    PartitionRecord,
    ProducerIdsRecord,
    Record,
    TopicRecord,
    TopicRemovedRecord,
)

TOPIC = "topic"
BROKER = "broker"
ALL_BROKERS = ""


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
        self._configs: dict[tuple[str, str], dict[str, str]] = {}
        self._appliers: dict[type, Callable[[Any], None]] = {
            ClusterRecord: self._apply_cluster,
            BrokerRecord: self._apply_broker,
            TopicRecord: self._apply_topic,
            PartitionRecord: self._apply_partition,
            TopicRemovedRecord: self._apply_topic_removed,
            ConfigRecord: self._apply_config,
            ProducerIdsRecord: self._apply_producer_ids,
        }

    def apply(self, record: Record) -> None:
        self._appliers[type(record)](record)

    def topic_configs(self, name: str) -> dict[str, str]:
        """The settings that were given to a topic."""
        return self._configs.get((TOPIC, name), {})

    def broker_configs(self, owner: str) -> dict[str, str]:
        """The dynamic settings of a broker, by its id as text, or of all of them."""
        return self._configs.get((BROKER, owner), {})

    def _apply_cluster(self, record: ClusterRecord) -> None:
        self.cluster_id = record.cluster_id

    def _apply_broker(self, record: BrokerRecord) -> None:
        self.brokers[record.broker_id] = record

    def _apply_topic(self, record: TopicRecord) -> None:
        self.topics[record.name] = Topic(record.name, record.topic_id)
        self.topic_names[record.topic_id] = record.name

    def _apply_partition(self, record: PartitionRecord) -> None:
        name = self.topic_names[record.topic_id]
        self.topics[name].partitions[record.partition] = record

    def _apply_topic_removed(self, record: TopicRemovedRecord) -> None:
        name = self.topic_names.pop(record.topic_id)
        del self.topics[name]
        self._configs.pop((TOPIC, name), None)

    def _apply_config(self, record: ConfigRecord) -> None:
        configs = self._configs.setdefault((record.owner_kind, record.owner), {})
        if record.value is None:
            configs.pop(record.name, None)
        else:
            configs[record.name] = record.value

    def _apply_producer_ids(self, record: ProducerIdsRecord) -> None:
        self.next_producer_id = record.next_producer_id
