"""Workers as tasks of a Spark application, on any master.

Rules:
- A worker is one Spark job with one task, submitted by its own thread: the failure of one does not
  abort another. There is no barrier and no speculative execution.
- A task that Spark retries is refused: it would use the lease of the first try. Only the
  supervisor retries, with a new epoch.
- A task on another machine must see the run's folder, unless it runs a mirror; otherwise it fails
  with an error that says so.
- Executors get no signal for Ctrl-C or the death of the driver: the worker notices both by its
  connection to the driver.
"""

import asyncio
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from pyspark import InheritableThread, TaskContext
from pyspark.sql import SparkSession

from shoal.model.errors import SystemFailure
from shoal.runtime.tasks import log_only, start_thread
from shoal.workers.main import run_worker
from shoal.workers.placement import Handle
from shoal.workers.specs import Assignment, Role

SLOTS_TIMEOUT_S: Final = 120.0
SLOTS_POLL_S: Final = 0.5
# The slots of a local Spark are fixed, but not those of `local-cluster`.
_LOCAL: Final = re.compile(r"local(\[.*\])?")


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
        is_fixed = _LOCAL.fullmatch(self._session.sparkContext.master or "")
        deadline = time.monotonic() + (0 if is_fixed else timeout_s)
        while (slots := self._session.sparkContext.defaultParallelism) < count:
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
        self._thread = InheritableThread(target=self._run, args=(assignment,), session=session)
        self._thread.daemon = True
        self._thread.start()

    def _run(self, assignment: Assignment) -> None:
        try:
            self._context.setJobGroup(self._group, f"worker {assignment.worker}")
            tasks = self._context.parallelize([assignment.to_json()], 1)
            tasks.mapPartitions(_work).collect()
        except Exception as error:  # noqa: BLE001 - any error has ended the worker
            lines = str(error).strip().splitlines()
            self._ended = f"its task failed: {lines[0] if lines else error!r}"
        else:
            self._ended = "its task ended"

    def poll(self) -> str | None:
        return self._ended

    def interrupt(self) -> None:
        """Do nothing: the driver has stopped the worker by the control channel, the only way."""

    def kill(self) -> None:
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
            # A remedy would be lost on the way to the driver, so the message contains it.
            raise SystemFailure("Spark retried the task of a worker; set spark.task.maxFailures=1")
        writes_ledgers = assignment.role is not Role.MIRROR
        if writes_ledgers and not Path(assignment.run_dir, "run.json").is_file():
            raise SystemFailure(
                f"the run's folder {assignment.run_dir} does not exist on the executor's machine;"
                " put the runs on a file system that all executors share"
            )
        asyncio.run(run_worker(assignment))
        yield assignment.worker
