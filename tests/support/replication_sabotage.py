"""Replicas that break one rule each. A test that lets one of them pass is no test."""

from typing import Any

from shoal.lite.base.codes import Code
from shoal.lite.replication.follower import FollowerPartition
from shoal.lite.replication.leader import LeaderPartition
from shoal.lite.replication.messages import (
    Assignment,
    Completed,
    ReplicaFetch,
    ReplicationSettings,
)
from shoal.lite.replication.replica import Replica


class _ComparesLengths(FollowerPartition):
    def _position(self) -> ReplicaFetch:
        return super()._position()._replace(last_fetched_epoch=-1)


class SkipsTruncation(Replica):
    """A follower whose log is as long as the leader's thinks that it misses nothing."""

    follower_type = _ComparesLengths


class _TellsLastRecord(FollowerPartition):
    def _position(self) -> ReplicaFetch:
        epoch = self.log.epochs.epoch_of(self.log.end_offset - 1)
        return super()._position()._replace(last_fetched_epoch=epoch)


class KeepsEmptyTerms(Replica):
    """A follower keeps its own term without a record in its history."""

    follower_type = _TellsLastRecord


class _CountsConfirmed(LeaderPartition):
    @property
    def maximal_isr(self) -> frozenset[int]:
        return self.isr


class ForgetsExpansion(Replica):
    """The high watermark does not wait for who is being added to the in-sync set."""

    leader_type = _CountsConfirmed


class _CountsProposed(LeaderPartition):
    @property
    def maximal_isr(self) -> frozenset[int]:
        pending = self._in_sync._pending
        return self.isr if pending is None else pending.proposal.members


class AssumesShrink(Replica):
    """The high watermark does not wait for who is being removed from the in-sync set."""

    leader_type = _CountsProposed


class _CountsMajority(LeaderPartition):
    def _replicated_offset(self, now_ms: int) -> int:
        ends = sorted([self.log.end_offset, *(peer.end_offset for peer in self._peers.values())])
        return ends[(len(ends) - 1) // 2]


class CountsMajority(Replica):
    """The high watermark is what most replicas have, whoever they are."""

    leader_type = _CountsMajority


class _AcknowledgesEarly(LeaderPartition):
    def await_acks(self, token: Any, required_offset: int, *, deadline_ms: int) -> None:
        self._completed.append(Completed(token, Code.NONE))


class AcknowledgesEarly(Replica):
    """Producers are answered before the in-sync set has their records."""

    leader_type = _AcknowledgesEarly


class _CommitsAlone(LeaderPartition):
    @property
    def is_under_min_isr(self) -> bool:
        return False


class CommitsAlone(Replica):
    """Fewer than `min.insync.replicas` commit, though others stay eligible as leaders."""

    leader_type = _CommitsAlone


class BelievesOldNews(Replica):
    """News of a partition epoch that is known already take a pending proposal back."""

    def assign(
        self, now_ms: int, assignment: Assignment, settings: ReplicationSettings | None = None
    ) -> list[Completed]:
        leader = self.leader
        if leader is not None and assignment.partition_epoch == leader.partition_epoch:
            leader._in_sync.confirm(assignment.partition_epoch, frozenset(assignment.isr))
        return super().assign(now_ms, assignment, settings)


SABOTAGES: list[type[Replica]] = [
    SkipsTruncation,
    KeepsEmptyTerms,
    ForgetsExpansion,
    AssumesShrink,
    CountsMajority,
    AcknowledgesEarly,
    CommitsAlone,
    BelievesOldNews,
]
