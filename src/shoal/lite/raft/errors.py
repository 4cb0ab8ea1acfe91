"""What can go wrong in the quorum.

ShoalError
├── NotLeader             only the leader can do that; says who leads, if known
├── VoterChangeRefused    the set of voters cannot be changed like that now
├── RaftBroken            the protocol was violated: better to die than to go on
├── NotFormatted          the folder was never made a member of a quorum
└── StorageFailed         the disk failed; nothing more may be promised from it
"""

from shoal.model.errors import ShoalError


class NotLeader(ShoalError):
    """Only the leader can do that."""

    retriable = True

    def __init__(self, leader_id: int | None) -> None:
        known = "nobody is known to" if leader_id is None else f"node {leader_id} does"
        super().__init__(f"this node does not lead the quorum; {known}")
        self.leader_id = leader_id


class VoterChangeRefused(ShoalError):
    """The set of voters cannot be changed like that, or not now."""


class RaftBroken(ShoalError):
    """Something happened that the protocol excludes: a bug, or a disk that forgot."""


class NotFormatted(ShoalError):
    """An empty disk, where a member of a quorum must have its own."""


class StorageFailed(ShoalError):
    """A write or a sync failed. What is on the disk is not known any more."""


def require(condition: bool, message: str) -> None:
    """Raise `RaftBroken` unless the condition holds; unlike an assert, always checked."""
    if not condition:
        raise RaftBroken(message)
