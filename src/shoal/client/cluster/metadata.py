"""Cluster metadata: brokers, topics, leaders. Pure: responses and times are arguments.

Rules of this file:
- A `ClusterMetadata` is immutable; the cache replaces it. So a caller that holds one sees a
  consistent snapshot.
- Leader epochs only increase within a topic: a response from a broker that lags behind does not
  replace a newer leader (KIP-320). A topic with another id is a new topic, and its leader epochs
  start again.
- The cache keeps the names of the topics that callers used; a refresh requests those, not the
  whole cluster.
"""

import math
import uuid
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, Final

from shoal.client.codes import Code
from shoal.model.topics import TopicPartition
from shoal.wire.api_keys import ApiKey
from shoal.wire.messages import decode_response, response_class

NO_LEADER: Final = -1
# Of all topics, of the topics in use, and of some others.
RECENT_ANSWERS: Final = 4


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """Where a broker listens."""

    node_id: int
    host: str
    port: int
    rack: str | None = None

    def __str__(self) -> str:
        return f"broker {self.node_id} at {self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """The replicas of a partition; `leader` is -1 while it has no leader."""

    leader: int
    leader_epoch: int = -1
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    offline: tuple[int, ...] = ()
    error: int = Code.NONE


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """A topic; a topic with an `error` has no partitions."""

    name: str
    topic_id: uuid.UUID | None = None
    error: int = Code.NONE
    is_internal: bool = False
    partitions: Mapping[int, PartitionMetadata] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """A snapshot of a cluster."""

    cluster_id: str | None = None
    controller_id: int = -1
    brokers: Mapping[int, BrokerAddress] = field(default_factory=dict)
    topics: Mapping[str, TopicMetadata] = field(default_factory=dict)

    def partitions_of(self, topic: str) -> list[TopicPartition]:
        """All partitions of a topic, in order; empty if the topic is unknown."""
        known = self.topics.get(topic)
        return (
            [TopicPartition(topic, number) for number in sorted(known.partitions)] if known else []
        )

    def partition(self, tp: TopicPartition) -> PartitionMetadata | None:
        topic = self.topics.get(tp.topic)
        return topic.partitions.get(tp.partition) if topic is not None else None

    def leader(self, tp: TopicPartition) -> int | None:
        """The node id of the leader, if the partition has one with a known address."""
        partition = self.partition(tp)
        if partition is None or partition.leader not in self.brokers:
            return None
        return partition.leader

    def nearest(self, tp: TopicPartition, rack: str) -> int | None:
        """An in-sync replica in that rack, otherwise the leader."""
        partition = self.partition(tp)
        if partition is not None and partition.leader in self.brokers:
            for node_id in partition.isr:
                broker = self.brokers.get(node_id)
                if broker is not None and broker.rack == rack:
                    return node_id
        return self.leader(tp)

    def leader_error(self, tp: TopicPartition) -> int:
        """The error code that explains why `leader` is None."""
        topic = self.topics.get(tp.topic)
        if topic is None or (topic.error == Code.NONE and tp.partition not in topic.partitions):
            return Code.UNKNOWN_TOPIC_OR_PARTITION
        return topic.error or Code.LEADER_NOT_AVAILABLE


class MetadataCache:
    """The newest metadata, its age, and the topics to request."""

    def __init__(self, max_age_s: float) -> None:
        self.current = ClusterMetadata()
        self._max_age_s = max_age_s
        self._topics_at: dict[str, float] = {}
        self._brokers_at: float | None = None
        self._is_stale = True
        self._wanted: set[str] = set()

    @property
    def wanted(self) -> frozenset[str]:
        """Names of the topics that a refresh requests."""
        return frozenset(self._wanted)

    def add_topics(self, topics: Iterable[str]) -> None:
        self._wanted.update(topics)

    def forget(self, topics: Iterable[str]) -> None:
        """Stop requesting these topics, and drop their metadata."""
        dropped = set(topics)
        self._wanted -= dropped
        for name in dropped:
            self._topics_at.pop(name, None)
        kept = {name: topic for name, topic in self.current.topics.items() if name not in dropped}
        self.current = replace(self.current, topics=kept)

    def invalidate(self) -> None:
        """Mark the metadata as out of date."""
        self._is_stale = True

    def age_s(self, now: float) -> float:
        """The time since the last response."""
        return float("inf") if self._brokers_at is None else now - self._brokers_at

    def covers(self, topics: Iterable[str], now: float) -> bool:
        """Whether the brokers and these topics are known and not too old."""
        if self._is_stale or self._brokers_at is None or now - self._brokers_at > self._max_age_s:
            return False
        oldest = now - self._max_age_s
        return all(self._topics_at.get(name, -math.inf) >= oldest for name in topics)

    def update(
        self, answer: ClusterMetadata, now: float, *, is_part: bool = False
    ) -> ClusterMetadata:
        """Merge a response; topics that it does not contain stay unchanged.

        `is_part`: it was not requested for all wanted topics, which remain as old as they are.
        """
        topics = dict(self.current.topics)
        for name, topic in answer.topics.items():
            if topics.get(name) is not topic:
                topics[name] = _merge(topics.get(name), topic)
            self._topics_at[name] = now
        self.current = replace(answer, topics=topics)
        if not is_part:
            self._brokers_at = now
            self._is_stale = False
        return self.current


def _merge(known: TopicMetadata | None, answer: TopicMetadata) -> TopicMetadata:
    if known is None or known.topic_id != answer.topic_id or answer.error != Code.NONE:
        return answer
    newer = {
        number: known.partitions[number]
        for number, partition in answer.partitions.items()
        if number in known.partitions
        and partition.leader_epoch < known.partitions[number].leader_epoch
    }
    return replace(answer, partitions={**answer.partitions, **newer}) if newer else answer


class MetadataReader:
    """Decodes responses; one that equals a recent one is not decoded again.

    With thousands of partitions, decoding is most of what a refresh costs, and nearly always
    nothing has changed.
    """

    def __init__(self) -> None:
        self._recent: OrderedDict[bytes, ClusterMetadata] = OrderedDict()

    def read(self, frame: memoryview, version: int) -> ClusterMetadata:
        """The metadata in the frame of a Metadata response."""
        # All but the correlation id.
        digest = blake2b(frame[4:], digest_size=16, salt=version.to_bytes(2)).digest()
        known = self._recent.get(digest)
        if known is None:
            cls = response_class(ApiKey.METADATA, version)
            known = self._recent[digest] = from_response(decode_response(frame, cls)[1])
            if len(self._recent) > RECENT_ANSWERS:
                self._recent.popitem(last=False)
        else:
            self._recent.move_to_end(digest)
        return known


def from_response(response: Any) -> ClusterMetadata:
    """Build the metadata from a Metadata response of any version."""
    brokers = {
        broker.node_id: BrokerAddress(
            int(broker.node_id), broker.host, int(broker.port), getattr(broker, "rack", None)
        )
        for broker in response.brokers
    }
    topics = {topic.name: _topic(topic) for topic in response.topics if topic.name is not None}
    return ClusterMetadata(
        cluster_id=getattr(response, "cluster_id", None),
        controller_id=int(getattr(response, "controller_id", -1)),
        brokers=brokers,
        topics=topics,
    )


def _topic(topic: Any) -> TopicMetadata:
    return TopicMetadata(
        name=topic.name,
        topic_id=getattr(topic, "topic_id", None),
        error=int(topic.error_code),
        is_internal=getattr(topic, "is_internal", False),
        partitions={
            int(partition.partition_index): PartitionMetadata(
                leader=int(partition.leader_id),
                leader_epoch=int(getattr(partition, "leader_epoch", -1)),
                replicas=tuple(map(int, partition.replica_nodes)),
                isr=tuple(map(int, partition.isr_nodes)),
                offline=tuple(map(int, getattr(partition, "offline_replicas", ()))),
                error=int(partition.error_code),
            )
            for partition in topic.partitions
        },
    )
