"""Unclean elections under way: who has told how far its log goes, and how long to wait.

When nobody may lead who has everything, the replica with the longest log is the best that is
left: the highest last epoch, then the furthest end. Replicas that are just starting get some
time to come, above all those who have everything; the election is over at once when one of
them is back. What a replica tells counts under the leader epoch that ended with the leader:
its log does not change while nobody leads.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from uuid import UUID

from shoal.lite.metadata.data.records import PartitionRecord
from shoal.lite.metadata.data.requests import LogEnd
from shoal.lite.metadata.data.state import ClusterState
from shoal.lite.metadata.rules.partitions import choose

Key = tuple[UUID, int]


@dataclass(slots=True)
class _Recovery:
    deadline_ms: int
    # By broker: its epoch, and what it told.
    ends: dict[int, tuple[int, LogEnd]] = field(default_factory=dict)


class Recoveries:
    """What is not in the log about partitions that are `recovering`."""

    def __init__(self, patience_ms: int) -> None:
        self._patience_ms = patience_ms
        self._recoveries: dict[Key, _Recovery] = {}

    def follow(self, partitions: Iterable[PartitionRecord], now_ms: int) -> None:
        """Partitions have changed."""
        for partition in partitions:
            if not partition.recovering:
                self._recoveries.pop(partition.key, None)
            elif partition.key not in self._recoveries:
                self._recoveries[partition.key] = _Recovery(now_ms + self._patience_ms)

    def report(self, broker_id: int, broker_epoch: int, ends: Iterable[LogEnd]) -> None:
        for end in ends:
            recovery = self._recoveries.get((end.topic_id, end.partition))
            if recovery is not None:
                recovery.ends[broker_id] = broker_epoch, end

    def due(self, state: ClusterState, now_ms: int) -> list[tuple[PartitionRecord, int]]:
        """Partitions that can be led, and by whom."""
        for key in [key for key in self._recoveries if key[0] not in state.topic_names]:
            del self._recoveries[key]
        due = []
        for key, recovery in self._recoveries.items():
            partition = state.partition(*key)
            lengths = _lengths(state, partition, recovery)
            is_complete = lengths.keys() == set(partition.replicas)
            if lengths and (is_complete or now_ms >= recovery.deadline_ms):
                longest = max(lengths.values())
                candidates = [broker for broker, length in lengths.items() if length == longest]
                due.append((partition, choose(state, candidates)))
        return due

    def next_deadline_ms(self, now_ms: int) -> int | None:
        """Later than now: whoever has not told by its deadline is waited for, without a time."""
        times = [recovery.deadline_ms for recovery in self._recoveries.values()]
        return min((time_ms for time_ms in times if time_ms > now_ms), default=None)


def _lengths(
    state: ClusterState, partition: PartitionRecord, recovery: _Recovery
) -> dict[int, tuple[int, int]]:
    """By replica: the last epoch and the end of its log, where what it told still counts."""
    return {
        broker_id: (end.last_epoch, end.end_offset)
        for broker_id, (broker_epoch, end) in recovery.ends.items()
        if state.can_serve(partition, broker_id)
        and broker_id in partition.replicas
        and state.brokers[broker_id].epoch == broker_epoch
        and end.leader_epoch == partition.leader_epoch
    }
