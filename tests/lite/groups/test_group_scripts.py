"""Scenes with groups, compared with the transcripts that were reviewed.

After a change that is meant, `SHOAL_REWRITE=yes pytest …` writes the transcripts anew; the
difference is for reading, not for nodding through.
"""

import os
from pathlib import Path

import pytest

from support.group_script import run_script

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_group_scene(path: Path) -> None:
    played = run_script(path)
    if os.environ.get("SHOAL_REWRITE") == "yes":
        path.write_text(played)
    assert played == path.read_text()


def test_there_are_group_scenes() -> None:
    assert len(SCRIPTS) >= 10
