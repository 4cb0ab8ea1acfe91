"""Scenarios of the quorum, and the transcripts that they must give.

`RAFT_REWRITE=yes pytest tests/lite/raft/test_raft_scripts.py` writes the transcripts anew; the
difference is then to be read line by line, for it is a change of the protocol.
"""

import os
from pathlib import Path

import pytest

from support.raft.script import play

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=[path.stem for path in SCRIPTS])
def test_scenario(path: Path) -> None:
    expected = path.read_text()
    played = play(expected)
    if os.environ.get("RAFT_REWRITE") == "yes":
        path.write_text(played)
        return
    assert played == expected
