"""Runs on other file systems: judged where they are, and given their results."""

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from pyarrow import fs

from shoal.audit.audit import Sizes, audit
from shoal.audit.page.life import MessageName, message_life
from shoal.audit.read import read
from shoal.audit.read.folder import open_ledger
from shoal.audit.read.remote import open_remote_run
from shoal.cli.audit import audit as audit_command
from shoal.cli.runs import runs as runs_command
from shoal.model.errors import LedgerError, ShoalError, SystemFailure, UnreachableError, UsageError
from shoal.model.exit_codes import ExitCode
from shoal.net.ports import free_ports
from shoal.pipeline.audit_job import audit_run
from shoal.storage.files import list_files
from support.audit.ledgers import busy_run, clean_run
from support.storage.s3 import BUCKET, S3Server, s3_server

SEGMENT_TABLES = {"attempts", "receipts", "log"}


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    with s3_server(tmp_path) as server:
        use_s3(server.environment, monkeypatch)
        yield server


def use_s3(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


def run_audit(*arguments: str) -> Result:
    return CliRunner().invoke(audit_command, list(arguments), standalone_mode=False)


def expected_result(run: Path) -> str:
    return json.dumps(audit(open_ledger([run])).to_json(), indent=2, ensure_ascii=False) + "\n"


# ---------------------------------------------------------------- file://


def test_a_file_url_is_a_folder(tmp_path: Path) -> None:
    run = clean_run().write(tmp_path / "a run")
    (run / "tables" / "messages").mkdir(parents=True)  # of `shoal bench`
    (run / "tables" / "streams").mkdir()
    (run / "tables" / "streams" / "of-before.parquet").touch()
    url = f"file://{tmp_path}/a%20run"
    done = run_audit(f"{url}/")
    assert done.exception is None
    assert f"{url}/report.html" in done.output.replace("\n", "")
    assert {path.name for path in run.iterdir()} == {
        *("run.json", "commits.jsonl", "ledger"),
        *("result.json", "page.json", "report.html", "junit.xml", "summary.md", "tables"),
    }
    assert not (run / "tables" / "streams" / "of-before.parquet").exists()
    assert (run / "tables" / "messages").is_dir()
    assert (run / "tables" / "findings.parquet").is_file()


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("ftp://host/run", "ftp://host/run is on a file system that is not known"),
        ("s3a://", "s3a:// names no bucket"),
        ("hdfs:///", "hdfs:/// names no folder"),
        ("file://elsewhere/run", "file://elsewhere/run is not a file on this machine"),
        ("file:///nothing/at/all", "folder /nothing/at/all does not exist"),
    ],
)
def test_a_place_that_is_none_is_refused(url: str, problem: str) -> None:
    done = run_audit(url)
    assert isinstance(done.exception, UsageError)
    assert problem in done.exception.message
    assert done.exception.remedy


@pytest.mark.parametrize("option", ["--follow", "--open"])
def test_what_cannot_be_done_there_is_refused(option: str) -> None:
    done = run_audit("s3a://bucket/run", option)
    assert isinstance(done.exception, UsageError)
    assert "on another file system" in done.exception.message
    shown = CliRunner().invoke(runs_command, ["show", "s3a://b/run"], standalone_mode=False)
    assert isinstance(shown.exception, UsageError)
    assert "shoal audit URL" in str(shown.exception)


# ---------------------------------------------------------------- S3


def test_a_small_run_is_fetched_and_judged_here(s3: S3Server, tmp_path: Path) -> None:
    run = busy_run().write(tmp_path / "run", rows_per_segment=200)
    expected = expected_result(run)
    s3.upload(run, "deep/er/one")
    for stale in ("streams/of-before.parquet", "messages/part-0.parquet"):
        with s3.files.open_output_stream(f"{BUCKET}/deep/er/one/tables/{stale}") as file:
            file.write(b"")
    url = f"s3://{BUCKET}/deep/er/one"
    done = run_audit(f"{url}/")
    assert done.exception is None, done.output
    assert done.return_value == ExitCode.VIOLATED
    assert f"{url}/report.html" in done.output.replace("\n", "")
    assert s3.read("deep/er/one/result.json").decode() == expected
    names = s3.list_names("deep/er/one")
    assert {"report.html", "page.json", "junit.xml", "summary.md"} <= names
    assert "tables/messages/part-0.parquet" in names
    assert "tables/streams/of-before.parquet" not in names
    assert any(each.startswith("tables/anomalies/finding=lost/") for each in names)


