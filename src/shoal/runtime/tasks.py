"""The only way to run work in the background: tasks, threads and repeating timers.

    keep_running   endless work; after an unexpected error it is restarted with backoff
    run_once       finite work that is not awaited; after an error `on_failure` decides
    run_awaited    a task whose owner awaits it: the error reaches the owner
    call_every     a repeating timer; a call that fails does not stop the next one
    start_thread   a thread; after an error `on_failure` decides

Rules of this file:
- An unexpected error is logged with its traceback and counted, by the name of the work. The same
  error of the same work is logged once a minute at most; the log says how often it occurred.
- The policy is explicit at each start: restart, or call `on_failure`, which stops the owner or
  fails the waiting callers (fail-stop). `log_only` is for work on which nothing depends.
- A cancelled task stays cancelled. KeyboardInterrupt and SystemExit pass.
- Use few names: the kind of work, at most with the id of a node, never of a partition or client.
- Errors in other callbacks of an event loop are logged and counted by `report_unhandled_errors`.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")
OnFailure = Callable[[Exception], object]
# The same error of the same work is logged again after this long.
_LOG_AGAIN_S = 60.0
# The pause of a repeating timer whose `pause_s` failed.
_PAUSE_AFTER_FAILURE_S = 1.0
_UNHANDLED = "event loop callback"
_logger = logging.getLogger(__name__)


class RestartBackoff(NamedTuple):
    """How long a failed task waits before it is restarted; doubled with every failure in a row."""

    first_s: float = 0.1
    longest_s: float = 10.0

    def after(self, pause_s: float) -> float:
        return min(pause_s * 2, self.longest_s)


DEFAULT_BACKOFF = RestartBackoff()


class InjectedFailure(Exception):
    """An error that a test injected."""


@dataclass(frozen=True, slots=True)
class FailureCount:
    """The number of unexpected failures of some work in this process, and the last error."""

    name: str
    count: int
    last_error: str
    last_failed_s: float  # since the Unix epoch


class FailureLog:
    """Counts unexpected errors and decides which of them are logged. Safe in any thread."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._lock = threading.Lock()
        self._counts: dict[str, FailureCount] = {}
        # When an error was last logged and how often it occurred since, by work and error type.
        self._logged: dict[tuple[str, str], tuple[float, int]] = {}

    def record(self, name: str, error: BaseException, consequence: str) -> None:
        """Count an unexpected error, and log it unless it was logged in the last minute."""
        text = f"{type(error).__name__}: {error}"
        with self._lock:
            before = self._counts.get(name)
            count = 1 if before is None else before.count + 1
            self._counts[name] = FailureCount(name, count, text, time.time())
            unlogged = self._count_unlogged(name, type(error).__qualname__)
        if unlogged is None:
            return
        repeats = f" ({unlogged} more since the last report)" if unlogged else ""
        _logger.error(
            "%s failed with an unexpected error: %s%s; %s",
            name,
            text,
            repeats,
            consequence,
            exc_info=error,
        )

    def _count_unlogged(self, name: str, kind: str) -> int | None:
        """The number of errors since the last logged one; None if this one is not logged."""
        now_s = self._now_s()
        logged_s, unlogged = self._logged.get((name, kind), (None, 0))
        if logged_s is not None and now_s - logged_s < _LOG_AGAIN_S:
            self._logged[name, kind] = (logged_s, unlogged + 1)
            return None
        self._logged[name, kind] = (now_s, 0)
        return unlogged

    def counts(self) -> list[FailureCount]:
        with self._lock:
            return [replace(self._counts[name]) for name in sorted(self._counts)]


_failures = FailureLog()
# Running endless work and repeating timers, for `inject_failure`.
_running: dict[str, list["_RestartingTask | RepeatingCall"]] = {}
# The event loop keeps only weak references to its tasks.
_tasks: set[asyncio.Task[Any]] = set()


def failure_counts() -> list[FailureCount]:
    """Every kind of work that failed unexpectedly in this process."""
    return _failures.counts()


def record_failure(name: str, error: BaseException, consequence: str) -> None:
    """Log and count an unexpected error that was caught elsewhere, and its `consequence`."""
    _failures.record(name, error, consequence)


def log_only(_error: Exception) -> None:
    """The policy for work on which nothing depends: the error is logged and counted only."""


def inject_failure(name: str) -> int:
    """Make work fail with an unexpected error; returns how many tasks and timers it affects."""
    found = list(_running.get(name, ()))
    for each in found:
        each.inject(InjectedFailure(f"injected failure of {name}"))
    return len(found)


# Tasks


def keep_running(
    name: str,
    work: Callable[[], Coroutine[Any, Any, None]],
    *,
    backoff: RestartBackoff = DEFAULT_BACKOFF,
) -> "asyncio.Task[None]":
    """Run endless work; after an unexpected error call `work` again, with a growing pause."""
    kept = _RestartingTask(name, work, backoff)
    kept.task = _start(name, kept.run())
    return kept.task


