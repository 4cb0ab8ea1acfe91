"""The state of a runner for one of its two clusters; pure, apart from the client that it holds."""

from dataclasses import dataclass, field

from shoal.client.client import Client
from shoal.client.cluster.metadata import ClusterMetadata
from shoal.client.transport.backoff import Backoff
from shoal.model.topics import TopicPartition


@dataclass(slots=True)
class ClusterSide:
    """Requests in flight, waits after failures, and the metadata that was compared last."""

    client: Client
    backoff: Backoff = field(default_factory=lambda: Backoff(100, 2000))
    refresh_backoff: Backoff = field(default_factory=lambda: Backoff(100, 1000))
    # The partitions of this runner, by the topic's name on this side.
    topics: dict[str, set[TopicPartition]] = field(default_factory=dict)
    busy: dict[int, int] = field(default_factory=dict)  # requests in flight, by node
    not_before: dict[int, float] = field(default_factory=dict)  # by node
    leaderless: set[TopicPartition] = field(default_factory=set)
    is_refreshing: bool = False
    _compared: ClusterMetadata | None = None

    def free(self, node_id: int, *, limit: int, now: float) -> bool:
        return self.busy.get(node_id, 0) < limit and self.not_before.get(node_id, 0.0) <= now

    def add(self, tp: TopicPartition, topic: str) -> None:
        self.topics.setdefault(topic, set()).add(tp)

    def remove(self, tp: TopicPartition, topic: str) -> None:
        self.topics[topic].discard(tp)
        self.leaderless.discard(tp)

    def take_changes(self) -> set[TopicPartition] | None:
        """Return the partitions whose metadata has changed; None without newer metadata."""
        before, now = self._compared, self.client.cluster
        if before is now:
            return None
        self._compared = now
        changed: set[TopicPartition] = set()
        for topic, partitions in self.topics.items():
            if (
                before is None
                or before.brokers != now.brokers
                or before.topics.get(topic) != now.topics.get(topic)
            ):
                changed |= partitions
        return changed
