"""Imports the lines of a history as a ledger, for the same kernels that judge every run.

One file is one run with one consumer group; the group has the name of its reader, `consumers`.
Rows are kept as arrays in memory. Beyond `MOST_ROWS_IN_MEMORY` they are written to Parquet files in
a folder that the caller provides and removes, so that memory does not grow with the file.
"""

from collections.abc import Iterable
from hashlib import blake2b
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shoal.audit.arrays import NONE, Array, Ints, Rows, ints
from shoal.audit.history.blocks import Column, Columns, Texts, read_blocks
from shoal.audit.history.lines import Values, read_lines
from shoal.audit.read.folder import RANGED, Ledger, RowGroup
from shoal.audit.read.read import NUMPY_TYPES, MemoryPiece, Piece, RowGroupPiece
from shoal.model.errors import UsageError
from shoal.model.ledger import FATES, NO_INCARNATION, OPEN, OUTCOMES, TABLES
from shoal.model.run_folder import RunFolder

GROUP: Final = "consumers"
SHORT_BYTES: Final = 1 << 20  # shorter files are read line by line
ROWS_PER_CHUNK: Final = 131_072
MOST_ROWS_IN_MEMORY: Final = 4_000_000

_OUTCOMES: Final = {name: number for number, name in enumerate(OUTCOMES)}
_FATES: Final = {name: number for number, name in enumerate(FATES)}


def key_number(key: str) -> int:
    """Return the hash by which a key is stored in a ledger."""
    return int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "big", signed=True)


def _texts(column: Column) -> Texts:
    assert isinstance(column, Texts)  # noqa: S101 - the format fixes which columns are texts
    return column


def _map_names(column: Column, numbers: dict[str, int]) -> Ints:
    texts = _texts(column)
    return ints([numbers[name] for name in texts.names])[texts.codes]


def _null_to_none(value: int | None) -> int:
    """Return the number that stands for null in integer columns, if there is no value."""
    return NONE if value is None else value


class _Table:
    """The rows of one table, stored in chunks."""

    def __init__(self, name: str, store: "_Store") -> None:
        self.name, self._store = name, store
        self.rows: list[Values] = []
        self.groups: list[RowGroup] = []
        self._count = 0

    def append(self, row: Values) -> None:
        self.rows.append(row)
        if len(self.rows) >= ROWS_PER_CHUNK:
            self.flush()

    def flush(self) -> None:
        if not self.rows:
            return
        kinds = TABLES[self.name]
        columns = {
            name: np.array(values, dtype=NUMPY_TYPES[kind])
            for (name, kind), values in zip(kinds, zip(*self.rows, strict=True), strict=True)
        }
        self.rows = []
        self.add(columns)

    def add(self, columns: Rows) -> None:
        count = len(next(iter(columns.values())))
        piece = self._store.keep(self.name, columns, self._count)
        ranges: dict[str, tuple[int, int]] = {
            name: (int(columns[name].min()), int(columns[name].max()))
            for name in RANGED
            if name in columns
        }
        group = GROUP if "group" in columns else None
        self.groups.append(RowGroup(piece, count, ranges, group))
        self._count += count


class _Store:
    """All tables of one history, in memory or in files."""

    def __init__(self, path: Path, folder: Path) -> None:
        self._path, self._folder = path, folder
        self._names: list[str] = []
        self._codes: dict[str, int] = {}
        self._row_count = self._files = 0
        self.tables = {name: _Table(name, self) for name in TABLES}

    def code(self, name: str) -> int:
        known = self._codes.get(name)
        if known is None:
            known = self._codes[name] = len(self._names)
            self._names.append(name)
        return known

    def keep(self, table: str, columns: Rows, position: int) -> Piece:
        count = len(next(iter(columns.values())))
        self._row_count += count
        if self._row_count <= MOST_ROWS_IN_MEMORY:
            return MemoryPiece(str(self._path), columns, self._names, position)
        self._files += 1
        path = self._folder / f"{table}-{self._files}.parquet"
        pq.write_table(self._to_arrow(table, columns), path, compression="zstd")
        return RowGroupPiece(str(path), 0, position)

    def _to_arrow(self, table: str, columns: Rows) -> Any:
        arrays = []
        for name, kind in TABLES[table]:
            array = pa.array(columns[name])
            if kind == "dictionary":
                array = pa.DictionaryArray.from_arrays(array, pa.array(self._names, pa.string()))
            arrays.append(array)
        return pa.Table.from_arrays(arrays, names=[name for name, _ in TABLES[table]])


