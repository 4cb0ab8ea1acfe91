"""One Spark session for a run: started early in the background, stopped completely.

Rules:
- Local by default, with at least as many slots as cores; `master` selects another Spark.
- A local Spark tries a failed task again, like a cluster. It listens only on 127.0.0.1, its page
  too, and nothing can be killed there. On a cluster there is no page: it would be open to all.
- `shoal.runtime.java` finds Java. Python workers use this interpreter; those of a cluster use the
  one in the archive that `shoal.pipeline.environment` packs, if the user names one.
- The JVM ends with this process, however it ends: its launcher watches a pipe to it. One that is
  no longer needed while it starts is killed at once.
"""

import contextlib
import logging
import os
import socket
import subprocess
import sys
import threading
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Final, Self

import psutil
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext, accumulators
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from shoal.model.errors import SystemFailure, UnreachableError
from shoal.pipeline.cells import warm_up
from shoal.pipeline.environment import FOLDER, INTERPRETER, find_archive, make_driver_folder
from shoal.pipeline.failures import cause_of
from shoal.pipeline.slots import count_cores, is_local, limit_width, with_tries
from shoal.runtime.java import spark_environment
from shoal.runtime.tasks import log_only, start_thread
from shoal.storage.places import S3_SETTINGS

JVM_END_TIMEOUT_S: Final = 30.0
REACH_TIMEOUT_S: Final = 5.0
# A cluster that is busy may let an application wait for as long as others run. On a machine that is
# busy itself, a start and a first task take minutes.
START_TIMEOUT_S: Final = 600.0
WARM_TIMEOUT_S: Final = 600.0
FEWEST_PARTITIONS: Final = 2
MOST_PARTITIONS: Final = 4000  # every task of the stage before writes a block for each
# Enough for a producer, a consumer and two scans on a machine with one core.
FEWEST_SLOTS: Final = 4

_log = logging.getLogger(__name__)

SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
}
LOCAL_SETTINGS: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
PAGE_SETTINGS: Final = {
    "spark.ui.enabled": "true",
    "spark.ui.port": "0",
    "spark.ui.killEnabled": "false",
}
# The JVM only distributes work and lives for about a minute: optimised code would not pay off.
JAVA_OPTIONS: Final = "-XX:TieredStopAtLevel=1"
QUIET_LOGGING: Final = Path(__file__).with_name("log4j2.properties")


def start_session(
    master: str | None = None, *, slots: int = 0, has_page: bool = False
) -> SparkSession:
    """Start a session with its own JVM; block until Spark can be used.

    `slots` is how many tasks a local Spark must be able to run at once, even with fewer cores.
    `has_page` asks for Spark's own page and REST interface, on a local Spark.
    """
    os.environ.update(spark_environment())
    # Spark reads these when it starts a worker; another Python would lack the packages.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    master = with_tries(master or f"local[{_count_local_slots(slots)}]")
    _require_reachable(master)
    settings = dict(SETTINGS)
    options = f"-Dlog4j2.configurationFile={QUIET_LOGGING.as_uri()}"
    if is_local(master):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        settings |= LOCAL_SETTINGS | (PAGE_SETTINGS if has_page else {})
        options += f" {JAVA_OPTIONS}"
    settings["spark.driver.extraJavaOptions"] = options
    archive = None if is_local(master) else find_archive()
    if not is_local(master):
        # Executors reach other file systems as this process does; secrets they have themselves.
        given = {name: os.environ.get(name) for name in S3_SETTINGS}
        settings |= {f"spark.executorEnv.{name}": value for name, value in given.items() if value}
    if archive is not None:
        os.environ["PYSPARK_PYTHON"] = INTERPRETER
        settings["spark.archives"] = f"{archive}#{FOLDER}"
    _log_failed_updates()
    conf = SparkConf().setAppName("shoal").setMaster(master).setAll([*settings.items()])
    try:
        where = {} if archive is None else {"cwd": str(make_driver_folder())}
        SparkContext(conf=conf, gateway=launch_gateway(conf, where))  # type: ignore[no-untyped-call]
        return SparkSession.builder.getOrCreate()
    except Exception as error:
        _forget_gateway()
        raise cause_of(error, f"start on {master}") from error


