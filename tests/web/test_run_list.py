"""Runs are found by name, summarised, and read again only if they changed."""

import json
from pathlib import Path

import pytest

from shoal.model.findings import Verdict
from shoal.web.run_list import RunList, count_numbers, read_manifest
from support.web_runs import RunningRun, build_result, write_run


def test_runs_are_listed_newest_first_with_their_numbers(tmp_path: Path) -> None:
    write_run(tmp_path / "old", verdict=Verdict.PROVEN, age_s=100)
    write_run(tmp_path / "new")
    runs, total = RunList(tmp_path).list_newest(0, 10)
    assert [run["name"] for run in runs] == ["new", "old"]
    assert total == 2
    assert [run["verdict"] for run in runs] == ["violated", "proven"]
    assert runs[0]["numbers"]["lost"] == 1
    assert runs[0]["numbers"]["p99_us"] == 14_000
    assert runs[0]["missed"] == ["latency_ms_p99<10: latency_ms_p99 is 14"]
    flow = {stage["stage"]: (stage["count"], stage["lost"]) for stage in runs[0]["numbers"]["flow"]}
    expected = {"sent": (1000, 0), "source": (1000, 0), "mirror": (999, 1), "target": (999, 0)}
    assert flow == expected | {"received": (999, 0)}
    assert RunList(tmp_path).list_newest(1, 1)[0][0]["name"] == "old"


def test_a_malformed_run_does_not_hide_the_others(tmp_path: Path) -> None:
    write_run(tmp_path / "good")
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "run.json").write_text("{")
    worse = write_run(tmp_path / "worse", age_s=5)
    (worse / "result.json").write_text('{"metrics": 1}')
    runs, _ = RunList(tmp_path).list_newest(0, 10)
    states = {run["name"]: (run["state"], run["numbers"] is None) for run in runs}
    expected = {"good": ("finished", False), "bad": ("unreadable", True)}
    assert states == expected | {"worse": ("finished", True)}


def test_a_summary_is_read_again_when_the_run_is_judged(tmp_path: Path) -> None:
    running = RunningRun(tmp_path / "r")
    runs = RunList(tmp_path)
    assert runs.list_newest(0, 1)[0][0]["state"] == "running"
    running.end()
    summary = runs.list_newest(0, 1)[0][0]
    assert (summary["state"], summary["verdict"]) == ("finished", "proven")
    assert runs.summarise(tmp_path / "r") is summary


@pytest.mark.parametrize("name", ["..", ".", "", "a/..", "../outside", "/", "inside/ledger"])
def test_only_names_of_runs_are_found(tmp_path: Path, name: str) -> None:
    runs_dir = tmp_path / "runs"
    write_run(runs_dir / "inside")
    write_run(tmp_path / "outside")
    runs = RunList(runs_dir)
    assert runs.find("inside") == runs_dir / "inside"
    assert runs.find(name) is None
    assert RunList(tmp_path / "missing").find(name) is None


def test_a_percentile_among_losses_is_never() -> None:
    result = build_result("r", Verdict.VIOLATED, "t").to_json()
    latency = result["metrics"]["latency_us"]["e2e_intended"]
    latency |= {"undelivered": 500, "owed": {"p99": None}}
    assert count_numbers(result)["p99_us"] == "never"


def test_properties_of_clusters_are_not_shown(tmp_path: Path) -> None:
    manifest = read_manifest(write_run(tmp_path / "r"))
    assert manifest["clusters"] == {"source": "127.0.0.1:1"}
    assert "secret" not in json.dumps(manifest)
    assert read_manifest(tmp_path) == {}