class _Importer:
    """Collects lines and converts them to a ledger."""

    def __init__(self, path: Path, folder: Path) -> None:
        self.path = path
        self.store = _Store(path, folder)
        self.plan: dict[str, Any] = {"run": str(path), "groups": [GROUP], "promises": {}}
        self.plan |= {"history": True, "one_clock": True}  # all times are of one clock
        self.ends: list[bool] = []
        self.has_target = self.is_compacted = False
        self.transactions: dict[tuple[int, str], int] = {}
        # By transaction: its fate (NONE if no line has one) and when its commit was requested.
        self.fates: list[int] = []
        self.requests: list[int] = []

    def add_line(self, kind: str, values: Values) -> None:
        getattr(self, f"_on_{kind}")(*values)

    def _on_run(self, *values: Any) -> None:
        _, delivery, ordered, isolation, acks, mirror = values
        self.plan["promises"] = {
            "delivery": delivery or "at_least_once",
            "order": ordered is not False,
        }
        self.plan["isolation"] = isolation
        self.plan["acks"] = acks or "all"
        self.has_target |= mirror is True

    def _on_send(self, *values: Any) -> None:
        producer, topic, lane, sequence, outcome, offset, key, *rest = values
        transaction, fate, requested_us, intended_us, sent_us, acked_us = rest
        code, tables = self.store.code, self.store.tables
        message = (code(producer), NO_INCARNATION, code(topic), lane, sequence)
        times = (_null_to_none(intended_us), sent_us, _null_to_none(acked_us))
        tables["attempts"].append((*message, _OUTCOMES[outcome], 0, _null_to_none(offset), *times))
        if key is not None:
            tables["keys"].append((*message, key_number(key)))
        if transaction is not None:
            number = self._transaction((message[0], transaction), fate, requested_us)
            tables["transactions"].append((*message, number, OPEN, NONE))

    def _transaction(
        self, name: tuple[int, str], fate: str | None, requested_us: int | None
    ) -> int:
        """Return the number of a transaction. With contradicting fates it counts as open."""
        number = self.transactions.setdefault(name, len(self.transactions))
        if number == len(self.fates):
            self.fates.append(NONE)
            self.requests.append(NONE)
        if fate is not None:
            new, known = _FATES[fate], self.fates[number]
            self.fates[number] = new if known in (NONE, new) else OPEN
        if requested_us is not None:
            known = self.requests[number]
            self.requests[number] = requested_us if known == NONE else min(known, requested_us)
        return number

    def _on_manifest(self, *values: Any) -> None:
        producer, topic, lane, count = values
        code = self.store.code
        row = (code(producer), NO_INCARNATION, code(topic), lane, count)
        self.store.tables["manifests"].append(row)

    def _on_scan(self, *values: Any) -> None:
        cluster, topic, partition, start, end, compacted = values
        code = self.store.code
        row = (code(cluster), code(topic), code(""), partition, start, end, compacted is True)
        self.store.tables["scans"].append(row)
        self.has_target |= cluster == "target"
        self.is_compacted |= compacted is True

    def _on_log(self, *values: Any) -> None:
        cluster, topic, partition, offset, producer, sequence, append_us, intact = values
        code = self.store.code
        message = (code(producer), NO_INCARNATION, partition, sequence)
        place = (code(cluster), code(topic), partition, offset)
        row = (*place, *message, _null_to_none(append_us), NONE, intact is not False, 0, 0)
        self.store.tables["log"].append(row)
        self.has_target |= cluster == "target"

    def _on_assign(self, *values: Any) -> None:
        consumer, assignment, topic, partition, offset = values
        code = self.store.code
        row = (code(GROUP), code(consumer), assignment, code(topic), partition, offset, NONE)
        self.store.tables["assignments"].append(row)

    def _on_receive(self, *values: Any) -> None:
        consumer, assignment, topic, partition, offset, producer, sequence, *rest = values
        received_us, intact = rest
        code = self.store.code
        reader = (code(GROUP), code(consumer), assignment, code(topic), partition, offset)
        message = (code(producer), NO_INCARNATION, partition, sequence)
        row = (*reader, *message, NONE, received_us, intact is not False)
        self.store.tables["receipts"].append(row)

    def _on_position(self, *values: Any) -> None:
        reader, topic, partition, offset = values
        code = self.store.code
        self.store.tables["positions"].append((code(reader), code(topic), partition, offset))

    def _on_end(self, drained: bool) -> None:
        self.ends.append(drained)

    def add_columns(self, kind: str, columns: Columns) -> None:
        """Add many lines of one kind at once."""
        plain = {name: self._plain(column) for name, column in columns.items()}
        count = len(plain["seq"])
        none = np.full(count, NONE)
        message = {"producer": plain["producer"], "topic": plain["topic"]}
        # Broadcast: all rows share one number, so that it takes no memory per row.
        message |= {"incarnation": np.broadcast_to(np.int64(NO_INCARNATION), count)}
        message |= {"lane": plain["partition"], "sequence": plain["seq"]}
        if kind == "send":
            outcome = _map_names(columns["outcome"], _OUTCOMES)
            times = {name: plain[name] for name in ("intended_us", "sent_us", "acked_us")}
            own = {"outcome": outcome, "error": none, "offset": plain["offset"], **times}
            self._add("attempts", message | own)
            self._add_keys(columns["key"], message)
            self._add_transactions(columns, plain, message)
        elif kind == "log":
            place = {"cluster": plain["cluster"], "partition": plain["partition"]}
            place |= {"offset": plain["offset"], "append_us": plain["append_us"]}
            zeros = np.zeros(count, np.int32)
            own = {"intact": plain["intact"], "key_check": zeros, "headers_check": zeros}
            self._add("log", message | place | {"timestamp_us": none} | own)
            self.has_target |= "target" in _texts(columns["cluster"]).names
        else:
            names = ("consumer", "assignment", "partition", "offset", "received_us", "intact")
            place = {name: plain[name] for name in names}
            place["group"] = np.full(count, self.store.code(GROUP))
            self._add("receipts", message | place | {"timestamp_us": none})

    def _add(self, table: str, columns: Rows) -> None:
        """Store columns in chunks of the usual size, after the rows that came before."""
        self.store.tables[table].flush()
        count = len(columns["sequence"])
        for low in range(0, count, ROWS_PER_CHUNK):
            self.store.tables[table].add(
                {
                    name: columns[name][low : low + ROWS_PER_CHUNK].astype(
                        NUMPY_TYPES[kind], copy=False
                    )
                    for name, kind in TABLES[table]
                }
            )

    def _plain(self, column: Column) -> Array:
        """Return a column as numbers; texts get the numbers of the whole history."""
        if not isinstance(column, Texts):
            return column
        codes = ints([self.store.code(name) for name in column.names])
        return codes[column.codes] if len(codes) else column.codes

    def _add_keys(self, column: Column, message: Rows) -> None:
        keys = _texts(column)
        held = np.flatnonzero(keys.codes != NONE)
        if len(held):
            numbers = ints([key_number(f"'{name}") for name in keys.names])
            rows = {name: values[held] for name, values in message.items()}
            self._add("keys", rows | {"key": numbers[keys.codes[held]]})

    def _add_transactions(self, columns: Columns, plain: Rows, message: Rows) -> None:
        names, fates = _texts(columns["txn"]), _texts(columns["fate"])
        held = np.flatnonzero(names.codes != NONE)
        if not len(held):
            return
        columns_used = [plain["producer"], names.codes, fates.codes, plain["committed_us"]]
        distinct, first, inverse = np.unique(
            np.stack([column[held] for column in columns_used], axis=1),
            axis=0,
            return_index=True,
            return_inverse=True,
        )
        numbers = np.empty(len(distinct), np.int64)
        # Numbered in order of first occurrence, as line by line: witnesses contain these numbers.
        for place in np.argsort(first).tolist():
            producer, name, fate, requested_us = distinct[place].tolist()
            numbers[place] = self._transaction(
                (producer, f"'{names.names[name]}"),
                None if fate == NONE else fates.names[fate],
                None if requested_us == NONE else requested_us,
            )
        rows = {name: values[held] for name, values in message.items()}
        rows |= {"transaction": numbers[inverse.ravel()], "fate": np.full(len(held), OPEN)}
        self._add("transactions", rows | {"requested_us": np.full(len(held), NONE)})

    def to_ledger(self) -> Ledger:
        for table in self.store.tables.values():
            table.flush()
        self._apply_fates()
        self.plan["mirror"] = self.has_target
        self.plan["all_drained"] = bool(self.ends) and all(self.ends)
        tables = {name: table.groups for name, table in self.store.tables.items()}
        if not self.is_compacted:
            tables["keys"] = []  # only compacted logs need keys
        return Ledger([RunFolder(self.path, self.plan, [])], tables)

    def _apply_fates(self) -> None:
        """Set in every row the fate that all lines together give its transaction."""
        table = self.store.tables["transactions"]
        if not table.groups:
            return
        fates, requests = ints(self.fates), ints(self.requests)
        fates[fates == NONE] = OPEN
        table.groups = [
            RowGroup(set_fates(group.piece, fates, requests), group.rows, group.ranges)
            for group in table.groups
        ]


