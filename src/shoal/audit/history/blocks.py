"""Reads long histories in blocks of lines, which is faster than line by line.

Rules:
- A block consists of whole lines. Arrow reads it as a table. If all of it is plainly well-formed,
  its columns are returned as they are, checked as a whole.
- Otherwise the block is returned as text, and `lines` reads it line by line: it accepts the lines
  or names the malformed one. So only `lines` decides what is malformed, and this module may be
  stricter than the format.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from shoal.audit.arrays import NONE, Array, Ints
from shoal.audit.history.lines import (
    LARGEST_ASSIGNMENT,
    LARGEST_OFFSET,
    LARGEST_PARTITION,
    LARGEST_SEQUENCE,
    LONGEST_LINE_BYTES,
    LONGEST_NAME,
    TIME_SHIFT_US,
    MalformedLine,
    Values,
    parse_line,
)

BLOCK_BYTES: Final = 8 << 20
BULK_KINDS: Final = ("send", "log", "receive")

_TEXTS: Final = (
    *("kind", "producer", "topic", "consumer", "cluster", "outcome", "key", "txn", "fate"),
    *("reader", "delivery", "isolation", "acks"),
)
_NUMBERS: Final = (
    *("partition", "seq", "offset", "assignment", "count", "start", "end", "format"),
    *("committed_us", "intended_us", "sent_us", "acked_us", "append_us", "received_us"),
)
_FLAGS: Final = ("intact", "compacted", "drained", "ordered", "mirror")
_SCHEMA: Final = pa.schema(
    [pa.field(name, pa.string()) for name in _TEXTS]
    + [pa.field(name, pa.int64()) for name in _NUMBERS]
    + [pa.field(name, pa.bool_()) for name in _FLAGS]
)
_LIMITS: Final = {
    "partition": (0, LARGEST_PARTITION),
    "seq": (0, LARGEST_SEQUENCE),
    "offset": (0, LARGEST_OFFSET),
    "assignment": (0, LARGEST_ASSIGNMENT),
}
_TIME_LIMITS: Final = (1 - TIME_SHIFT_US, TIME_SHIFT_US - 1)
_CHOICES: Final = {
    "outcome": {"ok", "failed", "unknown"},
    "fate": {"committed", "aborted", "open"},
    "cluster": {"source", "target"},
}
_NEEDED: Final = {
    "send": ("producer", "topic", "partition", "seq", "outcome", "sent_us"),
    "log": ("cluster", "topic", "partition", "offset", "producer", "seq"),
    "receive": (
        *("consumer", "assignment", "topic", "partition", "offset", "producer", "seq"),
        "received_us",
    ),
}
_OPTIONAL: Final = {
    "send": ("offset", "key", "txn", "fate", "committed_us", "intended_us", "acked_us"),
    "log": ("append_us", "intact"),
    "receive": ("intact",),
}


@dataclass(frozen=True)
class Texts:
    """A column of texts as indices into a short list; NONE for an absent text."""

    codes: Ints
    names: list[str]


Column = Array | Texts
Columns = dict[str, Column]


@dataclass(frozen=True)
class Block:
    """A block of lines of a history; `first_line` is the number of its first line.

    Contains either `columns` by kind and the lines of all other kinds as `others`, or everything as
    `text`. Absent numbers and times are NONE, times are shifted, an absent `intact` is true.
    """

    first_line: int
    text: bytes = b""
    columns: Mapping[str, Columns] = field(default_factory=dict)
    others: Sequence[tuple[str, Values]] = ()


class _NotBulkReadable(Exception):
    """The block must be read line by line."""


def read_blocks(path: Path) -> Iterator[Block]:
    number = 1
    with path.open("rb") as file:
        for text in _whole_lines(file):
            yield _block(text, number)
            number += text.count(b"\n")


def _whole_lines(file: BinaryIO) -> Iterator[bytes]:
    """Return the file in pieces that end with a newline, except perhaps the last.

    No piece is much longer than a block.
    """
    while text := file.read(BLOCK_BYTES):
        # `lines` refuses a line that is too long.
        yield text if text.endswith(b"\n") else text + file.readline(LONGEST_LINE_BYTES + 1)


def _block(text: bytes, number: int) -> Block:
    try:
        table = _table(text)
        kinds = table.column("kind").combine_chunks()
        columns = {}
        rest = np.ones(len(kinds), dtype=np.bool_)
        for kind in BULK_KINDS:
            mask = pc.equal(kinds, kind)
            rows = table.filter(mask)
            rest &= ~mask.to_numpy(zero_copy_only=False)
            if rows.num_rows:
                columns[kind] = _check_columns(kind, rows)
        others = _others(text, np.flatnonzero(rest).tolist(), is_first=number == 1)
    except (_NotBulkReadable, MalformedLine, pa.ArrowException):
        return Block(number, text)
    return Block(number, columns=columns, others=others)


def _others(text: bytes, places: list[int], *, is_first: bool) -> list[tuple[str, Values]]:
    """Parse the few lines of kinds that have no columns."""
    lines = text.split(b"\n") if places else []
    others = [parse_line(lines[place]) for place in places]
    late = others[1:] if is_first and places[:1] == [0] else others
    if any(kind == "run" for kind, _ in late):
        raise _NotBulkReadable
    return others


def _table(text: bytes) -> Any:
    """Parse all lines as a table with one row for each."""
    starts = np.frombuffer(text, np.uint8)
    ends = np.flatnonzero(starts == ord("\n"))
    if not len(ends) or ends[-1] != len(text) - 1:
        raise _NotBulkReadable  # the last line of a file that ends without a newline
    begins = np.append(0, ends[:-1] + 1)
    if (starts[begins] != ord("{")).any() or (starts[ends - 1] != ord("}")).any():
        raise _NotBulkReadable
    if int((ends - begins).max()) >= LONGEST_LINE_BYTES:
        raise _NotBulkReadable
    try:
        text.decode()
    except UnicodeDecodeError as error:
        raise _NotBulkReadable from error
    if b"NaN" in text or b"Infinity" in text:
        raise _NotBulkReadable  # no JSON, but Arrow skips them in fields that it does not know
    table = pj.read_json(
        pa.BufferReader(text),
        read_options=pj.ReadOptions(use_threads=False, block_size=len(text) + 1),
        parse_options=pj.ParseOptions(
            explicit_schema=_SCHEMA, newlines_in_values=False, unexpected_field_behavior="ignore"
        ),
    )
    if table.num_rows != len(ends) or table.column("kind").null_count:
        raise _NotBulkReadable
    return table


def _check_columns(kind: str, rows: Any) -> Columns:
    columns: Columns = {}
    for name in (*_NEEDED[kind], *_OPTIONAL[kind]):
        column = rows.column(name).combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            column = pa.concat_arrays(column.chunks)
        if column.null_count and name in _NEEDED[kind]:
            raise _NotBulkReadable
        if name in _TEXTS:
            columns[name] = _texts(name, column)
        elif name in _FLAGS:
            columns[name] = column.fill_null(True).to_numpy(zero_copy_only=False)
        else:
            columns[name] = _numbers(name, column)
    return columns


def _texts(name: str, column: Any) -> Texts:
    coded = column.dictionary_encode()
    names = coded.dictionary.to_pylist()
    if any(len(text) > LONGEST_NAME for text in names):
        raise _NotBulkReadable
    if name in _CHOICES and not _CHOICES[name].issuperset(names):
        raise _NotBulkReadable
    codes = coded.indices.fill_null(NONE).to_numpy(zero_copy_only=False).astype(np.int64)
    return Texts(codes, names)


def _numbers(name: str, column: Any) -> Ints:
    low, high = _LIMITS.get(name, _TIME_LIMITS)
    found = pc.min_max(column).as_py()
    if found["min"] is not None and not low <= found["min"] <= found["max"] <= high:
        raise _NotBulkReadable
    shift = TIME_SHIFT_US if name.endswith("_us") else 0
    values: Ints = column.fill_null(NONE - shift).to_numpy(zero_copy_only=False)
    return values + shift
