"""The table of anomalies has every message of every finding, however the run is cut into cells."""

import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import strategies as st

from shoal.audit.audit import Sizes, examine
from shoal.audit.read.folder import open_ledger
from shoal.audit.result.conclude import conclude
from shoal.model.findings import Finding
from shoal.model.result import Result
from support.audit.chaos import chaotic_runs
from support.audit.faults import faulty_runs
from support.audit.ledgers import History, busy_run
from support.sizes import size_cases, try_examples

# They are about offsets, jumps, transactions and batches, or repeat what is lost.
WITHOUT_ROWS = {
    Finding.TAIL_LOSS,
    Finding.TORN_TRANSACTION,
    Finding.INCONSISTENT_OFFSET,
    Finding.POLL_SKIP,
    Finding.NON_MONOTONIC_POLL,
    Finding.UNREADABLE,
}
SIZES = st.sampled_from([Sizes(), Sizes(1, 1, 1), Sizes(5, 4, 3), Sizes(3, 4, 3, shares=3)])

Row = dict[str, Any]


def anomalies(history: History, sizes: Sizes) -> tuple[Result, list[Row]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "scratch").mkdir()
        ledger = open_ledger([history.write(folder / "run", rows_per_segment=20)])
        evidence = examine(ledger, sizes=sizes, scratch=folder / "scratch")
        rows = [
            {"finding": finding, **row}
            for finding, paths in evidence.totals.anomaly_files.items()
            for path in paths
            for row in pq.read_table(path).to_pylist()
        ]
        return conclude(ledger, evidence), sorted(rows, key=json.dumps)


def counts(result: Result, rows: list[Row], group: str) -> tuple[dict[str, int], dict[str, int]]:
    listed: Counter[str] = Counter()
    for row in rows:
        if row["group"] in (None, group):
            name = f"{row['finding']}: {row['cause']}" if row["cause"] else row["finding"]
            listed[name] += row["count"]
    found = {name: each.count for name, each in result.groups[group].findings.items()}
    return dict(listed), {name: n for name, n in found.items() if name not in WITHOUT_ROWS}


@pytest.mark.slow
@size_cases("share", quick=0.25, long=1)
def test_the_rows_are_those_that_the_findings_count(share: float) -> None:
    def check(history: History, sizes: Sizes) -> None:
        result, rows = anomalies(history, sizes)
        for group in result.groups:
            listed, found = counts(result, rows, group)
            assert listed == found
        assert rows == anomalies(history, Sizes())[1]

    runs = st.one_of(chaotic_runs(), faulty_runs())
    try_examples(share, check, history=runs, sizes=SIZES)


def test_a_row_says_where_and_when_its_message_was() -> None:
    _, rows = anomalies(busy_run(), Sizes())
    by_name = {(row["finding"], row["cause"]): row for row in rows}
    copy = by_name["duplicate", "target"]
    assert (copy["producer"], copy["lane"], copy["sequence"], copy["count"]) == ("p0", 0, 5, 1)
    assert (copy["outcome"], copy["group"]) == ("ok", None)
    assert (copy["source_partition"], copy["source_offset"]) == (0, 10)
    assert (copy["sent_us"], copy["acked_us"]) == (5000, 5300)
