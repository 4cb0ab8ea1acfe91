"""A standalone Spark cluster of this machine: a master and workers, each a process to be killed."""

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pyspark

from shoal.net.ports import free_ports
from shoal.runtime.java import spark_environment

PATIENCE_S = 90.0
_PYTHON = {
    "PYSPARK_PYTHON": sys.executable,
    "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
}
# No JVM here lives for long: optimising what it runs costs more than it brings.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1"
# For the programs that use the cluster, so that their executors do likewise.
SUBMIT_ARGUMENTS = f"--conf spark.executor.extraJavaOptions={JAVA_OPTIONS} pyspark-shell"


@dataclass
class SparkCluster:
    """Where it is, and its workers' processes."""

    master: str
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def executors(self) -> list[psutil.Process]:
        """The executors that run now; their Python processes descend from them."""
        found = []
        for worker in self.workers:
            for child in psutil.Process(worker.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):  # some end just now
                    if any("CoarseGrainedExecutorBackend" in part for part in child.cmdline()):
                        found.append(child)
        return found

    def kill_worker(self, number: int) -> None:
        """SIGKILL to a worker, its executors and their Python processes."""
        process = psutil.Process(self.workers[number].pid)
        for victim in [process, *process.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                victim.kill()
        self.workers[number].wait()


@contextmanager
def spark_cluster(
    folder: Path, *, workers: int, cores: int, has_shoal: bool = True
) -> Iterator[SparkCluster]:
    """Without shoal its machines have no path to it, and no Python of ours by default."""
    port, page = free_ports(2)
    cluster = SparkCluster(f"spark://127.0.0.1:{port}")
    arguments = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", str(page)]
    python = _PYTHON if has_shoal else {}
    started = [_start("master.Master", folder / "master", *arguments, python=python)]
    try:
        for number in range(workers):
            place = folder / f"worker-{number}"
            options = ["--host", "127.0.0.1", "-c", str(cores), "-m", "1g", "-d", str(place)]
            options += ["--webui-port", "0"]
            process = _start("worker.Worker", place, *options, cluster.master, python=python)
            cluster.workers.append(process)
        _await_workers(page, workers)
        yield cluster
    finally:
        for process in [*cluster.workers, *started]:
            _end(process)


def _start(
    name: str, folder: Path, *arguments: str, python: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    folder.mkdir(parents=True)
    home = Path(pyspark.__file__).parent
    ours = {"PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "VIRTUAL_ENV"}
    environment = {
        **{name: value for name, value in os.environ.items() if name not in ours},
        **spark_environment(),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_HOME": str(home),
        **python,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": JAVA_OPTIONS,
    }
    command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )


def _await_workers(page: int, count: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        if _alive_workers(page) >= count:
            return
        assert time.monotonic() < deadline, "the Spark cluster did not come up"
        time.sleep(0.2)


def _alive_workers(page: int) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{page}/json/", timeout=5) as answer:
            return int(json.load(answer)["aliveworkers"])
    except (OSError, ValueError):
        return 0


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(psutil.NoSuchProcess):
        for victim in psutil.Process(process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                victim.kill()
    process.kill()
    process.wait()
