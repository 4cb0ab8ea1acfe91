"""A standalone cluster that loses executors: audits and runs on it give correct results."""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import Consumer, TopicPartition

from shoal.lite.cluster import LiteCluster
from shoal.model.exit_codes import ExitCode
from support.audit.ledgers import busy_run
from support.formats.plain import parse
from support.spark.cluster import SUBMIT_ARGUMENTS, SparkCluster, spark_cluster

pytestmark = pytest.mark.spark

PATIENCE_S = 240.0
PARTITIONS, MESSAGES, RATE = 2, 12_000, 2_000


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """As many slots as a run with two producers and two consumers needs, scans included."""
    with spark_cluster(tmp_path_factory.mktemp("spark") / "home", workers=2, cores=3) as cluster:
        yield cluster


def python(*arguments: str, **how: Any) -> "subprocess.Popen[str]":
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "PYSPARK_SUBMIT_ARGS": SUBMIT_ARGUMENTS,
    }
    return subprocess.Popen([sys.executable, "-m", *arguments], env=environment, text=True, **how)


# ---------------------------------------------------------------- audits


@pytest.mark.long
def test_everywhere_the_same_result(standalone: SparkCluster, tmp_path: Path) -> None:
    """On two local cores, and by cells and by DataFrames on a cluster that loses executors."""
    run = busy_run().write(tmp_path / "run", rows_per_segment=50)
    with python("shoal", "audit", str(run), "--master", "local[2]") as local:
        assert local.wait(PATIENCE_S) == ExitCode.VIOLATED
    expected = (run / "result.json").read_text()
    assert '"lost: undelivered"' in expected
    with python(
        "support.spark.audits", standalone.master, str(run), stdout=subprocess.PIPE
    ) as there:
        output, _ = there.communicate(timeout=PATIENCE_S)
    assert there.returncode == 0
    texts = [
        json.dumps(json.loads(line), indent=2, ensure_ascii=False) + "\n"
        for line in output.splitlines()
    ]
    assert texts == [expected, expected]


# ---------------------------------------------------------------- runs


@pytest.mark.long
def test_a_lost_executor_adds_no_finding(standalone: SparkCluster, tmp_path: Path) -> None:
    with LiteCluster() as kafka:
        options = ["--bootstrap-server", kafka.bootstrap, "--master", standalone.master]
        options += ["--leader-expect-offers", "2", "--partitions", str(PARTITIONS)]
        options += ["--messages", str(MESSAGES), "--throughput", str(RATE), "--topic", "load"]
        options += ["--runs-dir", str(tmp_path), "--output", "json"]
        with python("shoal", "bench", *options, stdout=subprocess.PIPE) as bench:
            try:
                commits = wait_for_receipts(bench, tmp_path)
                lost = kill_a_busy_executor(standalone, kafka.nodes()[0].port)
                output, _ = bench.communicate(timeout=PATIENCE_S)
            finally:
                if bench.poll() is None:
                    bench.kill()
        stored = count_stored_messages(kafka.bootstrap)
    psutil.wait_procs(lost, PATIENCE_S)
    check(json.loads(output), bench.returncode, stored=stored, commits=commits)


def wait_for_receipts(bench: "subprocess.Popen[str]", runs: Path) -> Path:
    """Return the commit log of the run as soon as it contains received messages."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        assert bench.poll() is None, "the run has ended"
        for commits in runs.glob("*/commits.jsonl"):
            if '"table":"receipts"' in commits.read_text():
                return commits
        time.sleep(0.05)
    raise AssertionError("nothing was received")


def kill_a_busy_executor(cluster: SparkCluster, port: int) -> list[psutil.Process]:
    """Kill an executor whose Python processes talk to the broker; return those, now orphans."""
    for executor in cluster.executors():
        orphans: list[psutil.Process] = executor.children(recursive=True)
        if any(talks_to(process, port) for process in orphans):
            executor.kill()
            return orphans
    raise AssertionError("no executor talks to the broker")


def talks_to(process: psutil.Process, port: int) -> bool:
    with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        return any(c.raddr and c.raddr[1] == port for c in process.net_connections())
    return False


def count_stored_messages(bootstrap: str) -> int:
    """How many different messages the log holds, as librdkafka reads it."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "judge", "enable.auto.commit": False}
    reader = Consumer(settings)
    try:
        logs = [TopicPartition("load", number, 0) for number in range(PARTITIONS)]
        left = sum(reader.get_watermark_offsets(log, timeout=60)[1] for log in logs)
        reader.assign(logs)
        found = set()
        while left:
            message = reader.poll(60)
            assert message is not None
            assert message.error() is None, message.error()
            left -= 1
            output = parse(message)
            if output["kind"] == 0:  # neither marker nor manifest
                found.add((output["producer"], output["lane"], output["sequence"]))
        return len(found)
    finally:
        reader.close()


def check(output: dict[str, Any], exit_code: int, *, stored: int, commits: Path) -> None:
    """Nothing is reported as lost or wrong, and every worker without a report is recorded."""
    metrics = output["metrics"]
    assert output["verdict"] != "violated", output["findings"]
    assert exit_code in (ExitCode.PROVEN, ExitCode.INCONCLUSIVE)
    assert set(output["findings"]) <= {"pending"}, output["findings"]
    assert metrics["attempts"] == metrics["ok"] + metrics["unknown"] + metrics["failed"]
    assert metrics["ok"] <= stored <= metrics["attempts"] <= MESSAGES
    assert 0 < metrics["delivered"] <= stored
    lines = [json.loads(line) for line in commits.read_text().splitlines()]
    ends = Counter(line["reason"] for line in lines if line["kind"] == "ended")
    assert ends["lost"] >= 1, ends
