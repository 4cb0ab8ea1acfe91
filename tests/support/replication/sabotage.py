"""Replicas that break one rule each. The tests must detect each of them."""

from typing import Any

from shoal.lite.base.codes import Code
from shoal.lite.replication.follower import FollowerPartition
from shoal.lite.replication.leader import LeaderPartition
from shoal.lite.replication.messages import (
    AckResult,
    PartitionState,
    ReplicaFetch,
    ReplicationSettings,
)
from shoal.lite.replication.replica import PartitionReplica


class _ComparesLengths(FollowerPartition):
    def _position(self) -> ReplicaFetch:
        return super()._position()._replace(last_fetched_epoch=-1)


class SkipsTruncation(PartitionReplica):
    """A follower whose log is as long as the leader's thinks that it misses nothing."""

    follower_type = _ComparesLengths


class _TellsLastRecord(FollowerPartition):
    def _position(self) -> ReplicaFetch:
        epoch = self.log.epochs.epoch_of(self.log.end_offset - 1)
        return super()._position()._replace(last_fetched_epoch=epoch)


class KeepsEmptyTerms(PartitionReplica):
    """A follower keeps its own term without a record in its history."""

    follower_type = _TellsLastRecord


class _CountsConfirmed(LeaderPartition):
    @property
    def maximal_isr(self) -> frozenset[int]:
        return self.isr


class ForgetsExpansion(PartitionReplica):
    """The high watermark does not wait for a replica that is being added to the ISR."""

    leader_type = _CountsConfirmed


class _CountsProposed(LeaderPartition):
    @property
    def maximal_isr(self) -> frozenset[int]:
        pending = self._in_sync._pending
        return self.isr if pending is None else pending.proposal.members


class AssumesShrink(PartitionReplica):
    """The high watermark does not wait for a replica that is being removed from the ISR."""

    leader_type = _CountsProposed


class _CountsMajority(LeaderPartition):
    def _lowest_replicated_offset(self, now_ms: int) -> int:
        ends = sorted(
            [self.log.end_offset, *(peer.end_offset for peer in self._followers.values())]
        )
        return ends[(len(ends) - 1) // 2]


class CountsMajority(PartitionReplica):
    """The high watermark is what a majority of replicas has, in sync or not."""

    leader_type = _CountsMajority


class _AcknowledgesEarly(LeaderPartition):
    def await_acks(
        self, now_ms: int, token: Any, required_offset: int, *, deadline_ms: int
    ) -> None:
        self._completed.append(AckResult(token, Code.NONE))


class AcknowledgesEarly(PartitionReplica):
    """Producers are answered before the in-sync set has their records."""

    leader_type = _AcknowledgesEarly


class _CommitsAlone(LeaderPartition):
    @property
    def is_under_min_isr(self) -> bool:
        return False


class CommitsAlone(PartitionReplica):
    """Fewer than `min.insync.replicas` commit, though others stay eligible as leaders."""

    leader_type = _CommitsAlone


class BelievesOldNews(PartitionReplica):
    """Metadata with a known partition epoch withdraws a pending proposal."""

    def assign(
        self, now_ms: int, assignment: PartitionState, settings: ReplicationSettings | None = None
    ) -> list[AckResult]:
        leader = self.leader
        if leader is not None and assignment.partition_epoch == leader.partition_epoch:
            leader._in_sync.confirm(assignment.partition_epoch, frozenset(assignment.isr))
        return super().assign(now_ms, assignment, settings)


SABOTAGES: list[type[PartitionReplica]] = [
    SkipsTruncation,
    KeepsEmptyTerms,
    ForgetsExpansion,
    AssumesShrink,
    CountsMajority,
    AcknowledgesEarly,
    CommitsAlone,
    BelievesOldNews,
]
