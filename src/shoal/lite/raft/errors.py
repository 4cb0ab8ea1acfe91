"""The errors of the metadata quorum.

ShoalError
├── NotLeader             only the leader can do that; names the leader if known
├── VoterChangeRefused    the set of voters cannot be changed this way now
├── RaftInvariantViolated the protocol was violated: the process must stop
├── NotFormatted          the folder was never formatted for a member of a quorum
└── StorageFailed         the disk failed; nothing more may be acknowledged from it
"""

from shoal.model.errors import ShoalError


class NotLeader(ShoalError):
    """Only the leader can do that."""

    retriable = True

    def __init__(self, leader_id: int | None) -> None:
        known = "the leader is unknown" if leader_id is None else f"the leader is node {leader_id}"
        super().__init__(f"this node is not the leader of the quorum; {known}")
        self.leader_id = leader_id


class VoterChangeRefused(ShoalError):
    """The set of voters cannot be changed this way, or not now."""


class RaftInvariantViolated(ShoalError):
    """Something happened that the protocol excludes: a bug, or a disk that lost data."""


class NotFormatted(ShoalError):
    """The folder is not formatted as the disk of a quorum member."""


class StorageFailed(ShoalError):
    """A write or a sync failed. The content of the disk is unknown from then on."""


def require(condition: bool, message: str) -> None:
    """Raise `RaftInvariantViolated` unless the condition holds; never disabled, unlike assert."""
    if not condition:
        raise RaftInvariantViolated(message)
