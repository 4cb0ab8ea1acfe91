"""Rows of a table once more, grouped by the buckets of their streams.

A ledger is in the order of time, so each row group has rows of all streams. With many streams a
task judges all messages of some of them, and would read every row group. `regroup` reads rows once
and writes them into a file with a row group for each range of buckets; in a row group the rows keep
their order. So cells are ranges of sequences of a range of buckets, and a row is read by one task.

The file is a segment like any other, with two differences. Its schema metadata has `shoal.buckets`
(see `buckets`), the range [low, high) of each row group. And in tables of which the order of rows
matters across streams (`ORDERED`), the column `position` has the place of each row among those of
the file, from 0, in ledger order.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shoal.audit.arrays import Array, Ints, Rows
from shoal.audit.context import AuditContext
from shoal.audit.parts import PartKind, TaskPart, make_part
from shoal.audit.read.buckets import Partitions, bucket_of_rows, describe_ranges
from shoal.audit.read.read import (
    PRODUCER_NUMBER,
    Piece,
    Vocabulary,
    read_rows,
)
from shoal.audit.scratch import scratch_file
from shoal.model.errors import SystemFailure
from shoal.model.ledger import BUCKETS_KEY, FORMAT, FORMAT_KEY, ORDERED, POSITION, TABLES
from shoal.storage.files import flush_file, move_file, open_to_write, remove_file
from shoal.storage.places import is_url

# The tables that name messages.
STREAM_TABLES: Final = ("attempts", "receipts", "log", "keys", "transactions", "batches")
ROWS_PER_FILE: Final = 3_000_000
_SHARES_TYPE: Final = np.uint16  # numpy sorts it in linear time


@dataclass(frozen=True)
class Regroup:
    """A task: consecutive row groups of one table, to be written again by buckets."""

    number: int
    table: str
    pieces: tuple[Piece, ...]
    edges: tuple[int, ...]  # of the ranges of buckets, ascending
    path: str | None = None  # where to write, or URL; None: into the scratch folder


def regroup(task: Regroup, context: AuditContext) -> list[TaskPart]:
    """Write the rows of the task; return the path of the file and its number of rows."""
    if task.path is not None:
        return _write_durably(task.path, task, context)
    assert context.scratch is not None  # noqa: S101 - only with a scratch folder it is planned
    with scratch_file(context.scratch, "regrouped") as file:
        rows = write_regrouped(file.sink, task, context.source_partitions)
    return [make_part(PartKind.REGROUPED, [task.number, file.place], [rows])]


def _write_durably(place: str, task: Regroup, context: AuditContext) -> list[TaskPart]:
    """Write a file that is complete once it has its name, whenever the task ends."""
    fresh = f"{place}.{uuid.uuid4().hex}"
    if is_url(place):
        # Whole once it is closed; a task that runs twice writes the same.
        with open_to_write(place) as sink:
            rows = write_regrouped(sink, task, context.source_partitions)
        return [make_part(PartKind.REGROUPED, [task.number, place], [rows])]
    try:
        with open_to_write(fresh) as sink:
            rows = write_regrouped(sink, task, context.source_partitions)
        flush_file(fresh)
        move_file(fresh, place)
    except OSError as error:
        raise SystemFailure(
            f"the ledgers in {Path(place).parent} cannot be compacted: {error};"
            " the run is unchanged, and can be judged as it is"
        ) from error
    finally:
        remove_file(fresh)
    return [make_part(PartKind.REGROUPED, [task.number, place], [rows])]


def plan_regrouping(
    table: str,
    groups: Sequence[Any],
    edges: Sequence[int],
    *,
    first: int = 0,
    rows_per_file: int = ROWS_PER_FILE,
) -> list[Regroup]:
    """Plan to write the row groups of a table, in ledger order, numbered from `first`."""
    tasks: list[Regroup] = []
    pieces: list[Piece] = []
    rows = 0
    for group in groups:
        if pieces and rows + group.rows > rows_per_file:
            tasks.append(Regroup(first + len(tasks), table, tuple(pieces), tuple(edges)))
            pieces, rows = [], 0
        pieces.append(group.piece)
        rows += group.rows
    if pieces:
        tasks.append(Regroup(first + len(tasks), table, tuple(pieces), tuple(edges)))
    return tasks


def write_regrouped(sink: Any, task: Regroup, partitions: Partitions) -> int:
    """Write the rows of a task into an open file; return how many there are."""
    words = Vocabulary()
    names = [name for name, _ in TABLES[task.table]]
    is_ordered = task.table in ORDERED
    wanted = [*names, PRODUCER_NUMBER, *([POSITION] if is_ordered else [])]
    rows = read_rows(task.table, task.pieces, wanted, vocabulary=words)
    buckets = bucket_of_rows(rows, words, partitions)
    del rows[PRODUCER_NUMBER]
    if is_ordered:
        rows[POSITION] = rows[POSITION] - rows[POSITION].min(initial=np.iinfo(np.int64).max)
    share = (np.searchsorted(task.edges, buckets, side="right") - 1).astype(_SHARES_TYPE)
    ends = np.cumsum(np.bincount(share, minlength=len(task.edges) - 1))
    order = np.argsort(share, kind="stable")
    _write(sink, task, (rows, words.names, order, ends), partitions)
    return len(order)


def _write(
    sink: Any,
    task: Regroup,
    content: tuple[Rows, Sequence[str], Ints, Ints],
    partitions: Partitions,
) -> None:
    rows, words, order, ends = content
    bounds = [
        (number, low, high)
        for number, (low, high) in enumerate(
            zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True)
        )
        if low < high
    ]
    ranges = [(task.edges[number], task.edges[number + 1]) for number, _, _ in bounds]
    mark = {FORMAT_KEY: str(FORMAT).encode(), BUCKETS_KEY: describe_ranges(ranges, partitions)}
    schema = make_regrouped_schema(task.table).with_metadata(mark)
    # Each column is freed when it is in its new order: a task holds the rows little more than once.
    columns = [_encode(rows.pop(field.name)[order], field.type, words) for field in schema]
    whole = pa.Table.from_arrays(columns, schema=schema)
    listed = [f.name for f in schema if pa.types.is_dictionary(f.type) or f.name == "incarnation"]
    deltas = [f.name for f in schema if f.type in (pa.int32(), pa.int64())]
    with pq.ParquetWriter(
        sink,
        schema,
        compression="zstd",
        compression_level=1,
        use_dictionary=listed,
        column_encoding={name: "DELTA_BINARY_PACKED" for name in deltas if name not in listed},
        write_page_checksum=True,
    ) as writer:
        for _, low, high in bounds:
            writer.write_table(whole.slice(low, high - low), row_group_size=high - low)


def make_regrouped_schema(table: str) -> pa.Schema:
    names = pa.dictionary(pa.int32(), pa.string())
    fields = [
        pa.field(name, names if kind == "dictionary" else pa.type_for_alias(kind), nullable=False)
        for name, kind in TABLES[table]
    ]
    if table in ORDERED:
        fields.append(pa.field(POSITION, pa.int64(), nullable=False))
    return pa.schema(fields)


def _encode(values: Array, kind: pa.DataType, words: Sequence[str]) -> pa.Array:
    if not pa.types.is_dictionary(kind):
        return pa.array(values)
    present = np.flatnonzero(np.bincount(values, minlength=1))
    codes = np.zeros(len(words) + 1, dtype=np.int32)
    codes[present] = np.arange(len(present))
    names = pa.array([words[number] for number in present.tolist()] if len(values) else [])
    return pa.DictionaryArray.from_arrays(pa.array(codes[values]), names.cast(pa.string()))
