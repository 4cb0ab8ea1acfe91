"""The mirror's workers as tasks of Spark: locally, and on a cluster that loses a worker."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from shoal.lite.cluster import LiteCluster
from shoal.mirror import flow
from shoal.mirror.control import send_command
from shoal.model.errors import ShoalError
from shoal.pipeline.placement import SparkPlacement
from shoal.workers.mirror_team import MirrorTeam
from support.mirror.runs import PATIENCE_S
from support.mirror.teams import PARTITIONS, RECORDS, check_copy, copy_all, prepare
from support.spark.cluster import spark_cluster

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def frequent_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow, "STATUS_EVERY_S", 0.05)


@pytest.fixture(scope="module")
def source() -> Iterator[str]:
    with LiteCluster() as cluster:
        yield cluster.bootstrap


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    with LiteCluster() as cluster:
        yield cluster.bootstrap


def test_the_same_copy_by_tasks_of_a_local_spark(
    spark: SparkSession, source: str, target: str
) -> None:
    config = prepare(source, target, "spark-local")
    placement = SparkPlacement(spark)
    make_backend = partial(MirrorTeam, placement=placement, workers=2, host=placement.host)
    status = asyncio.run(copy_all(config, make_backend))
    assert (status.parked, status.lag) == ((), 0)
    check_copy(target, "spark-local")


@pytest.mark.long
def test_a_cluster_loses_a_worker_half_way_and_no_record(
    source: str, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the command line, as a user would: its own Spark application beside everything else."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    topic = "spark-cluster"
    config = prepare(source, target, topic)
    with spark_cluster(tmp_path / "spark", workers=2, cores=2) as cluster:
        command = [sys.executable, "-m", "shoal", "mirror", "run", "--topics", topic]
        command += ["--source-bootstrap-server", source, "--target-bootstrap-server", target]
        command += ["--name", topic, "--master", cluster.master, "--workers", "2"]
        command += ["--max-bytes-per-s", str(config.limits.max_bytes_per_s // 2)]
        with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
            try:
                _wait_for_copied(topic, PARTITIONS * RECORDS // 5)
                cluster.kill_worker(0)
                _wait_for_copied(topic, PARTITIONS * RECORDS)
            finally:
                os.kill(process.pid, signal.SIGTERM)
                said = process.communicate(timeout=PATIENCE_S)[1]
    assert process.returncode == 0, said
    check_copy(target, topic)


def _wait_for_copied(name: str, records: int) -> None:
    deadline = time.monotonic() + 2 * PATIENCE_S
    while _count_copied(name) < records:
        assert time.monotonic() < deadline, f"{_count_copied(name)} of {records} records"
        time.sleep(0.2)


def _count_copied(name: str) -> int:
    try:
        (answer,) = send_command("status", name)
    except ShoalError:
        return 0
    status = answer["flows"].get(name)
    return sum(each["position"] for each in status["partitions"]) if status else 0
