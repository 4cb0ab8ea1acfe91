"""The state machine of the groups of one partition: requests and time in, actions out. Pure.

Rules of this file:
- It is Apache Kafka's classic protocol, to the error code. Where it differs is in
  `docs/reference/differences-from-kafka.md`.
- A member belongs to the group from its JoinGroup on. A generation begins when all members have
  joined again, or at the rebalance time-out. A member that has not joined by then is removed,
  unless it is static: a static member stays until its session expires.
- The assignment of a generation takes effect once the group's record is committed. If that fails,
  all waiting members get the error and join again.
- After every event the shell collects the actions (`take_actions`), and `next_deadline_ms` says
  when to call `tick`.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.coordinator.groups.group import (
    ClassicGroup,
    ClassicGroupMember,
    ClassicGroupState,
    unknown_member,
)
from shoal.lite.coordinator.groups.messages import (
    NO_MEMBER_ID,
    Action,
    GroupProtocol,
    JoinAnswer,
    JoinRequest,
    LeavingMember,
    MemberIdentity,
    Moment,
    SendAnswer,
    StoreGroup,
    SyncAnswer,
    SyncRequest,
)
from shoal.lite.coordinator.groups.records import StoredGroup
from shoal.lite.coordinator.groups.settings import GroupSettings
from shoal.lite.coordinator.groups.timers import Timers

OnStored = Callable[[Moment, Code], None]


class _Deadline(NamedTuple):
    """A deadline: of a member's session, of an unused member id, or of a phase of the group."""

    group: str
    kind: str
    member_id: str = NO_MEMBER_ID


class _PreviousMember(NamedTuple):
    """The state of a static member before another process replaced it."""

    member_id: str
    protocols: tuple[GroupProtocol, ...]
    leader: str


_JOINING, _SYNCING, _SESSION = "joining", "syncing", "session"


