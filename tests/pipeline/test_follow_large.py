"""A run that is large for one process is followed and judged at its end by one Spark session."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.audit.scratch import SCRATCH
from shoal.model.exit_codes import ExitCode
from shoal.pipeline.follow import find_raised
from support.audit.ledgers import busy_run
from support.spark.cluster import SUBMIT_ARGUMENTS

pytestmark = pytest.mark.spark

# Five million rows are the limit; here ten are.
FOLLOW = """
import sys
from shoal.cli.main import execute
from shoal.pipeline import follow

follow.MOST_ROWS_HERE = 10
sys.exit(execute(["audit", "--follow", "--master", "local[2]", sys.argv[1]]))
"""


def test_one_session_follows_and_judges(tmp_path: Path) -> None:
    run = busy_run().write(tmp_path / "run", rows_per_segment=50)
    (run / SCRATCH).mkdir()
    (run / SCRATCH / "of another audit").touch()
    done = subprocess.run(
        [sys.executable, "-c", FOLLOW, str(run)],
        env={**os.environ, "PYSPARK_SUBMIT_ARGS": SUBMIT_ARGUMENTS},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == ExitCode.VIOLATED, done.stderr
    assert "certain: " in done.stdout
    assert find_raised(run)
    assert [path.name for path in (run / SCRATCH).iterdir()] == ["of another audit"]
