"""Walks over ledgers in their own order: how readers moved from offset to offset.

The same walk answers two questions. For receipts: within one consumer, assignment and partition,
where did the next offset not rise, and where did it leave out offsets? For rows of scans: did each
scan read its log in ascending order, so that no offset occurs twice?

A walk covers a part of the ledger. It returns the first and the last offset of each reader, and
`rules.polls` adds the steps from one walk to the next.
"""

from typing import NamedTuple

import numpy as np

from shoal.audit.arrays import Array, Ints, ends_of_groups, full_ints, starts_of_groups
from shoal.audit.parts import PartKind, TaskPart, make_part
from shoal.audit.read.read import Vocabulary, read_rows
from shoal.audit.tasks import LedgerWalk


class GroupReader(NamedTuple):
    """A consumer in one assignment of one partition: a reader of the table `receipts`."""

    group: str
    consumer: str
    assignment: int
    topic: str
    partition: int


class LogReader(NamedTuple):
    """A scan of one partition: a reader of the table `log`."""

    cluster: str
    topic: str
    partition: int


READERS: dict[str, type[GroupReader | LogReader]] = {"receipts": GroupReader, "log": LogReader}
_NAMES = {"group", "consumer", "topic", "cluster"}
_TABLE_SIZE = 1 << 22
_RADIX = 1 << 16  # numpy sorts 16-bit numbers in linear time


def walk(task: LedgerWalk) -> list[TaskPart]:
    words = Vocabulary()
    columns = READERS[task.table]._fields
    rows = read_rows(task.table, task.pieces, (*columns, "offset"), vocabulary=words)
    offset = rows["offset"]
    if not len(offset):
        return []
    reader = number_rows([rows[name] for name in columns])
    small = reader.astype(np.uint16) if int(reader.max()) < _RADIX else reader
    order = np.argsort(small, kind="stable")
    reader, offset = reader[order], offset[order]
    starts, ends = starts_of_groups(reader), ends_of_groups(reader)
    same = reader[1:] == reader[:-1]
    fall = np.flatnonzero(same & (offset[1:] <= offset[:-1]))
    reader_columns = [  # of `StepColumn`, without the least fall
        offset[starts],
        offset[ends],
        np.minimum.reduceat(offset, starts),
        np.maximum.reduceat(offset, starts),
        np.bincount(reader[fall], minlength=len(starts)),
    ]
    least_fall = np.zeros((len(starts), 2), dtype=np.int64)
    # The least fall is written last, so it stays.
    falling = fall[np.lexsort((offset[fall + 1], offset[fall]))[::-1]]
    least_fall[reader[falling]] = np.stack([offset[falling], offset[falling + 1]], axis=1)
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
        jump = np.flatnonzero(same & (offset[1:] > offset[:-1] + 1))
        steps = np.stack([reader[jump], offset[jump], offset[jump + 1]], axis=1)
        parts.append(make_part(PartKind.JUMPS, task.number, steps))
    return parts


def number_rows(columns: list[Array]) -> Ints:
    """Return a small number for each distinct combination of the columns."""
    numbers, span = np.zeros(len(columns[0]), dtype=np.int64), 1
    for column in columns:
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
    rank = full_ints(span)
    rank[seen] = np.arange(np.count_nonzero(seen))
    return rank[values]
