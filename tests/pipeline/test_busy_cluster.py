"""On a cluster that has nothing free every wait ends, with a message that says what to do."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.spark.cluster import spark_cluster

pytestmark = pytest.mark.spark

# The worker has 1 GB: an executor of 8 GB never starts, as on a cluster that others fill.
GREEDY = "--conf spark.executor.memory=8g pyspark-shell"
WAITS = """
import sys
from dataclasses import replace
from shoal.experiment.placing import find_location
from shoal.experiment.spec import WorkersSpec
from shoal.model.errors import ShoalError
from shoal.pipeline.session import SessionFuture
from support.experiment.experiments import single

spec = replace(single("bench", 10, 10.0), workers=WorkersSpec("spark", sys.argv[1]))
with SessionFuture(sys.argv[1]) as session:
    waits = {
        "the start": lambda: session.result(0.0),
        "executors": lambda: find_location(spec, session, lambda _: None, timeout_s=2.0),
        "a first task": lambda: session.wait_until_warm(2.0),
    }
    for name, wait in waits.items():
        try:
            wait()
        except ShoalError as error:
            print(f"{name}: {error} | {error.remedy}", flush=True)
"""


def test_each_wait_for_a_busy_cluster_has_a_limit_and_a_remedy(tmp_path: Path) -> None:
    path = os.pathsep.join(path for path in sys.path if path)
    with spark_cluster(tmp_path / "home", workers=1, cores=1) as cluster:
        done = subprocess.run(
            [sys.executable, "-c", WAITS, cluster.master],
            env={**os.environ, "PYTHONPATH": path, "PYSPARK_SUBMIT_ARGS": GREEDY},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    start, executors, first_task = done.stdout.splitlines()
    assert start.startswith(f"the start: Spark on {cluster.master} has not started within 0 s")
    assert executors.startswith("executors: only 0 of 1 executors connected within 2 s")
    assert "has not run a first task within 2 s" in first_task
    assert "| wait until other applications leave cores and memory free" in first_task
