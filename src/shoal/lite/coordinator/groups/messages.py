"""Requests to the state machine of groups, and the actions that it returns.

`token` identifies a request that waits for an answer; the machine returns it and never uses it.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from shoal.lite.base.codes import Code
from shoal.lite.coordinator.groups.records import StoredGroup

NO_GENERATION = -1
NO_MEMBER_ID = ""


class Moment(NamedTuple):
    """The current time of two clocks: monotonic for time-outs, wall clock for records."""

    clock_ms: int
    wall_ms: int


class GroupProtocol(NamedTuple):
    """An assignment protocol that a member supports, and its metadata for it."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinRequest:
    group: str
    member_id: str
    protocol_type: str
    protocols: tuple[GroupProtocol, ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    # Clients since JoinGroup 4 must join again with the member id that they get first (KIP-394).
    needs_known_id: bool = False
    # Clients since JoinGroup 9 can be leader without computing an assignment (KIP-814).
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
class MemberIdentity:
    """The member and generation of a request; the generation is -1 if it has none."""

    member_id: str
    generation: int = NO_GENERATION
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class SyncRequest:
    group: str
    member: MemberIdentity
    protocol_type: str | None = None
    protocol: str | None = None
    # By member id; only the leader sends assignments.
    assignments: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class SyncAnswer:
    code: Code
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


class LeavingMember(NamedTuple):
    member_id: str
    instance_id: str | None = None


# Actions


@dataclass(frozen=True, slots=True)
class SendAnswer:
    """Answer the waiting request of a token."""

    token: Any
    answer: JoinAnswer | SyncAnswer


@dataclass(frozen=True, slots=True)
class StoreGroup:
    """Write the record of a group; report the result to `GroupMachine.on_stored`."""

    number: int
    group: str
    stored: StoredGroup


Action = SendAnswer | StoreGroup
