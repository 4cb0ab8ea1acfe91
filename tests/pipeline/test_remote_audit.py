"""Audits on Spark of runs on another file system: tasks read them there, the driver does not."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.audit.audit import audit
from shoal.audit.read.folder import open_ledger
from shoal.model.exit_codes import ExitCode
from support.audit.ledgers import busy_run
from support.spark.cluster import spark_cluster
from support.storage.s3 import BUCKET, S3Server, s3_server

pytestmark = [pytest.mark.spark, pytest.mark.slow]

MESSAGES = ("attempts", "receipts", "log", "batches", "transactions", "polls")


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[S3Server]:
    with s3_server(tmp_path) as server:
        yield server


def run_program(s3: S3Server, *arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, **s3.environment, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def check_audit(s3: S3Server, tmp_path: Path, master: str) -> None:
    run = busy_run().write(tmp_path / "run", rows_per_segment=200)
    expected = json.dumps(audit(open_ledger([run])).to_json(), indent=2, ensure_ascii=False)
    url = s3.upload(run, "one")
    done = run_program(s3, "-m", "support.storage.remote_audit", master, url)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["code"] == ExitCode.VIOLATED
    assert s3.read("one/result.json").decode() == f"{expected}\n"
    of_messages = [
        name for name in found["opened"] if any(f"/ledger/{table}/" in name for table in MESSAGES)
    ]
    segments = {f"{url}/{path.relative_to(run)}" for path in run.glob("ledger/*/*.parquet")}
    assert set(of_messages) == {
        name for name in segments if any(f"/ledger/{table}/" in name for table in MESSAGES)
    }
    assert set(Counter(of_messages).values()) == {1}, "the driver opens a footer once"
    assert not [name for name in found["read"] if any(f"/{table}/" in name for table in MESSAGES)]
    written = {"findings", "metrics", "windows", "seconds"}
    assert {name for name in found["files"] if name.endswith(".parquet")} == {
        f"{name}.parquet" for name in written
    }
    names = s3.list_names("one")
    assert any(name.startswith("tables/latencies/") for name in names)
    assert any(name.startswith("tables/anomalies/finding=lost/") for name in names)
    assert not [name for name in names if name.startswith("scratch/")]


def test_local_spark_judges_a_run_where_it_is(s3: S3Server, tmp_path: Path) -> None:
    check_audit(s3, tmp_path, "local[2]")


@pytest.mark.long
def test_a_cluster_judges_a_run_where_it_is(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its executors have credentials, and get the address of the server from the driver."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_EC2_METADATA_DISABLED"):
        monkeypatch.setenv(name, s3.environment[name])
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    with spark_cluster(tmp_path, workers=1, cores=2) as cluster:
        check_audit(s3, tmp_path, cluster.master)


def test_what_a_task_cannot_read_is_one_message(s3: S3Server, tmp_path: Path) -> None:
    """Its footer is whole, so that only a task finds out."""
    run = busy_run().write(tmp_path / "run", rows_per_segment=200)
    segment = run / "ledger" / "receipts" / "w-1-0.parquet"
    content = bytearray(segment.read_bytes())
    end = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    content[4:end] = bytes(end - 4)
    segment.write_bytes(content)
    url = s3.upload(run, "one")
    done = run_program(s3, "-m", "shoal", "audit", url, "--master", "local[2]")
    assert done.returncode == ExitCode.USAGE
    assert "Traceback" not in done.stderr
    said = " ".join(done.stderr.split())
    assert f"{url}/{segment.relative_to(run)} cannot be read" in said
    assert f"{BUCKET}/one" in said
    assert not [name for name in s3.list_names("one") if name.startswith("scratch/")]
