"""Kills in the middle of a run: ledgers stay readable, verdicts honest, and nothing is left.

The judge here is the audit itself, run in this process: what Spark adds is tested elsewhere.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from shoal.audit.audit import audit
from shoal.audit.read.folder import open_ledger
from shoal.experiment.runs import summarise
from shoal.model.findings import LOST, Finding, Verdict
from shoal.model.result import Result

DRIVER = Path(__file__).parents[1] / "support" / "experiment" / "driver.py"
GONE_WITHIN_S = 60.0  # 15 on a calm machine
MESSAGES, RATE = 60_000, 4_000


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A run that waits for missing messages for a short time only."""
    with start_driver(tmp_path, drain_s=3) as process:
        yield process


@contextmanager
def start_driver(tmp_path: Path, drain_s: int) -> Iterator[subprocess.Popen[str]]:
    """A run of fifteen seconds whose messages have begun to arrive."""
    load = [str(MESSAGES), str(RATE), "mirror", str(drain_s)]
    command = [sys.executable, str(DRIVER), str(run_dir(tmp_path)), *load]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout
        assert process.stdout.readline() == "messages arrive\n"
        yield process
        if process.poll() is None:
            process.kill()


def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "run"


def children(process: subprocess.Popen[str]) -> list[psutil.Process]:
    found: list[psutil.Process] = psutil.Process(process.pid).children(recursive=True)
    return found


def worker(process: subprocess.Popen[str], log_name: str) -> psutil.Process:
    """The worker that writes this log."""
    for child in children(process):
        with suppress(psutil.NoSuchProcess):  # some end just now
            if any(log_name in file.path for file in child.open_files()):
                return child
    raise AssertionError(f"no process writes {log_name}")


def judge_run(tmp_path: Path) -> Result:
    return audit(open_ledger([run_dir(tmp_path)]))


def test_a_killed_producer_leaves_an_honest_verdict(
    driver: subprocess.Popen[str], tmp_path: Path
) -> None:
    worker(driver, "producer-1").kill()
    assert driver.wait(100) == 0
    result = judge_run(tmp_path)
    assert not LOST & set(map(Finding, result.findings))
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "roducer-1 was lost (its process was killed by SIGKILL), so " in result.sentence
    assert f"of {MESSAGES:,} messages were attempted" in result.sentence
    assert [lost["worker"] for lost in result.lost_workers] == ["producer-1"]
    assert 0 < result.metrics.delivered <= result.metrics.attempts < MESSAGES
    assert result.metrics.attempts == result.metrics.ok + result.metrics.unknown


@pytest.mark.long
def test_a_killed_consumer_leaves_pending_messages_and_no_loss(
    driver: subprocess.Popen[str], tmp_path: Path
) -> None:
    worker(driver, "consumer-1").kill()
    assert driver.wait(100) == 0
    result = judge_run(tmp_path)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "onsumer-1 was lost (its process was killed by SIGKILL), so " in result.sentence
    assert result.metrics.pending > 0
    assert result.metrics.lost == 0


@pytest.mark.long
def test_a_killed_driver_leaves_readable_ledgers_and_no_process(
    driver: subprocess.Popen[str], tmp_path: Path
) -> None:
    left = children(driver)
    assert len(left) >= 5
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait(100)
    deadline = time.monotonic() + GONE_WITHIN_S
    while alive := [process for process in left if process.is_running()]:
        assert time.monotonic() < deadline, alive
        time.sleep(0.1)
    assert summarise(run_dir(tmp_path)).state == "interrupted"
    result = judge_run(tmp_path)
    # Proven if by chance everything that was recorded as sent was also recorded as received.
    assert result.verdict is not Verdict.VIOLATED
    assert result.metrics.lost == 0
    assert result.metrics.ok > 0
    assert result.metrics.unknown > 0


def test_ctrl_c_drains_and_ends_in_order(tmp_path: Path) -> None:
    with start_driver(tmp_path, drain_s=60) as process:
        process.send_signal(signal.SIGINT)
        assert process.wait(200) == 0
    assert summarise(run_dir(tmp_path)).state == "interrupted"
    result = judge_run(tmp_path)
    assert result.verdict is Verdict.PROVEN
    assert 0 < result.metrics.attempts < MESSAGES
