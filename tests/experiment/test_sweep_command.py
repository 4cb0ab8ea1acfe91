"""`shoal sweep` as users run it: killed half way, and gone on with by the same command."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow]

FILE = """
[producer]
messages = 300
rate = 300
idempotent = false
drain_timeout = "60s"
[topics]
partitions = 1
[workers]
placement = "processes"
"""
LIMIT_S = 250


def results(folder: Path) -> dict[str, tuple[int, bytes]]:
    """What was judged: which file it is, and what stands there."""
    found = folder.glob("*/result.json")
    return {file.parent.name: (file.stat().st_ino, file.read_bytes()) for file in found}


@pytest.mark.long
def test_a_killed_sweep_makes_the_missing_runs_only(tmp_path: Path) -> None:
    file = tmp_path / "swept.toml"
    file.write_text(FILE)
    command = [sys.executable, "-m", "shoal", "sweep", str(file), "--vary", "producer.acks=1,all"]
    command += ["--repeat", "1", "--runs-dir", str(tmp_path / "runs")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        begun = 0
        for line in process.stderr:
            begun += line.strip() == "starting the workers"
            if begun == 2 and "sending and receiving" in line:
                break
        os.kill(process.pid, signal.SIGKILL)
        process.stderr.read()  # until everybody who could write here is gone
    assert begun == 2
    (folder,) = (tmp_path / "runs").iterdir()
    before = results(folder)
    assert len(before) == 1
    again = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert again.returncode == 0, again.stderr
    assert "1 of 2 runs are done" in again.stderr
    assert again.stderr.count("starting the workers") == 1
    after = results(folder)
    assert len(after) == 2
    assert before.items() <= after.items()
    result = json.loads((folder / "result.json").read_text())
    assert (result["done"], result["planned"]) == (2, 2)
    assert [len(column["runs"]) for column in result["comparison"]["columns"]] == [1, 1]
    assert {effect["parameter"] for effect in result["effects"]} == {"producer.acks"}
    page = (folder / "sweep.html").read_bytes()
    assert b'"done":2' in page
    assert b'"planned":2' in page
    # A sweep that is over tells the same again, and starts nothing for it.
    once_more = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert once_more.stdout == again.stdout
    assert "starting" not in once_more.stderr
    assert (folder / "sweep.html").read_bytes() == page
    assert results(folder) == after
