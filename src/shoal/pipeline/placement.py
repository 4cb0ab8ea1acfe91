"""Workers as tasks of a Spark application, on any master.

Rules:
- A worker is one Spark job with one task, submitted by its own thread: the failure of one does not
  abort another. There is no barrier and no speculative execution.
- A task that Spark tries again does nothing: it would use the lease of the first try. Only the
  supervisor restarts workers, with a new epoch.
- A task on another machine must see the run's folder, unless it runs a mirror; otherwise it fails
  with an error that says so.
- Executors get no signal for Ctrl-C or the death of the driver: the worker notices both by its
  connection to the driver.
- What a worker logs goes to the same file in the run's folder as that of a process.
"""

import asyncio
import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyspark import TaskContext
from pyspark.sql import SparkSession

from shoal.model.errors import SystemFailure
from shoal.pipeline.failures import cause_of
from shoal.pipeline.jobs import start_in_thread
from shoal.pipeline.scans import require_run_folder
from shoal.pipeline.slots import count_slots, is_local
from shoal.runtime.tasks import log_only, start_thread
from shoal.workers.main import LOG_FORMAT, run_worker
from shoal.workers.placement import Handle, log_path
from shoal.workers.specs import Assignment, Role

SLOTS_TIMEOUT_S: Final = 120.0
SLOTS_POLL_S: Final = 0.5
_REFUSED: Final = "refused"


class SparkPlacement:
    """Starts workers as tasks of one session."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session

    @property
    def host(self) -> str:
        """The address at which executors reach this driver."""
        return str(self._session.conf.get("spark.driver.host"))

    def wait_for_slots(self, count: int, timeout_s: float = SLOTS_TIMEOUT_S) -> None:
        """Wait until `count` workers can run at once; fail before the start if they never can."""
        is_fixed = is_local(self._session.sparkContext.master)
        deadline = time.monotonic() + (0 if is_fixed else timeout_s)
        while (slots := count_slots(self._session)) < count:
            if time.monotonic() >= deadline:
                raise SystemFailure(
                    f"{count} workers need {count} slots, but this Spark has {slots}",
                    remedy=f"use the master local[{count}], or fewer workers"
                    if is_fixed
                    else "start more executors, give them more cores, or use fewer workers",
                )
            time.sleep(SLOTS_POLL_S)

    def wait_for_executors(self, count: int, timeout_s: float = SLOTS_TIMEOUT_S) -> None:
        """Wait until `count` executors are connected; a local Spark has one, the driver."""
        deadline = time.monotonic() + timeout_s
        while (connected := self._executors()) < count:
            if time.monotonic() >= deadline:
                raise SystemFailure(
                    f"only {connected} of {count} executors connected within {timeout_s:g} s",
                    remedy="start more Spark workers, or require fewer executors",
                )
            time.sleep(SLOTS_POLL_S)

    def _executors(self) -> int:
        context = self._session.sparkContext
        # PySpark has no public API for this number. It includes the driver.
        known = int(context._jsc.sc().getExecutorMemoryStatus().size())  # noqa: SLF001
        return known if str(context.master).startswith("local") else known - 1

    def start(self, assignment: Assignment) -> Handle:
        return TaskHandle(self._session, assignment)

    def close(self) -> None:
        """Do nothing: the owner of the session stops it."""


class TaskHandle:
    """A worker in a task; its job group is named after it."""

    pid: int | None = None

    def __init__(self, session: SparkSession, assignment: Assignment) -> None:
        self._context = session.sparkContext
        self._group = f"{assignment.run} {assignment.worker} {assignment.epoch}"
        self._ended: str | None = None
        self._is_killed = False
        start_in_thread(session, lambda: self._run(assignment))

    def _run(self, assignment: Assignment) -> None:
        try:
            self._context.setJobGroup(self._group, f"worker {assignment.worker}")
            tasks = self._context.parallelize([assignment.to_json()], 1)
            [said] = tasks.mapPartitions(_work).collect()
        except Exception as error:  # noqa: BLE001 - any error has ended the worker
            problem = cause_of(error, "run the task of a worker")
            said = f"{problem} ({problem.remedy})" if problem.remedy else str(problem)
            self._ended = "its task was killed" if self._is_killed else said
        else:
            is_lost = said == _REFUSED
            self._ended = "its Python process was killed or died" if is_lost else "its task ended"

    def poll(self) -> str | None:
        return self._ended

    def interrupt(self) -> None:
        """Do nothing: the driver has stopped the worker by the control channel, the only way."""

    def kill(self) -> None:
        self._is_killed = True
        # In a thread: the call may wait for the JVM, and the caller must not.
        # The watchdog of the worker ends the task too.
        start_thread(
            "cancel-job-group",
            lambda: self._context.cancelJobGroup(self._group),
            on_failure=log_only,
        )


def _work(assignments: Iterable[str]) -> Iterator[str]:
    """Run one worker in a task, from its assignment to its end."""
    task = TaskContext.get()
    for text in assignments:
        assignment = Assignment.from_json(text)
        if task is not None and task.attemptNumber() > 0:
            yield _REFUSED
            return
        writes_ledgers = assignment.role is not Role.MIRROR
        has_folder = writes_ledgers
        if assignment.ledgers:  # segments do not need the folder; logs go there if it is seen
            has_folder = writes_ledgers and Path(assignment.run_dir).is_dir()
        elif writes_ledgers:
            require_run_folder(Path(assignment.run_dir))
        with _log_to_file(log_path(assignment) if has_folder else None):
            asyncio.run(run_worker(assignment))
        yield assignment.worker


@contextmanager
def _log_to_file(path: Path | None) -> Iterator[None]:
    """Log to this file in the meantime, and not to the standard error of the executor."""
    if path is None:
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    handler, root = logging.FileHandler(path), logging.getLogger()
    handler.setFormatter(logging.Formatter(LOG_FORMAT))
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.setLevel(level)
        root.removeHandler(handler)
        handler.close()
