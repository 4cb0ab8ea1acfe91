"""Audits on a Spark cluster, each of which loses an executor half way: a program of its own.

`python -m support.spark.audits MASTER RUN` prints, one on each line, the results by cells and by
DataFrames. An audit that ended before half of a stage's tasks were done by then is made again.
"""

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Final

import psutil
from pyspark.sql import SparkSession

from shoal.audit.audit import Sizes
from shoal.model.result import Result
from shoal.pipeline.audit_job import Formulation, audit_run
from shoal.pipeline.placement import SparkPlacement
from shoal.pipeline.session import start_session, stop_session

# Small enough for many cells, walks and offset cells.
SIZES: Final = Sizes(60, 60, 50)
EXECUTORS: Final = 2
LOOK_EVERY_S: Final = 0.005


class Killer(threading.Thread):
    """Kills an executor of this application as soon as a stage is half way."""

    def __init__(self, session: SparkSession) -> None:
        super().__init__(name="killer")
        self._session = session
        self._stopped = threading.Event()
        self.killed: int | None = None

    def run(self) -> None:
        while self.killed is None and not self._stopped.wait(LOOK_EVERY_S):
            if self._is_half_way():
                self.killed = _an_executor(str(self._session.sparkContext.applicationId))
                os.kill(self.killed, signal.SIGKILL)

    def _is_half_way(self) -> bool:
        tracker = self._session.sparkContext.statusTracker()
        stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
        return any(
            stage is not None and 0 < stage.numCompletedTasks < stage.numTasks for stage in stages
        )

    def stop(self) -> None:
        self._stopped.set()
        self.join()


def _an_executor(application: str) -> int:
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if application in words and any("CoarseGrainedExecutorBackend" in word for word in words):
            return int(process.pid)
    raise AssertionError("no executor runs")


def audit_with_lost_executor(run: Path, session: SparkSession, formulation: Formulation) -> Result:
    """The result of the first audit in which an executor was lost."""
    while True:
        SparkPlacement(session).wait_for_executors(EXECUTORS)
        killer = Killer(session)
        killer.start()
        try:
            result = audit_run([run], session, sizes=SIZES, formulation=formulation)
        finally:
            killer.stop()
        if killer.killed is not None:
            return result


def main(master: str, run: str) -> None:
    session = start_session(master)
    try:
        for formulation in ("cells", "frames"):
            result = audit_with_lost_executor(Path(run), session, formulation)
            sys.stdout.write(json.dumps(result.to_json()) + "\n")
            sys.stdout.flush()
    finally:
        stop_session(session)


if __name__ == "__main__":
    main(*sys.argv[1:])
