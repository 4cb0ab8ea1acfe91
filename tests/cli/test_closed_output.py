"""`shoal audit … | head`: a reader that closes the pipe changes no exit code."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.model.exit_codes import ExitCode
from support.audit.history_files import DRAINED, receive, run, send


@pytest.mark.parametrize("output", ["text", "json"])
@pytest.mark.parametrize(
    ("received", "verdict"), [(True, ExitCode.PROVEN), (False, ExitCode.VIOLATED)]
)
@pytest.mark.quick("True-0-text", "False-4-json")
def test_a_closed_pipe_leaves_the_exit_code_of_the_verdict(
    tmp_path: Path, output: str, received: bool, verdict: ExitCode
) -> None:
    path = tmp_path / "history.jsonl"
    lines = [run(), send(0), send(1), *receive(0), *(receive(1) if received else ()), DRAINED]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "shoal", "audit", "--history", str(path), "-o", output]
    try:
        done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(writing)
    assert done.returncode == verdict
    assert b"Traceback" not in done.stderr
    assert b"BrokenPipe" not in done.stderr
