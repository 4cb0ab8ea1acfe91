"""Row groups of ledger segments into numpy columns.

Rules:
- Rows keep ledger order. `position`, asked for like a column, is a row's place in it.
- Names become numbers into one vocabulary for each task, so kernels compare integers.
- `producer_number`, asked for like a column, is a number for producer and incarnation together:
  what two producers with one id wrote is told apart from here on.
- What cannot be read, or holds nulls, is a `LedgerError` that names the file.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shoal.audit.arrays import Array, Bools, Rows
from shoal.model.errors import LedgerError
from shoal.model.ledger import NO_INCARNATION, TABLES

POSITION = "position"
PRODUCER_NUMBER = "producer_number"
_PRODUCER: Final = ("producer", "incarnation")
_LONGEST_SURE_NAME = 64

_NUMPY_TYPES: dict[str, type[np.generic]] = {
    "dictionary": np.int32,
    "int8": np.int8,
    "int16": np.int16,
    "int32": np.int32,
    "int64": np.int64,
    "bool": np.bool_,
}


class Spelling(NamedTuple):
    """A name in a column of a file, and the name that is meant."""

    column: str
    written: str
    meant: str


class Piece(NamedTuple):
    """One row group of one segment; `position` is the place of its first row."""

    path: str
    number: int
    position: int
    spelt: tuple["Spelling", ...] = ()  # names that stand for others in this file


class Held(NamedTuple):
    """Rows that are in memory already; names are numbers into `names`."""

    path: str  # what they were read from
    columns: Rows
    names: Sequence[str]
    position: int  # of the first row, unless each row has its own
    positions: Array | None = None


class ProducerIncarnation(NamedTuple):
    """One producer: its id, and the number that tells it from others with that id."""

    producer: str
    incarnation: int


@dataclass(slots=True)
class Vocabulary:
    """Names and producers of one task and their numbers, given out as they are met."""

    names: list[str] = field(default_factory=list)
    producers: list[ProducerIncarnation] = field(default_factory=list)
    _codes: dict[str, int] = field(default_factory=dict)
    _producer_codes: dict[ProducerIncarnation, int] = field(default_factory=dict)

    def producer_code(self, producer: str, incarnation: int = NO_INCARNATION) -> int:
        name = ProducerIncarnation(producer, incarnation)
        known = self._producer_codes.get(name)
        if known is None:
            known = self._producer_codes[name] = len(self.producers)
            self.producers.append(name)
        return known

    def code(self, name: str) -> int:
        known = self._codes.get(name)
        if known is None:
            known = self._codes[name] = len(self.names)
            self.names.append(name)
        return known

    def __len__(self) -> int:
        return len(self.names)


class Within(NamedTuple):
    """Which rows to keep: those whose column lies in one of the ranges [low, high).

    Ranges are disjoint and ascending.
    """

    column: str
    ranges: Sequence[tuple[int, int]]

    def mask(self, values: Array) -> Bools:
        kept: Bools
        if len(self.ranges) == 1:
            low, high = self.ranges[0]
            kept = (values >= low) & (values < high)
        else:
            lows, highs = np.array(self.ranges, dtype=np.int64).T
            place = np.searchsorted(lows, values, side="right") - 1
            kept = (place >= 0) & (values < highs[np.maximum(place, 0)])
        return kept


def read_rows(
    table: str,
    pieces: Iterable[Piece | Held],
    columns: Sequence[str],
    *,
    vocabulary: Vocabulary,
    within: Within | None = None,
) -> Rows:
    """The rows of some row groups of a table, in the order given."""
    chunks: dict[str, list[Array]] = {name: [] for name in columns}
    stored = [name for name in columns if name not in (POSITION, PRODUCER_NUMBER)]
    if PRODUCER_NUMBER in chunks:
        stored += [name for name in _PRODUCER if name not in stored]
    types = dict(TABLES[table]) | {POSITION: "int64", PRODUCER_NUMBER: "dictionary"}
    for piece in pieces:
        if isinstance(piece, Held):
            rows = _held_rows(piece, stored, types, vocabulary)
        else:
            rows = _read_piece(piece, stored, types, vocabulary)
        if POSITION in chunks:
            rows[POSITION] = _positions(piece, len(rows[stored[0]]))
        if PRODUCER_NUMBER in chunks:
            rows[PRODUCER_NUMBER] = _number_producers(rows, vocabulary)
        mask = within.mask(rows[within.column]) if within else None
        kept_rows = None if mask is None or mask.all() else np.flatnonzero(mask)
        for name, kept in chunks.items():
            kept.append(rows[name] if kept_rows is None else rows[name][kept_rows])
    return {name: _whole(arrays, _NUMPY_TYPES[types[name]]) for name, arrays in chunks.items()}


def _positions(piece: Piece | Held, count: int) -> Array:
    if isinstance(piece, Held) and piece.positions is not None:
        return piece.positions
    return np.arange(piece.position, piece.position + count, dtype=np.int64)


def _number_producers(columns: Rows, vocabulary: Vocabulary) -> Array:
    """A number for each row; no sorting, as nearly always an id has one incarnation."""
    producer, incarnation = (columns[name] for name in _PRODUCER)
    if len(producer) and _is_constant(producer) and _is_constant(incarnation):
        name = vocabulary.names[producer[0]]
        code = vocabulary.producer_code(name, int(incarnation[0]))
        return np.full(len(producer), code, np.int32)
    numbers = np.empty(len(producer), np.int32)
    rows: Any = slice(None)
    while len(producer):
        one_of = np.zeros(int(producer.max()) + 1, np.int64)
        one_of[producer] = incarnation  # of several incarnations of an id, the last
        code_of = np.zeros(len(one_of), np.int32)
        for code in np.flatnonzero(np.bincount(producer)).tolist():
            code_of[code] = vocabulary.producer_code(vocabulary.names[code], int(one_of[code]))
        numbers[rows] = code_of[producer]
        others = np.flatnonzero(one_of[producer] != incarnation)
        rows = others if isinstance(rows, slice) else rows[others]
        producer, incarnation = producer[others], incarnation[others]
    return numbers


def _is_constant(values: Array) -> bool:
    return bool(values[0] == values[-1]) and bool((values == values[0]).all())


def _whole(arrays: list[Array], kind: type[np.generic]) -> Array:
    if len(arrays) == 1:
        return arrays[0]
    return np.concatenate(arrays) if arrays else np.empty(0, kind)


def _held_rows(
    piece: Held, columns: Sequence[str], types: Mapping[str, str], vocabulary: Vocabulary
) -> Rows:
    own = np.array([vocabulary.code(name) for name in piece.names], np.int32)
    return {
        name: own[piece.columns[name]] if types[name] == "dictionary" else piece.columns[name]
        for name in columns
    }


def _read_piece(
    piece: Piece, columns: Sequence[str], types: Mapping[str, str], vocabulary: Vocabulary
) -> Rows:
    try:
        with pq.ParquetFile(piece.path, memory_map=True, page_checksum_verification=True) as file:
            group = file.metadata.row_group(piece.number)
            same = _constants(group, file.schema_arrow.names, columns)
            varying = [name for name in columns if name not in same]
            table = file.read_row_group(piece.number, columns=varying, use_threads=False)
    except (OSError, pa.ArrowException, KeyError) as error:
        raise LedgerError(f"{piece.path} cannot be read: {error!s:.300}") from error
    spelt = {(column, written): meant for column, written, meant in piece.spelt}

    def code(column: str, name: str) -> int:
        return vocabulary.code(spelt.get((column, name), name))

    rows = {name: _plain(table.column(name), partial(code, name), piece.path) for name in varying}
    for name, value in same.items():
        number = code(name, value) if types[name] == "dictionary" else value
        rows[name] = np.full(group.num_rows, number, _NUMPY_TYPES[types[name]])
    return rows


def _constants(group: Any, names: list[str], columns: Sequence[str]) -> dict[str, Any]:
    """Columns of a row group with one value only, which its footer tells."""
    found: dict[str, Any] = {}
    for name in columns:
        if name == "incarnation" and name not in names:
            found[name] = NO_INCARNATION  # a file of format 1
            continue
        told = group.column(names.index(name)).statistics
        if told is None or not told.has_min_max or not told.has_null_count or told.null_count:
            continue
        # Long names may be cut in a footer, and then stand for others too.
        is_whole = not isinstance(told.min, str) or len(told.min) < _LONGEST_SURE_NAME
        if told.min == told.max and is_whole:
            found[name] = told.min
    return found


def _plain(column: Any, code: Callable[[str], int], path: str) -> Array:
    """One column as numbers."""
    if column.null_count:
        raise LedgerError(f"{path} holds nulls")
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # what an empty column stays
        array = pa.concat_arrays(array.chunks) if array.chunks else pa.array([], array.type)
    if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
        array = array.dictionary_encode()
    if not pa.types.is_dictionary(array.type):
        values: Array = array.to_numpy(zero_copy_only=False)
        return values
    own = np.array([code(name) for name in array.dictionary.to_pylist()], np.int32)
    if len(own) == 1:
        return np.full(len(array), own[0], np.int32)
    indices: Array = array.indices.to_numpy(zero_copy_only=False)
    return own[indices] if len(own) else indices
