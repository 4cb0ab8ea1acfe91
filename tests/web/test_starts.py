"""The page starts only what is listed."""

from pathlib import Path
from typing import Any

import pytest

from shoal.model.errors import UsageError
from shoal.web.starts import RunStarter

GOOD = {"kind": "preset", "name": "mirror-correctness", "settings": {}}


@pytest.fixture
def starter(tmp_path: Path) -> RunStarter:
    folder = tmp_path / "experiments"
    folder.mkdir()
    (folder / "mine.toml").write_text('description = "my own"\n')
    (tmp_path / "outside.toml").write_text("")
    (folder / "link.toml").symlink_to(tmp_path / "outside.toml")
    return RunStarter(tmp_path / "runs", folder)


def test_presets_and_files_of_the_folder_are_listed(starter: RunStarter) -> None:
    listed = {(each["kind"], each["name"]): each for each in starter.list_experiments()}
    assert ("preset", "mirror-correctness") in listed
    assert listed["file", "mine.toml"]["description"] == "my own"
    assert ("file", "link.toml") not in listed


def test_a_listed_experiment_becomes_arguments(starter: RunStarter) -> None:
    settings = {"producer.acks": "all", "producer.messages": 500}
    command = starter.build_command({**GOOD, "settings": settings})
    assert command[1:4] == ["-m", "shoal", "run"]
    assert command[4].endswith("mirror-correctness.toml")
    assert command[5:9] == ["--set", "producer.acks=all", "--set", "producer.messages=500"]
    of_file = starter.build_command({"kind": "file", "name": "mine.toml"})
    assert of_file[4].endswith("experiments/mine.toml")


@pytest.mark.parametrize(
    "change",
    [
        {"name": "no-such-preset"},
        {"name": "../mirror-correctness"},
        {"name": ["mirror-correctness"]},
        {"name": None},
        {"kind": "file", "name": "link.toml"},
        {"kind": "file", "name": "../outside.toml"},
        {"kind": "file", "name": "/etc/passwd"},
        {"kind": "other"},
        {"settings": {"source.bootstrap": "127.0.0.1:9092"}},
        {"settings": {"mirror.command": "rm"}},
        {"settings": {"producer.acks": "2"}},
        {"settings": {"producer.messages": "1; rm"}},
        {"settings": {"producer.messages": 1_000_001}},
        {"settings": {"producer.messages": -1}},
        {"settings": {"producer.messages": True}},
        {"settings": {"producer.messages": {"a": 1}}},
        {"settings": {"producer.messages": "٣"}},
        {"settings": [1]},
        {"more": 1},
    ],
)
def test_anything_else_is_refused(starter: RunStarter, change: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        starter.build_command({**GOOD, **change})
