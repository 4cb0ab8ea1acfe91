"""One Spark session for a run: started early in the background, stopped completely.

Rules:
- Local by default, with as many slots as cores; `master` selects another Spark.
- A local Spark listens only on 127.0.0.1 and serves no web page.
- `shoal.runtime.java` finds Java; Python workers use this interpreter.
- The JVM ends with this process, however it ends: its launcher watches a pipe to it.
"""

import contextlib
import logging
import os
import subprocess
import sys
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Final, Self

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from shoal.model.errors import SystemFailure
from shoal.pipeline.cells import warm_up
from shoal.runtime.java import spark_environment
from shoal.runtime.tasks import log_only, start_thread

JVM_END_TIMEOUT_S: Final = 30.0

_log = logging.getLogger(__name__)

SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
}
LOCAL_SETTINGS: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
# The JVM only distributes work and lives for about a minute: optimised code would not pay off.
JAVA_OPTIONS: Final = "-XX:TieredStopAtLevel=1"
QUIET_LOGGING: Final = Path(__file__).with_name("log4j2.properties")


def start_session(master: str | None = None, *, slots: int = 0) -> SparkSession:
    """Start a session with its own JVM; block until Spark can be used.

    `slots` is how many tasks a local Spark must be able to run at once, even with fewer cores.
    """
    os.environ.update(spark_environment())
    # Spark reads these when it starts a worker; another Python would lack the packages.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    master = master or f"local[{max(os.cpu_count() or 1, slots)}]"
    settings = dict(SETTINGS)
    options = f"-Dlog4j2.configurationFile={QUIET_LOGGING.as_uri()}"
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        settings |= LOCAL_SETTINGS
        options += f" {JAVA_OPTIONS}"
    settings["spark.driver.extraJavaOptions"] = options
    builder = SparkSession.builder.appName("shoal").master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        return builder.getOrCreate()
    except Exception as error:
        raise SystemFailure(
            f"Spark did not start on {master}: {error}",
            remedy="run shoal doctor to see what is missing",
        ) from error


def stop_session(session: SparkSession) -> None:
    """Stop Spark and wait until its JVM has ended."""
    gateway = SparkContext._gateway  # noqa: SLF001 - pyspark has no public way to end its JVM
    try:
        session.stop()
        if gateway is not None:
            gateway.shutdown()
    except Py4JError as error:
        _log.warning("Spark's JVM did not stop cleanly: %s", error)
    if gateway is not None:
        _end(gateway.proc)
        SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001 - the next session starts its own JVM


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a JVM by closing the pipe that it watches; after a time-out kill it."""
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):  # it has already ended
            process.stdin.close()
    try:
        process.wait(JVM_END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class SessionFuture:
    """A session that starts in the background; as a context manager, it stops the session."""

    def __init__(self, master: str | None = None, *, slots: int = 0) -> None:
        self._master = master
        self._slots = slots
        self._future: Future[SparkSession] = Future()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        # The future carries an error of the start to the caller of `result`.
        self._thread = start_thread("spark-start", self._start, on_failure=log_only)
        return self

    def _start(self) -> None:
        try:
            session = start_session(self._master, slots=self._slots)
        except BaseException as error:  # noqa: BLE001 - `result` raises it
            self._future.set_exception(error)
            return
        self._future.set_result(session)
        try:
            warm_up(session)
        except Exception as error:  # noqa: BLE001 - the first real task fails with it too
            _log.debug("could not warm up the Spark session: %s", error)

    def result(self) -> SparkSession:
        """Wait for the session and return it."""
        return self._future.result()

    def __exit__(self, *_: object) -> None:
        if self._thread is not None:
            self._thread.join()
        if self._future.exception() is None:
            stop_session(self._future.result())
