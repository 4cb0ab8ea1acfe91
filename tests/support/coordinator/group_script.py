"""A tiny language for scenes with groups, and their transcripts.

`golden_script` explains what a script is. Members have short names; their member ids are shown as
the name with a running number (a.1). Commands:

    settings NAME=VALUE...     of the machine, e.g. initial_rebalance_delay_ms=3000
    join WHO [protocols=range,other] [type=T] [session=MS] [rebalance=MS] [as=ID] [instance=I]
             [version=V]       V: 3 gets no id first, 8 cannot skip assignments; 9 if not said
    sync WHO [WHO=ASSIGNMENT...]
    beat WHO [generation=G]
    leave WHO...               members leave, in one request
    commit WHO [generation=G], commit nobody
    written, failed            the log says how the oldest write went; by default at once
    hold                       from now on writes wait for `written` or `failed`
    reload                     another broker loads what was written
    delete                     the group is deleted
    wait MS                    time passes
    state
"""

from collections.abc import Callable
from itertools import count

from shoal.lite.base.codes import ApiError, Code
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
from shoal.lite.coordinator.groups.records import StoredGroup, decode_group, encode_group
from shoal.lite.coordinator.groups.settings import GroupSettings

GROUP = "g"
Options = dict[str, str]


class Scene:
    """One group, and members that follow commands."""

    def __init__(self) -> None:
        self._settings = GroupSettings()
        self._numbers = count(1)
        self._groups = self._new_machine()
        self._now_ms = 0
        self._ids: dict[str, str] = {}
        self._generations: dict[str, int] = {}
        self._instances: dict[str, str] = {}
        self._log: StoredGroup | None = None
        self._is_holding = False
        self._writes: list[StoreGroup] = []
        self._output: list[str] = []

    def _new_machine(self) -> GroupMachine:
        return GroupMachine(
            self._settings, new_id=lambda: str(next(self._numbers)), has_offsets=lambda _: False
        )

    @property
    def _now(self) -> Moment:
        return Moment(self._now_ms, 1_000_000 + self._now_ms)

    def play(self, command: str) -> list[str]:
        """Run a command; return what happened."""
        name, *words = command.split()
        options = dict(word.split("=", 1) for word in words if "=" in word)
        plain = [word for word in words if "=" not in word]
        do: Callable[[list[str], Options], None] = getattr(self, f"_do_{name}")
        try:
            do(plain, options)
        except ApiError as error:
            self._output.append(f"refused with {error.code.name}")
        self._settle()
        told, self._output = self._output, []
        return told

    def _do_settings(self, _: list[str], options: Options) -> None:
        self._settings = GroupSettings(**{name: int(value) for name, value in options.items()})
        self._groups.settings = self._settings

    def _do_join(self, words: list[str], options: Options) -> None:
        [who] = words
        version = int(options.get("version", "9"))
        if "instance" in options:
            self._instances[who] = options["instance"]
        names = options.get("protocols", "range").split(",")
        request = JoinRequest(
            GROUP,
            options.get("as", self._ids.get(who, "")),
            options.get("type", "consumer"),
            tuple(GroupProtocol(name, who.encode()) for name in names if name),
            int(options.get("session", "10000")),
            int(options.get("rebalance", "60000")),
            self._instances.get(who),
            client_id=who,
            needs_known_id=version >= 4,
            can_skip_assignment=version >= 9,
        )
        self._groups.join(self._now, request, who)

    def _do_sync(self, words: list[str], options: Options) -> None:
        [who] = words
        given = tuple((self._ids[name], value.encode()) for name, value in options.items())
        request = SyncRequest(GROUP, self._identity(who), "consumer", None, given)
        self._groups.sync(self._now, request, who)

    def _do_beat(self, words: list[str], options: Options) -> None:
        [who] = words
        code = self._groups.heartbeat(self._now, GROUP, self._identity(who, options))
        self._output.append(f"{who} hears {code.name}")

    def _do_leave(self, words: list[str], _: Options) -> None:
        leaving = [LeavingMember(self._ids[who], self._instances.get(who)) for who in words]
        for who, code in zip(words, self._groups.leave(self._now, GROUP, leaving), strict=True):
            self._output.append(f"{who} hears {code.name}")

    def _do_commit(self, words: list[str], options: Options) -> None:
        identity = MemberIdentity("") if words == ["nobody"] else self._identity(words[0], options)
        self._groups.check_commit(self._now, GROUP, identity, is_transactional=False)
        self._output.append("committed")

    def _do_delete(self, _: list[str], __: Options) -> None:
        self._groups.begin_delete(GROUP)
        self._log = None
        self._groups.end_delete(GROUP, is_deleted=True)

    def _do_hold(self, _: list[str], __: Options) -> None:
        self._is_holding = True

    def _do_written(self, _: list[str], __: Options) -> None:
        self._write(self._writes.pop(0), Code.NONE)

    def _do_failed(self, _: list[str], __: Options) -> None:
        self._write(self._writes.pop(0), Code.COORDINATOR_NOT_AVAILABLE)

    def _do_reload(self, _: list[str], __: Options) -> None:
        self._groups = self._new_machine()
        self._writes.clear()
        if self._log is not None:
            stored = decode_group(encode_group(self._log))
            assert stored == self._log
            self._groups.load(self._now, {GROUP: stored})

    def _do_wait(self, words: list[str], _: Options) -> None:
        end_ms = self._now_ms + int(words[0])
        while True:
            self._settle()
            deadline_ms = self._groups.next_deadline_ms()
            if deadline_ms is None or deadline_ms > end_ms:
                break
            self._now_ms = max(self._now_ms, deadline_ms)
            self._groups.tick(self._now)
        self._now_ms = end_ms

    def _do_state(self, _: list[str], __: Options) -> None:
        group = self._groups.groups.get(GROUP)
        if group is None:
            self._output.append("there is no group")
            return
        protocol = f", by {group.protocol}" if group.protocol else ""
        self._output.append(f"{group.state} in generation {group.generation}{protocol}")
        for member_id, member in group.members.items():
            leads = " leads" if group.leader == member_id else ""
            assignment = f" has {member.assignment.decode()}" if member.assignment else ""
            self._output.append(f"  {member_id}{leads}{assignment}")

    # Actions of the machine

    def _identity(self, who: str, options: Options | None = None) -> MemberIdentity:
        generation = (options or {}).get("generation")
        return MemberIdentity(
            self._ids.get(who, who),
            self._generations.get(who, -1) if generation is None else int(generation),
            self._instances.get(who),
        )

    def _settle(self) -> None:
        # What is due is due, though no time has passed.
        deadline_ms = self._groups.next_deadline_ms()
        if deadline_ms is not None and deadline_ms <= self._now_ms:
            self._groups.tick(self._now)
        while actions := self._groups.take_actions():
            for action in actions:
                if isinstance(action, SendAnswer):
                    self._tell(action)
                elif self._is_holding:
                    self._writes.append(action)
                    self._output.append(f"generation {action.stored.generation} is being written")
                else:
                    self._write(action, Code.NONE)

    def _write(self, write: StoreGroup, code: Code) -> None:
        if code == Code.NONE:
            self._log = write.stored
            self._output.append(f"generation {write.stored.generation} is written")
        self._groups.on_stored(self._now, write.number, code)

    def _tell(self, told: SendAnswer) -> None:
        who, answer = told.token, told.answer
        if answer.code not in {Code.NONE, Code.MEMBER_ID_REQUIRED}:
            self._output.append(f"{who} hears {answer.code.name}")
        elif isinstance(answer, JoinAnswer):
            self._ids[who] = answer.member_id
            if answer.code == Code.MEMBER_ID_REQUIRED:
                self._output.append(f"{who} gets the id {answer.member_id}")
                return
            self._generations[who] = answer.generation
            members = " ".join(member.member_id for member in answer.members)
            leads = f", leads {members}" if members else f", led by {answer.leader}"
            skips = ", and assigns nothing" if answer.skip_assignment else ""
            self._output.append(
                f"{who} is {answer.member_id} in generation {answer.generation} "
                f"by {answer.protocol}{leads}{skips}"
            )
        else:
            self._output.append(f"{who} gets {answer.assignment.decode() or 'nothing'}")
