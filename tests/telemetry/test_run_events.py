"""The event stream of a run: ticks, histograms, faults, and copies of its clusters' streams."""

import json
import os
from pathlib import Path
from typing import Any

from shoal.model.events import FILE_NAME
from shoal.telemetry import run_events
from shoal.telemetry.definitions import OCTAVE_BUCKETS_S
from shoal.telemetry.events import EventReader, EventWriter
from shoal.telemetry.run_events import ProcessEvents, RunEvents


def read_kinds(folder: Path, kind: str) -> list[Any]:
    reader = EventReader(folder)
    events = reader.read().events
    reader.close()
    return [event for event in events if type(event).__name__ == kind]


def test_ticks_have_what_was_added_since_the_last(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(run_events, "TICK_EVERY_S", 0.0)
    counts = [0] * (len(OCTAVE_BUCKETS_S) + 1)
    events = RunEvents(tmp_path)
    counts[3], counts[-1] = 40, 1
    events.on_progress({"sent": 40}, {"end_to_end": [*counts, 900]})
    counts[3] = 72
    events.on_progress({"sent": 72}, {"end_to_end": [*counts, 1500]})
    events.on_progress({"sent": 72}, {"end_to_end": [*counts, 1500]})
    events.close("finished")
    first, second, third = read_kinds(tmp_path, "Tick")
    assert first.histograms["end_to_end"].count == 41
    found = second.histograms["end_to_end"]
    assert (found.count, found.sum_us) == (32, 600)
    upper_us = OCTAVE_BUCKETS_S[3] * 1e6
    for bucket, count in found.buckets.items():
        assert upper_us / 2 * 0.95 <= 2 ** (int(bucket) / 16) <= upper_us
        assert count == 2
    assert third.histograms == {}
    assert [each.name for each in third.processes] == ["driver"]


def test_faults_come_from_the_commit_log(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(run_events, "TICK_EVERY_S", 0.0)
    fault = {"kind": "fault", "at_us": 7, "fault": 1, "name": "kill", "target": "source/1"}
    commits = tmp_path / "commits.jsonl"
    events = RunEvents(tmp_path)
    commits.write_text('{"kind": "open"}\n' + json.dumps({**fault, "phase": "begin"}) + "\n{")
    events.on_progress({}, {})
    commits.write_text(commits.read_text()[:-1] + json.dumps({**fault, "phase": "end"}) + "\n")
    events.close("finished")
    found = [(each.phase, each.what, each.t) for each in read_kinds(tmp_path, "FaultSeen")]
    assert found == [("begin", "kill source/1", 7), ("end", "kill source/1", 7)]


def test_the_events_of_a_cluster_are_copied_while_the_run_goes(tmp_path: Path) -> None:
    cluster, run = tmp_path / "cluster", tmp_path / "run"
    for folder in (cluster, run):
        folder.mkdir()
    writer = EventWriter(cluster, "cluster", "source")
    for state in ("running", "leads"):
        writer.set_state("broker 1", state)
    writer.tick(counters={"records_in": 1})
    events = RunEvents(run, {"source": cluster, "target": tmp_path / "none"})
    events.on_progress({}, {})
    writer.set_state("broker 1", "dead")
    events.close("finished")
    writer.set_state("broker 1", "running")
    writer.close()
    copied = run / "source"
    assert [each.state for each in read_kinds(copied, "State")] == ["leads", "dead"]
    assert read_kinds(copied, "Tick") == []
    assert [each.subject for each in read_kinds(copied, "Meta")] == ["cluster"]
    assert len(read_kinds(copied, "End")) == 1
    assert not (run / "target" / FILE_NAME).exists()


def test_the_last_counts_are_written_however_short_the_run(tmp_path: Path) -> None:
    events = RunEvents(tmp_path)
    for sent in range(5):
        events.on_progress({"sent": sent}, {})
    events.close("finished")
    assert [tick.counters["sent"] for tick in read_kinds(tmp_path, "Tick")] == [0, 4]


def test_processes_of_this_machine_are_in_each_tick(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(run_events, "TICK_EVERY_S", 0.0)
    events = RunEvents(tmp_path, name="producer a")
    processes = [("producer-1", os.getpid()), ("producer-2", 0)]
    events.watch_processes(lambda: processes)
    events.on_progress({}, {})
    processes.append(("consumer-1", os.getppid()))
    events.on_progress({}, {})
    events.close("failed", "the disk is full")
    names = [[each.name for each in tick.processes] for tick in read_kinds(tmp_path, "Tick")]
    assert names == [["producer a", "producer-1"], ["producer a", "producer-1", "consumer-1"]]
    assert [(end.outcome, end.text) for end in read_kinds(tmp_path, "End")] == [
        ("failed", "the disk is full")
    ]


def test_a_mirror_without_events_is_known_by_its_processes(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(run_events, "TICK_EVERY_S", 0.0)
    pids: list[int] = [os.getpid(), os.getppid()]
    events = RunEvents(tmp_path)
    events.add_part(ProcessEvents(tmp_path / "mirror", "r/mirror", {"kind": "mm2"}, lambda: pids))
    events.on_progress({}, {})
    pids.clear()
    events.on_progress({}, {})
    events.close("finished")
    found = tmp_path / "mirror"
    assert [(each.subject, each.details) for each in read_kinds(found, "Meta")] == [
        ("mirror", {"kind": "mm2"})
    ]
    assert [each.state for each in read_kinds(found, "State")] == ["running", "dead"]
    used = [[each.name for each in tick.processes] for tick in read_kinds(found, "Tick")]
    assert used == [["mirror", "mirror 2"], []]
    assert len(read_kinds(found, "End")) == 1
