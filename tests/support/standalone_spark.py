"""A standalone Spark cluster of this machine, and audits on it from a process of their own.

python -m support.standalone_spark MASTER RUN    audits RUN by cells, and again by DataFrames
                                                 after a line from its standard input
"""

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import psutil
import pyspark

from shoal.runtime.java import spark_environment

PATIENCE_S: Final = 180.0
# Small enough for several cells, walks and offset cells.
AUDIT_SIZES: Final = (150, 60, 50)
_MASTER: Final = "org.apache.spark.deploy.master.Master"
_WORKER: Final = "org.apache.spark.deploy.worker.Worker"


def _environment() -> dict[str, str]:
    local = {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    return {**os.environ, **spark_environment(), **local}


class StandaloneSpark:
    """A master and some workers with a core each."""

    def __init__(self, folder: Path, *, workers: int) -> None:
        folder.mkdir()
        self._folder, self._count = folder, workers
        self._processes: list[subprocess.Popen[bytes]] = []
        self.master = ""

    def __enter__(self) -> Self:
        try:
            self._start(
                "master", _MASTER, "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"
            )
            self.master, page = self._addresses()
            for number in range(self._count):
                places = ["-d", str(self._folder / f"work-{number}"), "--webui-port", "0"]
                told = ["--host", "127.0.0.1", "-c", "1", "-m", "1g", *places, self.master]
                self._start(f"worker-{number}", _WORKER, *told)
            self._await_workers(page)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _start(self, name: str, *command: str) -> None:
        launcher = Path(pyspark.__file__).parent / "bin" / "spark-class"
        with (self._folder / f"{name}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen([launcher, *command], env=_environment(), stdout=log, stderr=log)
            )

    def _addresses(self) -> tuple[str, str]:
        """Where the master listens, and where its page is."""
        told = self._folder / "master.log"
        deadline_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline_s:
            text = told.read_text(errors="replace")
            master = re.search(r"spark://127\.0\.0\.1:\d+", text)
            page = re.search(r"started at (http://\S+)", text)
            if master and page:
                return master[0], page[1]
            time.sleep(0.1)
        raise AssertionError(told.read_text(errors="replace")[-2000:])

    def _await_workers(self, page: str) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        alive = 0
        while time.monotonic() < deadline_s:
            with urllib.request.urlopen(f"{page}/json/", timeout=PATIENCE_S) as answer:  # noqa: S310
                alive = json.load(answer)["aliveworkers"]
            if alive == self._count:
                return
            time.sleep(0.1)
        raise AssertionError(f"{alive} workers came up")

    def executors(self) -> list[psutil.Process]:
        """Executors that run, the children of the workers."""
        found = []
        for worker in self._processes[1:]:
            for child in psutil.Process(worker.pid).children(recursive=True):
                try:
                    if any("CoarseGrainedExecutorBackend" in part for part in child.cmdline()):
                        found.append(child)
                except psutil.Error:
                    continue  # it has ended just now
        return found

    def stop(self) -> None:
        for process in reversed(self._processes):
            tree = psutil.Process(process.pid).children(recursive=True)
            process.terminate()
            try:
                process.wait(PATIENCE_S)
            finally:
                for child in tree:
                    if child.is_running():
                        child.kill()
                psutil.wait_procs(tree, PATIENCE_S)


def audit_on(cluster: StandaloneSpark, run: Path) -> list[Any]:
    """The results by cells and by DataFrames; an executor is killed as the second begins."""
    command = [sys.executable, "-m", "support.standalone_spark", cluster.master, str(run)]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, env=_environment(), text=True, stdin=pipe, stdout=pipe
    ) as auditor:
        assert auditor.stdin is not None
        assert auditor.stdout is not None
        first = auditor.stdout.readline()
        executors = cluster.executors()
        assert len(executors) == 2
        auditor.stdin.write("go on\n")
        auditor.stdin.flush()
        executors[0].kill()
        second, _ = auditor.communicate(timeout=PATIENCE_S)
    return [json.loads(first), json.loads(second)]


def main() -> None:
    from shoal.audit.judge import Sizes
    from shoal.pipeline.audit_job import audit_run
    from shoal.pipeline.session import start_session, stop_session

    master, run = sys.argv[1], Path(sys.argv[2])
    session = start_session(master)
    try:
        sizes = Sizes(*AUDIT_SIZES)
        result = audit_run([run], session, sizes=sizes, formulation="cells")
        sys.stdout.write(json.dumps(result.to_json()) + "\n")
        sys.stdout.flush()
        sys.stdin.readline()
        result = audit_run([run], session, sizes=sizes, formulation="frames")
        sys.stdout.write(json.dumps(result.to_json()) + "\n")
    finally:
        stop_session(session)


if __name__ == "__main__":
    main()
