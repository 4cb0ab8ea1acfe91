"""Any order of events leaves a group consistent, and every waiting request is answered."""

from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.coordinator.groups.group import ClassicGroupState
from shoal.lite.coordinator.groups.machine import GroupMachine
from shoal.lite.coordinator.groups.messages import (
    GroupProtocol,
    JoinAnswer,
    JoinRequest,
    LeavingMember,
    MemberIdentity,
    Moment,
    SendAnswer,
    StoreGroup,
    SyncRequest,
)
from shoal.lite.coordinator.groups.records import StoredGroup
from shoal.lite.coordinator.groups.settings import GroupSettings

GROUP = "g"
LONG_MS = 10_000_000
WHO = st.sampled_from("abcd")
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("join"), WHO, st.sampled_from(["x", "y", "xy"])),
        st.tuples(st.just("sync"), WHO, st.just("")),
        st.tuples(st.just("beat"), WHO, st.just("")),
        st.tuples(st.just("commit"), WHO, st.just("")),
        st.tuples(st.just("leave"), WHO, st.just("")),
        st.tuples(st.just("wait"), st.sampled_from(["1", "500", "7000"]), st.just("")),
        st.tuples(st.sampled_from(["written", "failed", "reload"]), st.just(""), st.just("")),
    ),
    max_size=40,
)


class World:
    """Four processes, `c` and `d` with names of their own, and a log that takes its time."""

    def __init__(self, delay_ms: int) -> None:
        self.settings = GroupSettings(initial_rebalance_delay_ms=delay_ms, max_size=3)
        self.numbers = count(1)
        self.now_ms = 0
        self.ids: dict[str, str] = {}
        self.generations: dict[str, int] = {}
        self.waiting: set[int] = set()
        self.asked: dict[int, str] = {}
        self.dropped: set[int] = set()
        self.writes: list[StoreGroup] = []
        self.log: StoredGroup | None = None
        self.seen_generation = 0
        self.groups = self.machine()

    def machine(self) -> GroupMachine:
        return GroupMachine(
            self.settings, new_id=lambda: str(next(self.numbers)), has_offsets=lambda _: False
        )

    @property
    def now(self) -> Moment:
        return Moment(self.now_ms, self.now_ms)

    def play(self, name: str, who: str, detail: str) -> None:
        instance = who if who in {"c", "d"} else None
        member_id = self.ids.get(who, "")
        identity = MemberIdentity(member_id, self.generations.get(who, -1), instance)
        if name == "join":
            protocols = tuple(GroupProtocol(one, who.encode()) for one in detail)
            token = self.ask(who)
            join = JoinRequest(GROUP, member_id, "t", protocols, 6_000, 2_000, instance, who)
            self.groups.join(self.now, join, token)
        elif name == "sync":
            known = self.groups.groups.get(GROUP)
            shares = tuple((one, one.encode()) for one in (known.members if known else ()))
            sync = SyncRequest(GROUP, identity, assignments=shares)
            self.groups.sync(self.now, sync, self.ask(who))
        elif name == "beat":
            self.groups.heartbeat(self.now, GROUP, identity)
        elif name == "leave":
            self.groups.leave(self.now, GROUP, [LeavingMember(member_id, instance)])
        elif name == "commit":
            try:
                self.groups.check_commit(self.now, GROUP, identity, is_transactional=False)
            except ApiError:
                return
        elif name == "wait":
            self.wait(int(who))
        elif name == "reload":
            self.reload()
        elif self.writes:
            self.write(Code.NONE if name == "written" else Code.NOT_COORDINATOR)
        self.settle()

    def ask(self, who: str) -> int:
        token = next(self.numbers)
        self.waiting.add(token)
        self.asked[token] = who
        # A process that sends again has given up on its last request.
        self.dropped |= {one for one in self.waiting if one != token and self.asked[one] == who}
        return token

    def wait(self, time_ms: int) -> None:
        end_ms = self.now_ms + time_ms
        while (deadline_ms := self.groups.next_deadline_ms()) is not None:
            if deadline_ms > end_ms:
                break
            self.now_ms = max(self.now_ms, deadline_ms)
            self.groups.tick(self.now)
            self.settle()
        self.now_ms = end_ms

    def reload(self) -> None:
        """Load the group on another broker; the shell fails the requests that wait here."""
        self.groups = self.machine()
        self.writes.clear()
        self.waiting.clear()
        # A generation whose record was not written may be used again, with other members.
        self.seen_generation = 0 if self.log is None else self.log.generation
        if self.log is not None:
            self.groups.load(self.now, {GROUP: self.log})

    def write(self, code: Code) -> None:
        write = self.writes.pop(0)
        if code == Code.NONE:
            self.log = write.stored
        self.groups.on_stored(self.now, write.number, code)

    def settle(self) -> None:
        deadline_ms = self.groups.next_deadline_ms()
        if deadline_ms is not None and deadline_ms <= self.now_ms:
            self.groups.tick(self.now)
        for action in self.groups.take_actions():
            if isinstance(action, SendAnswer):
                self.check_answer(action)
            else:
                self.writes.append(action)
        self.check()

    def check_answer(self, action: SendAnswer) -> None:
        # Each request is answered once.
        self.waiting.remove(action.token)
        answer = action.answer
        if isinstance(answer, JoinAnswer) and answer.code == Code.NONE:
            who = self.asked[action.token]
            self.ids[who] = answer.member_id
            self.generations[who] = answer.generation
            assert answer.generation >= self.seen_generation
            self.seen_generation = answer.generation

    def check(self) -> None:
        group = self.groups.groups.get(GROUP)
        if group is None:
            return
        if group.state in {
            ClassicGroupState.EMPTY,
            ClassicGroupState.COMPLETING,
            ClassicGroupState.STABLE,
        }:
            assert (group.state is ClassicGroupState.EMPTY) == (not group.members)
        if group.members:
            assert group.leader in group.members
        assert group.unsynced <= group.members.keys()
        assert set(group.static_ids.values()) <= group.members.keys()
        for member_id, member in group.members.items():
            assert member.member_id == member_id
            assert member.join is None or group.state is ClassicGroupState.PREPARING
            assert member.sync is None or group.state is ClassicGroupState.COMPLETING
        if group.state in {ClassicGroupState.COMPLETING, ClassicGroupState.STABLE}:
            assert group.protocol is not None
            assert all(
                group.protocol in {one.name for one in member.protocols}
                for member in group.members.values()
            )
            # The places of static members that are silent are kept beside.
            dynamic = [one for one in group.members.values() if one.instance_id is None]
            assert len(dynamic) <= self.settings.max_size


@given(EVENTS, st.sampled_from([0, 3_000]))
def test_a_group_stays_consistent_and_answers_everybody(
    events: list[tuple[str, str, str]], delay_ms: int
) -> None:
    world = World(delay_ms)
    for event in events:
        world.play(*event)
    # Without heartbeats and with a working log, the group becomes empty in the end.
    for _ in range(10):
        world.wait(LONG_MS)
        while world.writes:
            world.write(Code.NONE)
            world.settle()
    assert world.waiting <= world.dropped
    group = world.groups.groups.get(GROUP)
    assert group is None or (group.state is ClassicGroupState.EMPTY and not group.members)
