"""Mirrors of another version of shoal on the same machine: refused, and nobody else with them."""

import json
import os
from pathlib import Path

import pytest

from shoal.mirror.control import VERSION, find_running_mirrors
from shoal.model.errors import SystemFailure

OLD = {"flows": ["old"], "pid": os.getpid(), "port": 1, "token": "t"}  # version 1 has no number
NEW = {**OLD, "version": VERSION, "flows": ["new"]}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("shoal.mirror.control._folder", lambda: tmp_path)
    (tmp_path / "1.json").write_text(json.dumps(OLD))
    return tmp_path


def test_a_mirror_of_another_version_is_refused_by_its_name(folder: Path) -> None:
    for name in ("old", None):
        with pytest.raises(SystemFailure, match=r"1\.json") as refusal:
            find_running_mirrors(name)
        assert str(os.getpid()) in (refusal.value.remedy or "")


def test_a_mirror_of_another_version_keeps_no_other_from_being_asked(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "2.json").write_text(json.dumps(NEW))
    assert [each.flows for each in find_running_mirrors("new")] == [["new"]]
    assert caplog.text == ""
    # Of all mirrors, those that can be asked; the log names the others.
    assert [each.flows for each in find_running_mirrors()] == [["new"]]
    assert "1.json" in caplog.text


def test_a_name_that_nobody_has_is_not_refused_because_of_another(folder: Path) -> None:
    assert find_running_mirrors("absent") == []
