"""Scenes with replicas, compared with the transcripts that were reviewed (`golden_script`)."""

from pathlib import Path

import pytest

from support.golden_script import check_script, scripts_beside
from support.replication.script import Scene

SCRIPTS = scripts_beside(__file__)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_replication_scene(path: Path) -> None:
    check_script(path, Scene())


def test_there_are_replication_scenes() -> None:
    assert len(SCRIPTS) >= 12
