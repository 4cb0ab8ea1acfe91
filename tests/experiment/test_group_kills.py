"""Kills under load in runs with groups and transactions: nothing is found that is not true."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from shoal.audit.audit import audit
from shoal.audit.read.folder import open_ledger
from shoal.model.findings import Verdict
from shoal.model.ledger import OPEN
from shoal.model.result import Result
from shoal.workload.record.ledger import open_run

DRIVER = Path(__file__).parents[1] / "support" / "experiment" / "driver.py"
MESSAGES, RATE = 30_000, 2_000
ABORTED = MESSAGES // 2_500 * 500  # of five transactions of 500 the last


@contextmanager
def driver(folder: Path, how: str, **environment: str) -> Iterator["subprocess.Popen[str]"]:
    """A run of fifteen seconds whose messages have begun to arrive."""
    command = [sys.executable, str(DRIVER), str(folder), str(MESSAGES), str(RATE), how]
    path = {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | path | environment
    ) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == "messages arrive\n"
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def kill(process: "subprocess.Popen[str]", log_name: str) -> None:
    """The worker that writes this log."""
    for child in psutil.Process(process.pid).children(recursive=True):
        try:
            if any(log_name in file.path for file in child.open_files()):
                child.kill()
                return
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    raise AssertionError(f"no process writes {log_name}")


def judge_run(folder: Path) -> Result:
    return audit(open_ledger([folder]))


@pytest.mark.long
def test_a_killed_member_is_replaced_by_the_other(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with driver(folder, "group") as process:
        kill(process, "consumer-1")
        assert process.wait(110) == 0
    result = judge_run(folder)
    assert result.verdict is Verdict.PROVEN, result.findings
    assert result.metrics.attempts == MESSAGES
    assert result.metrics.failed == ABORTED
    assert result.metrics.delivered == result.metrics.ok
    assert {row["consumer"] for row in open_run(folder).read("assignments").to_pylist()} == {
        "consumer-1",
        "consumer-2",
    }


def test_a_killed_transactional_producer_leaves_nothing_unexplained(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with driver(folder, "group") as process:
        kill(process, "producer-1")
        assert process.wait(110) == 0
    result = judge_run(folder)
    assert result.verdict is not Verdict.VIOLATED, result.findings
    assert result.findings == {}
    assert result.metrics.unknown > 0
    assert result.metrics.delivered <= result.metrics.ok + result.metrics.unknown
    members = open_run(folder).read("transactions").to_pylist()
    assert any(row["fate"] == OPEN for row in members)
