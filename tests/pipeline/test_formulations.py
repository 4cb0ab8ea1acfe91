"""By cells and by DataFrames: one result."""

import json
import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from shoal.audit.audit import Sizes, audit
from shoal.audit.plan import divide, reads_per_row
from shoal.audit.read.folder import open_ledger
from shoal.pipeline.audit_job import audit_run
from shoal.pipeline.frames import MOST_READS_PER_ROW
from support.audit.ledgers import History, Row, busy_run, clean_run

# Small enough for several cells, walks and offset cells.
SIZES = Sizes(150, 60, 50)


def sparse_run() -> History:
    """One stream with sparse sequences, recorded in random order."""
    history = History(mirror=False, all_drained=True)
    chaos = random.Random(7)
    for place in range(400):
        sequence = chaos.randrange(1 << 40)
        message: Row = {"producer": "p0", "topic": "t", "lane": 0, "sequence": sequence}
        history.add("attempts", **message, offset=place, sent_us=place)
        if place % 10:
            history.add("receipts", **message, partition=0, offset=place, received_us=place + 5)
    return history


@pytest.mark.long
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
        division = divide(ledger, 1, rows_per_cell=SIZES.rows_per_cell)
        chosen[name] = reads_per_row(ledger, division) > MOST_READS_PER_ROW
    assert chosen == {"dense": False, "sparse": True}
