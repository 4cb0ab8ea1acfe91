"""Audits on one Spark session that is up already, as sides of a benchmark.

In the harness's words a GB is a million messages: CPU s/GB are CPU seconds per million, MB/s
thousands of messages per second.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

from benchmarks.audit_ledgers import count_losses
from benchmarks.harness import Side, Work
from benchmarks.memory import PeakPss
from shoal.audit.usage import DriverUsage
from shoal.pipeline.audit_job import audit_run
from shoal.pipeline.session import start_session, stop_session

BYTES_PER_MESSAGE = 1000  # so that a million are a GB


@contextmanager
def audits() -> Iterator["Audits"]:
    """On two cores."""
    session = start_session("local[2]")
    try:
        yield Audits(session)
    finally:
        stop_session(session)


class Audits:
    def __init__(self, session: SparkSession) -> None:
        self._session = session

    def side(self, folder: Path, messages: int) -> Side:
        return Side(f"shoal {folder.name}", lambda: self._audit(folder, messages), self._pids)

    def side_with_memory(self, folder: Path, messages: int) -> Side:
        """The same, with the memory of the whole tree: this process, the JVM and the workers."""

        def run() -> Work:
            with PeakPss() as memory:
                began_s = time.perf_counter()
                handled_bytes = self._audit(folder, messages)
                wall_s = time.perf_counter() - began_s
            return Work(handled_bytes, wall_s, memory.peak_bytes)

        return Side(f"shoal {folder.name}", run, self._pids, measures_memory=True)

    def driver_usage(self, folder: Path) -> DriverUsage:
        """What an audit sends to the driver."""
        usage = DriverUsage()
        audit_run([folder], self._session, usage=usage)
        return usage

    def _audit(self, folder: Path, messages: int) -> int:
        found = {n: f.count for n, f in audit_run([folder], self._session).findings.items()}
        for name, count in count_losses(messages).items():
            assert found.get(f"lost: {name.replace('_', '-')}", 0) == count, (name, found)
        return messages * BYTES_PER_MESSAGE

    def _pids(self) -> list[int]:
        gateway = SparkContext._gateway  # noqa: SLF001 - pyspark does not tell its JVM's number
        return [gateway.proc.pid] if gateway is not None else []
