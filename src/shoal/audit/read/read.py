"""Reads row groups of ledger segments into numpy columns.

Rules:
- Rows keep ledger order. `position`, requested like a column, is the index of a row in it.
- Names become numbers in one vocabulary for each task, so kernels compare integers.
- `producer_number`, requested like a column, is one number for producer and incarnation together:
  it distinguishes two producers with the same id.
- A file that cannot be read or contains nulls is a `LedgerError` that names the file.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from shoal.audit.arrays import Array, Bools, Rows, is_repeated_value, repeat_value
from shoal.model.commit_chain import REMEDY
from shoal.model.errors import LedgerError
from shoal.model.ledger import NO_INCARNATION, POSITION, TABLES
from shoal.storage.parquet import describe_unreadable, open_parquet
from shoal.storage.places import is_url

PRODUCER_NUMBER = "producer_number"
_PRODUCER: Final = ("producer", "incarnation")
_LONGEST_SURE_NAME = 64
# Of another file system: files that are read at once, and row groups of each.
_READ_AHEAD: Final = 8
_MOST_TOGETHER: Final = 2

NUMPY_TYPES: Final[dict[str, type[np.generic]]] = {
    "dictionary": np.int32,
    "int8": np.int8,
    "int16": np.int16,
    "int32": np.int32,
    "int64": np.int64,
    "bool": np.bool_,
}


class NameAlias(NamedTuple):
    """A name that a file has in a column, and the actual name of that object."""

    column: str
    stored_name: str
    actual_name: str


class RowGroupPiece(NamedTuple):
    """One row group of one segment; `position` is the index of its first row.

    Of a compacted segment it is that of the segment's first row: the rows have their own places.
    """

    path: str
    number: int
    position: int
    aliases: tuple[NameAlias, ...] = ()  # names with another meaning in this file


class MemoryPiece(NamedTuple):
    """Rows that are already in memory; names are indices into `names`."""

    path: str  # what they were read from
    columns: Rows
    names: Sequence[str]
    position: int  # of the first row, unless `positions` has one for each row
    positions: Array | None = None


@dataclass(slots=True, eq=False)
class KeptPiece:
    """Rows of some row groups, read when a task first needs them, and kept in memory from then."""

    path: str  # its name
    table: str
    sources: tuple[RowGroupPiece, ...]
    within: "Within | None" = None
    rows: MemoryPiece | None = None

    @property
    def position(self) -> int:
        """The position of the first row."""
        return self.load().position

    def load(self) -> MemoryPiece:
        if self.rows is None:
            words = Vocabulary()
            names = [POSITION, *(name for name, _ in TABLES[self.table])]
            columns = read_rows(
                self.table, self.sources, names, vocabulary=words, within=self.within
            )
            positions = columns.pop(POSITION)
            first = int(positions[0]) if len(positions) else 0
            self.rows = MemoryPiece(self.path, columns, words.names, first, positions)
        return self.rows


Piece = RowGroupPiece | MemoryPiece | KeptPiece


class ProducerIncarnation(NamedTuple):
    """One producer: its id, and the number that distinguishes it from others with that id."""

    producer: str
    incarnation: int


@dataclass(slots=True)
class Vocabulary:
    """The numbers of the names and producers of one task, in order of first occurrence."""

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
    """Which rows to keep: those whose column is in one of the ranges [low, high).

    Ranges are disjoint and ascending.
    """

    column: str
    ranges: Sequence[tuple[int, int]]

    def find(self, values: Array) -> Array | None:
        """Return the numbers of the rows to keep; None: all."""
        low, high = self.ranges[0] if self.ranges else (0, 0)
        is_one = len(self.ranges) == 1 and len(values) > 0
        if is_one and low <= int(values.min()) and int(values.max()) < high:
            return None
        mask = self.mask(values)
        return None if mask.all() else np.flatnonzero(mask)

    def mask(self, values: Array) -> Bools:
        kept: Bools
        lows, highs = np.array(self.ranges, dtype=np.int64).reshape(-1, 2).T
        if len(values) and len(lows) > 1:
            near = (lows <= values.max()) & (highs > values.min())
            lows, highs = lows[near], highs[near]
        if not len(lows):
            kept = np.zeros(len(values), dtype=np.bool_)
        elif len(lows) == 1:
            kept = (values >= lows[0]) & (values < highs[0])
        else:
            place = np.searchsorted(lows, values, side="right") - 1
            kept = (place >= 0) & (values < highs[np.maximum(place, 0)])
        return kept


def read_rows(
    table: str,
    pieces: Iterable[Piece],
    columns: Sequence[str],
    *,
    vocabulary: Vocabulary,
    within: Within | None = None,
) -> Rows:
    """Read the rows of some row groups of a table, in the order given."""
    chunks: dict[str, list[Array]] = {name: [] for name in columns}
    stored = [name for name in columns if name not in (POSITION, PRODUCER_NUMBER)]
    if PRODUCER_NUMBER in chunks:
        stored += [name for name in _PRODUCER if name not in stored]
    types = dict(TABLES[table]) | {POSITION: "int64", PRODUCER_NUMBER: "dictionary"}
    positions = [POSITION] if POSITION in chunks else []
    for piece, encoded in _load_pieces(pieces, [*stored, *positions]):
        if isinstance(piece, MemoryPiece):
            rows = _read_memory_piece(piece, stored, types, vocabulary)
        else:
            rows = _number_names(piece, encoded, types, vocabulary)
        if POSITION in chunks:
            rows[POSITION] = _positions(piece, rows, stored[0])
        if PRODUCER_NUMBER in chunks:
            rows[PRODUCER_NUMBER] = _number_producers(rows, vocabulary)
        kept_rows = within.find(rows[within.column]) if within else None
        for name, kept in chunks.items():
            kept.append(rows[name] if kept_rows is None else _choose(rows[name], kept_rows))
    return {name: _whole(arrays, NUMPY_TYPES[types[name]]) for name, arrays in chunks.items()}


def _choose(values: Array, rows: Array) -> Array:
    if is_repeated_value(values):
        return repeat_value(values[0], len(rows), values.dtype)
    return values[rows]


def in_ledger_order(rows: Rows) -> Rows:
    """Return rows with their positions in ledger order; those of compacted segments are not."""
    position = rows[POSITION]
    if bool((position[1:] > position[:-1]).all()):
        return rows
    order = np.argsort(position, kind="stable")
    return {name: column[order] for name, column in rows.items()}


def _positions(piece: RowGroupPiece | MemoryPiece, rows: Rows, column: str) -> Array:
    if isinstance(piece, MemoryPiece) and piece.positions is not None:
        return piece.positions
    if POSITION in rows:  # of a compacted segment
        return rows[POSITION] + piece.position
    count = len(rows[column])
    return np.arange(piece.position, piece.position + count, dtype=np.int64)


def _number_producers(columns: Rows, vocabulary: Vocabulary) -> Array:
    """Return a producer number for each row.

    Does not sort: an id nearly always has one incarnation, so one pass is enough.
    """
    producer, incarnation = (columns[name] for name in _PRODUCER)
    if len(producer) and _is_constant(producer) and _is_constant(incarnation):
        name = vocabulary.names[producer[0]]
        code = vocabulary.producer_code(name, int(incarnation[0]))
        return repeat_value(code, len(producer), np.int32)
    numbers = np.empty(len(producer), np.int32)
    rows: Any = slice(None)
    while len(producer):
        one_of = np.zeros(int(producer.max()) + 1, np.int64)
        one_of[producer] = incarnation  # with several incarnations of an id, the last one
        code_of = np.zeros(len(one_of), np.int32)
        for code in np.flatnonzero(np.bincount(producer)).tolist():
            code_of[code] = vocabulary.producer_code(vocabulary.names[code], int(one_of[code]))
        numbers[rows] = code_of[producer]
        others = np.flatnonzero(one_of[producer] != incarnation)
        rows = others if isinstance(rows, slice) else rows[others]
        producer, incarnation = producer[others], incarnation[others]
    return numbers


def _is_constant(values: Array) -> bool:
    if is_repeated_value(values):
        return True
    return bool(values[0] == values[-1]) and bool((values == values[0]).all())


def _whole(arrays: list[Array], kind: type[np.generic]) -> Array:
    if len(arrays) == 1:
        return arrays[0]
    if arrays and all(len(each) and is_repeated_value(each) for each in arrays):
        first = arrays[0][0]
        if all(each[0] == first for each in arrays):
            return repeat_value(first, sum(map(len, arrays)), kind)
    return np.concatenate(arrays) if arrays else np.empty(0, kind)


def _read_memory_piece(
    piece: MemoryPiece, columns: Sequence[str], types: Mapping[str, str], vocabulary: Vocabulary
) -> Rows:
    own = np.array([vocabulary.code(name) for name in piece.names], np.int32)
    return {
        name: own[piece.columns[name]] if types[name] == "dictionary" else piece.columns[name]
        for name in columns
    }


class _EncodedRows(NamedTuple):
    """A row group as it is stored, without columns that have only one value."""

    table: Any
    varying: list[str]
    same: dict[str, Any]  # the values of the other columns
    size: int


_IN_MEMORY: Final = _EncodedRows(None, [], {}, 0)


def _load_pieces(
    pieces: Iterable[Piece], columns: Sequence[str]
) -> Iterator[tuple[RowGroupPiece | MemoryPiece, _EncodedRows]]:
    """Read row groups in the order given.

    Those of URLs are read some time before they are needed, several of one file together.
    """
    wanted = [each.load() if isinstance(each, KeptPiece) else each for each in pieces]
    if not any(_is_remote(each) for each in wanted):
        for piece in wanted:
            yield piece, _load_together([piece], columns)[0]
        return
    portions = list(_join_pieces(wanted))
    with ThreadPoolExecutor(_READ_AHEAD) as threads:
        ahead: deque[Future[list[_EncodedRows]]] = deque()
        try:
            for number, portion in enumerate(portions):
                for each in portions[number + len(ahead) : number + _READ_AHEAD]:
                    ahead.append(threads.submit(_load_together, each, columns))
                yield from zip(portion, ahead.popleft().result(), strict=True)
        finally:
            for future in ahead:
                future.cancel()


def _is_remote(piece: RowGroupPiece | MemoryPiece) -> bool:
    return isinstance(piece, RowGroupPiece) and is_url(piece.path)


def _join_pieces(
    pieces: Iterable[RowGroupPiece | MemoryPiece],
) -> Iterator[list[RowGroupPiece | MemoryPiece]]:
    """Return consecutive row groups of one file together, a few at most."""
    portion: list[RowGroupPiece | MemoryPiece] = []
    for piece in pieces:
        is_full = len(portion) == _MOST_TOGETHER
        if portion and (is_full or portion[-1].path != piece.path or not _is_remote(piece)):
            yield portion
            portion = []
        portion.append(piece)
    if portion:
        yield portion


def _load_together(
    pieces: Sequence[RowGroupPiece | MemoryPiece], columns: Sequence[str]
) -> list[_EncodedRows]:
    """Read row groups of one file."""
    first = pieces[0]
    if isinstance(first, MemoryPiece):
        return [_IN_MEMORY]
    try:
        with open_parquet(first.path) as file:
            numbers = [each.number for each in pieces if isinstance(each, RowGroupPiece)]
            return [_load_row_group(file, number, columns) for number in numbers]
    except (OSError, pa.ArrowException, KeyError) as error:
        raise describe_unreadable(first.path, error, remedy=REMEDY) from error


def _load_row_group(file: Any, number: int, columns: Sequence[str]) -> _EncodedRows:
    group = file.metadata.row_group(number)
    names = file.schema_arrow.names
    columns = [name for name in columns if name != POSITION or name in names]
    same = _constants(group, names, columns)
    varying = [name for name in columns if name not in same]
    table = file.read_row_group(number, columns=varying, use_threads=False)
    return _EncodedRows(table, varying, same, group.num_rows)


def _number_names(
    piece: RowGroupPiece, encoded: _EncodedRows, types: Mapping[str, str], vocabulary: Vocabulary
) -> Rows:
    table, varying, same, size = encoded
    aliases = {
        (column, stored_name): actual_name for column, stored_name, actual_name in piece.aliases
    }

    def code(column: str, name: str) -> int:
        return vocabulary.code(aliases.get((column, name), name))

    rows = {name: _plain(table.column(name), partial(code, name), piece.path) for name in varying}
    for name, value in same.items():
        number = code(name, value) if types[name] == "dictionary" else value
        rows[name] = repeat_value(number, size, NUMPY_TYPES[types[name]])
    return rows


def _constants(group: Any, names: list[str], columns: Sequence[str]) -> dict[str, Any]:
    """Return the columns of a row group with only one value, according to its footer."""
    found: dict[str, Any] = {}
    for name in columns:
        if name == "incarnation" and name not in names:
            found[name] = NO_INCARNATION  # a file of format 1
            continue
        footer = group.column(names.index(name)).statistics
        if footer is None or not footer.has_min_max:
            continue
        if not footer.has_null_count or footer.null_count:
            continue
        # A footer may truncate long names, so that several share one prefix.
        is_whole = not isinstance(footer.min, str) or len(footer.min) < _LONGEST_SURE_NAME
        if footer.min == footer.max and is_whole:
            found[name] = footer.min
    return found


def _plain(column: Any, code: Callable[[str], int], path: str) -> Array:
    """Return one column as numbers."""
    if column.null_count:
        raise LedgerError(f"{path} contains null values")
    chunks = column.chunks
    array = chunks[0] if len(chunks) == 1 else _join_chunks(chunks, column.type)
    if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
        array = array.dictionary_encode()
    if not pa.types.is_dictionary(array.type):
        values: Array = array.to_numpy(zero_copy_only=False)
        return values
    own = np.array([code(name) for name in array.dictionary.to_pylist()], np.int32)
    if len(own) == 1:
        return repeat_value(own[0], len(array), np.int32)
    indices: Array = array.indices.to_numpy(zero_copy_only=False)
    return own[indices] if len(own) else indices


def _join_chunks(chunks: list[Any], kind: Any) -> Any:
    return pa.concat_arrays(chunks) if chunks else pa.array([], kind)