@pytest.mark.parametrize("one_clock", [True, False])
def test_other_runs_are_read_where_they_are(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_clock: bool
) -> None:
    """Judged in this process too, so that nothing but the places of files differs."""
    history = busy_run()
    history.one_clock = one_clock
    run = history.write(tmp_path / "run", rows_per_segment=200)
    (run / "ledger" / "attempts" / "w-1-99.parquet").write_bytes(b"was being written")
    url = s3.upload(run, "one")
    local = audit_run([run], None)
    with open_remote_run(url) as folder:
        assert {path.name for path in folder.iterdir()} == {
            *("run.json", "commits.jsonl", "ledger.url")
        }
        assert audit_run([folder], None) == local
        left = [path for path in folder.rglob("*.parquet") if path.parent.name != "tables"]
        assert left == []
        name = MessageName("t", "p0", 0, 5)
        assert message_life([folder], name) == message_life([run], name)
    tables = {each.name for each in list_files(f"{url}/tables")}
    local_tables = (run / "tables").rglob("*.parquet")
    assert tables == {
        str(path.relative_to(run / "tables"))
        for path in local_tables
        if path.parent != run / "tables"
    }
    assert not {each for each in s3.list_names("one") if each.startswith("scratch/")}
    monkeypatch.setattr(read, "_load_together", None)  # opening a ledger reads footers only
    before = len(s3.list_requests())
    with open_remote_run(url) as folder:
        open_ledger([folder])
    asked = [name for method, name in s3.list_requests()[before:] if method == "HEAD"]
    own = [name for name in asked if name.endswith(".parquet") and "manifests" not in name]
    assert sorted(own) == sorted(set(own))


def test_tasks_write_where_the_segments_are(s3: S3Server, tmp_path: Path) -> None:
    """With many streams: rows once more, answers, transactions and latencies as files there."""
    run = busy_run().write(tmp_path / "run", rows_per_segment=200)
    url = s3.upload(run, "one")
    sizes = Sizes(400, 400, 200, shares=2, rows_per_file=300, reads_per_row=0, rows_read_here=0)
    with open_remote_run(url) as folder:
        before = len(s3.list_requests())
        assert audit_run([folder], None, sizes=sizes) == audit_run([run], None, sizes=sizes)
    written = {name for method, name in s3.list_requests()[before:] if method == "PUT"}
    kinds = {name.rpartition("/")[2].partition("-")[0] for name in written if "/scratch/" in name}
    assert {"regrouped", "answer", "latencies", "anomalies", "streams"} <= kinds
    assert not {each for each in s3.list_names("one") if each.startswith("scratch/")}
    assert read_tables(Path(s3.download("one/tables", tmp_path / "tables"))) == {
        name: rows for name, rows in read_tables(run / "tables").items() if "/" in name
    }


def read_tables(tables: Path) -> dict[str, list[str]]:
    """The rows of each table, in an order of their own."""
    found: dict[str, list[str]] = {}
    for path in sorted(tables.rglob("*.parquet")):
        name = str(path.parent.relative_to(tables)) + "/" if path.parent != tables else path.name
        rows = pq.read_table(path, partitioning=None).to_pylist()
        found[name] = sorted([*found.get(name, ()), *(json.dumps(row) for row in rows)])
    return found


def test_folders_of_both_kinds_are_joined(s3: S3Server, tmp_path: Path) -> None:
    whole = clean_run(mirror=False)
    history = clean_run(mirror=False)
    received = history.rows["receipts"]
    history.rows["receipts"] = []
    sent = history.write(tmp_path / "sent")
    history = clean_run(mirror=False)
    history.rows = {table: [] for table in history.rows} | {"receipts": received}
    history.commits = []
    url = s3.upload(history.write(tmp_path / "received"), "received")
    expected = audit(open_ledger([whole.write(tmp_path / "whole")]))
    with open_remote_run(url) as folder:
        assert audit_run([sent, folder], None) == expected
        assert audit_run([folder, sent], None) == expected


def test_a_message_is_found_where_it_is(s3: S3Server, tmp_path: Path) -> None:
    run = busy_run().write(tmp_path / "run")
    url = s3.upload(run, "one")
    shown = [
        CliRunner().invoke(
            runs_command, ["message", name, "t", "p0", "0", "5"], standalone_mode=False
        )
        for name in (str(run), url)
    ]
    assert shown[0].exception is None
    assert shown[1].exception is None
    assert shown[0].output == shown[1].output


