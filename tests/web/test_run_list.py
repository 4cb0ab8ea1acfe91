"""Runs are found by name, summarised, and read again only if they changed."""

import json
from pathlib import Path

import pytest

from shoal.control.clusters import find_driver
from shoal.model.findings import Verdict
from shoal.web.overview import find_replicas
from shoal.web.run_list import RunList, count_numbers, read_manifest, read_sweep_result
from shoal.web.things import find_thing, find_things
from support.web_runs import (
    START_US,
    RunningRun,
    build_result,
    describe_writer,
    write_json,
    write_run,
    write_sweep,
)


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


def test_a_sweep_is_one_entry_and_its_runs_are_found_below_it(tmp_path: Path) -> None:
    write_run(tmp_path / "alone", age_s=100)
    sweep = write_sweep(tmp_path / "sweep-x")
    runs = RunList(tmp_path)
    rows, total = runs.list_newest(0, 10)
    assert [(row["kind"], row["name"]) for row in rows] == [("run", "alone"), ("sweep", "sweep-x")]
    assert total == 2
    verdicts = {"proven": 1, "violated": 1}
    assert (rows[1]["verdicts"], rows[1]["done"], rows[1]["planned"]) == (verdicts, 2, 2)
    assert runs.find("sweep-x/acks_all-0") == sweep / "acks_all-0"
    assert runs.find_sweep("sweep-x") == sweep
    names = [run["name"] for run in runs.list_runs_of(sweep)]
    assert names == ["sweep-x/acks_all-0", "sweep-x/acks_1-1"]
    shown = read_sweep_result(sweep)
    assert shown is not None
    assert shown["sentences"][0].startswith("producer.acks: ")
    assert find_driver("sweep-x/acks_all-0", tmp_path) is not None


@pytest.mark.parametrize(
    "name", ["sweep-x/..", "sweep-x/", "sweep-x//acks_all-0", "/acks_all-0", "../runs/alone", "x/y"]
)
def test_only_names_of_runs_of_a_sweep_are_found(tmp_path: Path, name: str) -> None:
    write_sweep(tmp_path / "runs" / "sweep-x")
    write_run(tmp_path / "runs" / "alone")
    assert RunList(tmp_path / "runs").find(name) is None
    assert RunList(tmp_path / "runs").find_sweep(name) is None
    assert find_driver(name, tmp_path / "runs") is None


@pytest.mark.parametrize("plan", ["", "[]", "{}", '{"parameters": {"a": 1}, "repeats": "x"}'])
def test_a_malformed_sweep_is_listed(tmp_path: Path, plan: str) -> None:
    sweep = write_sweep(tmp_path / "sweep-x", is_done=False)
    (sweep / "sweep.json").write_text(plan)
    (sweep / "result.json").write_text('{"effects": [{}]}')
    (row,) = RunList(tmp_path).list_newest(0, 10)[0]
    assert (row["parameters"], row["planned"], row["done"]) == ({}, 0, 2)
    assert read_sweep_result(sweep) is None


def test_a_run_of_a_sweep_is_followed_while_it_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    sweep = write_sweep(tmp_path / "sweep-x", is_done=False)
    RunningRun(sweep / "going").tick()
    part = sweep / "going" / "source"
    part.mkdir()
    meta = {"t": START_US, **describe_writer("cluster", "source", is_alive=True)}
    (part / "events.jsonl").write_text(json.dumps(meta) + "\n")
    found = [thing.id for thing in find_things(tmp_path)]
    assert found == ["run:sweep-x/going", "run:sweep-x/going/source"]
    assert find_thing(tmp_path, "run:sweep-x/acks_all-0") is not None
    assert RunList(tmp_path).list_newest(0, 10)[0][0]["state"] == "running"


def test_a_run_without_a_mirror_has_no_stage_of_one() -> None:
    result = build_result("r", Verdict.VIOLATED, "t").to_json()
    stages = [stage["stage"] for stage in count_numbers(result)["flow"]]
    assert stages == ["sent", "source", "mirror", "target", "received"]
    del result["stages"]["source_to_target"]
    flow = count_numbers(result)["flow"]
    assert [stage["stage"] for stage in flow] == ["sent", "source", "received"]
    assert sum(stage["lost"] for stage in flow) == 1


def test_replicas_are_those_of_the_time_of_a_message(tmp_path: Path) -> None:
    states = [
        {"kind": "state", "object": "partition t-1", "state": "led", "t": 10, "details": details}
        for details in ({"leader": 1, "in_sync": [1, 2]}, {"leader": 2})
    ]
    states[1] |= {"t": 20, "details": {"leader": 2, "in_sync": [2]}}
    other = {**states[1], "object": "partition t-11", "t": 12}
    (tmp_path / "source").mkdir()
    lines = [json.dumps(state) + "\n" for state in (states[0], other, states[1])]
    (tmp_path / "source" / "events.jsonl").write_text("".join(lines))
    place = {"partition": 1, "offset": 5, "append_us": None}
    life = {"topic": "t", "source": [place], "target": [place], "sent_us": 15}
    first = {"source": {"leader": 1, "in_sync": [1, 2]}}
    assert find_replicas(tmp_path, life) == first
    later = {**life, "source": [{**place, "append_us": 20}]}
    assert find_replicas(tmp_path, later) == {"source": {"leader": 2, "in_sync": [2]}}
    assert find_replicas(tmp_path, {**life, "sent_us": 5}) == {}
    write_json(tmp_path / "source" / "events.jsonl", ["partition t-1"])
    assert find_replicas(tmp_path, life) == {}


def test_a_file_that_has_ended_is_read_again_if_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    running = RunningRun(tmp_path / "runs" / "r")
    path = running.folder / "events.jsonl"
    started = path.read_bytes()

    def list_running() -> list[str]:
        return [thing.id for thing in find_things(tmp_path / "runs")]

    assert list_running() == ["run:r"]
    running.end()
    assert list_running() == list_running() == []
    # A process that continues the file replaces it.
    draft = path.with_name("draft")
    draft.write_bytes(started)
    draft.replace(path)
    assert list_running() == ["run:r"]
