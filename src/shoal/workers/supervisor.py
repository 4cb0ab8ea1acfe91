"""The driver's side of a run's workers: runs `supervision` and a placement on a real clock.

Rules:
- Everything happens in one dedicated thread with an event loop. The public methods can be called
  from any other thread, and wait for it.
- During a run only the supervisor writes the commit log. If it cannot be written, nothing can be
  proven: all workers are killed and `wait` raises.
- `stop`, which the end of the `with` block calls, returns when all workers have ended. If the
  driver dies without it, the workers end on their own (`shoal.workers.main`).
"""

import asyncio
import logging
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from shoal.model.errors import ShoalError, SystemFailure, UsageError
from shoal.model.run_folder import read_url
from shoal.net.control import ControlServer, clock_us
from shoal.net.loops import call_in
from shoal.net.messages import WorkerMessage
from shoal.runtime.context_managers import StopsOnExit
from shoal.runtime.processes import ProcessIdentity, machine_clock
from shoal.runtime.tasks import report_unhandled_errors, start_thread
from shoal.workers.placement import Handle, Placement
from shoal.workers.specs import Assignment, Json, Role, WorkerSpec
from shoal.workers.supervision import (
    Action,
    Append,
    Close,
    Interrupt,
    Kill,
    Send,
    StartWorker,
    Supervision,
    WorkerPhase,
    WorkerTimeouts,
)
from shoal.workload.record.ledger import CommitLog

_log = logging.getLogger(__name__)

TICK_S: Final = 0.05
CALL_LIMIT_S: Final = 30.0

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class WorkerView:
    """The state of one worker at one moment."""

    name: str
    role: Role
    epoch: int
    phase: WorkerPhase
    reason: str
    error: str
    restarts: int
    progress: Json
    pid: int | None


@dataclass(frozen=True, slots=True)
class RunState:
    """The state of all workers at one moment."""

    workers: dict[str, WorkerView]
    failure: str = ""

    def all_in(self, *phases: WorkerPhase, role: Role | None = None) -> bool:
        """Whether all workers (of a role) are in one of these phases."""
        wanted = (w for w in self.workers.values() if role in {None, w.role})
        return all(worker.phase in phases for worker in wanted)

    def find_failed(self) -> list[WorkerView]:
        """Return the workers that were lost or failed."""
        return [w for w in self.workers.values() if w.reason in {"lost", "failed"}]


