"""A failure of Spark is one message with its remedy, never a Java stack trace."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from shoal.audit.audit import Sizes
from shoal.model.errors import LedgerError, ShoalError, SystemFailure, UsageError
from shoal.model.exit_codes import ExitCode
from shoal.pipeline.audit_job import audit_run
from shoal.pipeline.failures import cause_of, translate_failures
from shoal.pipeline.parcels import MOST_INSIDE, make_parcel, open_parcel, open_shared
from support.audit.ledgers import clean_run

STACK = "\n\tat org.apache.spark.scheduler.DAGScheduler.run(DAGScheduler.scala:1)" * 40
TEXTS = {
    "Total size of serialized results of 9 tasks (1.2 GiB) is bigger than"
    " spark.driver.maxResultSize (1024.0 MiB)": "spark.driver.maxResultSize=",
    "java.lang.OutOfMemoryError: Java heap space": "spark.driver.memory=",
    "MemoryError: Unable to allocate 2 GiB": "fewer slots",
    'java.io.IOException: Cannot run program "/opt/python": error=2': "PYSPARK_PYTHON",
    "ModuleNotFoundError: No module named 'shoal'": "PYSPARK_PYTHON",
    "ExecutorLostFailure (executor 3 exited caused by one of the running tasks)": "executors",
    "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)": "dmesg",
    "Py4JNetworkError: Answer from Java side is empty": "shoal doctor",
    "something that nobody has seen": "shoal doctor",
}


@pytest.mark.parametrize("text", TEXTS)
def test_each_cause_has_its_remedy(text: str) -> None:
    found = cause_of(PySparkException(f"Job aborted: {text}{STACK}"))
    assert isinstance(found, SystemFailure)
    assert TEXTS[text] in (found.remedy or "")
    assert len(str(found).splitlines()) == 1
    assert "DAGScheduler" not in str(found)


def test_an_unknown_failure_is_told_by_the_line_that_says_it() -> None:
    text = "An error occurred while calling z:org.Py.collect.\n: org.SparkException: Job 5 is odd"
    assert "org.SparkException: Job 5 is odd" in str(cause_of(PySparkException(text + STACK)))


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("shoal.model.errors.LedgerError: f.parquet cannot be read", LedgerError, "f.parquet"),
        ("shoal.model.errors.SystemFailure: cannot write to /s", SystemFailure, "cannot write"),
        ("shoal.model.errors.UsageError: too large", UsageError, "too large"),
        ("shoal.model.errors.Literal: x", SystemFailure, "Spark could not"),
    ],
)
def test_the_error_of_a_task_comes_through(text: str, kind: type[ShoalError], message: str) -> None:
    found = cause_of(PySparkException(f"Traceback:\n{text}\n{STACK}"))
    assert type(found) is kind
    assert message in str(found)


def test_a_jvm_that_is_gone_is_a_failure_of_spark() -> None:
    with pytest.raises(SystemFailure, match="JVM of Spark has ended"), translate_failures():
        raise Py4JNetworkError("Answer from Java side is empty")


def test_a_scratch_folder_that_is_gone_fails_the_audit_with_one_message(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = clean_run().write(tmp_path / "run")
    monkeypatch.setattr("shoal.pipeline.audit_job.SCRATCH", "missing")
    monkeypatch.setattr(Path, "mkdir", lambda *_args, **_options: None)
    with pytest.raises(SystemFailure, match="cannot write to") as raised:
        audit_run([run], spark, sizes=Sizes(150, 60, 50))
    assert len(str(raised.value).splitlines()) == 1


@pytest.mark.long
def test_results_that_are_too_large_end_with_the_documented_exit_code(tmp_path: Path) -> None:
    run = clean_run(lanes=3, count=200).write(tmp_path / "run", rows_per_segment=100)
    environment = {
        **os.environ,
        "PYSPARK_SUBMIT_ARGS": "--conf spark.driver.maxResultSize=1k pyspark-shell",
    }
    command = [sys.executable, "-m", "shoal", "audit", str(run), "--master", "local[2]"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == ExitCode.UNEXPECTED
    assert "maxResultSize" in ended.stderr
    assert "what to do: set PYSPARK_SUBMIT_ARGS" in ended.stderr
    assert "Traceback" not in ended.stderr


# ---------------------------------------------------------------- what tasks carry


def test_a_small_parcel_is_inside_and_a_large_one_is_a_file(tmp_path: Path) -> None:
    small, large = "a" * MOST_INSIDE, "b" * (MOST_INSIDE + 1)
    assert make_parcel(small, str(tmp_path)) == [small]
    assert make_parcel(large, None) == [large]
    parcel = make_parcel(large, str(tmp_path))
    assert len("".join(parcel)) < MOST_INSIDE
    assert [open_parcel(each) for each in ([small], [large], parcel)] == [small, large, large]


def test_a_parcel_that_somebody_changed_is_refused(tmp_path: Path) -> None:
    parcel = make_parcel("b" * (MOST_INSIDE + 1), str(tmp_path))
    Path(parcel[1]).write_text("c" * (MOST_INSIDE + 1))
    with pytest.raises(SystemFailure, match="is not what the driver"):
        open_shared(parcel)
    Path(parcel[1]).unlink()
    with pytest.raises(SystemFailure, match="all executors share"):
        open_shared(parcel)
