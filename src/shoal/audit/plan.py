"""Plans the tasks of an audit from the footers of the ledgers alone.

Cells are ranges of sequences that hold about the same number of rows. A cell covers all streams,
because row groups do too. Cuts follow the rows, so a single row with a garbled sequence makes no
difference. No cell contains both sides of 0: sequences below 0 belong to no attempt. The last cell
has no upper limit. With many streams a task has all cells of some of them.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from shoal.audit.arrays import LARGEST, Floats, Ints
from shoal.audit.read.buckets import ALL_BUCKETS, split_buckets
from shoal.audit.read.folder import Ledger, RowGroup
from shoal.audit.read.read import Piece
from shoal.audit.tasks import (
    Jump,
    LedgerWalk,
    MessageCell,
    OffsetCell,
    StreamCell,
    Unproven,
)

ROWS_PER_CELL = 2_000_000  # of all tables together: about 500,000 messages
ROWS_PER_WALK = 4_000_000
OFFSETS_PER_CELL = 1_000_000
MOST_OFFSET_CELLS = 1024
FEWEST_SHARED_STREAMS = 64
# Streams times cells: about 700 bytes each come to the driver, if the streams are not divided.
MOST_STREAM_PARTS = 20_000
# If the run has so few cells, tasks may read all row groups.
FEW_CELLS, FEWEST_STREAM_PARTS = 2, 1_000
MOST_SHARES = 64

_MESSAGE_TABLES = ("attempts", "receipts", "log")
_SIDE_TABLES = ("keys", "transactions", "batches")


class Division(NamedTuple):
    """How messages are divided among tasks, before row groups are assigned to them."""

    cuts: Sequence[int]  # the first sequence of each cell
    shares: int = 0  # among how many tasks the streams are divided; 0: each cell is a task

    @property
    def bucket_edges(self) -> list[int]:
        shares = max(self.shares, 1)
        return list(split_buckets(shares))


def divide(
    ledger: Ledger,
    streams: int,
    *,
    rows_per_cell: int = ROWS_PER_CELL,
    shares: int | None = None,
    cuts: Sequence[int] = (),
) -> Division:
    """Divide messages by ranges of sequences or by streams; None: as `count_shares` says.

    `cuts` are the first sequences of the cells, if the caller knows them.
    """
    if shares is None:
        shares = count_shares(ledger, streams, rows_per_cell=rows_per_cell)
    groups = _message_groups(ledger)
    if shares:
        return Division(_choose_cuts(groups, rows_per_cell * shares), shares)
    return Division(cuts or _choose_cuts(groups, rows_per_cell))


def reads_per_row(ledger: Ledger, division: Division) -> float:
    """Return how often tasks would read each row, according to the footers.

    This looks at each row group once, however many tasks there are.
    """
    tables = (*_MESSAGE_TABLES, *_SIDE_TABLES)
    read = sum(
        ledger.footers[table].count_reads("sequence", division.cuts, division.bucket_edges)
        for table in tables
    )
    return read / max(sum(ledger.rows_of(table) for table in tables), 1)


def plan_cells(
    ledger: Ledger,
    extents: Iterable[int] = (),
    *,
    rows_per_cell: int = ROWS_PER_CELL,
    cuts: Sequence[int] = (),
    buckets: tuple[int, int] = ALL_BUCKETS,
    has_rows: bool = True,
) -> list[MessageCell]:
    """Plan cells that cover every row and every planned sequence of the streams in `buckets`.

    `cuts` are the first sequences of the cells, if the caller knows them. Without rows the cells
    name no row groups: the caller brings the rows to them.
    """
    lows = cuts or _choose_cuts(_message_groups(ledger), rows_per_cell)
    ranges = list(zip(lows, [*lows[1:], LARGEST], strict=True))
    footers = [ledger.footers[table] for table in _MESSAGE_TABLES]
    if any(each.has_any("sequence", -LARGEST, 0, ALL_BUCKETS) for each in footers):
        ranges.insert(0, (-LARGEST, 0))
    reach = max(extents, default=0)
    return [
        make_cell(ledger, low, high, buckets)
        if has_rows
        else MessageCell(low, high, (), (), (), buckets=buckets)
        for low, high in ranges
        if 0 <= low < reach or any(each.has_any("sequence", low, high, buckets) for each in footers)
    ]


def _message_groups(ledger: Ledger) -> list[RowGroup]:
    return [group for table in _MESSAGE_TABLES for group in ledger.tables[table]]


def _choose_cuts(groups: Sequence[RowGroup], rows_per_cell: int) -> list[int]:
    """Choose the first sequence of each cell, so that all hold about the same number of rows."""
    rows = sum(group.rows for group in groups)
    count = -(-rows // rows_per_cell)
    if count < 2:
        return [0]
    low = np.array([max(group.ranges["sequence"][0], 0) for group in groups], dtype=np.float64)
    high = np.array([max(group.ranges["sequence"][1], 0) for group in groups], dtype=np.float64) + 1
    density = np.array([group.rows for group in groups]) / (high - low)
    edges = np.concatenate([low, high])
    order = np.argsort(edges, kind="stable")
    edges = edges[order]
    rates = np.cumsum(np.concatenate([density, -density])[order])
    reached = np.concatenate([[0.0], np.cumsum(rates[:-1] * np.diff(edges))])
    wanted = np.arange(1, count) * (reached[-1] / count)
    cuts = _snap_to_row_groups(np.interp(wanted, reached, edges), np.unique(low))
    return [0, *np.unique(cuts[cuts > 0]).tolist()]


def _snap_to_row_groups(cuts: Floats, lows: Floats) -> Ints:
    """Move each cut to the begin of a row group nearby, if there is one.

    A row group that two cells share is read twice.
    """
    reach = np.diff(np.append(0, cuts)).min(initial=np.inf) / 2
    right = np.minimum(np.searchsorted(lows, cuts), len(lows) - 1)
    left = np.maximum(right - 1, 0)
    nearest = np.where(cuts - lows[left] < np.abs(lows[right] - cuts), lows[left], lows[right])
    return np.where(np.abs(nearest - cuts) < reach, nearest, cuts).astype(np.int64)


def count_shares(ledger: Ledger, streams: int, *, rows_per_cell: int = ROWS_PER_CELL) -> int:
    """Return among how many tasks streams should be divided; 0 if cells need no division.

    A cell of all streams returns what only it knows of each, so with many streams and many cells
    that would be more than a driver can hold. It is a power of two, so that ranges of buckets of a
    compacted run are never divided.
    """
    rows = sum(ledger.rows_of(table) for table in _MESSAGE_TABLES)
    cells = max(-(-rows // rows_per_cell), 1)
    most = FEWEST_STREAM_PARTS if cells <= FEW_CELLS else MOST_STREAM_PARTS
    if streams < FEWEST_SHARED_STREAMS or streams * cells <= most:
        return 0
    wanted = min(cells, streams, MOST_SHARES)
    return 1 << (wanted.bit_length() - 1)


def plan_stream_cells(
    ledger: Ledger, extents: Sequence[int], division: Division, *, has_rows: bool = True
) -> list[StreamCell]:
    """Plan tasks that each have all cells of about the same number of streams."""
    tasks = []
    for buckets in pairwise(division.bucket_edges):
        cells = plan_cells(ledger, extents, cuts=division.cuts, buckets=buckets, has_rows=has_rows)
        tasks.append(StreamCell(buckets, tuple(cells)))
    return [task for task in tasks if task.cells]


def make_cell(
    ledger: Ledger, low: int, high: int, buckets: tuple[int, int] = ALL_BUCKETS
) -> MessageCell:
    """Return the cell of the sequences [low, high), with the row groups that may have them."""
    attempts, receipts, log, keys, transactions, batches = (
        ledger.footers[table].pieces("sequence", [(low, high)], buckets)
        for table in (*_MESSAGE_TABLES, *_SIDE_TABLES)
    )
    return MessageCell(
        *(low, high, attempts, receipts, log, keys, transactions, batches), buckets=buckets
    )


def plan_walks(ledger: Ledger, *, rows_per_walk: int = ROWS_PER_WALK) -> list[LedgerWalk]:
    """Plan walks over receipts, scans and polls, in ledger order."""
    walks: list[LedgerWalk] = []
    control = tuple(group.piece for group in ledger.tables["control_ranges"])
    for table in ("receipts", "log", "polls"):
        beside = control if table == "receipts" else ()
        pieces: list[Piece] = []
        rows = 0
        for group in ledger.tables[table]:
            if pieces and rows + group.rows > rows_per_walk and not _is_one_file(pieces, group):
                walks.append(LedgerWalk(len(walks), table, tuple(pieces), beside))
                pieces, rows = [], 0
            pieces.append(group.piece)
            rows += group.rows
        if pieces:
            walks.append(LedgerWalk(len(walks), table, tuple(pieces), beside))
    return walks


def _is_one_file(pieces: Sequence[Piece], group: RowGroup) -> bool:
    """Whether a row group and the last piece share a compacted segment, which has one order."""
    last, piece = pieces[-1], group.piece
    return last.path == piece.path and last.position == piece.position


def plan_offset_cells(
    ledger: Ledger,
    cluster: str,
    ranges: Iterable[tuple[int, int]],
    *,
    jumps: Sequence[Jump] = (),
    unproven: Sequence[Unproven] = (),
    offsets_per_cell: int = OFFSETS_PER_CELL,
) -> list[OffsetCell]:
    """Plan cells that cover the ranges and the jumps, none longer than the limit."""
    wanted = _union([*ranges, *((jump.origin + 1, jump.landing) for jump in jumps)])
    # The work depends on the rows in a range, not on its length: a jump over half the number line
    # is cut into a bounded number of cells, and most of them find no row group.
    fewest = sum(high - low for low, high in wanted) // MOST_OFFSET_CELLS + 1
    cells = []
    for own in _pack_ranges(wanted, max(offsets_per_cell, fewest)):
        attempts, receipts = (
            ledger.footers[table].pieces("offset", own) for table in ("attempts", "receipts")
        )
        log = ledger.footers["log"].pieces_of(cluster, "offset", own)
        if not (attempts or receipts or log):
            continue
        low, high = own[0][0], own[-1][1]
        touched = tuple(j for j in jumps if j.origin + 1 < high and j.landing > low)
        # Which message an offset holds is unknown until it is read, so any transaction may matter.
        members = tuple(group.piece for group in ledger.tables["transactions"]) if touched else ()
        own_unproven = tuple(each for each in unproven if low <= each.offset < high)
        tables = (attempts, receipts, log, members)
        cells.append(OffsetCell(cluster, tuple(own), *tables, touched, own_unproven))
    return cells


def _union(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the same offsets as disjoint ranges, ascending."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        elif low < high:
            merged.append((low, high))
    return merged


def _pack_ranges(
    ranges: Iterable[tuple[int, int]], offsets_per_cell: int
) -> Iterable[list[tuple[int, int]]]:
    """Cut and group the ranges, so that each group has at most `offsets_per_cell` offsets."""
    portion: list[tuple[int, int]] = []
    room = offsets_per_cell
    for start, high in ranges:
        low = start
        while low < high:
            taken = min(high, low + room)
            portion.append((low, taken))
            room -= taken - low
            low = taken
            if not room:
                yield portion
                portion, room = [], offsets_per_cell
    if portion:
        yield portion


def as_ranges(table: Ints) -> list[tuple[int, int]]:
    return [(low, high) for low, high in table.reshape(-1, 2).tolist()]
