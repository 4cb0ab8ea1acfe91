"""Event streams are found by the folders of runs, the registry of clusters and the state folder."""

import json
import os
from pathlib import Path

import pytest

from shoal.model.events import FILE_NAME
from shoal.telemetry.discovery import find_sources, mirror_folder
from shoal.telemetry.events import EventWriter

DEAD = '{"kind":"meta","t":1,"version":1,"subject":"run","name":"old","pid":%d,%s"details":{}}\n'


def test_what_runs_and_what_is_recorded_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    runs = tmp_path / "runs"
    writers = [
        EventWriter(runs / "new", "run", "new"),
        EventWriter(runs / "new" / "source", "cluster", "source"),
        EventWriter(runs / "new" / "mirror", "mirror", "new"),
        EventWriter(tmp_path / "c1", "cluster", "whatever"),
        EventWriter(mirror_folder("pay"), "mirror", "pay"),
    ]
    # The process id of this test, but not its start.
    (runs / "old").mkdir()
    (runs / "old" / FILE_NAME).write_text(DEAD % (os.getpid(), '"process_start":"x",'))
    (runs / "other").mkdir()
    (runs / "other" / FILE_NAME).write_text("not ours\n")
    registry = tmp_path / "state" / "shoal" / "clusters"
    registry.mkdir(parents=True)
    for name, directory in (("c1", str(tmp_path / "c1")), ("apache", None)):
        (registry / f"{name}.json").write_text(json.dumps({"name": name, "directory": directory}))
    (registry / "damaged.json").write_text("{")
    found = [(each.subject, each.name, each.is_alive) for each in find_sources(runs)]
    for writer in writers:
        writer.close()
    assert found == [
        ("run", "new", True),
        ("cluster", "new/source", True),
        ("mirror", "new/mirror", True),
        ("run", "old", False),
        ("cluster", "c1", True),
        ("mirror", "pay", True),
    ]


def test_nothing_is_found_where_nothing_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert find_sources(tmp_path / "runs") == []
