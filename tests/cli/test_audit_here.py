"""A small run is judged in the process of the command, without Spark."""

import subprocess
import sys
from pathlib import Path

from support.audit.ledgers import clean_run


def test_a_small_run_is_judged_without_loading_spark(tmp_path: Path) -> None:
    run = clean_run().write(tmp_path / "run")
    command = [sys.executable, "-X", "importtime", "-m", "shoal", "audit", str(run)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "PROVEN" in done.stdout.upper()
    imported = {line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines()}
    assert "shoal.audit.audit" in imported
    assert not {name for name in imported if name.split(".")[0] in ("pyspark", "py4j")}
    assert (run / "result.json").is_file()
