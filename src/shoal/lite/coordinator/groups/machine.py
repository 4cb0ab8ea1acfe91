"""The groups of one partition: events and time in, actions out. Pure.

Rules of this file:
- It is Apache Kafka's classic protocol, to the error code. `docs/gaps.md` says where it differs.
- A member is in the group from its JoinGroup on. A generation begins when all members have
  joined again, or the time for that is over; who has not joined by then is out, unless it is
  static: its place is kept until its session ends.
- The assignment of a generation counts once the group is written down. If that fails, all who
  wait are told, and join again.
- After every event the shell takes what there is to do (`take_actions`), and `next_deadline_ms`
  says when to call `tick`.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from shoal.lite.base.codes import Code, Refused
from shoal.lite.coordinator.groups.group import Group, Member, State, unknown_member
from shoal.lite.coordinator.groups.messages import (
    NO_MEMBER_ID,
    Action,
    Answer,
    Identity,
    Join,
    JoinAnswer,
    Leaving,
    Moment,
    Protocol,
    Store,
    Sync,
    SyncAnswer,
)
from shoal.lite.coordinator.groups.records import StoredGroup
from shoal.lite.coordinator.groups.settings import GroupSettings
from shoal.lite.coordinator.groups.timers import Timers

OnStored = Callable[[Moment, Code], None]


class _Deadline(NamedTuple):
    """What ends: a member's session (or that of an id given out), or a phase of the group."""

    group: str
    kind: str
    member_id: str = NO_MEMBER_ID


class _Before(NamedTuple):
    """What a static member was before another process took its place."""

    member_id: str
    protocols: tuple[Protocol, ...]
    leader: str


_JOINING, _SYNCING, _SESSION = "joining", "syncing", "session"


