"""What a member wants done.

Rules for whoever performs them (`driver` does it):
- In order, each one whole before the next. Actions of the first group are done when they would
  survive a power loss: a vote is on the disk before the message that tells of it leaves.
- All of them, before the node gets its next input; then `persisted` says how far the log is on
  the disk. If one cannot be done, the process ends: the node already counts on it.
"""

from dataclasses import dataclass

from shoal.lite.raft.messages import Message, RaftCode
from shoal.lite.raft.model import Entry, QuorumState, Snapshot

# For the disk


@dataclass(frozen=True, slots=True)
class PersistVote:
    """Remember the epoch, the vote and the leader, replacing what was remembered."""

    state: QuorumState


@dataclass(frozen=True, slots=True)
class AppendEntries:
    """Write entries behind the log's end, which is `base_offset`."""

    base_offset: int
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class TruncateTo:
    """Cut the log so that it ends at `offset`."""

    offset: int


@dataclass(frozen=True, slots=True)
class SaveSnapshot:
    """Keep a snapshot of our own; the log below its end may go."""

    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class LoadSnapshot:
    """Keep a snapshot of the leader's instead of the whole log, and begin again from it.

    The state machine forgets everything and applies `records`.
    """

    snapshot: Snapshot
    records: tuple[bytes, ...]


# For the network


@dataclass(frozen=True, slots=True)
class Send:
    """Deliver a message, or lose it: the node tries again by itself."""

    to: int
    message: Message


# For the state machine


@dataclass(frozen=True, slots=True)
class Committed:
    """These entries are for good. Each is told once per start, in order, without a gap."""

    base_offset: int
    entries: tuple[Entry, ...]
    high_watermark: int


@dataclass(frozen=True, slots=True)
class BecameLeader:
    """We lead, and all entries of former leaders have been committed and told."""

    epoch: int


@dataclass(frozen=True, slots=True)
class ResignedLeader:
    """We lead no more. Proposals that were not committed may still be, by the next leader."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The quorum does not take us for the voter whose id we have: our disk is another."""

    by: int
    error: RaftCode


StorageAction = PersistVote | AppendEntries | TruncateTo | SaveSnapshot | LoadSnapshot
Action = StorageAction | Send | Committed | BecameLeader | ResignedLeader | Refused

STORAGE_ACTIONS = (PersistVote, AppendEntries, TruncateTo, SaveSnapshot, LoadSnapshot)
