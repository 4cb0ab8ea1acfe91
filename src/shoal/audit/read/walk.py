"""Walks over ledgers in their own order: how readers moved from offset to offset.

The same walk answers two questions. For receipts: within one consumer, assignment and partition,
where did the next offset not rise, and where did it leave out offsets? For rows of scans: did each
scan read its log in ascending order, so that no offset occurs twice?

A walk covers a part of the ledger. It returns the first and the last offset of each reader, and
`rules.polls` adds the steps from one walk to the next.

Most jumps are over control records: one after each transaction. The scan has recorded where it
found no message (table `control_ranges`); a jump inside such a range skips nothing and is dropped
here, so that the driver never sees it.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from shoal.audit.arrays import Array, Bools, Ints, full_ints, ints, is_repeated_value
from shoal.audit.columns import StepColumn
from shoal.audit.context import AuditContext
from shoal.audit.parts import PartKind, TaskPart, make_part
from shoal.audit.read.read import Vocabulary, in_ledger_order, read_rows
from shoal.audit.tasks import LedgerWalk
from shoal.model.ledger import POSITION


class GroupReaderKey(NamedTuple):
    """A consumer in one assignment of one partition: a reader of the table `receipts`."""

    group: str
    consumer: str
    assignment: int
    topic: str
    partition: int


class LogReaderKey(NamedTuple):
    """A scan of one partition: a reader of the table `log`."""

    cluster: str
    topic: str
    partition: int


READERS: dict[str, type[GroupReaderKey | LogReaderKey]] = {
    "receipts": GroupReaderKey,
    "log": LogReaderKey,
}
_NAMES = {"group", "consumer", "topic", "cluster"}
_TABLE_SIZE = 1 << 22
_RADIX = ((1 << 8, np.uint8), (1 << 16, np.uint16))  # numpy sorts these in linear time


def walk(task: LedgerWalk, context: AuditContext) -> list[TaskPart]:
    words = Vocabulary()
    columns = READERS[task.table]._fields
    wanted = (*columns, "offset", POSITION)
    rows = in_ledger_order(read_rows(task.table, task.pieces, wanted, vocabulary=words))
    offset = rows["offset"]
    if not len(offset):
        return []
    reader = number_rows([rows[name] for name in columns])
    sizes = np.bincount(reader)
    kind = next((kind for most, kind in _RADIX if len(sizes) <= most), np.int64)
    order = np.argsort(reader.astype(kind), kind="stable")
    offset = offset[order]
    ends = np.cumsum(sizes) - 1
    starts = ends - sizes + 1
    is_fall = offset[1:] <= offset[:-1]
    is_fall[ends[:-1]] = False  # from one reader to the next
    fall = np.flatnonzero(is_fall)
    faller = np.searchsorted(ends, fall)
    reader_columns = [  # of `StepColumn`, without the least fall
        offset[starts],
        offset[ends],
        np.minimum.reduceat(offset, starts),
        np.maximum.reduceat(offset, starts),
        np.bincount(faller, minlength=len(starts)),
    ]
    least_fall = np.zeros((len(starts), 2), dtype=np.int64)
    # The least fall is written last, so it stays.
    from_last = np.lexsort((offset[fall + 1], offset[fall]))[::-1]
    falling = fall[from_last]
    least_fall[faller[from_last]] = np.stack([offset[falling], offset[falling + 1]], axis=1)
    names = [
        [words.names[rows[c][row]] if c in _NAMES else int(rows[c][row]) for c in columns]
        for row in order[starts].tolist()
    ]
    parts = [
        make_part(
            PartKind.WALK,
            [task.table, task.number, names],
            np.column_stack([*reader_columns, least_fall]),
        )
    ]
    if task.table == "receipts":
        is_jump = offset[1:] > offset[:-1] + 1
        is_jump[ends[:-1]] = False
        jump = np.flatnonzero(is_jump)
        if task.control_ranges and len(jump):
            topic, partition = (rows[name][order][jump] for name in ("topic", "partition"))
            passed = (offset[jump] + 1, offset[jump + 1])
            jump = jump[~_ControlRanges(task, context, words).cover(topic, partition, passed)]
        steps = np.stack([np.searchsorted(ends, jump), offset[jump], offset[jump + 1]], axis=1)
        parts.append(make_part(PartKind.JUMPS, task.number, steps))
    return parts


def join_walks(parts: Iterable[TaskPart]) -> list[TaskPart]:
    """Join successive walks over one table, with their jumps, to one walk."""
    listed = list(parts)
    jumps = {part.label: part for part in listed if part.kind is PartKind.JUMPS}
    walks = sorted((p for p in listed if p.kind is PartKind.WALK), key=lambda part: part.label[1])
    numbers: dict[tuple[Any, ...], int] = {}
    rows: list[list[int]] = []
    passed: list[list[int]] = []
    for walk_part in walks:
        _, number, named = walk_part.label
        own = []
        for names, row in zip(named, walk_part.rows.tolist(), strict=True):
            reader = numbers.setdefault(tuple(names), len(rows))
            own.append(reader)
            if reader == len(rows):
                rows.append(row)
            else:
                rows[reader], jump = _join_rows(rows[reader], row)
                passed += [[reader, *jump]] if jump else []
        if number in jumps:
            found = jumps[number].rows.copy()
            found[:, 0] = ints(own)[found[:, 0]]
            passed += found.tolist()
    table, first, _ = walks[0].label
    label = [table, first, [list(names) for names in numbers]]
    whole = [make_part(PartKind.WALK, label, rows)]
    return [*whole, make_part(PartKind.JUMPS, first, passed)] if jumps else whole


def _join_rows(before: list[int], after: list[int]) -> tuple[list[int], tuple[int, int] | None]:
    """Join two rows of `StepColumn` of one reader; return a jump from one to the other too."""
    first, origin, lowest, highest, *_ = before
    landing, last, low, high, *_ = after
    falls = [row[StepColumn.FALLS :] for row in (before, after) if row[StepColumn.FALLS]]
    if landing <= origin:
        falls.append([1, origin, landing])
    count = sum(own[0] for own in falls)
    least = min((own[1:] for own in falls), default=[0, 0])
    jump = (origin, landing) if landing > origin + 1 else None
    return [first, last, min(lowest, low), max(highest, high), count, *least], jump


class _ControlRanges:
    """Where scans of the log that consumers read found no message."""

    def __init__(self, task: LedgerWalk, context: AuditContext, words: Vocabulary) -> None:
        columns = ("cluster", "topic", "partition", "low", "high")
        rows = read_rows("control_ranges", task.control_ranges, columns, vocabulary=words)
        own = rows["cluster"] == words.code(context.read_cluster)
        found = {name: rows[name][own] for name in columns}
        scanned = {
            (words.code(topic), partition)
            for cluster, topic, partition in context.scans
            if cluster == context.read_cluster
        }
        self._by_log: dict[tuple[int, int], tuple[Ints, Ints]] = {}
        log = number_rows([found["topic"], found["partition"]])
        for first in np.unique(log, return_index=True)[1].tolist():
            key = (int(found["topic"][first]), int(found["partition"][first]))
            if key in scanned:  # else a message may be known although no scan found it
                rows_of_log = log == log[first]
                self._by_log[key] = _join(found["low"][rows_of_log], found["high"][rows_of_log])

    def cover(self, topic: Array, partition: Array, passed: tuple[Ints, Ints]) -> Bools:
        """Whether each range of offsets, [low, high) of a log, is inside one of these ranges."""
        low, high = passed
        covered = np.zeros(len(low), dtype=np.bool_)
        for (of_topic, of_partition), (lows, highs) in self._by_log.items():
            own = np.flatnonzero((topic == of_topic) & (partition == of_partition))
            at = np.searchsorted(lows, low[own], side="right") - 1
            covered[own] = (at >= 0) & (high[own] <= highs[np.maximum(at, 0)])
        return covered


def _join(low: Ints, high: Ints) -> tuple[Ints, Ints]:
    """Join ranges that touch or overlap; return their bounds, ascending."""
    order = np.argsort(low, kind="stable")
    low, reach = low[order], np.maximum.accumulate(high[order])
    breaks = np.flatnonzero(low[1:] > reach[:-1]) + 1
    return low[np.append(0, breaks)], reach[np.append(breaks - 1, len(low) - 1)]


def number_rows(columns: list[Array]) -> Ints:
    """Return a small number for each distinct combination of the columns."""
    numbers, span = np.zeros(len(columns[0]), dtype=np.int64), 1
    for column in columns:
        if is_repeated_value(column):
            continue
        low, high = (int(column.min()), int(column.max())) if len(column) else (0, 0)
        if low == high:
            continue  # a constant column distinguishes nothing
        own, own_span = column - np.int64(low), high - low + 1
        if span * own_span > _TABLE_SIZE:
            own, numbers = _compact(own), _compact(numbers)
            span, own_span = int(numbers.max()) + 1, int(own.max()) + 1
        numbers = numbers * own_span + own if span > 1 else own
        span *= own_span
    return _compact(numbers) if span > 1 else numbers


def _compact(values: Ints) -> Ints:
    """Return the rank of each value among the distinct ones; no value is negative."""
    span = int(values.max(initial=0)) + 1
    if span > _TABLE_SIZE:
        ranks: Ints = np.unique(values, return_inverse=True)[1].astype(np.int64)
        return ranks
    seen = np.zeros(span, dtype=np.bool_)
    seen[values] = True
    if seen.all():
        return values
    rank = full_ints(span)
    rank[seen] = np.arange(np.count_nonzero(seen))
    return rank[values]
