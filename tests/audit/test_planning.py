"""What a plan reads is known from sorted footers, before any task names a row group."""

import itertools
from random import Random

import pytest

from shoal.audit.plan import (
    MOST_SHARES,
    Division,
    count_shares,
    divide,
    plan_cells,
    plan_stream_cells,
    reads_per_row,
)
from shoal.audit.read.buckets import BUCKETS
from shoal.audit.read.folder import Ledger, RowGroup
from shoal.audit.read.read import RowGroupPiece
from shoal.audit.read.regrouping import needs_regrouping
from shoal.audit.tasks import MessageCell
from shoal.model.ledger import TABLES

_OF_CELLS = ("attempts", "receipts", "log", "keys", "transactions", "batches")


def random_ledger(random: Random, *, has_buckets: bool) -> Ledger:
    """Row groups of chance ranges; some below 0, some of a few buckets."""
    numbers = itertools.count()
    tables: dict[str, list[RowGroup]] = {table: [] for table in TABLES}
    for table in _OF_CELLS:
        for _ in range(random.randrange(30)):
            low = random.randrange(-3, 5000)
            span = (low, low + random.randrange(800))
            buckets = (0, BUCKETS)
            if has_buckets and random.random() < 0.8:
                first = random.randrange(BUCKETS)
                buckets = (first, min(first + random.randrange(1, BUCKETS // 3), BUCKETS))
            piece = RowGroupPiece(f"/{table}-{next(numbers)}", 0, 0)
            rows = random.randrange(1, 500)
            tables[table].append(RowGroup(piece, rows, {"sequence": span}, buckets=buckets))
    return Ledger([], tables)


def plan(ledger: Ledger, division: Division, *, has_rows: bool) -> list[MessageCell]:
    if division.shares:
        tasks = plan_stream_cells(ledger, [4000], division, has_rows=has_rows)
        return [cell for task in tasks for cell in task.cells]
    return plan_cells(ledger, [4000], cuts=division.cuts, has_rows=has_rows)


@pytest.mark.parametrize("has_buckets", [False, True])
@pytest.mark.parametrize("shares", [0, 1, 7])
def test_reads_are_counted_without_a_plan(shares: int, *, has_buckets: bool) -> None:
    for seed in range(20):
        ledger = random_ledger(Random(seed), has_buckets=has_buckets)
        division = divide(ledger, 10, rows_per_cell=300, shares=shares)
        cells = plan(ledger, division, has_rows=True)
        sizes = {group.piece: group.rows for table in _OF_CELLS for group in ledger.tables[table]}
        read = sum(sizes[piece] for c in cells for t in _OF_CELLS for piece in getattr(c, t))
        counted = reads_per_row(ledger, division)
        # Rows of side tables where there is no message are counted, though no cell reads them.
        own = sum(sizes.values())
        assert counted * own >= read - 0.5
        side = sum(g.rows for t in _OF_CELLS[3:] for g in ledger.tables[t])
        assert counted * own - read <= side * (max(shares, 1) + 1) + 0.5


@pytest.mark.parametrize("shares", [0, 7])
def test_a_plan_without_rows_has_the_same_cells(shares: int) -> None:
    for seed in range(20):
        ledger = random_ledger(Random(seed), has_buckets=True)
        division = divide(ledger, 10, rows_per_cell=300, shares=shares)
        whole, bare = (plan(ledger, division, has_rows=flag) for flag in (True, False))
        assert [(c.low, c.high, c.buckets) for c in whole] == [
            (c.low, c.high, c.buckets) for c in bare
        ]
        assert not any(getattr(cell, table) for cell in bare for table in _OF_CELLS)


def billion_messages() -> Ledger:
    """A billion messages of 10,000 streams, as workers write them: in the order of time."""
    tables: dict[str, list[RowGroup]] = {table: [] for table in TABLES}
    for table, count in (("attempts", 3800), ("receipts", 3800), ("log", 7600)):
        for number in range(count):
            piece = RowGroupPiece(f"/{table}", number, number)
            tables[table].append(RowGroup(piece, 1 << 18, {"sequence": (number, number + 9)}))
    return Ledger([], tables)


def test_a_plan_of_many_streams_has_as_many_tasks_for_any_number_of_messages() -> None:
    ledger = billion_messages()
    division = divide(ledger, 10_000)
    assert division.shares == MOST_SHARES
    assert reads_per_row(ledger, division) == pytest.approx(division.shares, rel=0.05)
    assert needs_regrouping(ledger, division)
    tasks = plan_stream_cells(ledger, [3800], division, has_rows=False)
    assert len(tasks) == division.shares
    assert all(cell.attempts == () for task in tasks for cell in task.cells)


@pytest.mark.parametrize(
    ("streams", "messages", "shares"),
    [(10_000, 1_000_000, 2), (10_000, 400_000, 1), (500, 1_000_000, 0), (100, 10**8, 0)],
)
def test_streams_are_divided_where_that_costs_little_or_saves_much(
    streams: int, messages: int, shares: int
) -> None:
    tables: dict[str, list[RowGroup]] = {table: [] for table in TABLES}
    for table, logs in (("attempts", 1), ("receipts", 1), ("log", 2)):
        span = {"sequence": (0, messages // streams)}
        tables[table].append(RowGroup(RowGroupPiece("/x", 0, 0), messages * logs, span))
    assert count_shares(Ledger([], tables), streams) == shares
