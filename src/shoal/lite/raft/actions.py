"""What a member asks its shell to do.

Rules for the shell that performs the actions (`driver`):
- In order, each one whole before the next. Actions of the first group are done when they would
  survive a power loss: a vote is on the disk before the message that carries it leaves.
- All of them, before the node gets its next input; then `on_persisted` reports how far the log is
  on the disk. If one fails, the process ends: the node already relies on it.
"""

from dataclasses import dataclass

from shoal.lite.raft.messages import RaftCode, RaftMessage
from shoal.lite.raft.model import QuorumState, RaftEntry, RaftSnapshot

# For the disk


@dataclass(frozen=True, slots=True)
class PersistVote:
    """Store the epoch, the vote and the leader in place of the stored ones."""

    state: QuorumState


@dataclass(frozen=True, slots=True)
class AppendEntries:
    """Append entries at the end of the log, which is `base_offset`."""

    base_offset: int
    entries: tuple[RaftEntry, ...]


@dataclass(frozen=True, slots=True)
class TruncateEntries:
    """Truncate the log so that it ends at `offset`."""

    offset: int


@dataclass(frozen=True, slots=True)
class SaveSnapshot:
    """Store a snapshot of this member's own state; the log below its end may be deleted."""

    snapshot: RaftSnapshot


@dataclass(frozen=True, slots=True)
class LoadSnapshot:
    """Replace the whole log by a snapshot of the leader, and continue from its end.

    The state machine drops its state and applies `records`.
    """

    snapshot: RaftSnapshot
    records: tuple[bytes, ...]


# For the network


@dataclass(frozen=True, slots=True)
class SendToPeer:
    """Deliver a message, or lose it: the node retries."""

    to: int
    message: RaftMessage


# For the state machine


@dataclass(frozen=True, slots=True)
class Committed:
    """These entries are committed. Each is emitted once per start, in order, without a gap."""

    base_offset: int
    entries: tuple[RaftEntry, ...]
    high_watermark: int


@dataclass(frozen=True, slots=True)
class BecameLeader:
    """This node leads, and all entries of former leaders are committed and were emitted."""

    epoch: int


@dataclass(frozen=True, slots=True)
class ResignedLeader:
    """This node no longer leads. The next leader may still commit uncommitted proposals."""

    epoch: int


@dataclass(frozen=True, slots=True)
class VoterRejected:
    """The quorum rejected this node: it has the id of a voter and another directory id."""

    by: int
    error: RaftCode


StorageAction = PersistVote | AppendEntries | TruncateEntries | SaveSnapshot | LoadSnapshot
Action = StorageAction | SendToPeer | Committed | BecameLeader | ResignedLeader | VoterRejected

STORAGE_ACTIONS = (PersistVote, AppendEntries, TruncateEntries, SaveSnapshot, LoadSnapshot)
