"""Decides which workers run, have ended or are restarted: a pure state machine.

Rules:
- Events and the time go in; actions come out in the order in which they must be performed. A line
  is appended to the commit log before the lease or acknowledgement that depends on it is sent.
- A worker has one lease at a time: (worker, epoch), held by one instance. A newer epoch fences the
  older; another instance of the same epoch is refused; after `ended` nothing counts.
- A worker ends once per epoch: it reports its end, or it is `lost` when its process ends, it stays
  disconnected or it is silent for too long. Then its restart policy applies.
- Drained lanes are announced to all workers once every group has drained them, and to workers that
  connect later.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from shoal.model.errors import UsageError
from shoal.net.control_port import ControlError, Json
from shoal.net.messages import (
    Ack,
    Commit,
    DriverMessage,
    Finish,
    Hello,
    LanesDrained,
    Lease,
    LeaseRefused,
    Probe,
    ProbeReply,
    ProgressReport,
    RoleUpdate,
    StartAt,
    Stop,
    WorkerMessage,
)
from shoal.runtime.processes import ProcessIdentity
from shoal.workers.clocks import ClockBounds
from shoal.workers.commits import check_line
from shoal.workers.specs import WorkerSpec

PROBE_EVERY_S: Final = 1.0
CLOCK_LINE_EVERY_S: Final = 10.0


class WorkerPhase(StrEnum):
    STARTING = "starting"  # placed, not connected yet
    RUNNING = "running"  # has its lease
    RESTARTING = "restarting"  # ended, and will be placed again
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class WorkerTimeouts:
    """How long the supervisor waits, in seconds."""

    # From placement to the hello message. Imports can take a minute on a busy machine; a Spark
    # cluster may first have to find a slot.
    start_s: float = 150.0
    # Without a connection. Longer than the 10 s after which the worker itself stops.
    detached_s: float = 15.0
    # Connected, but without a message: it hangs or is paused.
    silence_s: float = 30.0
    # From the stop message until it is killed. Sealing takes a moment.
    stop_s: float = 15.0
    # From its end until its process is killed.
    exit_s: float = 5.0


@dataclass(frozen=True, slots=True)
class StartWorker:
    worker: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Append:
    """Append a line to the commit log, durably, before the following actions."""

    line: Json


@dataclass(frozen=True, slots=True)
class Send:
    connection: int
    message: DriverMessage


@dataclass(frozen=True, slots=True)
class Close:
    connection: int


@dataclass(frozen=True, slots=True)
class Interrupt:
    """Ask a worker to stop without the control channel, such as by SIGTERM."""

    worker: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Kill:
    worker: str
    epoch: int


Action = StartWorker | Append | Send | Close | Interrupt | Kill


@dataclass(slots=True)
class WorkerState:
    """The state of one worker."""

    spec: WorkerSpec
    epoch: int
    phase: WorkerPhase = WorkerPhase.STARTING
    restarts: int = 0
    instance: str | None = None
    process: ProcessIdentity | None = None  # if it runs on the driver's machine
    connection: int | None = None
    committed: int = 0  # the number of its last commit in this epoch
    reason: str = ""
    error: str = ""
    progress: Json = field(default_factory=dict)
    role_update: Json | None = None  # the newest one; its next instance gets it too
    clock: ClockBounds = field(default_factory=ClockBounds)
    stopping: bool = False
    # Times of the driver's monotonic clock.
    placed_at: float = 0.0
    heard_at: float = 0.0
    stop_at: float = 0.0
    ended_at: float = 0.0
    restart_at: float = 0.0
    probed_at: float = 0.0
    clock_line_at: float = 0.0
    # Epochs whose process is not known to have ended, with the time at which it is killed.
    placed: dict[int, float | None] = field(default_factory=dict)

    @property
    def is_live(self) -> bool:
        return self.phase in {WorkerPhase.STARTING, WorkerPhase.RUNNING}


class Supervision:
    """The state of all workers of a run. Every method returns the actions to perform."""

    def __init__(
        self,
        *,
        groups: Iterable[str] = (),
        limits: WorkerTimeouts | None = None,
        last_epochs: dict[str, int] | None = None,
        host: str = "",
    ) -> None:
        """`last_epochs` are those that are already in the commit log; `host` is the driver's."""
        self.workers: dict[str, WorkerState] = {}
        self._groups = frozenset(groups)
        self._limits = limits or WorkerTimeouts()
        self._last_epochs = dict(last_epochs or {})
        self._host = host
        self._connections: dict[int, str] = {}
        self._start_at_us: int | None = None
        self._finishing: set[str] = set()
        # Groups that drained a lane: (producer, incarnation, topic, lane).
        self._arrived: dict[tuple[str, int, str, int], set[str]] = {}

    # Requests of the driver.

    def launch(self, spec: WorkerSpec, *, now: float) -> list[Action]:
        known = self.workers.get(spec.name)
        if known is not None:
            raise UsageError(f"a worker named {spec.name} exists already and is {known.phase}")
        epoch = self._last_epochs.get(spec.name, 0) + 1
        state = WorkerState(spec, epoch)
        self.workers[spec.name] = state
        return self._place(state, now)

    def start_at(self, at_us: int) -> list[Action]:
        self._start_at_us = at_us
        return [Send(state.connection, StartAt(at_us)) for state in self._list_connected()]

    def finish(self, names: Iterable[str], reason: str) -> list[Action]:
        wanted = set(names)
        self._finishing |= wanted
        return [
            Send(s.connection, Finish(reason))
            for s in self._list_connected()
            if s.spec.name in wanted
        ]

    def update_role(self, name: str, values: Json) -> list[Action]:
        """Send values to a worker's role; a later instance of the worker gets them too."""
        state = self.workers[name]
        state.role_update = values
        return [] if state.connection is None else [Send(state.connection, RoleUpdate(values))]

    def stop(self, names: Iterable[str], reason: str, *, now: float) -> list[Action]:
        actions: list[Action] = []
        for name in names:
            state = self.workers[name]
            if state.stopping:
                continue
            state.stopping = True
            state.stop_at = now
            if state.phase is WorkerPhase.RESTARTING:
                state.phase = WorkerPhase.ENDED
            elif state.connection is not None:
                actions.append(Send(state.connection, Stop(reason)))
            elif state.is_live:
                actions.append(Interrupt(name, state.epoch))
        return actions

    # Events.

    def on_message(
        self, connection: int, message: WorkerMessage, *, now: float, clock_us: int
    ) -> list[Action]:
        if isinstance(message, Hello):
            return self._on_hello(connection, message, now)
        state = self.workers.get(self._connections.get(connection, ""))
        if state is None or state.connection != connection:
            return [
                Send(connection, LeaseRefused("the lease of this worker has ended")),
                Close(connection),
            ]
        state.heard_at = now
        match message:
            case Commit(number, line):
                return self._on_commit(state, number, line, now=now)
            case ProgressReport(values):
                state.progress = values
            case ProbeReply(driver_us, worker_us):
                state.clock.add(driver_us=driver_us, worker_us=worker_us, returned_us=clock_us)
        return []

    def on_connection_closed(self, connection: int, *, now: float) -> list[Action]:
        state = self.workers.get(self._connections.pop(connection, ""))
        if state is not None and state.connection == connection:
            state.connection = None
            state.heard_at = now
        return []

    def on_exit(self, name: str, epoch: int, *, how: str, now: float) -> list[Action]:
        """The worker's process or task has ended."""
        state = self.workers[name]
        state.placed.pop(epoch, None)
        if epoch != state.epoch or not state.is_live:
            return []
        # A worker that was stopped before it had a lease is not lost.
        never_began = state.stopping and state.instance is None
        return self._end(state, "stopped" if never_began else "lost", how, now=now)

    def tick(self, *, now: float, clock_us: int) -> list[Action]:
        actions: list[Action] = []
        for state in list(self.workers.values()):
            actions += self._check_deadlines(state, now)
            actions += self._probe(state, now=now, clock_us=clock_us)
            if state.phase is WorkerPhase.RESTARTING and now >= state.restart_at:
                state.restarts += 1
                state.epoch += 1
                state.phase = WorkerPhase.STARTING
                actions += self._place(state, now)
        return actions

    # Internals.

    def _list_connected(self) -> list["_Connected"]:
        return [
            _Connected(state.spec, state.connection)
            for state in self.workers.values()
            if state.connection is not None
        ]

    def _place(self, state: WorkerState, now: float) -> list[Action]:
        state.placed_at = now
        state.placed[state.epoch] = None
        state.instance = state.process = None
        state.committed = 0
        state.progress = {}
        return [StartWorker(state.spec.name, state.epoch)]

    def _on_hello(self, connection: int, hello: Hello, now: float) -> list[Action]:
        state = self.workers.get(hello.worker)
        if reason := _refusal(state, hello):
            return [Send(connection, LeaseRefused(reason)), Close(connection)]
        assert state is not None  # noqa: S101 - an unknown worker was refused above
        actions: list[Action] = []
        if state.connection is not None:
            # The worker lost a connection whose end is not reported to the driver yet.
            self._connections.pop(state.connection, None)
            actions.append(Close(state.connection))
        if state.instance is None:
            state.instance = hello.instance
            if hello.host == self._host:
                state.process = ProcessIdentity(hello.pid, hello.start_mark)
            lease = {"kind": "lease", "worker": hello.worker, "epoch": hello.epoch}
            actions.append(Append({**lease, "host": hello.host}))
        state.phase = WorkerPhase.RUNNING
        state.connection = connection
        state.heard_at = state.clock_line_at = now
        self._connections[connection] = hello.worker
        return actions + [Send(connection, message) for message in self._welcome_messages(state)]

    def _welcome_messages(self, state: WorkerState) -> list[DriverMessage]:
        """The lease, and the messages that the worker has missed."""
        messages: list[DriverMessage] = [Lease(state.spec.name, state.epoch, self._start_at_us)]
        if drained := [
            list(lane) for lane, groups in self._arrived.items() if self._is_drained_by_all(groups)
        ]:
            messages.append(LanesDrained(drained))
        if state.role_update is not None:
            messages.append(RoleUpdate(state.role_update))
        if state.spec.name in self._finishing:
            messages.append(Finish("the run is finishing"))
        if state.stopping:
            messages.append(Stop("the run is stopping"))
        return messages

    def _on_commit(
        self, state: WorkerState, number: int, line: Json, *, now: float
    ) -> list[Action]:
        connection = state.connection
        assert connection is not None  # noqa: S101 - it has just sent a message
        if number <= state.committed:
            return [Send(connection, Ack(number))]
        try:
            if number != state.committed + 1:
                raise ControlError(f"commit {number} follows commit {state.committed}")  # noqa: TRY301
            checked = check_line(line, worker=state.spec.name, epoch=state.epoch)
        except ControlError as error:
            return self._end(state, "failed", str(error), now=now)
        state.committed = number
        if checked["kind"] == "ended":
            return self._on_ended(state, checked, number, now=now)
        actions: list[Action] = [Append(checked), Send(connection, Ack(number))]
        if checked["kind"] == "drained":
            actions += self._on_drained(checked)
        return actions

    def _on_ended(self, state: WorkerState, line: Json, number: int, *, now: float) -> list[Action]:
        connection = state.connection
        assert connection is not None  # noqa: S101 - it has just sent a message
        actions = self._end(
            state, line["reason"], line["error"], now=now, retriable=line["retriable"]
        )
        # The acknowledgement must reach it before the connection closes.
        at = next(i for i, action in enumerate(actions) if isinstance(action, Close))
        return [*actions[:at], Send(connection, Ack(number)), *actions[at:]]

    def _on_drained(self, line: Json) -> list[Action]:
        lane = (line["producer"], line["incarnation"], line["topic"], line["lane"])
        groups = self._arrived.setdefault(lane, set())
        if self._is_drained_by_all(groups):
            return []
        groups.add(line["group"])
        if not self._is_drained_by_all(groups):
            return []
        return [
            Send(state.connection, LanesDrained([list(lane)])) for state in self._list_connected()
        ]

    def _is_drained_by_all(self, groups: set[str]) -> bool:
        return bool(groups) and groups >= self._groups

    def _end(
        self, state: WorkerState, reason: str, error: str, *, now: float, retriable: bool = True
    ) -> list[Action]:
        name, epoch = state.spec.name, state.epoch
        actions = self._clock_line(state)
        if state.instance is not None:  # otherwise it never had a lease
            line: Json = {"kind": "ended", "worker": name, "epoch": epoch, "reason": reason}
            actions.append(Append({**line, "error": error} if error else line))
        if state.connection is not None:
            self._connections.pop(state.connection, None)
            actions.append(Close(state.connection))
            state.connection = None
        state.reason, state.error, state.ended_at = reason, error, now
        state.phase = WorkerPhase.ENDED
        if epoch in state.placed:
            # A lost worker may be a zombie: kill it now. One that reported its end is exiting.
            state.placed[epoch] = now if reason == "lost" else now + self._limits.exit_s
        policy = state.spec.restart_policy
        again = reason in {"lost", "failed"} and retriable and not state.stopping
        if again and state.restarts < policy.limit:
            state.phase = WorkerPhase.RESTARTING
            state.restart_at = now + policy.delay_before(state.restarts)
        return actions

    def _check_deadlines(self, state: WorkerState, now: float) -> list[Action]:
        actions: list[Action] = []
        if error := self._find_loss(state, now):
            actions += self._end(state, "lost", error, now=now)
        if state.stopping and state.is_live and now - state.stop_at > self._limits.stop_s:
            actions += self._end(state, "lost", "it did not stop in time", now=now)
        for epoch, kill_at in state.placed.items():
            if kill_at is not None and now >= kill_at:
                actions.append(Kill(state.spec.name, epoch))
                state.placed[epoch] = None
        return actions

    def _find_loss(self, state: WorkerState, now: float) -> str:
        limits = self._limits
        if state.phase is WorkerPhase.STARTING:
            late = now - state.placed_at > limits.start_s
            return f"it did not say hello within {limits.start_s:g} s" if late else ""
        if state.phase is not WorkerPhase.RUNNING:
            return ""
        limit_s = limits.detached_s if state.connection is None else limits.silence_s
        what = "it lost its connection" if state.connection is None else "it fell silent"
        late = now - state.heard_at > limit_s
        return f"{what} more than {limit_s:g} s ago" if late else ""

    def _probe(self, state: WorkerState, *, now: float, clock_us: int) -> list[Action]:
        if state.connection is None:
            return []
        actions: list[Action] = []
        if now - state.probed_at >= PROBE_EVERY_S:
            state.probed_at = now
            actions.append(Send(state.connection, Probe(clock_us)))
        if now - state.clock_line_at >= CLOCK_LINE_EVERY_S:
            state.clock_line_at = now
            actions += self._clock_line(state)
        return actions

    def _clock_line(self, state: WorkerState) -> list[Action]:
        bounds = state.clock.take()
        if bounds is None:
            return []
        line = {"kind": "clock", "worker": state.spec.name, "epoch": state.epoch}
        return [Append({**line, "low_us": bounds[0], "high_us": bounds[1]})]


@dataclass(frozen=True, slots=True)
class _Connected:
    spec: WorkerSpec
    connection: int


def _refusal(state: WorkerState | None, hello: Hello) -> str:
    """Why this instance is refused the lease; empty if it is not."""
    if state is None:
        return f"no worker is named {hello.worker!r:.80}"
    if hello.epoch < state.epoch:
        return f"epoch {hello.epoch} is fenced by epoch {state.epoch}"
    if hello.epoch > state.epoch:
        return f"epoch {hello.epoch} was never assigned"
    if not state.is_live:
        return f"the lease of epoch {hello.epoch} has ended"
    if state.instance not in {None, hello.instance}:
        return f"another instance holds the lease of epoch {hello.epoch}"
    return ""
