"""What the members of a quorum say to each other.

Each is one of Apache Kafka's requests or responses: Vote (52), BeginQuorumEpoch (53),
EndQuorumEpoch (54), Fetch (1) and FetchSnapshot (59). Shells translate.

Rules of this file:
- Every message carries the epoch of its sender. `leader_id` is the leader of that epoch, or
  None if the sender does not know it.
- Responses repeat what they answer where the receiver must be able to tell a late or doubled
  one from the one it waits for. Where a connection pairs requests and responses, the shell
  copies those fields from the request.
- A fetch from an offset says: I have everything below it on my disk.
"""

from dataclasses import dataclass
from enum import IntEnum
from uuid import UUID

from shoal.lite.raft.model import Entry, EpochEnd, SnapshotId


class RaftCode(IntEnum):
    """Why a request was not granted, by Apache Kafka's names and numbers."""

    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    NOT_LEADER_OR_FOLLOWER = 6
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    SNAPSHOT_NOT_FOUND = 98
    POSITION_OUT_OF_RANGE = 99
    # The receiver is not the one that the request was meant for: its disk is another.
    INVALID_VOTER_KEY = 125
    # The sender has the id of a voter, and not its disk.
    VOTER_NOT_FOUND = 127


@dataclass(frozen=True, slots=True)
class VoteRequest:
    """Would you vote for me (`pre_vote`), or: vote for me."""

    epoch: int
    candidate_id: int
    candidate_directory: UUID
    # Whom the candidate believes to ask.
    voter_directory: UUID
    last_epoch: int
    last_offset: int
    pre_vote: bool


@dataclass(frozen=True, slots=True)
class VoteResponse:
    epoch: int
    leader_id: int | None
    granted: bool
    pre_vote: bool
    error: RaftCode = RaftCode.NONE


@dataclass(frozen=True, slots=True)
class BeginQuorumEpoch:
    """I lead: fetch from me. Repeated to voters that do not."""

    epoch: int
    leader_id: int
    voter_directory: UUID


@dataclass(frozen=True, slots=True)
class BeginQuorumEpochResponse:
    epoch: int
    leader_id: int | None
    error: RaftCode = RaftCode.NONE


@dataclass(frozen=True, slots=True)
class EndQuorumEpoch:
    """I lead no more: elect another, preferably the first of these."""

    epoch: int
    leader_id: int
    preferred: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EndQuorumEpochResponse:
    epoch: int
    leader_id: int | None
    error: RaftCode = RaftCode.NONE


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """Give me what follows `offset`; the last entry that I have is of `last_fetched_epoch`."""

    epoch: int
    replica_id: int
    replica_directory: UUID
    offset: int
    last_fetched_epoch: int
    high_watermark: int


@dataclass(frozen=True, slots=True)
class FetchResponse:
    """Entries from `offset` on; or where our logs part; or which snapshot to load first."""

    epoch: int
    leader_id: int | None
    # Of the request.
    offset: int
    last_fetched_epoch: int
    entries: tuple[Entry, ...] = ()
    high_watermark: int = 0
    diverging: EpochEnd | None = None
    snapshot: SnapshotId | None = None
    error: RaftCode = RaftCode.NONE


@dataclass(frozen=True, slots=True)
class FetchSnapshotRequest:
    epoch: int
    replica_id: int
    replica_directory: UUID
    snapshot: SnapshotId
    position: int


@dataclass(frozen=True, slots=True)
class FetchSnapshotResponse:
    """A part of a snapshot, from `position` on; `size` is that of the whole."""

    epoch: int
    leader_id: int | None
    # Of the request.
    snapshot: SnapshotId
    position: int
    size: int = 0
    data: bytes = b""
    error: RaftCode = RaftCode.NONE


Request = VoteRequest | BeginQuorumEpoch | EndQuorumEpoch | FetchRequest | FetchSnapshotRequest
Response = (
    VoteResponse
    | BeginQuorumEpochResponse
    | EndQuorumEpochResponse
    | FetchResponse
    | FetchSnapshotResponse
)
Message = Request | Response
