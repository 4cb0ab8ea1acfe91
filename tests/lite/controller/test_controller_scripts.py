"""Scenes with a controller, compared with the transcripts that were reviewed (`golden_script`)."""

from pathlib import Path

import pytest

from support.controller.script import Scene
from support.golden_script import check_script, scripts_beside

SCRIPTS = scripts_beside(__file__)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_controller_scene(path: Path) -> None:
    check_script(path, Scene())


def test_there_are_controller_scenes() -> None:
    assert len(SCRIPTS) >= 14