def set_fates(piece: Piece, fates: Ints, requests: Ints) -> MemoryPiece:
    """Return a chunk of transactions, in memory, with their fates set."""
    rows: Rows
    if isinstance(piece, MemoryPiece):
        rows, names = dict(piece.columns), piece.names
    else:
        content = pq.read_table(piece.path)
        names = content.column("producer").chunk(0).dictionary.to_pylist()
        rows = {name: _numbers(content.column(name)) for name in content.column_names}
    rows["fate"] = fates[rows["transaction"]].astype(np.int8)
    rows["requested_us"] = requests[rows["transaction"]]
    return MemoryPiece(piece.path, rows, names, piece.position)


def _numbers(column: Any) -> Array:
    array = column.combine_chunks()
    plain: Array = (array.indices if pa.types.is_dictionary(array.type) else array).to_numpy()
    return plain


def import_history(path: Path, folder: Path) -> Ledger:
    """Import a history file as a ledger; `folder` takes the rows that exceed the memory limit."""
    try:
        if path.stat().st_size < SHORT_BYTES:
            with path.open("rb") as file:
                return import_lines(read_lines(file, path), path, folder)
        return _import_blocks(path, folder)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error


def _import_blocks(path: Path, folder: Path) -> Ledger:
    importer = _Importer(path, folder)
    for block in read_blocks(path):
        lines = read_lines(BytesIO(block.text), path, first_line=block.first_line)
        for kind, values in chain(lines, block.others):
            importer.add_line(kind, values)
        for kind, columns in block.columns.items():
            importer.add_columns(kind, columns)
    return importer.to_ledger()


def import_lines(lines: Iterable[tuple[str, Values]], path: Path, folder: Path) -> Ledger:
    """Import lines as `lines.parse_line` returns them; `path` is the file they come from."""
    importer = _Importer(path, folder)
    for kind, values in lines:
        importer.add_line(kind, values)
    return importer.to_ledger()
