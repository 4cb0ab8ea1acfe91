"""Runs whose ledgers are on another file system: `shoal run --runs-dir s3a://…`."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

from shoal.audit.audit import Sizes, audit
from shoal.audit.read.folder import open_ledger
from shoal.audit.read.remote import open_remote_run
from shoal.cli.audit import audit as audit_command
from shoal.cli.bench import bench
from shoal.experiment.ledgers.compaction import compact_run
from shoal.experiment.ledgers.remote_run import prepare_remote_run, storing_run
from shoal.model.errors import SystemFailure, UsageError
from shoal.model.exit_codes import ExitCode
from shoal.model.run_folder import URL_FILE, RunFolder
from shoal.workload.record.ledger import CommitLog, close_run, create_run
from support.audit.ledgers import History, busy_run
from support.storage.s3 import S3Server, s3_server

EXPERIMENT = """
[source]
[topics]
partitions = 2
[producer]
rate = 500
duration = "{duration}"
drain_timeout = "5s"
"""
PATIENCE_S = 300.0  # of a busy machine
DIVIDED = Sizes(5, 4, 2, shares=4, rows_per_file=7, reads_per_row=0, rows_read_here=0)


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    with s3_server(tmp_path) as server:
        for name in ("AWS_ENDPOINT_URL_S3", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
            monkeypatch.delenv(name, raising=False)
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server


def start_run(
    tmp_path: Path, duration: str, place: str = "s3a://runs/of/us/"
) -> subprocess.Popen[str]:
    file = tmp_path / "small.toml"
    file.write_text(EXPERIMENT.format(duration=duration))
    command = [sys.executable, "-m", "shoal", "run", str(file), "--placement", "processes"]
    command += ["--runs-dir", place]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True, env=environment
    )


def judge(run: Path) -> str:
    return json.dumps(audit(open_ledger([run])).to_json(), indent=2, ensure_ascii=False) + "\n"


@pytest.mark.slow
def test_a_run_is_written_and_judged_there(s3: S3Server, tmp_path: Path) -> None:
    with start_run(tmp_path, "2s") as process:
        out, err = process.communicate()
    assert process.returncode == ExitCode.PROVEN, err
    [here] = (tmp_path / "runs").iterdir()
    assert f"s3a://runs/of/us/{here.name}" in out.replace("\n", "")
    assert {path.name for path in here.iterdir()} >= {"run.json", "events.jsonl", URL_FILE}
    assert not (here / "ledger").exists()
    names = s3.list_names(f"of/us/{here.name}")
    assert {"run.json", "commits.jsonl", "result.json", "report.html"} <= names
    assert not {name for name in names if name.startswith(("commits/", "scratch/"))}
    copied = s3.download(f"of/us/{here.name}", tmp_path / "copied")
    for name in ("run.json", "commits.jsonl", "result.json"):
        assert (copied / name).read_bytes() == (here / name).read_bytes()
    assert judge(copied) == judge(here) == (here / "result.json").read_text()


@pytest.mark.slow
def test_a_run_whose_driver_was_killed_can_be_judged_there(s3: S3Server, tmp_path: Path) -> None:
    with start_run(tmp_path, "60s") as process:
        children = await_attempts(s3, process)
        process.kill()
    psutil.wait_procs(children, PATIENCE_S)
    [here] = (tmp_path / "runs").iterdir()
    url = f"s3a://runs/of/us/{here.name}"
    names = s3.list_names(f"of/us/{here.name}")
    assert "commits.jsonl" not in names
    assert json.loads(s3.read(f"of/us/{here.name}/run.json"))["state"] == "running"
    done = CliRunner().invoke(audit_command, [url], standalone_mode=False)
    assert done.exception is None, done.exception
    # What was acknowledged by then may all have arrived: the sentence says that it had not ended.
    verdicts = (ExitCode.PROVEN, ExitCode.INCONCLUSIVE, ExitCode.VIOLATED)
    assert done.return_value in verdicts
    assert "has not ended, or its driver was killed" in " ".join(done.output.split())
    assert json.loads(s3.read(f"of/us/{here.name}/result.json"))["metrics"]["attempts"] > 0
    assert audit(open_ledger([here])).metrics.attempts > 0
    compact = CliRunner().invoke(audit_command, ["--compact", url], standalone_mode=False)
    assert compact.exception is None or isinstance(compact.exception, UsageError)


def await_attempts(s3: S3Server, process: subprocess.Popen[str]) -> list[psutil.Process]:
    """Wait until a part of the commit log names attempts; return the processes of the run."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and process.poll() is None:
        names = [name for name in s3.list_names("of/us") if "/commits/" in name]
        if any(b'"attempts"' in s3.read(f"of/us/{name}") for name in names):
            with suppress(psutil.NoSuchProcess):
                found: list[psutil.Process] = psutil.Process(process.pid).children(recursive=True)
                return found
        time.sleep(0.2)
    pytest.fail(f"nothing was stored: {process.communicate()}")


