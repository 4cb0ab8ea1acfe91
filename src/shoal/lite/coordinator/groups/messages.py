"""What goes into the state machine of groups, and what comes out of it.

`token` stands for whoever waits for an answer; the machine hands it back and never looks at it.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from shoal.lite.base.codes import Code
from shoal.lite.coordinator.groups.records import StoredGroup

NO_GENERATION = -1
NO_MEMBER_ID = ""


class Moment(NamedTuple):
    """Now, twice: time-outs go by a clock that never jumps, records tell the calendar's time."""

    clock_ms: int
    wall_ms: int


class Protocol(NamedTuple):
    """A way to share partitions that a member knows, and what it wants to say with it."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True)
class Join:
    group: str
    member_id: str
    protocol_type: str
    protocols: tuple[Protocol, ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    # Clients since JoinGroup 4 must come back with the id that they are given first (KIP-394).
    needs_known_id: bool = False
    # Clients since JoinGroup 9 can lead without assigning (KIP-814).
    can_skip_assignment: bool = False


class JoinedMember(NamedTuple):
    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinAnswer:
    code: Code
    member_id: str
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = NO_MEMBER_ID
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True)
class Identity:
    """Who speaks: a member of a generation. Without a generation, -1."""

    member_id: str
    generation: int = NO_GENERATION
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class Sync:
    group: str
    member: Identity
    protocol_type: str | None = None
    protocol: str | None = None
    # By member id; only the leader has any.
    assignments: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class SyncAnswer:
    code: Code
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


class Leaving(NamedTuple):
    member_id: str
    instance_id: str | None = None


# What there is to do


@dataclass(frozen=True, slots=True)
class Answer:
    """Someone who waits gets an answer."""

    token: Any
    answer: JoinAnswer | SyncAnswer


@dataclass(frozen=True, slots=True)
class Store:
    """Write a group down, and say by `Groups.stored` with this number how that went."""

    number: int
    group: str
    stored: StoredGroup


Action = Answer | Store