class WorkerSupervisor(StopsOnExit):
    """Starts, monitors and stops the workers of one run."""

    def __init__(
        self,
        run: str,
        run_dir: Path,
        placement: Placement,
        *,
        groups: Iterable[str] = (),
        limits: WorkerTimeouts | None = None,
        address: tuple[str, int] = ("127.0.0.1", 0),
    ) -> None:
        """`address`: where workers connect to this driver; port 0 is any free port."""
        self._run = run
        self._run_dir = run_dir
        self._ledgers = read_url(run_dir) or ""
        self._placement = placement
        self._groups = tuple(groups)
        self._limits = limits or WorkerTimeouts()
        self._address = address
        self._token = secrets.token_urlsafe(32)
        self._handles: dict[tuple[str, int], Handle] = {}
        self._changed = threading.Condition()
        self._state = RunState({})
        self._failure = ""
        self._closing = False
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop
        self._server: ControlServer
        self._supervision: Supervision
        self._commits: CommitLog

    def start(self) -> None:
        """Open the commit log and the control channel."""
        if self._thread is not None:
            raise UsageError("the supervisor is already started")
        started: Future[None] = Future()
        # A daemon thread: if the driver ends without `stop`, its workers notice it and end.
        self._thread = start_thread(
            "supervisor",
            lambda: asyncio.run(self._main(started)),
            on_failure=self._on_thread_failed,
        )
        started.result(CALL_LIMIT_S)

    def launch(self, specs: Iterable[WorkerSpec]) -> None:
        """Start workers. They wait for their lease, and for `start_at` if their task needs it."""
        wanted = list(specs)

        def launch() -> None:
            for spec in wanted:
                self._perform(self._supervision.launch(spec, now=time.monotonic()))

        self._call(launch)

    def start_at(self, at_us: int) -> None:
        """Set the start time of all workers, including later ones."""
        self._call(lambda: self._perform(self._supervision.start_at(at_us)))

    def finish(self, names: Iterable[str] | None = None) -> None:
        """Ask workers (all by default) to start nothing new, to drain and to end."""
        wanted = self._names(names)
        self._call(
            lambda: self._perform(self._supervision.finish(wanted, "requested by the driver"))
        )

    def update_role(self, name: str, values: Json) -> None:
        """Send values to a worker's role; only the newest values count."""
        self._call(lambda: self._perform(self._supervision.update_role(name, values)))

    def stop_workers(self, names: Iterable[str] | None = None) -> None:
        """Ask workers (all by default) to stop; returns before they have stopped."""
        wanted = self._names(names)
        self._call(lambda: self._perform(self._stop_workers(wanted)))

    def kill(self, name: str) -> None:
        """Kill a worker's process, as a fault injection."""
        self._call(lambda: self._kill_process(name))

    def commit(self, line: Json) -> None:
        """Write a line of the driver itself, such as a fault, to the commit log."""
        self._call(lambda: self._perform([Append(line)]))

    def state(self) -> RunState:
        with self._changed:
            return self._state

    def wait(self, condition: Callable[[RunState], bool], timeout_s: float) -> bool:
        """Wait until the condition holds; False on timeout.

        Raises `SystemFailure` if the supervisor itself has failed.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while True:
                if self._state.failure:
                    raise SystemFailure(self._state.failure)
                if condition(self._state):
                    return True
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    return False
                self._changed.wait(left_s)

    def stop(self) -> None:
        """Stop all workers, and kill those that do not stop in time."""
        thread = self._thread
        if thread is None or not thread.is_alive():
            return
        self._loop.call_soon_threadsafe(self._begin_closing)
        thread.join()

    def _names(self, names: Iterable[str] | None) -> list[str]:
        return list(self.state().workers) if names is None else list(names)

    def _call(self, function: Callable[[], _Result]) -> _Result:
        """Run a function in the supervisor's thread."""
        if self._thread is None or not self._thread.is_alive() or self._closing:
            raise UsageError(
                "the supervisor is not running", remedy="call it between start and stop"
            )
        return call_in(self._loop, function, limit_s=CALL_LIMIT_S)

    # In the supervisor's thread.

    async def _main(self, started: "Future[None]") -> None:
        try:
            self._loop = asyncio.get_running_loop()
            report_unhandled_errors(self._loop)
            self._commits = CommitLog(self._run_dir)
            self._supervision = Supervision(
                groups=self._groups,
                limits=self._limits,
                last_epochs=_last_epochs(self._commits.lines()),
                host=machine_clock(),
            )
            self._server = ControlServer(
                self._token, on_message=self._on_message, on_closed=self._on_closed
            )
            await self._server.start(*self._address)
        except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
            started.set_exception(error)
            return
        started.set_result(None)
        try:
            while not self._closing or self._handles:
                self._tick()
                await asyncio.sleep(TICK_S)
        except Exception as error:  # noqa: BLE001 - after any error no worker may be left running
            _log.exception("the supervisor stops")
            self._fail(f"the supervisor stopped: {error!r}")
            self._publish()
        finally:
            await self._end_all()
            await self._server.stop()
            self._commits.close()
            self._placement.close()

    def _on_thread_failed(self, error: Exception) -> None:
        """Report the failure to callers of `wait`."""
        self._fail(f"the supervisor stopped: {error!r}")
        self._publish()

    async def _end_all(self) -> None:
        """Kill all workers; does nothing if the main loop ended normally."""
        while self._handles:
            for key, handle in list(self._handles.items()):
                handle.kill()
                if handle.poll() is not None:
                    del self._handles[key]
            await asyncio.sleep(TICK_S)

    def _tick(self) -> None:
        now = time.monotonic()
        for (name, epoch), handle in list(self._handles.items()):
            how = handle.poll()
            if how is not None:
                del self._handles[name, epoch]
                self._perform(self._supervision.on_exit(name, epoch, how=how, now=now))
        self._perform(self._supervision.tick(now=now, clock_us=clock_us()))

    def _on_message(self, connection: int, message: WorkerMessage) -> None:
        self._perform(
            self._supervision.on_message(
                connection, message, now=time.monotonic(), clock_us=clock_us()
            )
        )

    def _on_closed(self, connection: int) -> None:
        self._perform(self._supervision.on_connection_closed(connection, now=time.monotonic()))

    def _begin_closing(self) -> None:
        self._closing = True
        self._perform(self._stop_workers(list(self._supervision.workers)))

    def _stop_workers(self, names: list[str]) -> list[Action]:
        return self._supervision.stop(names, "requested by the driver", now=time.monotonic())

    def _perform(self, actions: list[Action]) -> None:
        try:
            for action in actions:
                self._do(action)
        except OSError as error:
            self._fail(f"cannot write the commit log: {error}")
        self._publish()

    def _do(self, action: Action) -> None:
        match action:
            case Append(line):
                self._commits.append(line)
            case Send(connection, message):
                self._server.send(connection, message)
            case Close(connection):
                self._server.close(connection)
            case StartWorker(worker, epoch):
                self._place(worker, epoch)
            case Interrupt(worker, epoch):
                if handle := self._handles.get((worker, epoch)):
                    handle.interrupt()
            case Kill(worker, epoch):
                self._kill(worker, epoch)

    def _place(self, worker: str, epoch: int) -> None:
        spec = self._supervision.workers[worker].spec
        host, port = self._server.address
        assignment = Assignment(
            worker=worker,
            epoch=epoch,
            role=spec.role,
            task=spec.task,
            run=self._run,
            run_dir=str(self._run_dir),
            ledgers=self._ledgers,
            driver_host=host,
            driver_port=port,
            token=self._token,
        )
        try:
            self._handles[worker, epoch] = self._placement.start(assignment)
        except ShoalError as error:
            now = time.monotonic()
            self._perform(self._supervision.on_exit(worker, epoch, how=str(error), now=now))

    def _kill(self, worker: str, epoch: int) -> None:
        if handle := self._handles.get((worker, epoch)):
            handle.kill()

    def _kill_process(self, name: str) -> None:
        """Kill a worker at once: Spark lets a task that it cancels run for seconds."""
        state = self._supervision.workers[name]
        if state.is_live and state.process is not None:
            state.process.send(signal.SIGKILL)
        self._kill(name, state.epoch)

    def _fail(self, failure: str) -> None:
        self._failure = self._failure or failure
        for handle in self._handles.values():
            handle.kill()

    def _publish(self) -> None:
        views = {}
        for name, state in self._supervision.workers.items():
            handle = self._handles.get((name, state.epoch))
            views[name] = WorkerView(
                name=name,
                role=state.spec.role,
                epoch=state.epoch,
                phase=state.phase,
                reason=state.reason,
                error=state.error,
                restarts=state.restarts,
                progress=state.progress,
                pid=_find_pid(handle, state.process),
            )
        published = RunState(views, self._failure)
        with self._changed:
            if published != self._state:
                self._state = published
                self._changed.notify_all()


def _find_pid(handle: Handle | None, process: ProcessIdentity | None) -> int | None:
    """The process id of a worker that has not ended; None if it runs on another machine."""
    if handle is None:
        return None
    return handle.pid or (process.pid if process else None)


def _last_epochs(lines: Iterable[Json]) -> dict[str, int]:
    """The newest epoch of each worker that ever had a lease in this run."""
    epochs: dict[str, int] = {}
    for line in lines:
        if line["kind"] == "lease":
            epochs[line["worker"]] = max(line["epoch"], epochs.get(line["worker"], 0))
    return epochs
