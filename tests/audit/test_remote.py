"""Runs on file systems of Arrow: fetched, judged and given their results."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from shoal.audit.audit import audit
from shoal.audit.read.folder import open_ledger
from shoal.audit.read.remote import fetch_run
from shoal.cli.audit import audit as audit_command
from shoal.model.errors import SystemFailure, UsageError
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


def test_what_cannot_be_reached_is_named(tmp_path: Path) -> None:
    with pytest.raises(SystemFailure, match=r"cannot read file:///.*nothing"):
        fetch_run(f"file://{tmp_path}/nothing").__enter__()
    with pytest.raises(UsageError, match="ftp://host/run is on a file system that is not known"):
        fetch_run("ftp://host/run").__enter__()
    options = ["file:///run", "--master", "spark://host:7077"]
    done = CliRunner().invoke(audit_command, options, standalone_mode=False)
    assert isinstance(done.exception, UsageError)
