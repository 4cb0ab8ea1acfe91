"""Rows of one ledger table in memory, and as Parquet.

Rules:
- Rows are appended in groups: a column is an array, or one value for the whole group. No Python
  code runs for each row.
- Names (the columns of type `dictionary`) are stored as numbers. A group has one name, or `Names`:
  indices into a list.
- All columns of the table must be given, and no others.

Parquet: names and incarnations by dictionary (their differences would be as random as the values),
other numbers by their differences (`DELTA_BINARY_PACKED`), zstd. A row of regular receipts takes
6 bytes before compression, under 1 byte after it, and 0.1 µs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shoal.model.errors import LedgerError, UsageError
from shoal.model.ledger import (
    FORMAT,
    FORMAT_KEY,
    NO_INCARNATION,
    ORDERED,
    POSITION,
    TABLES,
    columns_of,
    read_format,
)
from shoal.storage.parquet import describe_unreadable_segment, open_parquet

_FIRST_CAPACITY = 1024
# Small enough that reading a range of sequences reads little else.
ROWS_PER_GROUP = 1 << 18
_NUMPY_TYPES: dict[str, type[np.generic]] = {
    "dictionary": np.int32,
    "int8": np.int8,
    "int16": np.int16,
    "int32": np.int32,
    "int64": np.int64,
    "bool": np.bool_,
}

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Names:
    """A column of names: row `i` is `names[index[i]]`. The list may only grow."""

    index: Array
    names: Sequence[str]


class LedgerRows:
    """Rows of one table, in arrays that grow."""

    def __init__(self, table: str) -> None:
        if table not in TABLES:
            raise UsageError(f"{table!r:.40} is not a ledger table")
        self.table = table
        self._types = dict(TABLES[table])
        self._count = 0
        self._arrays: dict[str, Array] = {}
        self._codes: dict[str, dict[str, int]] = {
            name: {} for name, kind in self._types.items() if kind == "dictionary"
        }
        self._reserve(_FIRST_CAPACITY)

    def __len__(self) -> int:
        return self._count

    def successor(self) -> "LedgerRows":
        """Return an empty buffer of the same table, with capacity for as many rows as this one."""
        fresh = LedgerRows(self.table)
        fresh._reserve(self._count)
        return fresh

    def append(self, columns: Mapping[str, Any]) -> None:
        """Add a group of rows; without any array it is one row."""
        if columns.keys() != self._types.keys():
            odd = sorted(columns.keys() ^ self._types.keys())
            raise UsageError(f"rows for table {self.table} have missing or unknown columns: {odd}")
        plain = {name: self._encode_names(name, value) for name, value in columns.items()}
        lengths = {len(value) for value in plain.values() if isinstance(value, np.ndarray)} or {1}
        if len(lengths) > 1:
            raise UsageError(
                f"the columns of one group of rows differ in length: {sorted(lengths)}"
            )
        end = self._count + lengths.pop()
        self._reserve(end)
        for name, value in plain.items():
            self._arrays[name][self._count : end] = value
        self._count = end

    def _encode_names(self, name: str, value: Any) -> Any:
        """Convert names to numbers; other values stay."""
        codes = self._codes.get(name)
        if codes is None:
            return value
        if isinstance(value, str):
            return codes.setdefault(value, len(codes))
        if not isinstance(value, Names):
            raise UsageError(f"column {name} of table {self.table} needs names")
        own = np.zeros(len(value.names), np.int32)
        for index in np.unique(value.index):
            own[index] = codes.setdefault(value.names[index], len(codes))
        return own[value.index]

    def _reserve(self, capacity: int) -> None:
        had = len(next(iter(self._arrays.values()))) if self._arrays else 0
        if capacity <= had:
            return
        capacity = max(capacity, 2 * had)
        for name, kind in self._types.items():
            grown: Array = np.empty(capacity, _NUMPY_TYPES[kind])
            if had:
                grown[: self._count] = self._arrays[name][: self._count]
            self._arrays[name] = grown

    def to_arrow(self) -> pa.Table:
        arrays = []
        for name in self._types:
            array = pa.array(self._arrays[name][: self._count])
            if name in self._codes:
                names = pa.array(list(self._codes[name]), pa.string())
                array = pa.DictionaryArray.from_arrays(array, names)
            arrays.append(array)
        return pa.Table.from_arrays(arrays, schema=arrow_schema(self.table))


def arrow_schema(table: str, table_format: int = FORMAT) -> pa.Schema:
    """The Arrow schema of a table, with the ledger format in its metadata."""
    names = pa.dictionary(pa.int32(), pa.string())
    fields = [
        pa.field(name, names if kind == "dictionary" else pa.type_for_alias(kind), nullable=False)
        for name, kind in columns_of(table, table_format)
    ]
    return pa.schema(fields, metadata={FORMAT_KEY: str(table_format).encode()})


def to_parquet(rows: LedgerRows) -> pa.Buffer:
    """Encode rows as the content of a segment."""
    columns = TABLES[rows.table]
    listed = {n for n, kind in columns if kind == "dictionary" or n == "incarnation"}
    sink = pa.BufferOutputStream()
    pq.write_table(
        rows.to_arrow(),
        sink,
        compression="zstd",
        compression_level=1,
        row_group_size=ROWS_PER_GROUP,
        write_page_checksum=True,
        use_dictionary=sorted(listed),
        column_encoding={
            name: "DELTA_BINARY_PACKED"
            for name, kind in columns
            if kind in ("int32", "int64") and name not in listed
        },
    )
    return sink.getvalue()


def _in_new_format(rows: pa.Table, table: str) -> pa.Table:
    """Convert rows of an older format to the current one."""
    names = [name for name, _ in TABLES[table]]
    if rows.column_names != names:
        column = pa.array(np.full(len(rows), NO_INCARNATION, np.int64))
        rows = rows.add_column(names.index("incarnation"), "incarnation", column)
    return rows.cast(arrow_schema(table))


def read_segment(place: str, table: str) -> pa.Table:
    """Read the rows of one segment; `LedgerError` if it is truncated or has other columns."""
    try:
        with open_parquet(place) as file:
            table_format = read_format((file.schema_arrow.metadata or {}).get(FORMAT_KEY), place)
            rows = file.read()
            if table in ORDERED and POSITION in rows.column_names:  # a compacted segment
                rows = rows.sort_by(POSITION).drop_columns(POSITION)
            if not rows.schema.equals(arrow_schema(table, table_format)):
                raise LedgerError(f"{place} does not have the columns of table {table}")
            return _in_new_format(rows, table)
    except (OSError, pa.ArrowException) as error:
        raise describe_unreadable_segment(place, error) from error
