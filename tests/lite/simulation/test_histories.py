"""Histories by seed: the state machines hold, and a broken rule is found."""

import subprocess
import sys
from pathlib import Path

import pytest

from shoal.lite.simulation.__main__ import write_report
from shoal.lite.simulation.runner import SABOTAGE_NAMES, SABOTAGE_SEEDS, Kind
from support.sizes import mark_long, size_cases


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "shoal.lite.simulation", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)


@pytest.mark.slow
@pytest.mark.timeout(900)
@size_cases("histories", quick=100, long=1000)
def test_no_history_breaks_a_promise(histories: int) -> None:
    outcome = simulate("--seeds", f"0:{histories}", "--steps", "1000")
    assert outcome.returncode == 0, outcome.stdout
    for reached in ("elections of partition leaders", "truncations", "controller fail-overs"):
        assert reached in outcome.stdout


def test_what_was_committed_is_acknowledged_though_more_copies_are_asked_for_since() -> None:
    """`min.insync.replicas` was raised while the followers learned the high watermark."""
    assert Kind().play(28131).violation is None


@pytest.mark.parametrize("sabotage", SABOTAGE_NAMES)
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


def test_a_report_names_seeds_and_planted_bugs_and_keeps_what_people_wrote(tmp_path: Path) -> None:
    report = tmp_path / "simulation.md"
    report.write_text("# Proof\n\nOf yesterday.\n\n## What was found\n\nMuch.\n")
    outcome = simulate("--seeds", "3:5", "--jobs", "1", "--plant-all", "--report", str(report))
    assert outcome.returncode == 0, outcome.stdout
    text = report.read_text()
    assert "2 random histories (seeds 3 to 4)" in text
    assert all(f"| {name} | " in text for name in SABOTAGE_NAMES)
    assert "| date |" in text
    assert "| code | " in text
    assert "Of yesterday" not in text
    assert text.endswith("\n## What was found\n\nMuch.\n")


@pytest.mark.parametrize("before", [None, "", "# Proof\n\nWithout more.\n"])
def test_a_report_needs_no_earlier_one(tmp_path: Path, before: str | None) -> None:
    report = tmp_path / "proofs" / "simulation.md"
    if before is not None:
        report.parent.mkdir()
        report.write_text(before)
    write_report(report, "# Proof\n\nNew.\n")
    assert report.read_text() == "# Proof\n\nNew.\n"
