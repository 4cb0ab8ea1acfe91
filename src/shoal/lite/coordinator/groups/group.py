"""One group of the classic protocol: its members, and what they have in common.

                    a member joins                 all have joined, or time is over
        Empty ──────────────► PreparingRebalance ──────────────► CompletingRebalance
          ▲                      ▲  │    ▲                              │
          └──────────────────────┼──┘    └─────── a member comes, goes ─┤
             nobody is left      │                                      │ the leader's assignment
                                 └───────────────── Stable ◄────────────┘ is written down

Plain data and questions about it; `machine` says what happens.
"""

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from shoal.lite.base.codes import Code, Refused
from shoal.lite.coordinator.groups.messages import NO_MEMBER_ID, Identity, JoinedMember, Protocol
from shoal.lite.coordinator.groups.records import StoredGroup, StoredMember
from shoal.lite.coordinator.groups.subscriptions import subscribed_topics

CONSUMER = "consumer"


class State(StrEnum):
    """By the names that DescribeGroups tells."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    # Being deleted.
    DEAD = "Dead"


@dataclass(slots=True)
class Member:
    """A member; `join` and `sync` are whoever waits for an answer in its name."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[Protocol, ...]
    assignment: bytes = b""
    join: Any = None
    sync: Any = None
    # It has not been told its id, so it cannot send heartbeats yet.
    is_new: bool = False
    deadline_ms: int = 0

    def metadata(self, protocol: str | None) -> bytes:
        """What the member says with a protocol."""
        return next((item.metadata for item in self.protocols if item.name == protocol), b"")

    def is_silent(self, clock_ms: int) -> bool:
        """Whether it should have been heard of. Who waits for us need not say anything."""
        if not self.is_new and (self.join is not None or self.sync is not None):
            return False
        return self.deadline_ms <= clock_ms


@dataclass(slots=True)
class Group:
    """A group. Times are of the clock, but for `since_wall_ms`."""

    group_id: str
    state: State = State.EMPTY
    # Whether nobody was there when this rebalance began: then it waits for more to come.
    is_initial: bool = False
    since_wall_ms: int = 0
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    static_ids: dict[str, str] = field(default_factory=dict)
    # Ids that were given out and not used yet, with the time until they can be.
    pending: dict[str, int] = field(default_factory=dict)
    # Who has joined this generation and has not asked for its assignment.
    unsynced: set[str] = field(default_factory=set)
    has_newcomer: bool = False
    join_deadline_ms: int | None = None
    initial_left_ms: int = 0
    sync_deadline_ms: int | None = None

    # What is so

    @property
    def waiting_count(self) -> int:
        return sum(member.join is not None for member in self.members.values())

    @property
    def have_all_joined(self) -> bool:
        return not self.pending and self.waiting_count == len(self.members)

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def move_to(self, state: State, wall_ms: int) -> None:
        self.state = state
        self.since_wall_ms = wall_ms

    def check_member(self, identity: Identity) -> Member:
        """The member who speaks; `Refused` if there is none or another one took its place."""
        if identity.instance_id is not None:
            known = self.static_ids.get(identity.instance_id)
            if known is not None and known != identity.member_id:
                message = f"{identity.instance_id!r} has another member id now"
                raise Refused(Code.FENCED_INSTANCE_ID, message)
            if known is None:
                raise unknown_member(identity.member_id)
        member = self.members.get(identity.member_id)
        if member is None:
            raise unknown_member(identity.member_id)
        return member

    def check_generation(self, generation: int) -> None:
        if generation != self.generation:
            message = f"the generation is {self.generation}, not {generation}"
            raise Refused(Code.ILLEGAL_GENERATION, message)

    # Protocols

    def supports(self, protocol_type: str, protocols: tuple[Protocol, ...]) -> bool:
        """Whether someone with these protocols could be a member."""
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
        """The one that most members put first among those that all of them know."""
        common = self._common_protocols()
        votes = Counter(
            next(protocol.name for protocol in member.protocols if protocol.name in common)
            for member in self.members.values()
            if common
        )
        return votes.most_common(1)[0][0] if votes else None

    def subscriptions(self) -> set[str] | None:
        """The topics that members of consumer groups want; None if that is not known."""
        if self.protocol_type != CONSUMER:
            return None
        if not self.members or self.protocol is None:
            return set()
        wanted: set[str] = set()
        for member in self.members.values():
            topics = subscribed_topics(member.metadata(self.protocol))
            if topics is None:
                return None
            wanted |= topics
        return wanted

    # Members

    def add(self, member: Member) -> None:
        if self.leader is None:
            self.leader = member.member_id
        self.members[member.member_id] = member
        self.pending.pop(member.member_id, None)
        if member.instance_id is not None:
            self.static_ids[member.instance_id] = member.member_id

    def remove(self, member: Member) -> None:
        self.members.pop(member.member_id, None)
        self.unsynced.discard(member.member_id)
        if member.instance_id is not None:
            self.static_ids.pop(member.instance_id, None)
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), None)

    def rename(self, member: Member, member_id: str) -> None:
        """Give a static member another id, in its place."""
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
        """Let somebody lead who has joined; whether there is anyone."""
        leader = self.members.get(self.leader or NO_MEMBER_ID)
        if leader is not None and leader.join is not None:
            return True
        joined = [member for member in self.members.values() if member.join is not None]
        if joined:
            self.leader = joined[0].member_id
        return bool(joined)

    def joined_members(self) -> tuple[JoinedMember, ...]:
        """What the leader needs to know of all members."""
        return tuple(
            JoinedMember(member.member_id, member.instance_id, member.metadata(self.protocol))
            for member in self.members.values()
        )

    # Writing down

    def to_store(self, wall_ms: int, assignments: dict[str, bytes] | None = None) -> StoredGroup:
        """The group as it is to be written; `assignments` are those that members will have."""
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
    def from_stored(cls, group_id: str, stored: StoredGroup) -> "Group":
        """The group that was written down."""
        group = cls(
            group_id,
            State.STABLE if stored.members else State.EMPTY,
            since_wall_ms=stored.since_ms,
            generation=stored.generation,
            protocol_type=stored.protocol_type or None,
            protocol=stored.protocol,
        )
        for member in stored.members:
            group.add(
                Member(
                    member.member_id,
                    member.instance_id,
                    member.client_id,
                    member.client_host,
                    member.session_timeout_ms,
                    member.rebalance_timeout_ms,
                    (Protocol(stored.protocol or "", member.subscription),),
                    member.assignment,
                )
            )
        group.leader = stored.leader if stored.leader in group.members else group.leader
        return group


def unknown_member(member_id: str) -> Refused:
    return Refused(Code.UNKNOWN_MEMBER_ID, f"{member_id!r} is no member of the group")
