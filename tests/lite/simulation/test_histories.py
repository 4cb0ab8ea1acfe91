"""Histories by seed: the machines hold, and whoever breaks one of their rules is found out."""

import subprocess
import sys

import pytest

from shoal.lite.simulation.runner import SABOTAGE_NAMES, Kind
from support.sizes import mark_long, sized

# One of the replicas, one of the quorum, one of the disk.
QUICK_SABOTAGES = ("no-truncation", "forgotten-vote", "older-copies")
SABOTAGE_SEEDS = range(500)


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "shoal.lite.simulation", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)


@pytest.mark.slow
@pytest.mark.timeout(900)
@sized("histories", quick=100, long=1000)
def test_no_history_breaks_a_promise(histories: int) -> None:
    outcome = simulate("--seeds", f"0:{histories}", "--steps", "1000")
    assert outcome.returncode == 0, outcome.stdout
    for reached in ("elections of partition leaders", "truncations", "controller fail-overs"):
        assert reached in outcome.stdout


@pytest.mark.parametrize("sabotage", QUICK_SABOTAGES)
def test_a_broken_rule_is_found(sabotage: str) -> None:
    kind = Kind(sabotage=sabotage)
    assert any(kind.play(seed).violation for seed in SABOTAGE_SEEDS)


@pytest.mark.slow
@pytest.mark.parametrize("sabotage", mark_long(SABOTAGE_NAMES, quick=["forgotten-vote"]))
def test_a_broken_rule_is_reported_with_a_short_history(sabotage: str) -> None:
    seeds = f"{SABOTAGE_SEEDS.start}:{SABOTAGE_SEEDS.stop}"
    outcome = simulate("--sabotage", sabotage, "--seeds", seeds)
    assert outcome.returncode == 0, outcome.stdout
    assert "shortened to " in outcome.stdout


def test_a_history_follows_from_its_seed() -> None:
    """Not from the addresses of objects, by which sets are ordered."""
    kind, traces, occupied = Kind(), list[list[str]](), list[object]()
    for count in range(6):
        trace: list[str] = []
        kind.play(21, trace=trace.append)
        traces.append(trace)
        occupied += [object() for _ in range(1001 * count)]
    assert len(traces[0]) > 500
    assert traces == traces[:1] * 6
