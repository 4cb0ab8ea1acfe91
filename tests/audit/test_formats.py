"""Run folders of older ledger formats get the verdict that the version before gave them.

`format_1_run.zip` was written by the last version of format 1: two producers with transactions, of
which one in five was aborted, a mirror between two clusters, a consumer, and both logs scanned.
"""

import json
from pathlib import Path
from zipfile import ZipFile

import pytest

from shoal.audit.audit import audit
from shoal.audit.read.folder import open_ledger
from shoal.model.result import Result
from shoal.workload.record.ledger import open_run
from support.audit.ledgers import History, clean_run, remove_chain

STORED = Path(__file__).with_name("format_1_run.zip")

COUNTS = {"attempts": 200, "ok": 160, "failed": 40, "unknown": 0, "F": 0, "K": 0, "re_reads": 0}


@pytest.fixture
def format_1(tmp_path: Path) -> Path:
    with ZipFile(STORED) as stored:
        stored.extractall(tmp_path / "format-1")
    return tmp_path / "format-1"


def counts_of(result: Result, names: dict[str, int]) -> dict[str, int]:
    return {name: getattr(result.metrics, name) for name in names}


def test_a_folder_of_format_1_is_judged_as_before(format_1: Path) -> None:
    result = audit(open_ledger([format_1]))
    assert (result.verdict, result.findings) == ("proven", {})
    wanted = COUNTS | {"deliveries": 160, "delivered_ok": 160, "lost": 0, "F_limit": 3200}
    assert counts_of(result, wanted) == wanted
    latency = result.metrics.latency_us["e2e_intended"]
    assert (latency.count, latency.mean, latency.max) == (160, 121729.175, 219725)


def test_a_loss_in_a_folder_of_format_1_is_found_as_before(format_1: Path) -> None:
    path = format_1 / "commits.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    kept = [line for line in lines if "ledger/receipts/consumer-1-1-1.parquet" not in line]
    path.write_text("".join(kept))
    result = audit(open_ledger([format_1]))
    assert result.verdict == "violated"
    counts = {name: found.count for name, found in result.findings.items()}
    assert counts == {"lost: undelivered": 40, "tail loss": 40}
    witness = result.findings["lost: undelivered"].witness
    assert witness is not None
    named = ("producer", "topic", "lane", "sequence", "outcome", "sent_us")
    first = ("producer-1", "old", 0, 30, "ok", 1794959223715055)
    assert tuple(witness[name] for name in named) == first
    assert "incarnation" not in witness


def test_rows_of_format_1_are_read_as_incarnation_0(format_1: Path) -> None:
    run = open_run(format_1)
    for table in ("attempts", "receipts", "log", "manifests", "markers", "transactions"):
        rows = run.read(table)
        assert len(rows)
        assert set(rows["incarnation"].to_pylist()) == {0}
    assert len(run.read("scans")) == 4


def test_folders_of_both_formats_are_judged_together(tmp_path: Path) -> None:
    """A producer of the version before, a consumer of this one: both say incarnation 0."""
    history = clean_run(mirror=False, scans=False)
    sides = []
    for name, tables in (("a", ("attempts", "manifests")), ("b", ("receipts",))):
        side = History(mirror=False, groups=("g",))
        side.rows |= {table: history.rows[table] for table in tables}
        side.commits = [] if name == "a" else history.commits
        sides.append(side.write(tmp_path / name))
    _as_format_1(sides[0])
    result = audit(open_ledger(sides))
    assert (result.verdict, result.metrics.delivered_ok) == ("proven", 40)


def test_one_id_in_two_folders_of_format_1_reuses_sequences(tmp_path: Path) -> None:
    folders = []
    for name, first_offset in (("a", 0), ("b", 100)):
        history = clean_run(lanes=1, mirror=False, scans=False)
        for _, row in history.rows["attempts"]:
            row["offset"] += first_offset
            row["sent_us"] += first_offset
        if name == "b":
            history.rows["receipts"] = []  # never read
        folders.append(_as_format_1(history.write(tmp_path / name)))
    result = audit(open_ledger(folders))
    assert result.verdict == "violated"
    assert result.findings["reused sequence"].count == 20
    assert result.groups["g"].stages["producer_to_source"].verdict == "violated"


def _as_format_1(folder: Path) -> Path:
    """Rewrite a folder as the version before would have written it."""
    import pyarrow.parquet as pq

    remove_chain(folder, 1)
    lines = [json.loads(line) for line in (folder / "commits.jsonl").read_text().splitlines()]
    for line in lines:
        line.pop("incarnation", None)
    (folder / "commits.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for segment in folder.glob("ledger/*/*.parquet"):
        rows = pq.read_table(segment)
        if "incarnation" in rows.column_names:
            rows = rows.drop_columns(["incarnation"])
        pq.write_table(rows.replace_schema_metadata({"shoal.format": "1"}), segment)
    return folder
