"""Which broker to read each partition from: its leader, or a replica that is nearer. Pure.

Rules of this file:
- A reader with a rack (`client.rack`) reads from a replica there that is in sync, also where
  brokers do not say so (KIP-392); one that a leader names counts more. A reader may also be
  told from the start which broker to read from.
- Whoever is not the leader is read from only while it holds the partition and is there; one
  that failed is left alone for a while, and the leader is read instead.
"""

from typing import Final

from shoal.client.metadata import ClusterMetadata
from shoal.model.topics import TopicPartition

_AVOIDED_S: Final = 5.0


class ReadPlaces:
    """Where each partition is read."""

    def __init__(self, *, broker_id: int | None = None, rack: str = "") -> None:
        self._pinned = broker_id
        self._rack = rack
        self._nearer: dict[TopicPartition, int] = {}
        self._avoided_until: dict[TopicPartition, float] = {}

    def node(self, cluster: ClusterMetadata, tp: TopicPartition, now: float) -> int | None:
        """The broker to ask, if there is one."""
        partition = cluster.partition(tp)
        chosen = self._nearer.get(tp, self._pinned)
        if chosen is None and self._rack:
            chosen = cluster.nearest(tp, self._rack)
        if (
            chosen is None
            or partition is None
            or chosen not in cluster.brokers
            or chosen not in partition.replicas
            or chosen in partition.offline
            or now < self._avoided_until.get(tp, 0.0)
        ):
            return cluster.leader(tp)
        return chosen

    def told(self, tp: TopicPartition, broker_id: int) -> None:
        """A leader says that another replica is nearer."""
        self._nearer[tp] = broker_id

    def failed(self, tp: TopicPartition, now: float) -> None:
        """Where it was read, it could not be read."""
        self._nearer.pop(tp, None)
        self._avoided_until[tp] = now + _AVOIDED_S