# ---------------------------------------------------------------- failures


def test_a_bucket_that_does_not_exist_is_named(s3: S3Server) -> None:
    del s3
    done = run_audit("s3a://no-such/one")
    assert isinstance(done.exception, SystemFailure)
    assert "bucket no-such does not exist" in done.exception.message
    assert "s3a://no-such/one" in done.exception.message


def test_a_run_that_does_not_exist_is_named(s3: S3Server) -> None:
    del s3
    done = run_audit("s3a://runs/none")
    assert isinstance(done.exception, UsageError)
    assert "cannot read s3a://runs/none/run.json: it does not exist" in done.exception.message


def test_an_object_that_was_deleted_is_named(s3: S3Server, tmp_path: Path) -> None:
    url = s3.upload(busy_run().write(tmp_path / "run", rows_per_segment=200), "one")
    gone = "ledger/receipts/w-1-0.parquet"
    s3.files.delete_file(f"{BUCKET}/one/{gone}")
    done = run_audit(url)
    assert isinstance(done.exception, UsageError)
    assert f"cannot read {url}/{gone}: it does not exist" in done.exception.message
    with open_remote_run(url) as folder, pytest.raises(LedgerError, match="does not exist"):
        open_ledger([folder])


def test_a_damaged_object_is_named(s3: S3Server, tmp_path: Path) -> None:
    url = s3.upload(busy_run().write(tmp_path / "run", rows_per_segment=200), "one")
    damaged = "ledger/receipts/w-1-0.parquet"
    with s3.files.open_output_stream(f"{BUCKET}/one/{damaged}") as file:
        file.write(b"PAR1 and nothing else PAR1")
    for fetch_below in (0, 1000):
        with (
            pytest.raises(LedgerError) as refusal,
            open_remote_run(url, fetch_below=fetch_below) as folder,
        ):
            audit_run([folder], None)
        assert f"{url}/{damaged} cannot be read as a segment" in refusal.value.message
        assert tempfile.gettempdir() not in str(refusal.value)


def test_a_server_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    [port] = free_ports(1)
    use_s3(
        {
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        },
        monkeypatch,
    )
    done = run_audit("s3a://runs/one")
    assert isinstance(done.exception, UnreachableError)
    assert "s3a://runs/one" in done.exception.message
    assert "does not answer" in done.exception.message
    assert "AWS_ENDPOINT_URL" in (done.exception.remedy or "")


class _Refuse(BaseHTTPRequestHandler):
    """Answers as S3 does where something is not allowed."""

    def do_HEAD(self) -> None:
        self.send_response(403)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_PUT = do_HEAD  # noqa: N815 - names of the base class

    def log_message(self, *_arguments: object) -> None:
        """Says nothing."""


@pytest.fixture
def refusing_server() -> Iterator[int]:
    """The port of a server that refuses every request."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Refuse) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("has_credentials", [True, False])
def test_credentials_that_are_not_accepted_are_named(
    refusing_server: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_credentials: bool
) -> None:
    settings = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{refusing_server}"}
    settings |= {"AWS_EC2_METADATA_DISABLED": "true", "AWS_REGION": "us-east-1"}
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        settings[name] = str(tmp_path / "none")
    use_s3(settings, monkeypatch)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        if has_credentials:
            monkeypatch.setenv(name, "not accepted")
        else:
            monkeypatch.delenv(name, raising=False)
    done = run_audit("s3a://runs/one")
    assert isinstance(done.exception, SystemFailure)
    assert "s3a://runs/one" in done.exception.message
    assert "AWS_ACCESS_KEY_ID" in (done.exception.remedy or "")


def test_a_client_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_root: str) -> fs.FileSystem:
        raise OSError("Unable to load libhdfs: cannot open shared object file")

    monkeypatch.setattr("shoal.storage.files._connect_to", refuse)
    with pytest.raises(ShoalError, match="the client of HDFS") as refusal:
        open_remote_run("hdfs://host/run").__enter__()
    assert "hadoop classpath" in (refusal.value.remedy or "")


def test_the_command_ends_with_its_exit_code(s3: S3Server) -> None:
    """As a process: one message, and no traceback."""
    command = [sys.executable, "-m", "shoal", "audit", "s3a://no-such/one"]
    environment = {**os.environ, **s3.environment, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == ExitCode.UNEXPECTED
    assert "Traceback" not in done.stderr
    assert "bucket no-such does not exist" in " ".join(done.stderr.split())