def _log_failed_updates() -> None:
    """Log what Spark's thread for accumulators would print with a traceback.

    It fails if the JVM is killed while it connects, as at Ctrl-C during the start.
    """

    def log(_server: object, _request: object, peer: object) -> None:
        _log.debug("no accumulator updates from %s", peer, exc_info=True)

    for kind in (accumulators.AccumulatorTCPServer, accumulators.AccumulatorUnixServer):
        kind.handle_error = log  # type: ignore[method-assign, assignment]


def _count_local_slots(slots: int) -> int:
    """As many as cores, which is what audits use; workers wait most of the time and get more."""
    cores = os.cpu_count() or 1
    return max(cores, slots, FEWEST_SLOTS) if slots else cores


def _require_reachable(master: str) -> None:
    """Refuse a standalone master that does not answer: Spark would try for a minute."""
    if not master.startswith("spark://"):
        return
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), REACH_TIMEOUT_S).close()
        except (OSError, ValueError, OverflowError) as error:
            problem = error
        else:
            return
    raise UnreachableError(
        f"cannot reach the Spark master {master}: {problem}",
        remedy="start the master, or correct its host and port",
    )


def set_shuffle_partitions(session: SparkSession, cells: int = 0) -> None:
    """Make the next shuffle as wide as it has cells, so that a task has few of them.

    A lost task is then soon made again. The width is at least that of the cluster now (executors
    may connect at any time, so this is no setting of the session's start); Spark joins partitions
    that are small.
    """
    wanted = limit_width(session) or min(max(count_cores(session), cells), MOST_PARTITIONS)
    width = max(wanted, FEWEST_PARTITIONS)
    session.conf.set("spark.sql.shuffle.partitions", str(width))


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
    _forget_gateway()


def _forget_gateway() -> None:
    """The next session starts a JVM of its own."""
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001 - pyspark would use a dead one


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


def _kill_starting_jvm() -> None:
    """Kill the JVM that pyspark is starting; pyspark then reports that it has ended."""
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if "pyspark-shell" in child.cmdline():
                child.kill()


class SessionFuture:
    """A session that starts in the background; as a context manager, it stops the session.

    A lazy one starts when it is first asked for: no JVM runs before.
    """

    def __init__(
        self,
        master: str | None = None,
        *,
        slots: int = 0,
        has_page: bool = False,
        is_lazy: bool = False,
    ) -> None:
        self._master = master
        self._slots = slots
        self._has_page = has_page
        self._is_lazy = is_lazy
        self._future: Future[SparkSession] = Future()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if not self._is_lazy:
            self._begin()
        return self

    def _begin(self) -> threading.Thread:
        if self._thread is None:
            # The future carries an error of the start to the caller of `result`.
            self._thread = start_thread("spark-start", self._start, on_failure=log_only)
        return self._thread

    def _start(self) -> None:
        try:
            session = start_session(self._master, slots=self._slots, has_page=self._has_page)
        except BaseException as error:  # noqa: BLE001 - `result` raises it
            self._future.set_exception(error)
            return
        self._future.set_result(session)
        try:
            warm_up(session)
        except Exception as error:  # noqa: BLE001 - the first real task fails with it too
            _log.debug("could not warm up the Spark session: %s", error)

    def result(self, timeout_s: float = START_TIMEOUT_S) -> SparkSession:
        """Wait for the session and return it."""
        self._begin()
        if wait([self._future], timeout_s).not_done:
            raise UnreachableError(
                f"Spark on {self._master or 'this machine'} has not started within {timeout_s:g} s",
                remedy="look at the cluster's queue: it may be full; or use another master",
            )
        return self._future.result()

    def wait_until_warm(self, timeout_s: float = WARM_TIMEOUT_S) -> SparkSession:
        """Wait until the session has run a first task, so that it disturbs no load; return it."""
        session = self.result()
        thread = self._begin()
        thread.join(timeout_s)
        if thread.is_alive():
            raise SystemFailure(
                f"Spark on {session.sparkContext.master} has not run a first task within"
                f" {timeout_s:g} s: no executor is free, or none can start",
                remedy="wait until other applications leave cores and memory free, start more"
                " executors, or look at the executors' logs",
            )
        return session

    def __exit__(self, *_: object) -> None:
        if self._thread is None:
            return
        if not self._future.done():
            # An error or Ctrl-C came before Spark was up.
            logging.getLogger("py4j").setLevel(logging.CRITICAL)  # it logs the end of its JVM
            while wait([self._future], timeout=0.05).not_done:
                _kill_starting_jvm()
        if self._future.exception() is None:
            stop_session(self._future.result())
        self._thread.join()
