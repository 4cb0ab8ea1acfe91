"""The nouns of the quorum: voters, entries, snapshots, and the state of an election.

Rules of this file:
- Offsets count records, as Apache Kafka's do. An entry is a group of records that are written,
  replicated and committed together; logs are only ever cut between entries.
- A voter is an id *and* a directory id, which is made when its disk is formatted. A process
  with the same id and another disk may have forgotten its vote, so it is somebody else.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import NamedTuple
from uuid import UUID

# What a batch and a record cost beside the bytes of the values, roughly.
_ENTRY_OVERHEAD_BYTES = 61
_RECORD_OVERHEAD_BYTES = 10


class ReplicaKey(NamedTuple):
    """A process together with its disk."""

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
    """A set of voters, by id. Never changes."""

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
        """How many of them are more than half."""
        return len(self._by_id) // 2 + 1

    def get(self, voter_id: int) -> Voter | None:
        return self._by_id.get(voter_id)

    def has(self, key: ReplicaKey) -> bool:
        voter = self._by_id.get(key.id)
        return voter is not None and voter.directory == key.directory

    def contradict(self, key: ReplicaKey) -> bool:
        """Whether the id is a voter's, but the disk is not."""
        voter = self._by_id.get(key.id)
        return voter is not None and voter.directory != key.directory

    def with_voter(self, voter: Voter) -> "Voters":
        return Voters([*self._by_id.values(), voter])

    def without(self, voter_id: int) -> "Voters":
        return Voters(voter for voter in self._by_id.values() if voter.id != voter_id)


class EntryKind(Enum):
    """Who an entry is for."""

    DATA = "data"
    # The first entry of every leader: once it is committed, everything before it is.
    LEADER_CHANGE = "leader-change"
    VOTERS = "voters"


@dataclass(frozen=True, slots=True)
class Entry:
    """Records of one epoch that belong together; those of the quorum itself have another kind."""

    epoch: int
    records: tuple[bytes, ...]
    kind: EntryKind = EntryKind.DATA

    @property
    def count(self) -> int:
        """How many offsets it takes."""
        return len(self.records)

    @property
    def size_bytes(self) -> int:
        """About what it takes on the wire."""
        payload = sum(map(len, self.records))
        return payload + len(self.records) * _RECORD_OVERHEAD_BYTES + _ENTRY_OVERHEAD_BYTES


class SnapshotId(NamedTuple):
    """What a snapshot stands for: everything below `end_offset`, the last of it of `epoch`."""

    end_offset: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state after `id.end_offset` records, as bytes of `codec.encode_snapshot`."""

    id: SnapshotId
    data: bytes


class EpochEnd(NamedTuple):
    """Where the entries of an epoch end in some log."""

    epoch: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class QuorumState:
    """What a member must not forget: the epoch, whom it voted for in it, and who leads it."""

    epoch: int = 0
    voted_for: ReplicaKey | None = None
    leader_id: int | None = None


@dataclass(frozen=True, slots=True)
class StoredState:
    """Everything that a member finds when it starts."""

    # As of the first start; voter sets in the snapshot or in the log replace it.
    voters: Voters
    quorum: QuorumState = QuorumState()
    snapshot: Snapshot | None = None
    # From the end of the snapshot on.
    entries: tuple[Entry, ...] = ()
