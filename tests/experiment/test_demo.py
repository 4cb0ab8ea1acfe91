"""The demo as a newcomer runs it, on real Spark; its runs afterwards; and its sudden end."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow]

GONE_WITHIN_S = 30.0  # 15 on a calm machine


def shoal(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "shoal", *arguments]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    runs_dir = tmp_path_factory.mktemp("runs")
    outcome = subprocess.run(
        shoal("demo", "--runs-dir", str(runs_dir)),
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    return outcome, runs_dir


def test_both_verdicts_are_what_they_must_be(
    demo: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    outcome, _ = demo
    assert outcome.returncode == 0, outcome.stderr
    assert "PROVEN: All 20,000 acknowledged messages were delivered, in order" in outcome.stdout
    assert "VIOLATED: 1 of 8,000 acknowledged messages was lost (1 not-mirrored)" in outcome.stdout
    assert "lane 2, sequence 1000" in outcome.stdout


def test_both_runs_keep_their_results(
    demo: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    _, runs_dir = demo
    results = [json.loads(path.read_text()) for path in sorted(runs_dir.glob("*/result.json"))]
    assert [result["verdict"] for result in results] == ["proven", "violated"]
    assert [result["metrics"]["delivered"] for result in results] == [20_000, 7_999]
    assert len(list(runs_dir.glob("*/report.html"))) == 2


@pytest.mark.long
def test_the_same_ledgers_give_the_same_verdict_again(
    demo: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    _, runs_dir = demo
    lossy = next(path for path in runs_dir.iterdir() if path.name.endswith("loss"))
    before = json.loads((lossy / "result.json").read_text())
    again = subprocess.run(
        shoal("audit", str(lossy), "--output", "json"),
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert again.returncode == 4, again.stderr
    assert json.loads(again.stdout) == before


@pytest.fixture
def start_demo(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A demo whose Spark, clusters, mirror and workers are all up."""
    command = shoal("demo", "--runs-dir", str(tmp_path))
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as it:
        assert it.stderr
        for line in it.stderr:
            if "received" in line and " 0 received" not in line:
                break
        yield it
        it.kill()


@pytest.mark.long
def test_a_killed_demo_leaves_no_process(start_demo: subprocess.Popen[str]) -> None:
    left = psutil.Process(start_demo.pid).children(recursive=True)
    assert any("java" in process.name() for process in left)
    os.kill(start_demo.pid, 9)
    start_demo.wait(5)
    deadline = time.monotonic() + GONE_WITHIN_S
    while alive := [process for process in left if process.is_running()]:
        assert time.monotonic() < deadline, alive
        time.sleep(0.1)