def run_once(
    name: str, work: Coroutine[Any, Any, None], *, on_failure: OnFailure
) -> "asyncio.Task[None]":
    """Run work that is not awaited. The task itself never raises: `on_failure` gets the error."""
    task = _start(name, _run_once(name, work, on_failure))
    # Closes the coroutine of a task that was cancelled before it ran.
    task.add_done_callback(lambda _: work.close())
    return task


def run_awaited(name: str, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
    """Run work beside its owner, which awaits the task and gets its result or error."""
    return _start(name, work)


def _start(name: str, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
    task = asyncio.get_running_loop().create_task(work, name=name)
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
    return task


class _RestartingTask:
    def __init__(
        self, name: str, work: Callable[[], Coroutine[Any, Any, None]], backoff: RestartBackoff
    ) -> None:
        self._name = name
        self._work = work
        self._backoff = backoff
        self._injected: InjectedFailure | None = None
        self.task: asyncio.Task[None] | None = None

    async def run(self) -> None:
        running = _running.setdefault(self._name, [])
        running.append(self)
        try:
            await self._run()
        finally:
            running.remove(self)

    async def _run(self) -> None:
        backoff = self._backoff
        pause_s = backoff.first_s
        while True:
            started_s = time.monotonic()
            try:
                await self._attempt()
            except Exception as error:  # noqa: BLE001 - the last handler of unexpected errors
                if time.monotonic() - started_s > backoff.longest_s:
                    # It worked for a while, so this failure is not a repetition.
                    pause_s = backoff.first_s
                _failures.record(self._name, error, f"it is restarted in {pause_s:g} s")
            else:
                return
            await asyncio.sleep(pause_s)
            pause_s = backoff.after(pause_s)

    async def _attempt(self) -> None:
        try:
            await self._work()
        except asyncio.CancelledError:
            injected, self._injected = self._injected, None
            if injected is None or self.task is None or self.task.uncancel():
                raise
            raise injected from None

    def inject(self, error: InjectedFailure) -> None:
        if self.task is not None:
            self._injected = error
            self.task.cancel()


async def _run_once(name: str, work: Coroutine[Any, Any, None], on_failure: OnFailure) -> None:
    try:
        await work
    except Exception as error:  # noqa: BLE001 - the last handler of unexpected errors
        _handle(name, error, on_failure)


def _handle(name: str, error: Exception, on_failure: OnFailure) -> None:
    is_ignored = on_failure is log_only
    consequence = "nothing depends on it" if is_ignored else "what depends on it is stopped"
    _failures.record(name, error, consequence)
    try:
        on_failure(error)
    except Exception as second:  # noqa: BLE001 - as above
        _failures.record(f"{name} (handling its failure)", second, "nothing more is done")


# Timers


class RepeatingCall:
    """Calls a function repeatedly; `pause_s` returns the pause before each call."""

    def __init__(self, name: str, pause_s: Callable[[], float], work: Callable[[], None]) -> None:
        self._name = name
        self._pause_s = pause_s
        self._work = work
        self._injected: InjectedFailure | None = None
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        _running.setdefault(name, []).append(self)
        self._arm()

    def cancel(self) -> None:
        """Make no further call."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            _running[self._name].remove(self)

    def inject(self, error: InjectedFailure) -> None:
        self._injected = error

    def _arm(self) -> None:
        try:
            pause_s = self._pause_s()
        except Exception as error:  # noqa: BLE001 - the last handler of unexpected errors
            pause_s = _PAUSE_AFTER_FAILURE_S
            _failures.record(self._name, error, f"it is called again in {pause_s:g} s")
        self._timer = self._loop.call_later(pause_s, self._call)

    def _call(self) -> None:
        try:
            self._raise_injected()
            self._work()
        except Exception as error:  # noqa: BLE001 - the last handler of unexpected errors
            _failures.record(self._name, error, "it is called again at its next time")
        if self._timer is not None:
            self._arm()

    def _raise_injected(self) -> None:
        injected, self._injected = self._injected, None
        if injected is not None:
            raise injected


def call_every(name: str, pause_s: Callable[[], float], work: Callable[[], None]) -> RepeatingCall:
    """Call `work` repeatedly in this event loop until the result is cancelled."""
    return RepeatingCall(name, pause_s, work)


def report_unhandled_errors(loop: asyncio.AbstractEventLoop) -> None:
    """Log and count errors of this loop's callbacks, and of tasks that are not awaited."""

    def report(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is None:
            loop.default_exception_handler(context)
            return
        source = context.get("task") or context.get("future") or context.get("handle") or ""
        _failures.record(_UNHANDLED, error, f"{context.get('message', '')} {source}".strip())

    loop.set_exception_handler(report)


# Threads


def start_thread(
    name: str, work: Callable[[], None], *, on_failure: OnFailure, is_daemon: bool = True
) -> threading.Thread:
    """Run work in a new thread; `on_failure` is called in that thread."""

    def run() -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - the last handler of unexpected errors
            _handle(name, error, on_failure)

    thread = threading.Thread(target=run, name=name, daemon=is_daemon)
    thread.start()
    return thread