# ---------------------------------------------------------------- parts


def write_remote_run(s3: S3Server, history: History, tmp_path: Path, name: str) -> Path:
    """A run folder whose segments are in the bucket, as a driver has it."""
    url = s3.upload(history.write(tmp_path / f"{name}-local", rows_per_segment=200), name)
    with open_remote_run(url) as folder:
        here = tmp_path / name
        here.mkdir()
        for each in folder.iterdir():
            (here / each.name).write_bytes(each.read_bytes())
    return here


def test_lines_are_stored_as_parts_until_the_run_ends(s3: S3Server, tmp_path: Path) -> None:
    run = tmp_path / "one"
    prepare_remote_run(run, "s3a://runs/one")
    create_run(run, {"run": "r", "state": "running"})
    assert not (run / "ledger").exists()
    line = {"kind": "lease", "worker": "w", "epoch": 1, "host": "h"}
    with storing_run(run, every_s=0.01), CommitLog(run) as log:
        for count in (1, 2):
            log.append(line)
            await_parts(s3, "one", count)
        with open_remote_run("s3a://runs/one") as folder:
            assert len(RunFolder.open(folder).commits) == 2
        assert "commits.jsonl" not in s3.list_names("one")
        log.append({"kind": "ended", "worker": "w", "epoch": 1, "reason": "finished"})
        close_run(run, "finished")
    assert s3.list_names("one") == {"run.json", "commits.jsonl"}
    with open_remote_run("s3a://runs/one") as folder:
        assert RunFolder.open(folder).commits == RunFolder.open(run).commits
        assert RunFolder.open(folder).plan["state"] == "finished"


def await_parts(s3: S3Server, name: str, count: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while len([each for each in s3.list_names(name) if each.startswith("commits/")]) < count:
        assert time.monotonic() < deadline, s3.list_names(name)
        time.sleep(0.01)


def test_what_is_lost_between_parts_is_found(s3: S3Server, tmp_path: Path) -> None:
    url = s3.upload(busy_run().write(tmp_path / "run", rows_per_segment=200), "one")
    whole = s3.read("one/commits.jsonl")
    s3.files.delete_file("runs/one/commits.jsonl")
    lines = whole.splitlines(keepends=True)
    for number, part in enumerate((lines[:3], lines[4:])):
        with s3.files.open_output_stream(f"runs/one/commits/{number:08}.jsonl") as file:
            file.write(b"".join(part))
    done = CliRunner().invoke(audit_command, [url], standalone_mode=False)
    assert isinstance(done.exception, UsageError)
    assert f"{url}/commits.jsonl: line 4" in done.exception.message


def test_a_run_that_cannot_be_stored_says_what_to_do(s3: S3Server, tmp_path: Path) -> None:
    run = tmp_path / "one"
    prepare_remote_run(run, "s3a://runs/one")
    create_run(run, {"run": "r", "state": "running"})
    with pytest.raises(SystemFailure) as refusal, storing_run(run), CommitLog(run):
        s3.process.kill()
    assert f"shoal audit {run}" in (refusal.value.remedy or "")


def test_nothing_begins_where_nothing_can_be_written(s3: S3Server, tmp_path: Path) -> None:
    with start_run(tmp_path, "2s", "s3a://none/one") as process:
        _, err = process.communicate()
    assert process.returncode == ExitCode.UNEXPECTED
    assert "bucket none does not exist" in " ".join(err.split())
    assert "Traceback" not in err
    assert not (tmp_path / "runs").exists()
    s3.upload(busy_run().write(tmp_path / "run"), "used")
    with pytest.raises(UsageError, match="already contains files"):
        prepare_remote_run(tmp_path / "one", "s3a://runs/used")


def test_other_commands_take_folders(tmp_path: Path) -> None:
    done = CliRunner().invoke(bench, ["--runs-dir", "s3a://runs/x"], standalone_mode=False)
    assert isinstance(done.exception, UsageError)
    assert "keeps runs in a folder" in done.exception.message


def test_ledgers_are_compacted_where_they_are(s3: S3Server, tmp_path: Path) -> None:
    run = write_remote_run(s3, busy_run(), tmp_path, "one")
    before = judge(run)
    files = {name for name in s3.list_names("one") if name.startswith("ledger/")}
    assert compact_run(run, sizes=DIVIDED, least_rows=2, rows_per_file=9_000) > 0
    left = {name for name in s3.list_names("one") if name.startswith("ledger/")}
    assert any("compacted" in name for name in left)
    assert len(left) < len(files)
    assert s3.read("one/commits.jsonl") == (run / "commits.jsonl").read_bytes()
    assert judge(run) == before
    with open_remote_run("s3a://runs/one") as folder:
        assert judge(folder) == before
