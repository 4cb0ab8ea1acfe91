"""Runs on file systems of Arrow: fetched, judged and given their results."""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyarrow import fs

from shoal.audit.audit import audit
from shoal.audit.read.folder import open_ledger
from shoal.audit.read.remote import fetch_run
from shoal.cli.audit import audit as audit_command
from shoal.model.errors import SystemFailure, UsageError
from shoal.model.exit_codes import ExitCode
from shoal.net.ports import free_ports
from support.audit.ledgers import busy_run, clean_run


def test_a_fetched_run_has_the_result_of_its_folder(tmp_path: Path) -> None:
    run = busy_run().write(tmp_path / "run", rows_per_segment=50)
    (run / "ledger" / "attempts" / "not-committed.parquet").write_bytes(b"")
    with fetch_run(f"file://{run}") as folder:
        assert audit(open_ledger([folder])) == audit(open_ledger([run]))
        assert not (folder / "ledger" / "attempts" / "not-committed.parquet").exists()
    assert not folder.exists()


def test_results_are_stored_beside_the_ledgers(tmp_path: Path) -> None:
    run = clean_run().write(tmp_path / "run")
    (run / "tables" / "of_an_earlier_audit").mkdir(parents=True)
    done = CliRunner().invoke(audit_command, [f"file://{run}/"], standalone_mode=False)
    assert done.exception is None
    assert f"file://{run}/report.html" in done.output.replace("\n", "")
    assert {path.name for path in run.iterdir()} == {
        *("run.json", "commits.jsonl", "ledger"),
        *("result.json", "page.json", "report.html", "junit.xml", "summary.md", "tables"),
    }
    assert not (run / "tables" / "of_an_earlier_audit").exists()
    assert (run / "tables" / "findings.parquet").is_file()


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[fs.S3FileSystem]:
    """An S3 of this machine, with an empty bucket `runs`."""
    [port] = free_ports(1)
    # Not the credentials of the user who runs the tests: any will do there.
    settings = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
    settings |= {"AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3", raising=False)
    monkeypatch.delenv("AWS_SESSION_TOKEN", raising=False)
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            await_port(port, server)
            files = fs.S3FileSystem(
                endpoint_override=f"127.0.0.1:{port}", scheme="http", allow_bucket_creation=True
            )
            files.create_dir("runs")
            yield files
        finally:
            server.kill()


def await_port(port: int, server: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 120
    while True:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 5):
            return
        assert server.poll() is None, "moto has ended"
        assert time.monotonic() < deadline, "moto does not answer"
        time.sleep(0.1)


def test_a_run_on_s3_is_judged_where_it_is(bucket: fs.S3FileSystem, tmp_path: Path) -> None:
    run = busy_run().write(tmp_path / "run", rows_per_segment=50)
    expected = json.dumps(audit(open_ledger([run])).to_json(), indent=2, ensure_ascii=False)
    for scheme, name in (("s3a", "one"), ("s3", "deep/er/two")):
        fs.copy_files(str(run), f"runs/{name}", destination_filesystem=bucket)
        with bucket.open_output_stream(f"runs/{name}/tables/streams/of-before.parquet") as stale:
            stale.write(b"")
        url = f"{scheme}://runs/{name}"
        done = CliRunner().invoke(audit_command, [url], standalone_mode=False)
        assert done.exception is None, done.output
        assert done.return_value == ExitCode.VIOLATED
        with bucket.open_input_stream(f"runs/{name}/result.json") as result:
            assert result.read().decode() == f"{expected}\n"
        found = bucket.get_file_info(fs.FileSelector(f"runs/{name}", recursive=True))
        names = {Path(each.path).name for each in found}
        assert {"report.html", "page.json", "junit.xml", "summary.md"} <= names
        assert "of-before.parquet" not in names


def test_what_is_not_on_s3_is_named(bucket: fs.S3FileSystem) -> None:
    del bucket
    with pytest.raises(SystemFailure, match=r"cannot read s3a://runs/none") as refusal:
        fetch_run("s3a://runs/none").__enter__()
    assert "AWS_ENDPOINT_URL" in (refusal.value.remedy or "")


def test_what_cannot_be_reached_is_named(tmp_path: Path) -> None:
    with pytest.raises(SystemFailure, match=r"cannot read file:///.*nothing"):
        fetch_run(f"file://{tmp_path}/nothing").__enter__()
    with pytest.raises(UsageError, match="ftp://host/run is on a file system that is not known"):
        fetch_run("ftp://host/run").__enter__()
    options = ["file:///run", "--master", "spark://host:7077"]
    done = CliRunner().invoke(audit_command, options, standalone_mode=False)
    assert isinstance(done.exception, UsageError)
