"""Selects the broker to read each partition from: the leader or a closer replica (KIP-392). Pure.

Rules of this file:
- A leader with a rack-aware `replica.selector.class` answers a fetch with a rack by naming the
  preferred replica, without records. That replica is read until `metadata.max.age.ms` has passed;
  then the leader is asked again.
- A reader with a rack (`rack`) reads from an in-sync replica there, even if no leader names one; a
  replica that a leader names has priority. A reader may also be pinned to a broker.
- A replica that fails, answers with an error (OFFSET_OUT_OF_RANGE too), or is not online is avoided
  for a while, and the leader is read instead. A fetch of an avoided partition must not name a rack
  (`rack_for`): the leader would name the same replica again, in an endless loop.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from shoal.client.cluster.metadata import ClusterMetadata
from shoal.client.codes import Code
from shoal.model.topics import TopicPartition
from shoal.wire.fetch import FetchedPartition

_AVOIDED_S: Final = 5.0
# With a metadata.max.age.ms of 0 every preferred replica would expire at once.
_LEAST_AGE_S: Final = 1.0
_DEFAULT_AGE_S: Final = 300.0


class ReplicaSelector:
    """Selects the broker from which each partition is read."""

    def __init__(
        self, *, broker_id: int | None = None, rack: str = "", max_age_s: float = _DEFAULT_AGE_S
    ) -> None:
        self._pinned = broker_id
        self._rack = rack
        self._max_age_s = max(_LEAST_AGE_S, max_age_s)
        # The replica that the leader named, and when that expires.
        self._preferred: dict[TopicPartition, tuple[int, float]] = {}
        self._avoided_until: dict[TopicPartition, float] = {}

    def node(self, cluster: ClusterMetadata, tp: TopicPartition, now: float) -> int | None:
        """The broker to fetch from; None if the partition has no leader."""
        if self._is_avoided(tp, now):
            return cluster.leader(tp)
        preferred, until = self._preferred.get(tp, (None, 0.0))
        if preferred is not None and now < until:
            if _is_online(cluster, tp, preferred):
                return preferred
            self.avoid(tp, now)
            return cluster.leader(tp)
        self._preferred.pop(tp, None)
        chosen = self._pinned
        if chosen is None and self._rack:
            chosen = cluster.nearest(tp, self._rack)
        if chosen is None or not _is_online(cluster, tp, chosen):
            return cluster.leader(tp)
        return chosen

    def rack_for(self, partitions: Iterable[TopicPartition], rack: str, now: float) -> str:
        """The rack that one fetch of all these partitions may name."""
        return "" if any(self._is_avoided(tp, now) for tp in partitions) else rack

    def prefer(self, tp: TopicPartition, broker_id: int, now: float) -> None:
        """Read from the replica that the leader named."""
        self._preferred[tp] = (broker_id, now + self._max_age_s)

    def avoid(self, tp: TopicPartition, now: float) -> None:
        """Read from the leader for a while: the selected replica cannot be read."""
        self._preferred.pop(tp, None)
        self._avoided_until[tp] = now + _AVOIDED_S

    def apply_response(
        self,
        cluster: ClusterMetadata,
        node_id: int,
        fetched: Mapping[TopicPartition, FetchedPartition],
        now: float,
    ) -> set[TopicPartition]:
        """Process the results of a fetch; returns the partitions to fetch from another broker."""
        moved = set()
        for tp, part in fetched.items():
            if part.error_code != Code.NONE:
                if cluster.leader(tp) != node_id:
                    self.avoid(tp, now)
                    moved.add(tp)
            elif part.preferred_read_replica not in (-1, node_id):
                self.prefer(tp, part.preferred_read_replica, now)
                moved.add(tp)
        return moved

    def _is_avoided(self, tp: TopicPartition, now: float) -> bool:
        return now < self._avoided_until.get(tp, 0.0)


def _is_online(cluster: ClusterMetadata, tp: TopicPartition, broker_id: int) -> bool:
    """Whether a broker is in the cluster and has a replica that is not offline."""
    partition = cluster.partition(tp)
    return (
        partition is not None
        and broker_id in cluster.brokers
        and broker_id in partition.replicas
        and broker_id not in partition.offline
    )
