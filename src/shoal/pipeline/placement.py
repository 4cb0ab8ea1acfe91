"""Workers as tasks of a Spark application, on any master.

Rules:
- A worker is one job of one task, submitted by a thread of its own: the death of one aborts no
  other. There is no barrier, and nothing is speculated.
- A task that Spark tries again by itself is refused: it would come under the lease of the
  first try. Whoever retries is the supervisor, with a new epoch.
- A task that runs on another machine must see the run's folder, unless it is a mirror's; one
  that does not says so.
- An executor is not told of Ctrl-C or of the driver's death: the worker sees both by its
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
SLOTS_LOOK_S: Final = 0.5
# Nobody comes to a Spark of one process; `local-cluster` is another matter.
_LOCAL: Final = re.compile(r"local(\[.*\])?")


class SparkPlacement:
    """Starts workers as tasks of one session."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session

    @property
    def host(self) -> str:
        """The address under which executors reach this driver."""
        return str(self._session.conf.get("spark.driver.host"))

    def wait_for_slots(self, count: int, timeout_s: float = SLOTS_TIMEOUT_S) -> None:
        """Return when so many workers can run at once; too few is an error before the start."""
        is_fixed = _LOCAL.fullmatch(self._session.sparkContext.master or "")
        deadline = time.monotonic() + (0 if is_fixed else timeout_s)
        while (slots := self._session.sparkContext.defaultParallelism) < count:
            if time.monotonic() >= deadline:
                raise SystemFailure(
                    f"{count} workers need as many slots, and this Spark has {slots}",
                    remedy=f"say local[{count}], or ask for fewer workers"
                    if is_fixed
                    else "start more executors, give them more cores, or ask for fewer workers",
                )
            time.sleep(SLOTS_LOOK_S)

    def wait_for_executors(self, count: int, timeout_s: float = SLOTS_TIMEOUT_S) -> None:
        """Return when so many executors have come; in one process the driver is the only one."""
        deadline = time.monotonic() + timeout_s
        while (there := self._executors()) < count:
            if time.monotonic() >= deadline:
                raise SystemFailure(
                    f"{count} executors were to come, and there are {there}",
                    remedy="start more of Spark's workers, or expect fewer",
                )
            time.sleep(SLOTS_LOOK_S)

    def _executors(self) -> int:
        context = self._session.sparkContext
        # PySpark itself tells no way to this number, in which the driver counts too.
        known = int(context._jsc.sc().getExecutorMemoryStatus().size())  # noqa: SLF001
        return known if str(context.master).startswith("local") else known - 1

    def start(self, assignment: Assignment) -> Handle:
        return TaskHandle(self._session, assignment)

    def close(self) -> None:
        """The session is its owner's to stop."""


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
        except Exception as error:  # noqa: BLE001 - whatever it is, the worker has ended by it
            said = str(error).strip().splitlines()
            self._ended = f"its task failed: {said[0] if said else error!r}"
        else:
            self._ended = "its task ended"

    def poll(self) -> str | None:
        return self._ended

    def interrupt(self) -> None:
        """The driver has told it already, by the control channel; a task hears nothing else."""

    def kill(self) -> None:
        # In a thread: the call may wait for the JVM, and nobody here may.
        # The task ends by the worker's own watchdog too.
        start_thread(
            "cancel-job-group",
            lambda: self._context.cancelJobGroup(self._group),
            on_failure=log_only,
        )


def _work(assignments: Iterable[str]) -> Iterator[str]:
    """What a task does: one worker, from its assignment to its end."""
    task = TaskContext.get()
    for text in assignments:
        assignment = Assignment.from_json(text)
        if task is not None and task.attemptNumber() > 0:
            raise SystemFailure(
                "Spark tried a worker again by itself; set spark.task.maxFailures=1"
            )
        writes_ledgers = assignment.role is not Role.MIRROR
        if writes_ledgers and not Path(assignment.run_dir, "run.json").is_file():
            raise SystemFailure(
                f"the run's folder {assignment.run_dir} is not there on the executor's machine:"
                " it must be shared"
            )
        asyncio.run(run_worker(assignment))
        yield assignment.worker
