"""Mistakes, one each, that the simulation must find: so that it is known to be able to fail.

Each swaps one part of a world. None of them is in production's code, and nothing here is ever
used outside of a simulation. `seed_protocol` is one more, a world of its own.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from shoal.lite.base.codes import Code
from shoal.lite.metadata.data.records import NO_LEADER, PartitionRecord
from shoal.lite.metadata.data.requests import RegisterBroker, ReportLosses
from shoal.lite.metadata.data.state import ClusterState
from shoal.lite.metadata.rules.changes import Changes
from shoal.lite.metadata.rules.controller import Controller, ControllerResult, ControllerSettings
from shoal.lite.metadata.rules.partitions import in_replica_order
from shoal.lite.partitions.partition import PartitionShell
from shoal.lite.partitions.sessions.fetch_session import ReplicaFetchSession
from shoal.lite.partitions.sessions.replica_session import Answers, ReplicaSession
from shoal.lite.raft.leader import RaftLeader
from shoal.lite.raft.model import StoredState
from shoal.lite.raft.node import RaftNode, RaftRole
from shoal.lite.replication.follower import FollowerPartition
from shoal.lite.replication.leader import LeaderPartition
from shoal.lite.replication.messages import AckResult, ReplicaFetch
from shoal.lite.replication.replica import PartitionReplica
from shoal.lite.simulation.disk import QuorumDisk
from shoal.lite.simulation.parts import Parts
from shoal.lite.simulation.setup import CONTROLLER, CrashModel
from shoal.lite.storage.state.epochs import NO_EPOCH

if TYPE_CHECKING:
    from shoal.lite.simulation.world import BrokerNode, World

A = TypeVar("A")


# Elections


class _LongestLogController(Controller):
    """Elects the replica with the longest log, in sync or not, as `seed_protocol` does."""

    def __init__(self, world: "World", state: ClusterState, settings: ControllerSettings) -> None:
        super().__init__(state, settings)
        self._world = world

    def _outcome(self, changes: Changes, answer: A) -> ControllerResult[A]:
        for record in list(changes.records):
            if isinstance(record, PartitionRecord):
                self._elect(changes, self.state.partition(*record.key))
        return super()._outcome(changes, answer)

    def _elect(self, changes: Changes, record: PartitionRecord) -> None:
        alive = [broker for broker in record.replicas if self.state.is_active(broker)]
        if not alive or record.leader in alive:
            return
        longest = max(alive, key=lambda broker: (self._end_offset(broker, record), -broker))
        if record.leader == NO_LEADER:
            in_sync = in_replica_order({*record.in_sync, longest}, record.replicas)
            changes.emit(
                replace(
                    record,
                    leader=longest,
                    in_sync=in_sync,
                    leader_epoch=record.leader_epoch + 1,
                    partition_epoch=record.partition_epoch + 1,
                )
            )

    def _end_offset(self, broker_id: int, record: PartitionRecord) -> int:
        log = self._world.brokers[broker_id].disk.logs.get(record.key)
        return 0 if log is None else log.end_offset


class LongestLog(Parts):
    def controller(self, world: "World", state: ClusterState) -> Controller:
        return _LongestLogController(world, state, CONTROLLER)


class _TrustingController(Controller):
    """Trusts a broker that reports truncated logs."""

    def _report_losses(self, changes: Changes, report: ReportLosses) -> None:
        self._require_current_epoch(report.broker_id, report.broker_epoch)


class LossesIgnored(Parts):
    def controller(self, world: "World", state: ClusterState) -> Controller:
        return _TrustingController(state, CONTROLLER)


class _AgelessController(Controller):
    """Takes an older copy of a folder for the folder itself."""

    def _check_registration(self, request: RegisterBroker) -> None:
        before = self.state.brokers.get(request.broker_id)
        earlier = () if before is None else (before.incarnation,)
        super()._check_registration(replace(request, earlier=earlier))


class OlderCopies(Parts):
    def controller(self, world: "World", state: ClusterState) -> Controller:
        return _AgelessController(state, CONTROLLER)


# Replication


class _DeafFollower(FollowerPartition):
    """Does not tell the epoch of its last record, so nobody can tell it where to cut."""

    def _position(self) -> ReplicaFetch:
        return super()._position()._replace(last_fetched_epoch=NO_EPOCH)


class _DeafReplica(PartitionReplica):
    follower_type = _DeafFollower


class NoTruncation(Parts):
    replica = _DeafReplica


class _HastyLeader(LeaderPartition):
    """Acknowledges what it has written itself."""

    def await_acks(
        self, now_ms: int, token: Any, required_offset: int, *, deadline_ms: int
    ) -> None:
        self._completed.append(AckResult(token, Code.NONE))


class _HastyReplica(PartitionReplica):
    leader_type = _HastyLeader


class EarlyAcknowledgement(Parts):
    replica = _HastyReplica


class _SilentLeader(LeaderPartition):
    """Acknowledges what is committed before its followers know that it is."""

    def _lowest_sent_high_watermark(self) -> int:
        return self.high_watermark


class _SilentReplica(PartitionReplica):
    leader_type = _SilentLeader


class UnannouncedCommit(Parts):
    replica = _SilentReplica


class _CarelessLeader(LeaderPartition):
    """Waits for those whom the controller has confirmed, and not for those about to join."""

    def _lowest_replicated_offset(self, now_ms: int) -> int:
        ends = [peer.end_offset for peer in self._followers.values() if peer.broker_id in self.isr]
        return min([self.log.end_offset, *ends])


class _CarelessReplica(PartitionReplica):
    leader_type = _CarelessLeader


class WrongSet(Parts):
    replica = _CarelessReplica


# Fetch sessions


class _EagerSession(ReplicaSession):
    """Releases acknowledgements before the answer with the high watermark is sent."""

    def _take_answers(self) -> Answers:
        answers = super()._take_answers()
        self.release_acks()
        return answers


class AnswerAfterAcknowledgement(Parts):
    replica_session = _EagerSession


class _ResignedSession(ReplicaFetchSession):
    """Does not fetch a partition again after an error."""

    def _retry_later(self, key: tuple[int, int], partition: PartitionShell[Any]) -> None:
        pass


class NoRetry(Parts):
    fetch_session = _ResignedSession


# The quorum


class _ForgetfulDisk(QuorumDisk):
    """Keeps the epoch, and not whom it voted for."""

    def load_state(self) -> StoredState:
        stored = super().load_state()
        return replace(stored, quorum=replace(stored.quorum, voted_for=None, leader_id=None))


class ForgottenVote(Parts):
    quorum_disk = _ForgetfulDisk


class _RashLeader(RaftLeader):
    """Commits what former leaders wrote before it has an entry of its own on a majority."""

    def _can_commit(self, end_offset: int) -> bool:
        return True


class _RashNode(RaftNode):
    def _become_leader(self, granting: frozenset[int]) -> None:
        self._leave_role()
        self.role = RaftRole.LEADER
        replica = self._replica
        replica.set_quorum_state(replace(replica.quorum, leader_id=replica.key.id))
        self._leader = _RashLeader(replica, granting)


class OldEpochsCommitted(Parts):
    raft_node = _RashNode


# Brokers


class KeptInSync(Parts):
    """A broker that lost power reports the old boot id."""

    def boot_id(self, node: "BrokerNode") -> str:
        return "boot-1"


class OldMetadata(Parts):
    """A new process does what the metadata said to the one before it."""

    def knows_itself(self, incarnation: str, known: str | None) -> bool:
        return known is not None


# By name: the parts, and the crash model that shows the mistake; None for either.
SABOTAGES: dict[str, tuple[type[Parts], CrashModel | None]] = {
    "longest-log": (LongestLog, None),
    "no-truncation": (NoTruncation, None),
    "early-acknowledgement": (EarlyAcknowledgement, None),
    "unannounced-commit": (UnannouncedCommit, None),
    "wrong-set": (WrongSet, None),
    "answer-after-acknowledgement": (AnswerAfterAcknowledgement, None),
    "no-retry": (NoRetry, None),
    "forgotten-vote": (ForgottenVote, None),
    "old-epochs-committed": (OldEpochsCommitted, None),
    "kept-in-sync": (KeptInSync, CrashModel.POWER),
    "old-metadata": (OldMetadata, None),
    "losses-ignored": (LossesIgnored, CrashModel.POWER),
    "older-copies": (OlderCopies, CrashModel.POWER),
}
