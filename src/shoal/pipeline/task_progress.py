"""Reports how many tasks of a Spark session have ended, while other code waits for its jobs."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from shoal.runtime.tasks import log_only, start_thread

POLL_S: Final = 0.25
OnTasks = Callable[[int, int], None]


@contextmanager
def report_tasks(session: SparkSession, on_tasks: OnTasks) -> Iterator[None]:
    """Call `on_tasks` with the ended and all tasks of the jobs that run, from another thread."""
    is_over = threading.Event()

    def poll() -> None:
        tracker = session.sparkContext.statusTracker()
        while not is_over.wait(POLL_S):
            found = (tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds())
            stages = [stage for stage in found if stage is not None]
            if stages:
                ended = sum(stage.numCompletedTasks for stage in stages)
                on_tasks(ended, sum(stage.numTasks for stage in stages))

    def poll_until_stopped() -> None:
        try:
            poll()
        except (Py4JError, OSError):
            return  # Spark was stopped: who waits for its jobs gets the error

    thread = start_thread("spark-progress", poll_until_stopped, on_failure=log_only)
    try:
        yield
    finally:
        is_over.set()
        thread.join()
