"""The audit on Spark: the same result as in one process, and its tables."""

import json
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from shoal.audit.audit import Sizes, audit, examine
from shoal.audit.page.build import build_page
from shoal.audit.read.folder import open_ledger
from shoal.audit.result.conclude import conclude
from shoal.model.errors import LedgerError
from shoal.model.pages.run import PageData, read_page
from shoal.model.result import Result
from shoal.pipeline.audit_job import Formulation, audit_run
from shoal.pipeline.tables import SCHEMAS
from support.audit.ledgers import History, clean_run, receive

FORMULATIONS: tuple[Formulation, ...] = ("cells", "frames")

# Small enough for several cells, walks and offset cells.
SIZES = Sizes(rows_per_cell=150, rows_per_walk=60, offsets_per_cell=50, rows_read_here=0)


def make_troubled_run() -> History:
    """Loss, disorder across cells, a copy, a re-read and a message that is still pending."""
    history = clean_run(producers=2, lanes=3, count=40)
    rows = history.rows["receipts"]
    rows.insert(60, rows.pop(3))
    del rows[10]
    del rows[-1]
    receive(history, "p0", 0, 5, offset=200)
    history.commits.pop()
    return history


def _page_of(run: Path) -> PageData:
    ledger = open_ledger([run])
    evidence = examine(ledger)
    return build_page(ledger, evidence, conclude(ledger, evidence).worst_group)


def test_spark_gives_the_result_of_one_process(spark: SparkSession, tmp_path: Path) -> None:
    run = make_troubled_run().write(tmp_path / "run", rows_per_segment=50)
    here = audit(open_ledger([run]))
    (run / "tables").mkdir()
    (run / "tables" / "latencies.parquet").touch()  # of an earlier version
    there = audit_run([run], spark, sizes=SIZES)
    assert {"lost: undelivered", "reordered", "duplicate: target", "pending"} <= set(there.findings)
    assert json.dumps(there.to_json()) == json.dumps(here.to_json())
    assert Result.from_json(json.loads(json.dumps(there.to_json()))) == there

    assert read_page(run) == _page_of(run)
    tables = {path.stem: path for path in (run / "tables").iterdir()}
    assert set(tables) == set(SCHEMAS)
    found = {row["finding"]: row["count"] for row in pq.read_table(tables["findings"]).to_pylist()}
    assert found == {name: finding.count for name, finding in there.findings.items()}
    spark.read.parquet(str(tables["latencies"])).createOrReplaceTempView("latencies")
    [row] = spark.sql(
        "SELECT sum(count) AS n, max(microseconds) AS top FROM latencies WHERE name = 'e2e_actual'"
    ).collect()
    latency = there.metrics.latency_us["e2e_actual"]
    assert (row.n, row.top) == (latency.count, latency.max)
    spark.read.parquet(str(tables["anomalies"])).createOrReplaceTempView("anomalies")
    counted = spark.sql("SELECT finding, cause, sum(count) FROM anomalies GROUP BY 1, 2").collect()
    listed = {f"{name}: {cause}" if cause else name: count for name, cause, count in counted}
    assert listed == {name: n for name, n in found.items() if name in listed}
    assert {"lost: undelivered", "reordered", "duplicate: target", "pending"} <= set(listed)
    assert not (run / "scratch").exists()


def test_streams_are_settled_in_tasks(spark: SparkSession, tmp_path: Path) -> None:
    run = make_troubled_run().write(tmp_path / "run", rows_per_segment=50)
    here = json.dumps(audit_run([run], None).to_json())
    whole = stream_counts(run)
    for formulation in FORMULATIONS:
        sizes = replace(SIZES, shares=3)
        there = audit_run([run], spark, sizes=sizes, formulation=formulation)
        assert json.dumps(there.to_json()) == here
        assert stream_counts(run) == whole


def stream_counts(run: Path) -> list[str]:
    rows = pq.read_table(run / "tables" / "streams").to_pylist()
    return sorted(map(json.dumps, rows))


def test_folders_of_one_run_are_joined(spark: SparkSession, tmp_path: Path) -> None:
    whole = clean_run(mirror=False)
    produced, consumed = History(mirror=False), History(mirror=False)
    for table, rows in whole.rows.items():
        side = consumed if table == "receipts" else produced
        side.rows[table] = rows
    produced.commits = whole.commits
    folders = [produced.write(tmp_path / "here"), consumed.write(tmp_path / "there")]
    result = audit_run(folders, spark)
    assert result.to_json() == audit(open_ledger([whole.write(tmp_path / "whole")])).to_json()
    assert (tmp_path / "here" / "tables").is_dir()


def test_a_segment_that_cannot_be_read_fails_the_audit(spark: SparkSession, tmp_path: Path) -> None:
    run = clean_run().write(tmp_path / "run")
    segment = next((run / "ledger" / "receipts").iterdir())
    # Everything but the magic and the footer, whose length stands before the last magic.
    ledger_bytes = bytearray(segment.read_bytes())
    end = len(ledger_bytes) - 8 - int.from_bytes(ledger_bytes[-8:-4], "little")
    ledger_bytes[4:end] = bytes(end - 4)
    segment.write_bytes(ledger_bytes)
    with pytest.raises(LedgerError, match=f"{segment.name} cannot be read"):
        audit_run([run], spark)
