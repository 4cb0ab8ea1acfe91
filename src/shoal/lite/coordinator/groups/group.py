"""One group of the classic protocol: its members and their common state.

                    a member joins                 all have joined, or a time-out
        Empty ──────────────► PreparingRebalance ──────────────► CompletingRebalance
          ▲                      ▲  │    ▲                              │
          └──────────────────────┼──┘    └───── a member joins, leaves ─┤
             no member is left   │                                      │ the leader's assignment
                                 └───────────────── Stable ◄────────────┘ is committed

Data and queries only; `machine` changes it.
"""

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.coordinator.groups.messages import (
    NO_MEMBER_ID,
    GroupProtocol,
    JoinedMember,
    MemberIdentity,
)
from shoal.lite.coordinator.groups.records import StoredGroup, StoredMember
from shoal.lite.coordinator.groups.subscriptions import decode_subscribed_topics

CONSUMER = "consumer"


class ClassicGroupState(StrEnum):
    """The states of a group, by their names in DescribeGroups."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    # Being deleted.
    DEAD = "Dead"


@dataclass(slots=True)
class ClassicGroupMember:
    """A member; `join` and `sync` are the tokens of its requests that wait for an answer."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[GroupProtocol, ...]
    assignment: bytes = b""
    join: Any = None
    sync: Any = None
    # It does not know its id yet, so it cannot send heartbeats.
    is_new: bool = False
    deadline_ms: int = 0

    def metadata(self, protocol: str | None) -> bytes:
        """Return the member's metadata for a protocol."""
        return next((item.metadata for item in self.protocols if item.name == protocol), b"")

    def is_silent(self, clock_ms: int) -> bool:
        """Return whether its session has expired. A member with a waiting request need not send."""
        if not self.is_new and (self.join is not None or self.sync is not None):
            return False
        return self.deadline_ms <= clock_ms


