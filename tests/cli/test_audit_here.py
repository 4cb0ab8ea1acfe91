"""A small run is judged in the process of the command, without Spark."""

import subprocess
import sys
from pathlib import Path

import pytest

from shoal.cli.main import execute
from support.audit.ledgers import clean_run


def test_a_run_of_few_streams_is_judged_with_compact_as_without(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = clean_run().write(tmp_path / "run")
    log = (run / "commits.jsonl").read_bytes()
    assert execute(["audit", "--compact", str(run)]) == 0
    assert (run / "commits.jsonl").read_bytes() == log
    assert execute(["audit", "--compact", str(run), str(run)]) == 2
    assert "compact each: shoal audit --compact RUN" in capsys.readouterr().err


def test_a_small_run_is_judged_without_loading_spark(tmp_path: Path) -> None:
    run = clean_run().write(tmp_path / "run")
    command = [sys.executable, "-X", "importtime", "-m", "shoal", "audit", str(run)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "PROVEN" in done.stdout.upper()
    imported = {line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines()}
    assert "shoal.audit.audit" in imported
    assert not {name for name in imported if name.split(".")[0] in ("pyspark", "py4j")}
    assert (run / "result.json").is_file()
