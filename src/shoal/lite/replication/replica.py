"""One broker's replica of a partition, and how it goes from role to role.

Rules of this file:
- The metadata decides, and only forwards: what has no higher partition epoch changes nothing.
- The high watermark goes along from role to role; those who wait for a leader that is none any
  more are answered.
- A restarted broker makes a new replica, and must not lead again in an epoch that it led in
  before: its followers may have asked it for records that it has no more.
"""

from shoal.lite.replication.follower import FollowerPartition
from shoal.lite.replication.leader import LeaderPartition
from shoal.lite.replication.messages import (
    NO_LEADER,
    Assignment,
    Completed,
    LiveEpochs,
    Log,
    ReplicationSettings,
)

_UNASSIGNED = Assignment((), (), NO_LEADER, leader_epoch=-1, partition_epoch=-1)


class Replica:
    """Leads or follows, as the metadata says; `role` is the state machine that does it."""

    leader_type: type[LeaderPartition] = LeaderPartition
    follower_type: type[FollowerPartition] = FollowerPartition

    def __init__(
        self,
        broker_id: int,
        log: Log,
        *,
        settings: ReplicationSettings,
        live_epochs: LiveEpochs,
        high_watermark: int = 0,
    ) -> None:
        """`live_epochs` is kept up to date by its owner, as the metadata comes in.

        `high_watermark` is the last that was written down; a lower one is always safe.
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
        self, now_ms: int, assignment: Assignment, settings: ReplicationSettings | None = None
    ) -> list[Completed]:
        """Follow the metadata. Returns the producers whose wait ended with a leadership.

        Settings of the same moment come along. One after the other is wrong in either order: an
        in-sync set with the min.insync.replicas of another moment may commit what eligible
        replicas do not have.
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
                role.reassigned(now_ms, assignment, self._settings)
                return []
            role.resign()
            self.role = self.follower_type(
                assignment,
                self.log,
                settings=self._settings,
                high_watermark=role.high_watermark,
            )
            return role.completed()
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
            role.reassigned(assignment)
        return []

    def configure(self, now_ms: int, settings: ReplicationSettings) -> None:
        """Follow new settings, if the metadata has no other news of the partition."""
        self._settings = settings
        if isinstance(self.role, LeaderPartition):
            self.role.configure(now_ms, settings)
        else:
            self.role.configure(settings)
