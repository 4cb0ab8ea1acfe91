"""The data types of the quorum: voters, entries, snapshots, and the state of an election.

Rules of this file:
- Offsets count records, as Apache Kafka's do. An entry is a group of records that are written,
  replicated and committed together; logs are only truncated between entries.
- A voter is an id *and* a directory id, which is generated when its disk is
  formatted. A process with the same id and another disk may have lost its vote, so it is
  another replica.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import NamedTuple
from uuid import UUID

# The approximate overhead of a batch and of a record beside the bytes of the values.
_ENTRY_OVERHEAD_BYTES = 61
_RECORD_OVERHEAD_BYTES = 10


class ReplicaKey(NamedTuple):
    """The identity of a member: its node id and the directory id of its disk."""

    id: int
    directory: UUID


@dataclass(frozen=True, slots=True)
class Voter:
    """A member that votes, and where it can be reached."""

    id: int
    directory: UUID
    host: str = ""
    port: int = 0

    @property
    def key(self) -> ReplicaKey:
        return ReplicaKey(self.id, self.directory)


class Voters:
    """An immutable set of voters, by id."""

    def __init__(self, voters: Iterable[Voter]) -> None:
        self._by_id = {voter.id: voter for voter in sorted(voters, key=lambda voter: voter.id)}

    def __iter__(self) -> Iterator[Voter]:
        return iter(self._by_id.values())

    def __len__(self) -> int:
        return len(self._by_id)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Voters) and self._by_id == other._by_id

    def __hash__(self) -> int:
        return hash(self.ids)

    def __repr__(self) -> str:
        return f"Voters({list(self._by_id.values())})"

    @cached_property
    def ids(self) -> tuple[int, ...]:
        return tuple(self._by_id)

    @cached_property
    def majority(self) -> int:
        """How many voters are more than half."""
        return len(self._by_id) // 2 + 1

    def get(self, voter_id: int) -> Voter | None:
        return self._by_id.get(voter_id)

    def has(self, key: ReplicaKey) -> bool:
        voter = self._by_id.get(key.id)
        return voter is not None and voter.directory == key.directory

    def has_other_directory(self, key: ReplicaKey) -> bool:
        """Whether a voter has this id, with another directory id."""
        voter = self._by_id.get(key.id)
        return voter is not None and voter.directory != key.directory

    def with_voter(self, voter: Voter) -> "Voters":
        return Voters([*self._by_id.values(), voter])

    def without(self, voter_id: int) -> "Voters":
        return Voters(voter for voter in self._by_id.values() if voter.id != voter_id)


class EntryKind(Enum):
    """What an entry contains."""

    DATA = "data"
    # The first entry of every leader: once it is committed, everything before it is.
    LEADER_CHANGE = "leader-change"
    VOTERS = "voters"


@dataclass(frozen=True, slots=True)
class RaftEntry:
    """Records of one epoch that belong together; `kind` marks the quorum's own entries."""

    epoch: int
    records: tuple[bytes, ...]
    kind: EntryKind = EntryKind.DATA

    @property
    def count(self) -> int:
        """How many offsets it occupies."""
        return len(self.records)

    @property
    def size_bytes(self) -> int:
        """Its approximate size on the wire."""
        payload = sum(map(len, self.records))
        return payload + len(self.records) * _RECORD_OVERHEAD_BYTES + _ENTRY_OVERHEAD_BYTES


class RaftSnapshotId(NamedTuple):
    """A snapshot covers everything below `end_offset`; its last entry is of `epoch`."""

    end_offset: int
    epoch: int


@dataclass(frozen=True, slots=True)
class RaftSnapshot:
    """The state after `id.end_offset` records, as bytes of `codec.encode_snapshot`."""

    id: RaftSnapshotId
    data: bytes


class RaftEpochEnd(NamedTuple):
    """Where the entries of an epoch end in a log."""

    epoch: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class QuorumState:
    """What must survive a restart: the epoch, the vote in it, and its leader."""

    epoch: int = 0
    voted_for: ReplicaKey | None = None
    leader_id: int | None = None


@dataclass(frozen=True, slots=True)
class StoredState:
    """Everything that a member reads from its disk when it starts."""

    # As of the first start; voter sets in the snapshot or in the log replace it.
    voters: Voters
    quorum: QuorumState = QuorumState()
    snapshot: RaftSnapshot | None = None
    # From the end of the snapshot on.
    entries: tuple[RaftEntry, ...] = ()