@dataclass(slots=True)
class ClassicGroup:
    """A group. Times are of the monotonic clock, except `since_wall_ms`."""

    group_id: str
    state: ClassicGroupState = ClassicGroupState.EMPTY
    # Whether the group was empty when this rebalance began: then it waits for more members.
    is_initial: bool = False
    since_wall_ms: int = 0
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    members: dict[str, ClassicGroupMember] = field(default_factory=dict)
    static_ids: dict[str, str] = field(default_factory=dict)
    # Member ids that were assigned and not used yet, with their deadlines.
    pending: dict[str, int] = field(default_factory=dict)
    # Members of this generation that have not sent SyncGroup.
    unsynced: set[str] = field(default_factory=set)
    has_newcomer: bool = False
    join_deadline_ms: int | None = None
    initial_left_ms: int = 0
    sync_deadline_ms: int | None = None

    # State

    @property
    def waiting_count(self) -> int:
        return sum(member.join is not None for member in self.members.values())

    @property
    def have_all_joined(self) -> bool:
        return not self.pending and self.waiting_count == len(self.members)

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def move_to(self, state: ClassicGroupState, wall_ms: int) -> None:
        self.state = state
        self.since_wall_ms = wall_ms

    def check_member(self, identity: MemberIdentity) -> ClassicGroupMember:
        """Return the member of a request; `ApiError` if it is unknown or fenced."""
        if identity.instance_id is not None:
            known = self.static_ids.get(identity.instance_id)
            if known is not None and known != identity.member_id:
                message = (
                    f"the instance id {identity.instance_id!r} now belongs to another member id"
                )
                raise ApiError(Code.FENCED_INSTANCE_ID, message)
            if known is None:
                raise unknown_member(identity.member_id)
        member = self.members.get(identity.member_id)
        if member is None:
            raise unknown_member(identity.member_id)
        return member

    def check_generation(self, generation: int) -> None:
        if generation != self.generation:
            message = f"the group is in generation {self.generation}, not {generation}"
            raise ApiError(Code.ILLEGAL_GENERATION, message)

    # Protocols

    def supports(self, protocol_type: str, protocols: tuple[GroupProtocol, ...]) -> bool:
        """Return whether a member with these protocols can join."""
        if not protocol_type or not protocols:
            return False
        if not self.members:
            return True
        names = {protocol.name for protocol in protocols}
        return protocol_type == self.protocol_type and bool(names & self._common_protocols())

    def _common_protocols(self) -> set[str]:
        counts = Counter(
            name
            for member in self.members.values()
            for name in {protocol.name for protocol in member.protocols}
        )
        return {name for name, number in counts.items() if number == len(self.members)}

    def select_protocol(self) -> str | None:
        """Return the protocol that most members prefer among those that all support."""
        common = self._common_protocols()
        votes = Counter(
            next(protocol.name for protocol in member.protocols if protocol.name in common)
            for member in self.members.values()
            if common
        )
        return votes.most_common(1)[0][0] if votes else None

    def subscriptions(self) -> set[str] | None:
        """Return the topics to which the members subscribe; None if they are unknown."""
        if self.protocol_type != CONSUMER:
            return None
        if not self.members:
            return set()
        if self.protocol is None:
            return None
        wanted: set[str] = set()
        for member in self.members.values():
            topics = decode_subscribed_topics(member.metadata(self.protocol))
            if topics is None:
                return None
            wanted |= topics
        return wanted

    # Members

    def add(self, member: ClassicGroupMember) -> None:
        if self.leader is None:
            self.leader = member.member_id
        self.members[member.member_id] = member
        self.pending.pop(member.member_id, None)
        if member.instance_id is not None:
            self.static_ids[member.instance_id] = member.member_id

    def remove(self, member: ClassicGroupMember) -> None:
        self.members.pop(member.member_id, None)
        self.unsynced.discard(member.member_id)
        if member.instance_id is not None:
            self.static_ids.pop(member.instance_id, None)
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), None)

    def rename(self, member: ClassicGroupMember, member_id: str) -> None:
        """Give a static member a new member id; it keeps its position."""
        renamed = {
            (member_id if known == member.member_id else known): one
            for known, one in self.members.items()
        }
        self.members = renamed
        if self.leader == member.member_id:
            self.leader = member_id
        if member.member_id in self.unsynced:
            self.unsynced.remove(member.member_id)
            self.unsynced.add(member_id)
        member.member_id = member_id
        if member.instance_id is not None:
            self.static_ids[member.instance_id] = member_id

    def elect_leader(self) -> bool:
        """Choose a leader among the members that have joined; return whether there is one."""
        leader = self.members.get(self.leader or NO_MEMBER_ID)
        if leader is not None and leader.join is not None:
            return True
        joined = [member for member in self.members.values() if member.join is not None]
        if joined:
            self.leader = joined[0].member_id
        return bool(joined)

    def members_for_leader(self) -> tuple[JoinedMember, ...]:
        """Return the members with their metadata; the group leader needs them."""
        return tuple(
            JoinedMember(member.member_id, member.instance_id, member.metadata(self.protocol))
            for member in self.members.values()
        )

    # Records

    def to_store(self, wall_ms: int, assignments: dict[str, bytes] | None = None) -> StoredGroup:
        """Return the record of the group; `assignments` replace the current ones of its members."""
        return StoredGroup(
            self.protocol_type or "",
            self.generation,
            self.protocol,
            self.leader,
            wall_ms,
            tuple(
                StoredMember(
                    member.member_id,
                    member.instance_id,
                    member.client_id,
                    member.client_host,
                    member.rebalance_timeout_ms,
                    member.session_timeout_ms,
                    member.metadata(self.protocol),
                    member.assignment
                    if assignments is None
                    else assignments.get(member.member_id, b""),
                )
                for member in self.members.values()
            ),
        )

    @classmethod
    def from_stored(cls, group_id: str, stored: StoredGroup) -> "ClassicGroup":
        """Restore a group from its record."""
        group = cls(
            group_id,
            ClassicGroupState.STABLE if stored.members else ClassicGroupState.EMPTY,
            since_wall_ms=stored.since_ms,
            generation=stored.generation,
            protocol_type=stored.protocol_type or None,
            protocol=stored.protocol,
        )
        for member in stored.members:
            group.add(
                ClassicGroupMember(
                    member.member_id,
                    member.instance_id,
                    member.client_id,
                    member.client_host,
                    member.session_timeout_ms,
                    member.rebalance_timeout_ms,
                    (GroupProtocol(stored.protocol or "", member.subscription),),
                    member.assignment,
                )
            )
        group.leader = stored.leader if stored.leader in group.members else group.leader
        return group


def unknown_member(member_id: str) -> ApiError:
    return ApiError(Code.UNKNOWN_MEMBER_ID, f"{member_id!r} is not a member of the group")
