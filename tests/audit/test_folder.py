"""Ledgers that are truncated, empty, of another run or another format."""

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shoal.audit.audit import audit
from shoal.audit.read.folder import open_ledger
from shoal.model.errors import LedgerError, UsageError
from shoal.model.findings import Verdict
from support.audit.ledgers import History, clean_run, ledger_schema, write_commits


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return clean_run(lanes=1, count=5).write(tmp_path / "run")


def commits(run: Path) -> list[str]:
    return (run / "commits.jsonl").read_text().splitlines(keepends=True)


def test_an_incomplete_last_line_is_ignored(run: Path) -> None:
    whole = audit(open_ledger([run]))
    with (run / "commits.jsonl").open("a") as file:
        file.write('{"kind": "segm')
    assert audit(open_ledger([run])) == whole


def test_a_segment_that_was_not_committed_does_not_exist(run: Path) -> None:
    write_commits(run, [line for line in commits(run) if '"receipts"' not in line])
    assert audit(open_ledger([run])).metrics.deliveries == 0


def test_a_segment_committed_twice_counts_once(run: Path) -> None:
    lines = commits(run)
    write_commits(run, [*lines, *(line for line in lines if '"receipts"' in line)])
    assert audit(open_ledger([run])).metrics.deliveries == 5


def test_an_empty_run_proves_nothing(tmp_path: Path) -> None:
    result = audit(open_ledger([History().write(tmp_path / "run")]))
    assert result.verdict is Verdict.INCONCLUSIVE
    assert result.findings == {}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("not json\n", "line 1 is not JSON"),
        ('{"kind": "gossip"}\n', "line 1 has a kind that is not in ledger format"),
        ("[" * 100_000 + "\n", "line 1 is not JSON"),
        ("x" * (1 << 20) + "\n", "line 1 is longer than"),
    ],
)
def test_a_bad_line_is_named(run: Path, line: str, message: str) -> None:
    (run / "commits.jsonl").write_text(line + "".join(commits(run)))
    with pytest.raises(LedgerError, match=message):
        open_ledger([run])


@pytest.mark.parametrize("path", ["../ledger/x.parquet", "/etc/passwd", "run.json", "ledger/../x"])
def test_a_segment_outside_of_the_folder_is_refused(run: Path, path: str) -> None:
    line = {"kind": "segment", "table": "log", "worker": "w", "epoch": 1, "number": 9, "rows": 1}
    write_commits(run, [*commits(run), {**line, "path": path}])
    with pytest.raises(LedgerError, match="is not in its ledger folder"):
        open_ledger([run])


def receipts(run: Path) -> Path:
    return next((run / "ledger" / "receipts").iterdir())


def test_a_segment_that_is_missing_cut_or_of_other_length_is_named(run: Path) -> None:
    path = receipts(run)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(LedgerError, match="cannot be read as a segment"):
        open_ledger([run])
    pq.write_table(pq.read_table(pa.BufferReader(content)).slice(0, 3), path)
    with pytest.raises(LedgerError, match="has 3 rows; 5 were committed"):
        open_ledger([run])
    path.unlink()
    with pytest.raises(LedgerError, match=path.name):
        open_ledger([run])


def test_a_segment_of_another_format_or_table_is_named(run: Path) -> None:
    path = receipts(run)
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({"shoal.format": "4"}), path)
    with pytest.raises(
        LedgerError, match="has ledger format 4; this version reads the formats 1 to"
    ):
        open_ledger([run])
    pq.write_table(table.replace_schema_metadata({"shoal.format": "1"}), path)
    with pytest.raises(LedgerError, match=r"format 1, and run\.json of its folder has 3"):
        open_ledger([run])
    pq.write_table(ledger_schema("scans").empty_table(), path)
    with pytest.raises(LedgerError, match="columns of table receipts"):
        open_ledger([run])


def test_folders_must_be_of_one_run(run: Path, tmp_path: Path) -> None:
    other = clean_run().write(tmp_path / "other", run="another")
    with pytest.raises(LedgerError, match="different runs: another, r"):
        open_ledger([run, other])
    with pytest.raises(UsageError, match="no run folder"):
        open_ledger([])


def test_a_folder_that_is_not_a_run_is_named(run: Path, tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="cannot be read"):
        open_ledger([tmp_path])
    (run / "run.json").write_text("[1]")
    with pytest.raises(LedgerError, match="format None"):
        open_ledger([run])
    for number in ("4", '"1"', "true", "0"):
        (run / "run.json").write_text(f'{{"format": {number}}}')
        with pytest.raises(LedgerError, match="this version reads the formats 1 to 3") as raised:
            open_ledger([run])
        assert raised.value.remedy
    (run / "run.json").write_text("{")
    with pytest.raises(LedgerError, match="is not JSON"):
        open_ledger([run])
    shutil.rmtree(run)
    with pytest.raises(LedgerError, match="cannot be read"):
        open_ledger([run])


def test_impossible_numbers_are_refused(tmp_path: Path) -> None:
    for column, value in (("offset", 1 << 50), ("partition", -1), ("assignment", -1)):
        history = clean_run(lanes=1, count=5)
        history.rows["receipts"][2][1][column] = value
        run = history.write(tmp_path / column)
        with pytest.raises(LedgerError, match=r"above the limit|no real log has"):
            audit(open_ledger([run]))
    history = clean_run(lanes=1, count=5)
    history.rows["attempts"][2][1]["outcome"] = 7
    with pytest.raises(LedgerError, match="outcome"):
        audit(open_ledger([history.write(tmp_path / "outcome")]))
