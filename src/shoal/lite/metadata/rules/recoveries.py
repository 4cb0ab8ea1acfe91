"""Unclean elections under way: the reported log ends, and how long to wait for more.

When no complete replica can lead, the replica with the longest log is the best choice: the highest
last epoch, then the highest end offset. Replicas that are just starting get some time to report,
above all complete ones; the election ends at once when one of those is back. A report is valid for
the leader epoch that has no leader: a log does not change while its partition has no leader.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from uuid import UUID

from shoal.lite.metadata.data.records import PartitionRecord
from shoal.lite.metadata.data.requests import LogEnd
from shoal.lite.metadata.data.state import ClusterState
from shoal.lite.metadata.rules.partitions import choose_leader

Key = tuple[UUID, int]


@dataclass(slots=True)
class _Recovery:
    deadline_ms: int
    # By broker: its epoch, and its reported log end.
    ends: dict[int, tuple[int, LogEnd]] = field(default_factory=dict)


class Recoveries:
    """The state of unclean elections that is not in the metadata log."""

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._recoveries: dict[Key, _Recovery] = {}

    def track(self, partitions: Iterable[PartitionRecord], now_ms: int) -> None:
        """Begin or end elections for partitions that have changed."""
        for partition in partitions:
            if not partition.recovering:
                self._recoveries.pop(partition.key, None)
            elif partition.key not in self._recoveries:
                self._recoveries[partition.key] = _Recovery(now_ms + self._timeout_ms)

    def add_log_ends(self, broker_id: int, broker_epoch: int, ends: Iterable[LogEnd]) -> None:
        for end in ends:
            recovery = self._recoveries.get((end.topic_id, end.partition))
            if recovery is not None:
                recovery.ends[broker_id] = broker_epoch, end

    def find_winners(self, state: ClusterState, now_ms: int) -> list[tuple[PartitionRecord, int]]:
        """The partitions whose election is decided, with their leaders."""
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
                due.append((partition, choose_leader(state, candidates)))
        return due

    def next_deadline_ms(self, now_ms: int) -> int | None:
        """The next deadline after now. An election without a report by then waits for one."""
        times = [recovery.deadline_ms for recovery in self._recoveries.values()]
        return min((time_ms for time_ms in times if time_ms > now_ms), default=None)


def _lengths(
    state: ClusterState, partition: PartitionRecord, recovery: _Recovery
) -> dict[int, tuple[int, int]]:
    """By replica: the last epoch and the end offset of its log, of reports that are still valid."""
    return {
        broker_id: (end.last_epoch, end.end_offset)
        for broker_id, (broker_epoch, end) in recovery.ends.items()
        if state.can_serve(partition, broker_id)
        and broker_id in partition.replicas
        and state.brokers[broker_id].epoch == broker_epoch
        and end.leader_epoch == partition.leader_epoch
    }
