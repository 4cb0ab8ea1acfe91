"""One broker's replica of a partition, and its changes of role.

Rules of this file:
- The metadata decides the role. A state without a higher partition epoch changes nothing.
- The high watermark is kept across a change of role. When a leadership ends, all producers that
  wait for it are answered.
- A restarted broker creates a new replica and must not lead again in an epoch in which it led
  before: its followers may have fetched records that it no longer has.
"""

from shoal.lite.replication.follower import FollowerPartition
from shoal.lite.replication.leader import LeaderPartition
from shoal.lite.replication.messages import (
    NO_LEADER,
    AckResult,
    LiveEpochs,
    PartitionState,
    ReplicatedLog,
    ReplicationSettings,
)

_UNASSIGNED = PartitionState((), (), NO_LEADER, leader_epoch=-1, partition_epoch=-1)


class PartitionReplica:
    """Leads or follows, as the metadata says; `role` is the state machine that does so."""

    leader_type: type[LeaderPartition] = LeaderPartition
    follower_type: type[FollowerPartition] = FollowerPartition

    def __init__(
        self,
        broker_id: int,
        log: ReplicatedLog,
        *,
        settings: ReplicationSettings,
        live_epochs: LiveEpochs,
        high_watermark: int = 0,
    ) -> None:
        """`live_epochs` is updated by its owner with each change of the metadata.

        `high_watermark` is the last checkpointed one; a lower one is always safe.
        """
        self.broker_id = broker_id
        self.log = log
        self._settings = settings
        self._live_epochs = live_epochs
        self.role: LeaderPartition | FollowerPartition = self.follower_type(
            _UNASSIGNED, log, settings=settings, high_watermark=high_watermark
        )

    @property
    def leader(self) -> LeaderPartition | None:
        return self.role if isinstance(self.role, LeaderPartition) else None

    @property
    def follower(self) -> FollowerPartition | None:
        return self.role if isinstance(self.role, FollowerPartition) else None

    def assign(
        self, now_ms: int, assignment: PartitionState, settings: ReplicationSettings | None = None
    ) -> list[AckResult]:
        """Apply a state of the metadata; return the results for producers if a leadership ended.

        `settings` must be of the same metadata version as the state. Applying the two separately
        is wrong in either order: an ISR combined with the min.insync.replicas of another version
        may commit records that eligible leader replicas do not have.
        """
        role = self.role
        if assignment.partition_epoch <= role.partition_epoch:
            if settings is not None:
                self.configure(now_ms, settings)
            return []
        self._settings = settings or self._settings
        leads = assignment.leader == self.broker_id
        if isinstance(role, LeaderPartition):
            if leads:
                role.on_assignment(now_ms, assignment, self._settings)
                return []
            role.resign()
            self.role = self.follower_type(
                assignment,
                self.log,
                settings=self._settings,
                high_watermark=role.high_watermark,
            )
            return role.take_completed()
        if leads:
            self.role = self.leader_type(
                self.broker_id,
                assignment,
                self.log,
                settings=self._settings,
                live_epochs=self._live_epochs,
                high_watermark=role.high_watermark,
                now_ms=now_ms,
            )
        else:
            role.configure(self._settings)
            role.on_assignment(assignment)
        return []

    def configure(self, now_ms: int, settings: ReplicationSettings) -> None:
        """Apply new settings when the partition itself is unchanged in the metadata."""
        self._settings = settings
        if isinstance(self.role, LeaderPartition):
            self.role.configure(now_ms, settings)
        else:
            self.role.configure(settings)
