"""The messages between the members of a quorum.

Each is one of Apache Kafka's requests or responses: Vote (52), BeginQuorumEpoch (53),
EndQuorumEpoch (54), Fetch (1) and FetchSnapshot (59). Shells translate.

Rules of this file:
- Every message carries the epoch of its sender. `leader_id` is the leader of that epoch, or
  None if the sender does not know it.
- Responses repeat fields of the request where the receiver must tell a late or duplicate
  response from the one it waits for. Where a connection pairs requests and responses, the shell
  copies those fields from the request.
- A fetch from an offset acknowledges that everything below it is on the sender's disk.
"""

from dataclasses import dataclass
from enum import IntEnum
from uuid import UUID

from shoal.lite.raft.model import RaftEntry, RaftEpochEnd, RaftSnapshotId


class RaftCode(IntEnum):
    """Error codes, by Apache Kafka's names and numbers."""

    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    NOT_LEADER_OR_FOLLOWER = 6
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    SNAPSHOT_NOT_FOUND = 98
    POSITION_OUT_OF_RANGE = 99
    # The receiver is not the voter that the request names: it has another directory id.
    INVALID_VOTER_KEY = 125
    # The sender has the id of a voter, and another directory id.
    VOTER_NOT_FOUND = 127


@dataclass(frozen=True, slots=True)
class VoteRequest:
    """A candidate asks for a vote, or whether it would get it (`pre_vote`)."""

    epoch: int
    candidate_id: int
    candidate_directory: UUID
    # The directory id of the voter that the candidate means.
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
    """The leader asks a voter to fetch from it. Repeated to voters that do not."""

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
    """The leader has resigned: elect another, preferably the first of `preferred`."""

    epoch: int
    leader_id: int
    preferred: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EndQuorumEpochResponse:
    epoch: int
    leader_id: int | None
    error: RaftCode = RaftCode.NONE


@dataclass(frozen=True, slots=True)
class RaftFetchRequest:
    """Fetch entries from `offset` on; the sender's last entry is of `last_fetched_epoch`."""

    epoch: int
    replica_id: int
    replica_directory: UUID
    offset: int
    last_fetched_epoch: int
    high_watermark: int


@dataclass(frozen=True, slots=True)
class RaftFetchResponse:
    """Entries from `offset` on; or where the logs diverge; or which snapshot to load first."""

    epoch: int
    leader_id: int | None
    # Of the request.
    offset: int
    last_fetched_epoch: int
    entries: tuple[RaftEntry, ...] = ()
    high_watermark: int = 0
    diverging: RaftEpochEnd | None = None
    snapshot: RaftSnapshotId | None = None
    error: RaftCode = RaftCode.NONE


@dataclass(frozen=True, slots=True)
class FetchSnapshotRequest:
    epoch: int
    replica_id: int
    replica_directory: UUID
    snapshot: RaftSnapshotId
    position: int


@dataclass(frozen=True, slots=True)
class FetchSnapshotResponse:
    """A part of a snapshot, from `position` on; `size` is that of the whole."""

    epoch: int
    leader_id: int | None
    # Of the request.
    snapshot: RaftSnapshotId
    position: int
    size: int = 0
    data: bytes = b""
    error: RaftCode = RaftCode.NONE


RaftRequest = (
    VoteRequest | BeginQuorumEpoch | EndQuorumEpoch | RaftFetchRequest | FetchSnapshotRequest
)
RaftResponse = (
    VoteResponse
    | BeginQuorumEpochResponse
    | EndQuorumEpochResponse
    | RaftFetchResponse
    | FetchSnapshotResponse
)
RaftMessage = RaftRequest | RaftResponse