class Groups:
    """All groups of a partition."""

    def __init__(
        self,
        settings: GroupSettings,
        *,
        new_id: Callable[[], str],
        has_offsets: Callable[[str], bool],
    ) -> None:
        """`new_id` makes up what nobody has made up before: chance comes from outside."""
        self.settings = settings
        self.groups: dict[str, Group] = {}
        self._has_offsets = has_offsets
        self._new_id = new_id
        self._timers: Timers[_Deadline] = Timers(self._deadline_of)
        self._actions: list[Action] = []
        self._storing: dict[int, OnStored] = {}
        self._stored_count = 0

    # Beginning

    def load(self, now: Moment, stored: dict[str, StoredGroup]) -> None:
        """Go on with the groups that were written down."""
        for group_id, one in stored.items():
            group = self.groups[group_id] = Group.from_stored(group_id, one)
            for member in group.members.values():
                self._heard_of(now, group, member)
            if len(group.members) > self.settings.max_size:
                self._prepare(now, group)

    # Joining

    def join(self, now: Moment, request: Join, token: Any) -> None:
        """Answered when the next generation begins, or at once."""
        try:
            self._join(now, request, token)
        except Refused as refused:
            self._answer(token, JoinAnswer(refused.code, request.member_id))
            self._discard_if_void(request.group)

    def _join(self, now: Moment, request: Join, token: Any) -> None:
        settings = self.settings
        least_ms, most_ms = settings.min_session_timeout_ms, settings.max_session_timeout_ms
        if not least_ms <= request.session_timeout_ms <= most_ms:
            message = f"{request.session_timeout_ms} ms are not between {least_ms} and {most_ms}"
            raise Refused(Code.INVALID_SESSION_TIMEOUT, message)
        group = self.groups.get(request.group)
        if group is None:
            if request.member_id != NO_MEMBER_ID:
                raise unknown_member(request.member_id)
            group = self.groups[request.group] = Group(request.group, since_wall_ms=now.wall_ms)
        if not self._has_room(group, request.member_id):
            if (late := group.members.get(request.member_id)) is not None:
                # The limit was lowered, and others were faster to come back.
                group.remove(late)
                self._complete_if_all_joined(now, group)
            message = f"the group has {len(group.members)} members, which is the most it may have"
            raise Refused(Code.GROUP_MAX_SIZE_REACHED, message)
        if group.state is State.DEAD:
            raise Refused(Code.COORDINATOR_NOT_AVAILABLE, "the group is being deleted")
        if not group.supports(request.protocol_type, request.protocols):
            message = "the members have no protocol in common"
            raise Refused(Code.INCONSISTENT_GROUP_PROTOCOL, message)
        if request.member_id == NO_MEMBER_ID:
            self._join_anew(now, group, request, token)
        elif request.member_id in group.pending:
            self._add_member(now, group, request, token, member_id=request.member_id)
        else:
            self._join_again(now, group, request, token)

    def _has_room(self, group: Group, member_id: str) -> bool:
        member = group.members.get(member_id)
        match group.state:
            case State.EMPTY | State.DEAD:
                return True
            case State.PREPARING:
                has_joined = member is not None and member.join is not None
                return has_joined or group.waiting_count < self.settings.max_size
            case _:
                return member is not None or len(group.members) < self.settings.max_size

    def _join_anew(self, now: Moment, group: Group, request: Join, token: Any) -> None:
        member_id = f"{request.instance_id or request.client_id}-{self._new_id()}"
        if request.instance_id is not None:
            known = group.static_ids.get(request.instance_id)
            if known is None:
                self._add_member(now, group, request, token, member_id=member_id)
            else:
                self._replace_static(now, group, request, token, member_id=member_id)
        elif request.needs_known_id:
            deadline_ms = now.clock_ms + request.session_timeout_ms
            group.pending[member_id] = deadline_ms
            self._timers.watch(_Deadline(group.group_id, _SESSION, member_id), deadline_ms)
            self._answer(token, JoinAnswer(Code.MEMBER_ID_REQUIRED, member_id))
        else:
            self._add_member(now, group, request, token, member_id=member_id)

    def _join_again(self, now: Moment, group: Group, request: Join, token: Any) -> None:
        identity = Identity(request.member_id, instance_id=request.instance_id)
        member = group.check_member(identity)
        is_unchanged = member.protocols == request.protocols
        if group.state is State.COMPLETING and is_unchanged:
            # The answer to its JoinGroup must have been lost.
            self._tell_generation(group, member, token)
        elif group.state is State.STABLE and is_unchanged and group.leader != member.member_id:
            self._tell_generation(group, member, token)
        elif group.state is State.EMPTY:
            raise unknown_member(request.member_id)
        else:
            self._update(member, request, token)
            self._rebalance(now, group)

    def _add_member(
        self, now: Moment, group: Group, request: Join, token: Any, *, member_id: str
    ) -> None:
        member = Member(
            member_id,
            request.instance_id,
            request.client_id,
            request.client_host,
            request.session_timeout_ms,
            request.rebalance_timeout_ms,
            request.protocols,
            join=token,
            is_new=True,
            deadline_ms=now.clock_ms + self.settings.new_member_join_timeout_ms,
        )
        if not group.members:
            group.protocol_type = request.protocol_type
        if group.state is State.PREPARING and group.is_initial:
            group.has_newcomer = True
        group.add(member)
        self._watch_session(group, member)
        self._rebalance(now, group)

    def _update(self, member: Member, request: Join, token: Any) -> None:
        member.protocols = request.protocols
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.join = token

    def _tell_generation(
        self,
        group: Group,
        member: Member,
        token: Any,
        *,
        leader: str | None = None,
        skip_assignment: bool = False,
    ) -> None:
        leader = leader or group.leader or NO_MEMBER_ID
        leads = leader == member.member_id
        answer = JoinAnswer(
            Code.NONE,
            member.member_id,
            group.generation,
            group.protocol_type,
            group.protocol,
            leader,
            group.joined_members() if leads else (),
            skip_assignment=skip_assignment and leads,
        )
        self._answer(token, answer)

    # Static members that come back

    def _replace_static(
        self, now: Moment, group: Group, request: Join, token: Any, *, member_id: str
    ) -> None:
        """A process takes the place of the one that had its instance id."""
        assert request.instance_id is not None  # noqa: S101 - for the type checker
        member = group.members[group.static_ids[request.instance_id]]
        self._refuse_waits(member, Code.FENCED_INSTANCE_ID)
        before = _Before(member.member_id, member.protocols, group.leader or NO_MEMBER_ID)
        group.rename(member, member_id)
        self._update(member, request, None)
        member.client_id, member.client_host = request.client_id, request.client_host
        self._heard_of(now, group, member)
        if group.state is not State.STABLE or group.select_protocol() != group.protocol:
            member.join = token
            self._rebalance(now, group)
            return

        def replaced(_later: Moment, code: Code) -> None:
            if code != Code.NONE:
                self._take_back(group, member, before)
                self._answer(token, JoinAnswer(code, request.member_id))
            elif request.can_skip_assignment:
                self._tell_generation(group, member, token, skip_assignment=True)
            else:
                # With its own id it would believe to lead, and assign what nobody looks at.
                self._tell_generation(group, member, token, leader=before.leader)

        self._store(group, group.to_store(now.wall_ms), replaced)

    def _take_back(self, group: Group, member: Member, before: _Before) -> None:
        if group.members.get(member.member_id) is member:
            group.rename(member, before.member_id)
            member.protocols = before.protocols
            self._watch_session(group, member)

    # Rebalancing

    def _rebalance(self, now: Moment, group: Group) -> None:
        """Somebody came, went, or wants something else."""
        if group.state is State.PREPARING:
            self._complete_if_all_joined(now, group)
        else:
            self._prepare(now, group)

    def _prepare(self, now: Moment, group: Group) -> None:
        if group.state is State.COMPLETING:
            self._answer_syncs(now, group, Code.REBALANCE_IN_PROGRESS)
        group.sync_deadline_ms = None
        group.unsynced.clear()
        group.is_initial = group.state is State.EMPTY
        group.move_to(State.PREPARING, now.wall_ms)
        if group.is_initial:
            delay_ms = self.settings.initial_rebalance_delay_ms
            group.has_newcomer = False
            group.initial_left_ms = max(0, group.rebalance_timeout_ms - delay_ms)
            self._set_join_deadline(group, now.clock_ms + delay_ms)
        else:
            self._complete_if_all_joined(now, group)

    def _complete_if_all_joined(self, now: Moment, group: Group) -> None:
        if group.is_initial:
            # More may come; it ends by time alone.
            return
        if group.have_all_joined:
            self._complete(now, group)
        elif group.join_deadline_ms is None:
            self._set_join_deadline(group, now.clock_ms + group.rebalance_timeout_ms)

    def _joining_is_over(self, now: Moment, group: Group) -> None:
        if group.is_initial and group.has_newcomer and group.initial_left_ms > 0:
            group.has_newcomer = False
            delay_ms = min(self.settings.initial_rebalance_delay_ms, group.initial_left_ms)
            group.initial_left_ms -= delay_ms
            self._set_join_deadline(group, now.clock_ms + delay_ms)
        else:
            self._complete(now, group)

    def _complete(self, now: Moment, group: Group) -> None:
        """Begin the next generation with those who have joined."""
        group.join_deadline_ms = None
        for member in list(group.members.values()):
            if member.join is None and member.instance_id is None:
                group.remove(member)
        if group.members and not group.elect_leader():
            # Only static members that are silent: their sessions decide.
            self._set_join_deadline(group, now.clock_ms + group.rebalance_timeout_ms)
            return
        group.generation += 1
        group.is_initial = False
        if not group.members:
            group.protocol = None
            group.move_to(State.EMPTY, now.wall_ms)
            self._store(group, group.to_store(now.wall_ms), _take_note)
            return
        group.protocol = group.select_protocol()
        group.move_to(State.COMPLETING, now.wall_ms)
        group.unsynced = set(group.members)
        group.sync_deadline_ms = now.clock_ms + group.rebalance_timeout_ms
        self._timers.watch(_Deadline(group.group_id, _SYNCING), group.sync_deadline_ms)
        for member in group.members.values():
            if member.join is not None:
                self._tell_generation(group, member, member.join)
            member.join = None
            member.is_new = False
            self._heard_of(now, group, member)

    # Assignments

    def sync(self, now: Moment, request: Sync, token: Any) -> None:
        """Answered when the leader's assignment is written down."""
        try:
            self._sync(now, request, token)
        except Refused as refused:
            self._answer(token, SyncAnswer(refused.code))

    def _sync(self, now: Moment, request: Sync, token: Any) -> None:
        group = self._known(request.group, request.member.member_id)
        member = group.check_member(request.member)
        group.check_generation(request.member.generation)
        for wanted, actual in (
            (request.protocol_type, group.protocol_type),
            (request.protocol, group.protocol),
        ):
            if wanted is not None and wanted != actual:
                message = f"the group has {actual!r}, not {wanted!r}"
                raise Refused(Code.INCONSISTENT_GROUP_PROTOCOL, message)
        match group.state:
            case State.COMPLETING:
                member.sync = token
                group.unsynced.discard(member.member_id)
                if group.leader == member.member_id:
                    self._assign(now, group, dict(request.assignments))
            case State.STABLE:
                group.unsynced.discard(member.member_id)
                self._heard_of(now, group, member)
                self._answer_sync(group, token, member.assignment)
            case State.PREPARING:
                raise Refused(Code.REBALANCE_IN_PROGRESS, "the group is rebalancing")
            case _:
                raise unknown_member(member.member_id)

    def _assign(self, now: Moment, group: Group, assignments: dict[str, bytes]) -> None:
        generation = group.generation

        def assigned(later: Moment, code: Code) -> None:
            if group.state is not State.COMPLETING or group.generation != generation:
                # Who waited has been told already.
                return
            if code != Code.NONE:
                self._answer_syncs(later, group, code)
                self._prepare(later, group)
                return
            for member in group.members.values():
                member.assignment = assignments.get(member.member_id, b"")
                if member.sync is not None:
                    self._answer_sync(group, member.sync, member.assignment)
                    member.sync = None
                    self._heard_of(later, group, member)
            group.move_to(State.STABLE, later.wall_ms)

        self._store(group, group.to_store(now.wall_ms, assignments), assigned)

    def _answer_sync(self, group: Group, token: Any, assignment: bytes) -> None:
        answer = SyncAnswer(Code.NONE, group.protocol_type, group.protocol, assignment)
        self._answer(token, answer)

    def _answer_syncs(self, now: Moment, group: Group, code: Code) -> None:
        for member in group.members.values():
            member.assignment = b""
            if member.sync is not None:
                self._answer(member.sync, SyncAnswer(code))
                member.sync = None
                self._heard_of(now, group, member)

    def _syncing_is_over(self, now: Moment, group: Group) -> None:
        group.sync_deadline_ms = None
        late = [group.members[member_id] for member_id in group.unsynced]
        if late and group.state in {State.COMPLETING, State.STABLE}:
            for member in late:
                group.remove(member)
            self._prepare(now, group)

    # Staying and leaving

    def heartbeat(self, now: Moment, group_id: str, identity: Identity) -> Code:
        try:
            group = self._known(group_id, identity.member_id)
            member = group.check_member(identity)
            group.check_generation(identity.generation)
        except Refused as refused:
            return refused.code
        if group.state is State.EMPTY:
            return Code.UNKNOWN_MEMBER_ID
        self._heard_of(now, group, member)
        return Code.REBALANCE_IN_PROGRESS if group.state is State.PREPARING else Code.NONE

    def leave(self, now: Moment, group_id: str, leaving: Iterable[Leaving]) -> list[Code]:
        """What each is told; `Refused` if it concerns all of them."""
        group = self.groups.get(group_id)
        if group is None:
            return [Code.UNKNOWN_MEMBER_ID for _ in leaving]
        if group.state is State.DEAD:
            raise Refused(Code.COORDINATOR_NOT_AVAILABLE, "the group is being deleted")
        codes = [self._leave(group, one) for one in leaving]
        if Code.NONE in codes:
            self._after_leaving(now, group)
        return codes

    def _leave(self, group: Group, leaving: Leaving) -> Code:
        member_id = leaving.member_id
        if member_id in group.pending:
            del group.pending[member_id]
            return Code.NONE
        if member_id == NO_MEMBER_ID and leaving.instance_id is not None:
            # An administrator removes a static member, whatever its id is.
            member_id = group.static_ids.get(leaving.instance_id, NO_MEMBER_ID)
        try:
            member = group.check_member(Identity(member_id, instance_id=leaving.instance_id))
        except Refused as refused:
            return refused.code
        self._remove(group, member)
        return Code.NONE

    def _remove(self, group: Group, member: Member) -> None:
        self._refuse_waits(member, Code.UNKNOWN_MEMBER_ID)
        group.remove(member)

    def _after_leaving(self, now: Moment, group: Group) -> None:
        if group.state in {State.STABLE, State.COMPLETING}:
            self._prepare(now, group)
        elif group.state is State.PREPARING:
            self._complete_if_all_joined(now, group)
        self._discard_if_void(group.group_id)

    def _refuse_waits(self, member: Member, code: Code) -> None:
        if member.join is not None:
            self._answer(member.join, JoinAnswer(code, member.member_id))
        if member.sync is not None:
            self._answer(member.sync, SyncAnswer(code))
        member.join = member.sync = None

    # Groups that have offsets

    def on_offsets_changed(self, now: Moment, group_id: str) -> None:
        """Offsets were committed, maybe by someone who is no member, or removed."""
        if group_id in self.groups:
            self._discard_if_void(group_id)
        elif self._has_offsets(group_id):
            self.groups[group_id] = Group(group_id, since_wall_ms=now.wall_ms)

    def check_commit(
        self, now: Moment, group_id: str, identity: Identity, *, is_transactional: bool
    ) -> None:
        """Raise `Refused` unless someone may commit offsets. A commit is a sign of life.

        Without a generation it is an administrator, or a consumer whose partitions nobody
        manages; these may commit for groups without members.
        """
        group = self.groups.get(group_id)
        has_generation = identity.generation >= 0
        if group is None:
            if has_generation:
                message = f"there is no group {group_id!r}"
                raise Refused(Code.ILLEGAL_GENERATION, message)
            return
        if group.state is State.DEAD:
            raise Refused(Code.COORDINATOR_NOT_AVAILABLE, "the group is being deleted")
        if not has_generation and group.state is State.EMPTY:
            return
        if has_generation or identity.member_id or identity.instance_id is not None:
            member = group.check_member(identity)
            group.check_generation(identity.generation)
            self._heard_of(now, group, member)
        elif not is_transactional:
            raise unknown_member(identity.member_id)
        if group.state is State.COMPLETING and not is_transactional:
            raise Refused(Code.REBALANCE_IN_PROGRESS, "the group is rebalancing")

    # Deleting

    def begin_delete(self, group_id: str) -> None:
        """Let nobody join while a group is being deleted; `Refused` unless it is empty."""
        group = self.groups.get(group_id)
        if group is None:
            return
        if group.state is State.DEAD:
            raise Refused(Code.GROUP_ID_NOT_FOUND, f"there is no group {group_id!r}")
        if group.state is not State.EMPTY:
            raise Refused(Code.NON_EMPTY_GROUP, f"{group_id!r} has members")
        group.state = State.DEAD

    def end_delete(self, group_id: str, *, is_deleted: bool) -> None:
        group = self.groups.get(group_id)
        if group is not None and group.state is State.DEAD:
            if is_deleted:
                del self.groups[group_id]
            else:
                group.state = State.EMPTY

    # Time

    def next_deadline_ms(self) -> int | None:
        """When something happens by time alone; None if nothing will."""
        return self._timers.next_ms()

    def tick(self, now: Moment) -> None:
        """Time has passed."""
        for deadline in self._timers.due(now.clock_ms):
            group = self.groups[deadline.group]
            if deadline.kind == _JOINING:
                group.join_deadline_ms = None
                self._joining_is_over(now, group)
            elif deadline.kind == _SYNCING:
                self._syncing_is_over(now, group)
            else:
                self._session_is_over(now, group, deadline.member_id)

    def _session_is_over(self, now: Moment, group: Group, member_id: str) -> None:
        if member_id in group.pending:
            del group.pending[member_id]
            self._after_leaving(now, group)
            return
        member = group.members[member_id]
        if member.is_silent(now.clock_ms):
            self._remove(group, member)
            self._after_leaving(now, group)

    def _deadline_of(self, deadline: _Deadline) -> int | None:
        group = self.groups.get(deadline.group)
        if group is None:
            return None
        if deadline.kind == _JOINING:
            return group.join_deadline_ms
        if deadline.kind == _SYNCING:
            return group.sync_deadline_ms
        member = group.members.get(deadline.member_id)
        return group.pending.get(deadline.member_id) if member is None else member.deadline_ms

    def _heard_of(self, now: Moment, group: Group, member: Member) -> None:
        member.deadline_ms = now.clock_ms + member.session_timeout_ms
        self._watch_session(group, member)

    def _watch_session(self, group: Group, member: Member) -> None:
        deadline = _Deadline(group.group_id, _SESSION, member.member_id)
        self._timers.watch(deadline, member.deadline_ms)

    def _set_join_deadline(self, group: Group, deadline_ms: int) -> None:
        group.join_deadline_ms = deadline_ms
        self._timers.watch(_Deadline(group.group_id, _JOINING), deadline_ms)

    # What there is to do

    def take_actions(self) -> list[Action]:
        actions, self._actions = self._actions, []
        return actions

    def stored(self, now: Moment, number: int, code: Code) -> None:
        """A group was written down, or why not."""
        self._storing.pop(number)(now, code)

    def _store(self, group: Group, stored: StoredGroup, told: OnStored) -> None:
        self._stored_count += 1
        self._storing[self._stored_count] = told
        self._actions.append(Store(self._stored_count, group.group_id, stored))

    def _answer(self, token: Any, answer: JoinAnswer | SyncAnswer) -> None:
        if token is not None:
            self._actions.append(Answer(token, answer))

    def _known(self, group_id: str, member_id: str) -> Group:
        group = self.groups.get(group_id)
        if group is None:
            raise unknown_member(member_id)
        if group.state is State.DEAD:
            raise Refused(Code.COORDINATOR_NOT_AVAILABLE, "the group is being deleted")
        return group

    def _discard_if_void(self, group_id: str) -> None:
        """Forget a group that nobody has been a member of, if it has no offsets either."""
        group = self.groups.get(group_id)
        if (
            group is not None
            and group.generation == 0
            and group.state is State.EMPTY
            and not group.pending
            and not self._has_offsets(group_id)
        ):
            del self.groups[group_id]


def _take_note(_now: Moment, _code: Code) -> None:
    """That a group is empty is worth a record, and nothing depends on it."""
