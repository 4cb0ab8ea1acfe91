"""A run is judged while it is written: what is planted is raised, and nothing else."""

import asyncio
import subprocess
import sys
from pathlib import Path

from shoal.audit.audit import audit
from shoal.audit.follow import CERTAIN
from shoal.audit.read.folder import open_ledger
from shoal.pipeline.follow import find_raised
from shoal.telemetry.events import EventWriter
from support.audit.live_run import EXPECTED, LiveRun, Planted

NAMES = {finding.value for finding in CERTAIN}


def play(run_dir: Path, run: LiveRun) -> list[Planted]:
    """Play a run beside the process that follows it; what was planted."""
    planted: list[Planted] = []
    follower = subprocess.Popen(
        [sys.executable, "-m", "shoal", "audit", "--follow", "--early-only", str(run_dir)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        asyncio.run(run.play(planted.append))
    finally:
        output, _ = follower.communicate(timeout=120)
    assert follower.returncode == 0
    assert output.count("certain: ") >= len(set(EXPECTED.values()))
    return planted


def test_findings_of_a_run_are_raised_while_it_is_written(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    plantings = dict(enumerate(EXPECTED, start=2))
    planted = play(run_dir, LiveRun(run_dir, len(plantings) + 9, plantings))
    assert [each.planting for each in planted] == list(EXPECTED)
    # Delays, rebalances and aborted transactions raise nothing.
    assert find_raised(run_dir) == planted[-1].counts
    [group] = audit(open_ledger([run_dir])).groups.values()
    final = {name: found.count for name, found in group.findings.items() if name in NAMES}
    assert final == planted[-1].counts


def test_a_second_follower_raises_nothing_again(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    EventWriter(tmp_path / "run", "run", "run").close()
    asyncio.run(LiveRun(run_dir, 2, {1: "copy"}).play(lambda _: None))
    command = [sys.executable, "-m", "shoal", "audit", "--follow", "--early-only", str(run_dir)]
    outputs = [
        subprocess.run(command, capture_output=True, text=True, check=True, input="").stdout
        for _ in range(2)
    ]
    assert [output.count("duplicate: source") for output in outputs] == [1, 0]
    assert find_raised(run_dir) == {"duplicate: source": 1}
