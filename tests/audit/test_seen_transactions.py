"""Which transactions were delivered: kept in files, and only those that matter reach the driver."""

import json
from pathlib import Path

import numpy as np
import pytest

from shoal.audit.audit import Sizes, examine, run_here
from shoal.audit.parts import PartKind
from shoal.audit.read.folder import open_ledger
from shoal.audit.read.seen_transactions import SeenTransactions, look_up, record_seen
from shoal.audit.result.conclude import conclude
from shoal.audit.usage import DriverUsage
from shoal.model.errors import LedgerError
from shoal.model.ledger import OPEN, UNKNOWN
from support.audit.ledgers import History, Row, clean_run

COUNT, LANES = 400, 2
SMALL = Sizes(rows_per_cell=300, rows_per_walk=200, offsets_per_cell=100)
IN_ONE_TASK_EACH = Sizes(rows_per_cell=300, rows_per_walk=200, offsets_per_cell=100, shares=2)


def transactional_run() -> History:
    """A transaction of message n of both lanes and message n + 200 of the first, in other cells."""
    history = clean_run(lanes=LANES, count=COUNT, scans=False)
    for lane in range(LANES):
        for sequence in range(COUNT):
            details: Row = {"transaction": sequence % 200, "fate": 0, "requested_us": 0}
            message: Row = {"producer": "p0", "topic": "t", "lane": lane, "sequence": sequence}
            history.add("transactions", **message, **details)
    for sequence in (17, 190):  # torn: lost here, delivered elsewhere
        drop(history, sequence)
    for sequence in (33, 350):  # unknown: another message of the transaction was delivered
        drop(history, sequence)
        for _, row in history.rows["attempts"]:
            if (row["lane"], row["sequence"]) == (0, sequence):
                row |= {"outcome": UNKNOWN, "offset": -1, "acked_us": -1}
        for _, row in history.rows["transactions"]:
            if (row["lane"], row["sequence"]) == (0, sequence):
                row["fate"] = OPEN
    return history


def drop(history: History, sequence: int) -> None:
    kept = [
        (worker, row)
        for worker, row in history.rows["receipts"]
        if (row["lane"], row["sequence"]) != (0, sequence)
    ]
    history.rows["receipts"] = kept


@pytest.mark.parametrize("sizes", [SMALL, IN_ONE_TASK_EACH], ids=["by sequence", "by stream"])
def test_files_give_the_result_of_memory(tmp_path: Path, sizes: Sizes) -> None:
    ledger = open_ledger([transactional_run().write(tmp_path / "run", rows_per_segment=100)])
    results, received = [], []
    (tmp_path / "scratch").mkdir()
    for scratch in (None, tmp_path / "scratch"):
        usage = DriverUsage()
        evidence = examine(ledger, usage.watch(run_here), sizes=sizes, scratch=scratch)
        results.append(json.dumps(conclude(ledger, evidence).to_json()))
        received.append(usage.received[PartKind.SEEN_TRANSACTIONS] // 8)
    assert results[0] == results[1]
    found = json.loads(results[0])["findings"]
    assert found["torn transaction"]["count"] >= 2
    in_memory, in_files = received
    assert in_memory >= 200
    assert in_files <= 20  # those that lost a message or have an unknown attempt


def test_only_files_that_may_have_a_transaction_are_read(tmp_path: Path) -> None:
    seen = SeenTransactions()
    for first in range(0, 1000, 100):
        own = np.arange(first, first + 100, 2)
        for part in record_seen("g", own, str(tmp_path)):
            seen.add(part)
    asked: list[int] = []

    def ask(tasks):  # type: ignore[no-untyped-def]
        asked.extend(len(task.paths) for task in tasks)
        return [look_up(task) for task in tasks]

    wanted = np.array([5, 4, 310, 311, 5000, 4])
    assert seen.find("g", wanted, ask).tolist() == [4, 310]
    assert sum(asked) == 2
    assert seen.find("other", wanted, ask).tolist() == []
    assert seen.find_in_any(wanted[:0], ask).tolist() == []
    assert sum(asked) == 2


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    seen = SeenTransactions()
    for part in record_seen("g", np.arange(3), str(tmp_path)):
        seen.add(part)
    [file] = seen.files["g"]
    Path(file.path).unlink()
    with pytest.raises(LedgerError, match=Path(file.path).name):
        seen.find("g", np.arange(3), lambda tasks: [look_up(task) for task in tasks])
