"""No worker outlives its driver by more than 15 s, and what it recorded stays readable."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from shoal.workload.record.ledger import create_run, open_run
from support.experiment import workers_driver

ORPHAN_LIMIT_S = 60.0  # 15 on a calm machine


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A driver in a process of its own, with one worker that records and one that hangs."""
    create_run(tmp_path / "run", {"run": "r1", "state": "running"})
    command = [sys.executable, str(workers_driver.__file__), str(tmp_path / "run"), "attempts,hang"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def _await_end(processes: list[psutil.Process], limit_s: float) -> list[float]:
    """How long each took to end; fails the test at the limit."""
    began = time.monotonic()
    took: dict[int, float] = {}
    while len(took) < len(processes):
        for process in processes:
            gone = not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
            if gone and process.pid not in took:
                took[process.pid] = time.monotonic() - began
        if time.monotonic() - began > limit_s:
            for process in processes:
                if process.pid not in took:
                    process.kill()
            pytest.fail(f"after {limit_s} s only {took} have ended")
        time.sleep(0.05)
    return [took[process.pid] for process in processes]


def test_workers_end_by_themselves_when_their_driver_is_killed(
    driver: subprocess.Popen[str], tmp_path: Path
) -> None:
    assert driver.stdout is not None
    pids = json.loads(driver.stdout.readline())
    workers = [psutil.Process(pid) for pid in pids]
    driver.send_signal(signal.SIGKILL)
    driver.wait(100)
    recording_s, hanging_s = _await_end(workers, ORPHAN_LIMIT_S)
    # It did not run away at once either: a driver may come back within 10 s.
    assert recording_s > 5
    assert hanging_s <= ORPHAN_LIMIT_S
    run = open_run(tmp_path / "run")
    segments = [line for line in run.commits if line["kind"] == "segment"]
    attempts = run.read("attempts")
    assert len(attempts) == sum(line["rows"] for line in segments) > 0
    reserved = max(line["until"] for line in run.commits if line["kind"] == "reserve")
    assert max(attempts["sequence"].to_pylist()) < reserved


def test_a_driver_that_leaves_in_order_leaves_nothing(
    driver: subprocess.Popen[str], tmp_path: Path
) -> None:
    assert driver.stdout is not None
    workers = [psutil.Process(pid) for pid in json.loads(driver.stdout.readline())[:1]]
    driver.send_signal(signal.SIGINT)  # raises KeyboardInterrupt inside the `with` block
    _await_end(workers, 60)
    assert driver.wait(100) != 0
    ends = [line for line in open_run(tmp_path / "run").commits if line["kind"] == "ended"]
    assert {(line["worker"], line["reason"]) for line in ends} == {
        ("w0", "stopped"),
        ("w1", "lost"),
    }
