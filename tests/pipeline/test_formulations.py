"""By cells and by DataFrames: one result."""

import json
import random
from pathlib import Path

from pyspark.sql import SparkSession

from shoal.audit.folder import open_ledger
from shoal.audit.judge import Sizes, audit
from shoal.audit.plan import plan_cells
from shoal.pipeline.audit_job import audit_run
from shoal.pipeline.frames import MOST_READS_PER_ROW, reads_per_row
from support.audit_ledgers import History, Row, clean_run, receive

# Small enough for several cells, walks and offset cells.
SIZES = Sizes(150, 60, 50)


def busy_run() -> History:
    """A bit of everything: loss, disorder, copies, re-reads, faults, batches, transactions."""
    history = clean_run(producers=2, lanes=3, count=40)
    rows = history.rows["receipts"]
    rows.insert(60, rows.pop(3))
    del rows[10]
    del rows[-1]
    receive(history, "p0", 0, 5, offset=200)
    receive(history, "p0", 1, 5, offset=10, assignment=2, worker="x")
    history.commits.pop()
    stream: Row = {"producer": "p1", "topic": "t", "lane": 2}
    for sequence in (7, 8, 30):
        told: Row = {"transaction": sequence % 7, "fate": 0, "requested_us": 1000}
        history.add("transactions", **stream, sequence=sequence, **told)
    for phase, at_us in (("begin", 9_000), ("end", 30_000)):
        fault = {"fault": 1, "phase": phase, "name": "kill", "target": "source/1", "detail": {}}
        history.commits.append({"kind": "fault", "at_us": at_us, **fault})
    history.promises = {"fidelity": ["bytes"]}
    for cluster, check in (("source", 1), ("target", 2)):
        place: Row = {"topic": "t", "partition": 2, "offset": 4, "records_check": check}
        batch: Row = {"producer": "p0", "lane": 2, "sequence": 2}
        history.add("batches", cluster=cluster, **place, **batch)
    return history


def sparse_run() -> History:
    """One stream whose numbers are far apart, written down in no order."""
    history = History(mirror=False, all_drained=True)
    chaos = random.Random(7)
    for place in range(400):
        sequence = chaos.randrange(1 << 40)
        message: Row = {"producer": "p0", "topic": "t", "lane": 0, "sequence": sequence}
        history.add("attempts", **message, offset=place, sent_us=place)
        if place % 10:
            history.add("receipts", **message, partition=0, offset=place, received_us=place + 5)
    return history


def test_both_formulations_give_one_result(spark: SparkSession, tmp_path: Path) -> None:
    for name, history in (("busy", busy_run()), ("sparse", sparse_run())):
        run = history.write(tmp_path / name, rows_per_segment=50)
        expected = json.dumps(audit(open_ledger([run])).to_json())
        by_frames = audit_run([run], spark, sizes=SIZES, formulation="frames")
        assert json.dumps(by_frames.to_json()) == expected
        by_cells = audit_run([run], spark, sizes=SIZES, formulation="cells")
        assert json.dumps(by_cells.to_json()) == expected


def test_rows_in_no_order_are_shuffled_and_rows_in_order_are_not(tmp_path: Path) -> None:
    chosen = {}
    for name, history in (("dense", clean_run(lanes=1, count=400)), ("sparse", sparse_run())):
        ledger = open_ledger([history.write(tmp_path / name, rows_per_segment=50)])
        cells = plan_cells(ledger, rows_per_cell=SIZES.rows_per_cell)
        chosen[name] = reads_per_row(ledger, cells) > MOST_READS_PER_ROW
    assert chosen == {"dense": False, "sparse": True}