class GroupMachine:
    """All groups of one partition of `__consumer_offsets`."""

    def __init__(
        self,
        settings: GroupSettings,
        *,
        new_id: Callable[[], str],
        has_offsets: Callable[[str], bool],
    ) -> None:
        """`new_id` returns unique ids: randomness is passed in."""
        self.settings = settings
        self.groups: dict[str, ClassicGroup] = {}
        self._has_offsets = has_offsets
        self._new_id = new_id
        self._timers: Timers[_Deadline] = Timers(self._deadline_of)
        self._actions: list[Action] = []
        self._storing: dict[int, OnStored] = {}
        self._stored_count = 0

    # Loading

    def load(self, now: Moment, stored: dict[str, StoredGroup]) -> None:
        """Continue with the groups of the log."""
        for group_id, one in stored.items():
            group = self.groups[group_id] = ClassicGroup.from_stored(group_id, one)
            for member in group.members.values():
                self._renew_session(now, group, member)
            if len(group.members) > self.settings.max_size:
                self._prepare(now, group)

    # Joining

    def join(self, now: Moment, request: JoinRequest, token: Any) -> None:
        """Handle JoinGroup; it is answered when the next generation begins, or at once."""
        try:
            self._join(now, request, token)
        except ApiError as error:
            self._answer(token, JoinAnswer(error.code, request.member_id))
            self._discard_if_unused(request.group)

    def _join(self, now: Moment, request: JoinRequest, token: Any) -> None:
        settings = self.settings
        least_ms, most_ms = settings.min_session_timeout_ms, settings.max_session_timeout_ms
        if not least_ms <= request.session_timeout_ms <= most_ms:
            message = (
                f"the session time-out of {request.session_timeout_ms} ms is not in the range "
                f"{least_ms} to {most_ms} ms"
            )
            raise ApiError(Code.INVALID_SESSION_TIMEOUT, message)
        group = self.groups.get(request.group)
        if group is None:
            if request.member_id != NO_MEMBER_ID:
                raise unknown_member(request.member_id)
            group = self.groups[request.group] = ClassicGroup(
                request.group, since_wall_ms=now.wall_ms
            )
        if not self._has_room(group, request.member_id):
            if (late := group.members.get(request.member_id)) is not None:
                # The limit was lowered, and other members rejoined first.
                group.remove(late)
                self._complete_if_all_joined(now, group)
            message = f"the group has {len(group.members)} members, the limit of group.max.size"
            raise ApiError(Code.GROUP_MAX_SIZE_REACHED, message)
        if group.state is ClassicGroupState.DEAD:
            raise ApiError(
                Code.COORDINATOR_NOT_AVAILABLE, f"group {group.group_id!r} is being deleted"
            )
        if not group.supports(request.protocol_type, request.protocols):
            message = "the members of the group have no common protocol"
            raise ApiError(Code.INCONSISTENT_GROUP_PROTOCOL, message)
        if request.member_id == NO_MEMBER_ID:
            self._join_new(now, group, request, token)
        elif request.member_id in group.pending:
            self._add_member(now, group, request, token, member_id=request.member_id)
        else:
            self._join_again(now, group, request, token)

    def _has_room(self, group: ClassicGroup, member_id: str) -> bool:
        member = group.members.get(member_id)
        match group.state:
            case ClassicGroupState.EMPTY | ClassicGroupState.DEAD:
                return True
            case ClassicGroupState.PREPARING:
                has_joined = member is not None and member.join is not None
                return has_joined or group.waiting_count < self.settings.max_size
            case _:
                return member is not None or len(group.members) < self.settings.max_size

    def _join_new(self, now: Moment, group: ClassicGroup, request: JoinRequest, token: Any) -> None:
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

    def _join_again(
        self, now: Moment, group: ClassicGroup, request: JoinRequest, token: Any
    ) -> None:
        identity = MemberIdentity(request.member_id, instance_id=request.instance_id)
        member = group.check_member(identity)
        is_unchanged = member.protocols == request.protocols
        if group.state is ClassicGroupState.COMPLETING and is_unchanged:
            # A retry: the answer to its JoinGroup was lost.
            self._answer_join(group, member, token)
        elif (
            group.state is ClassicGroupState.STABLE
            and is_unchanged
            and group.leader != member.member_id
        ):
            self._answer_join(group, member, token)
        elif group.state is ClassicGroupState.EMPTY:
            raise unknown_member(request.member_id)
        else:
            self._update(member, request, token)
            self._rebalance(now, group)

    def _add_member(
        self, now: Moment, group: ClassicGroup, request: JoinRequest, token: Any, *, member_id: str
    ) -> None:
        member = ClassicGroupMember(
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
        if group.state is ClassicGroupState.PREPARING and group.is_initial:
            group.has_newcomer = True
        group.add(member)
        self._watch_session(group, member)
        self._rebalance(now, group)

    def _update(self, member: ClassicGroupMember, request: JoinRequest, token: Any) -> None:
        member.protocols = request.protocols
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.join = token

    def _answer_join(
        self,
        group: ClassicGroup,
        member: ClassicGroupMember,
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
            group.members_for_leader() if leads else (),
            skip_assignment=skip_assignment and leads,
        )
        self._answer(token, answer)

    # Static members that rejoin

    def _replace_static(
        self, now: Moment, group: ClassicGroup, request: JoinRequest, token: Any, *, member_id: str
    ) -> None:
        """Replace a static member by a new process with the same instance id."""
        assert request.instance_id is not None  # noqa: S101 - for the type checker
        member = group.members[group.static_ids[request.instance_id]]
        self._refuse_waits(member, Code.FENCED_INSTANCE_ID)
        previous = _PreviousMember(member.member_id, member.protocols, group.leader or NO_MEMBER_ID)
        group.rename(member, member_id)
        self._update(member, request, None)
        member.client_id, member.client_host = request.client_id, request.client_host
        self._renew_session(now, group, member)
        if group.state is not ClassicGroupState.STABLE or group.select_protocol() != group.protocol:
            member.join = token
            self._rebalance(now, group)
            return

        def on_replaced(_later: Moment, code: Code) -> None:
            if code != Code.NONE:
                self._undo_replacement(group, member, previous)
                self._answer(token, JoinAnswer(code, request.member_id))
            elif request.can_skip_assignment:
                self._answer_join(group, member, token, skip_assignment=True)
            else:
                # With its own id as leader it would compute an assignment that is not used.
                self._answer_join(group, member, token, leader=previous.leader)

        self._store(group, group.to_store(now.wall_ms), on_replaced)

    def _undo_replacement(
        self, group: ClassicGroup, member: ClassicGroupMember, previous: _PreviousMember
    ) -> None:
        if group.members.get(member.member_id) is member:
            group.rename(member, previous.member_id)
            member.protocols = previous.protocols
            self._watch_session(group, member)

    # Rebalancing

    def _rebalance(self, now: Moment, group: ClassicGroup) -> None:
        """Rebalance because a member joined, left or changed."""
        if group.state is ClassicGroupState.PREPARING:
            self._complete_if_all_joined(now, group)
        else:
            self._prepare(now, group)

    def _prepare(self, now: Moment, group: ClassicGroup) -> None:
        if group.state is ClassicGroupState.COMPLETING:
            self._answer_syncs(now, group, Code.REBALANCE_IN_PROGRESS)
        group.sync_deadline_ms = None
        group.unsynced.clear()
        group.is_initial = group.state is ClassicGroupState.EMPTY
        group.move_to(ClassicGroupState.PREPARING, now.wall_ms)
        if group.is_initial:
            delay_ms = self.settings.initial_rebalance_delay_ms
            group.has_newcomer = False
            group.initial_left_ms = max(0, group.rebalance_timeout_ms - delay_ms)
            self._set_join_deadline(group, now.clock_ms + delay_ms)
        else:
            self._complete_if_all_joined(now, group)

    def _complete_if_all_joined(self, now: Moment, group: ClassicGroup) -> None:
        if group.is_initial:
            # More members may join; only the deadline ends this phase.
            return
        if group.have_all_joined:
            self._complete(now, group)
        elif group.join_deadline_ms is None:
            self._set_join_deadline(group, now.clock_ms + group.rebalance_timeout_ms)

    def _on_join_deadline(self, now: Moment, group: ClassicGroup) -> None:
        if group.is_initial and group.has_newcomer and group.initial_left_ms > 0:
            group.has_newcomer = False
            delay_ms = min(self.settings.initial_rebalance_delay_ms, group.initial_left_ms)
            group.initial_left_ms -= delay_ms
            self._set_join_deadline(group, now.clock_ms + delay_ms)
        else:
            self._complete(now, group)

    def _complete(self, now: Moment, group: ClassicGroup) -> None:
        """Begin the next generation with the members that have joined."""
        group.join_deadline_ms = None
        for member in list(group.members.values()):
            if member.join is None and member.instance_id is None:
                group.remove(member)
        if group.members and not group.elect_leader():
            # Only static members that have not rejoined: wait for them or their sessions' end.
            self._set_join_deadline(group, now.clock_ms + group.rebalance_timeout_ms)
            return
        group.generation += 1
        group.is_initial = False
        if not group.members:
            group.protocol = None
            group.move_to(ClassicGroupState.EMPTY, now.wall_ms)
            self._store(group, group.to_store(now.wall_ms), _ignore_result)
            return
        group.protocol = group.select_protocol()
        group.move_to(ClassicGroupState.COMPLETING, now.wall_ms)
        group.unsynced = set(group.members)
        group.sync_deadline_ms = now.clock_ms + group.rebalance_timeout_ms
        self._timers.watch(_Deadline(group.group_id, _SYNCING), group.sync_deadline_ms)
        for member in group.members.values():
            if member.join is not None:
                self._answer_join(group, member, member.join)
            member.join = None
            member.is_new = False
            self._renew_session(now, group, member)

    # Assignments

    def sync(self, now: Moment, request: SyncRequest, token: Any) -> None:
        """Handle SyncGroup; it is answered when the leader's assignment is committed."""
        try:
            self._sync(now, request, token)
        except ApiError as error:
            self._answer(token, SyncAnswer(error.code))

    def _sync(self, now: Moment, request: SyncRequest, token: Any) -> None:
        group = self._get_group(request.group, request.member.member_id)
        member = group.check_member(request.member)
        group.check_generation(request.member.generation)
        for wanted, actual in (
            (request.protocol_type, group.protocol_type),
            (request.protocol, group.protocol),
        ):
            if wanted is not None and wanted != actual:
                message = f"the group uses {actual!r}, not {wanted!r}"
                raise ApiError(Code.INCONSISTENT_GROUP_PROTOCOL, message)
        match group.state:
            case ClassicGroupState.COMPLETING:
                member.sync = token
                group.unsynced.discard(member.member_id)
                if group.leader == member.member_id:
                    self._assign(now, group, dict(request.assignments))
            case ClassicGroupState.STABLE:
                group.unsynced.discard(member.member_id)
                self._renew_session(now, group, member)
                self._answer_sync(group, token, member.assignment)
            case ClassicGroupState.PREPARING:
                raise ApiError(Code.REBALANCE_IN_PROGRESS, "the group is rebalancing")
            case _:
                raise unknown_member(member.member_id)

    def _assign(self, now: Moment, group: ClassicGroup, assignments: dict[str, bytes]) -> None:
        generation = group.generation

        def on_assigned(later: Moment, code: Code) -> None:
            if group.state is not ClassicGroupState.COMPLETING or group.generation != generation:
                # All waiting members are answered already.
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
                    self._renew_session(later, group, member)
            group.move_to(ClassicGroupState.STABLE, later.wall_ms)

        self._store(group, group.to_store(now.wall_ms, assignments), on_assigned)

    def _answer_sync(self, group: ClassicGroup, token: Any, assignment: bytes) -> None:
        answer = SyncAnswer(Code.NONE, group.protocol_type, group.protocol, assignment)
        self._answer(token, answer)

    def _answer_syncs(self, now: Moment, group: ClassicGroup, code: Code) -> None:
        for member in group.members.values():
            member.assignment = b""
            if member.sync is not None:
                self._answer(member.sync, SyncAnswer(code))
                member.sync = None
                self._renew_session(now, group, member)

    def _on_sync_deadline(self, now: Moment, group: ClassicGroup) -> None:
        group.sync_deadline_ms = None
        late = [group.members[member_id] for member_id in group.unsynced]
        if late and group.state in {ClassicGroupState.COMPLETING, ClassicGroupState.STABLE}:
            for member in late:
                group.remove(member)
            self._prepare(now, group)

    # Heartbeats and leaving

    def heartbeat(self, now: Moment, group_id: str, identity: MemberIdentity) -> Code:
        try:
            group = self._get_group(group_id, identity.member_id)
            member = group.check_member(identity)
            group.check_generation(identity.generation)
        except ApiError as error:
            return error.code
        if group.state is ClassicGroupState.EMPTY:
            return Code.UNKNOWN_MEMBER_ID
        self._renew_session(now, group, member)
        return (
            Code.REBALANCE_IN_PROGRESS if group.state is ClassicGroupState.PREPARING else Code.NONE
        )

    def leave(self, now: Moment, group_id: str, leaving: Iterable[LeavingMember]) -> list[Code]:
        """Remove members; return a code for each. `ApiError` if the request as a whole fails."""
        group = self.groups.get(group_id)
        if group is None:
            return [Code.UNKNOWN_MEMBER_ID for _ in leaving]
        if group.state is ClassicGroupState.DEAD:
            raise ApiError(
                Code.COORDINATOR_NOT_AVAILABLE, f"group {group.group_id!r} is being deleted"
            )
        codes = [self._leave(group, one) for one in leaving]
        if Code.NONE in codes:
            self._after_leaving(now, group)
        return codes

    def _leave(self, group: ClassicGroup, leaving: LeavingMember) -> Code:
        member_id = leaving.member_id
        if member_id in group.pending:
            del group.pending[member_id]
            return Code.NONE
        if member_id == NO_MEMBER_ID and leaving.instance_id is not None:
            # An administrator removes a static member by its instance id alone.
            member_id = group.static_ids.get(leaving.instance_id, NO_MEMBER_ID)
        try:
            member = group.check_member(MemberIdentity(member_id, instance_id=leaving.instance_id))
        except ApiError as error:
            return error.code
        self._remove(group, member)
        return Code.NONE

    def _remove(self, group: ClassicGroup, member: ClassicGroupMember) -> None:
        self._refuse_waits(member, Code.UNKNOWN_MEMBER_ID)
        group.remove(member)

    def _after_leaving(self, now: Moment, group: ClassicGroup) -> None:
        if group.state in {ClassicGroupState.STABLE, ClassicGroupState.COMPLETING}:
            self._prepare(now, group)
        elif group.state is ClassicGroupState.PREPARING:
            self._complete_if_all_joined(now, group)
        self._discard_if_unused(group.group_id)

    def _refuse_waits(self, member: ClassicGroupMember, code: Code) -> None:
        if member.join is not None:
            self._answer(member.join, JoinAnswer(code, member.member_id))
        if member.sync is not None:
            self._answer(member.sync, SyncAnswer(code))
        member.join = member.sync = None

    # Groups that have offsets

    def on_offsets_changed(self, now: Moment, group_id: str) -> None:
        """Handle committed or removed offsets; groups without members may have offsets too."""
        if group_id in self.groups:
            self._discard_if_unused(group_id)
        elif self._has_offsets(group_id):
            self.groups[group_id] = ClassicGroup(group_id, since_wall_ms=now.wall_ms)

    def check_commit(
        self, now: Moment, group_id: str, identity: MemberIdentity, *, is_transactional: bool
    ) -> None:
        """Raise `ApiError` if a commit of offsets is not allowed. A commit renews the session.

        A commit without a generation is from an administrator, or from a consumer without group
        management; these may commit for groups without members.
        """
        group = self.groups.get(group_id)
        has_generation = identity.generation >= 0
        if group is None:
            if has_generation:
                message = f"the group {group_id!r} does not exist"
                raise ApiError(Code.ILLEGAL_GENERATION, message)
            return
        if group.state is ClassicGroupState.DEAD:
            raise ApiError(
                Code.COORDINATOR_NOT_AVAILABLE, f"group {group.group_id!r} is being deleted"
            )
        if not has_generation and group.state is ClassicGroupState.EMPTY:
            return
        if has_generation or identity.member_id or identity.instance_id is not None:
            member = group.check_member(identity)
            group.check_generation(identity.generation)
            self._renew_session(now, group, member)
        elif not is_transactional:
            raise unknown_member(identity.member_id)
        if group.state is ClassicGroupState.COMPLETING and not is_transactional:
            raise ApiError(Code.REBALANCE_IN_PROGRESS, "the group is rebalancing")

    # Deleting

    def begin_delete(self, group_id: str) -> None:
        """Mark a group as dead, so that no member joins; `ApiError` if it is not empty."""
        group = self.groups.get(group_id)
        if group is None:
            return
        if group.state is ClassicGroupState.DEAD:
            raise ApiError(Code.GROUP_ID_NOT_FOUND, f"the group {group_id!r} does not exist")
        if group.state is not ClassicGroupState.EMPTY:
            raise ApiError(Code.NON_EMPTY_GROUP, f"the group {group_id!r} has members")
        group.state = ClassicGroupState.DEAD

    def end_delete(self, group_id: str, *, is_deleted: bool) -> None:
        group = self.groups.get(group_id)
        if group is not None and group.state is ClassicGroupState.DEAD:
            if is_deleted:
                del self.groups[group_id]
            else:
                group.state = ClassicGroupState.EMPTY

    # Time

    def next_deadline_ms(self) -> int | None:
        """Return when `tick` must be called next; None if no deadline is set."""
        return self._timers.next_ms()

    def tick(self, now: Moment) -> None:
        """Handle all deadlines that have passed."""
        for deadline in self._timers.due(now.clock_ms):
            group = self.groups[deadline.group]
            if deadline.kind == _JOINING:
                group.join_deadline_ms = None
                self._on_join_deadline(now, group)
            elif deadline.kind == _SYNCING:
                self._on_sync_deadline(now, group)
            else:
                self._on_session_deadline(now, group, deadline.member_id)

    def _on_session_deadline(self, now: Moment, group: ClassicGroup, member_id: str) -> None:
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

    def _renew_session(self, now: Moment, group: ClassicGroup, member: ClassicGroupMember) -> None:
        member.deadline_ms = now.clock_ms + member.session_timeout_ms
        self._watch_session(group, member)

    def _watch_session(self, group: ClassicGroup, member: ClassicGroupMember) -> None:
        deadline = _Deadline(group.group_id, _SESSION, member.member_id)
        self._timers.watch(deadline, member.deadline_ms)

    def _set_join_deadline(self, group: ClassicGroup, deadline_ms: int) -> None:
        group.join_deadline_ms = deadline_ms
        self._timers.watch(_Deadline(group.group_id, _JOINING), deadline_ms)

    # Actions

    def take_actions(self) -> list[Action]:
        actions, self._actions = self._actions, []
        return actions

    def on_stored(self, now: Moment, number: int, code: Code) -> None:
        """Handle the result of writing a group's record."""
        self._storing.pop(number)(now, code)

    def _store(self, group: ClassicGroup, stored: StoredGroup, callback: OnStored) -> None:
        self._stored_count += 1
        self._storing[self._stored_count] = callback
        self._actions.append(StoreGroup(self._stored_count, group.group_id, stored))

    def _answer(self, token: Any, answer: JoinAnswer | SyncAnswer) -> None:
        if token is not None:
            self._actions.append(SendAnswer(token, answer))

    def _get_group(self, group_id: str, member_id: str) -> ClassicGroup:
        group = self.groups.get(group_id)
        if group is None:
            raise unknown_member(member_id)
        if group.state is ClassicGroupState.DEAD:
            raise ApiError(
                Code.COORDINATOR_NOT_AVAILABLE, f"group {group.group_id!r} is being deleted"
            )
        return group

    def _discard_if_unused(self, group_id: str) -> None:
        """Remove a group that never had members and has no offsets."""
        group = self.groups.get(group_id)
        if (
            group is not None
            and group.generation == 0
            and group.state is ClassicGroupState.EMPTY
            and not group.pending
            and not self._has_offsets(group_id)
        ):
            del self.groups[group_id]


def _ignore_result(_now: Moment, _code: Code) -> None:
    """Ignore the result of writing an empty group: nothing depends on it."""
