"""The second formulation of the audit: ledgers as a DataFrame, brought together by a shuffle.

Cells read the row groups that overlap their range of sequences. Where sequences are not dense,
or stand in the ledgers in no order, nearly every row group overlaps nearly every cell, and most
of what is read is thrown away. Here every row is read once and becomes a row of a DataFrame, which
is grouped by cells (cut where the rows are); a cell is judged when all of its rows have come
together. Everything else (jumps of readers, offsets in doubt) is asked as by cells.

Both formulations judge by the same kernels and must give the same result to the last byte.
"""

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, cast

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.functions import col
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import StructType

from shoal.model.ledger import TABLES
from shoal.pipeline.cells import cause_of, packed, run_on, unpacked

if TYPE_CHECKING:
    from shoal.audit.arrays import Ints
    from shoal.audit.context import Setting
    from shoal.audit.parts import Part
    from shoal.audit.read.folder import Ledger
    from shoal.audit.read.read import Held, Piece
    from shoal.audit.tasks import MessageCell, Task

FORMAT: Final = "shoal-ledger-rows"

# With cells reading more rows than this for each row that there is, a shuffle is cheaper.
MOST_READS_PER_ROW: Final = 4.0
ROWS_PER_PARTITION: Final = 1_000_000
_MOST_SAMPLES: Final = 64  # row groups that are looked at to cut cells

# What a cell is made of, as `shoal.audit.plan` has it.
_TABLES: Final = ("attempts", "receipts", "log", "keys", "transactions", "batches")
_SPARK_TYPES: Final = {
    "dictionary": "string",
    "int8": "tinyint",
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "bool": "boolean",
}
# All columns of all tables; a row has those of its own table, the others are null.
_COLUMNS: Final = {name: kind for table in _TABLES for name, kind in TABLES[table]}
_KEYS: Final = {"cell": "bigint", "table": "string", "position": "bigint"}


# ---------------------------------------------------------------- rows


class RowSource(DataSource):
    """The rows of a ledger with the first number of the cell that each is in."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        columns = {**_KEYS, **{name: _SPARK_TYPES[kind] for name, kind in _COLUMNS.items()}}
        return ", ".join(f"`{name}` {kind}" for name, kind in columns.items())

    def reader(self, schema: StructType) -> DataSourceReader:
        del schema
        return _RowReader(self.options["work"])


class _Portion(InputPartition):
    """Some row groups, as text."""

    def __init__(self, number: int, pieces: str, cells: str) -> None:
        super().__init__(number)
        self.pieces = pieces
        self.cells = cells


class _RowReader(DataSourceReader):
    def __init__(self, work: str) -> None:
        self._work = work

    def partitions(self) -> Sequence[InputPartition]:
        portions, cells = unpacked(self._work)
        return [_Portion(n, packed(pieces), packed(cells)) for n, pieces in enumerate(portions)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        portion = cast("_Portion", partition)
        pieces, cells = unpacked(portion.pieces), unpacked(portion.cells)
        if portion.value == 0:  # so that cells without any row are asked too
            yield _record_batch(None, {}, cells)
        for table, piece in pieces:
            yield _rows(table, piece, cells)


def _rows(table: str, piece: "Piece", cells: list[tuple[int, int]]) -> Any:
    import numpy as np

    from shoal.audit.read.read import POSITION, Vocabulary, Within, read_rows

    words = Vocabulary()
    names = [name for name, _ in TABLES[table]]
    within = Within("sequence", cells)
    columns = read_rows(table, [piece], [*names, POSITION], vocabulary=words, within=within)
    begins = np.array([low for low, _ in cells], dtype=np.int64)
    at = np.searchsorted(begins, columns["sequence"], side="right") - 1
    return _record_batch(table, columns, begins[at], words.names)


def _record_batch(
    table: str | None, columns: dict[str, Any], cell: Any, names: Sequence[str] = ()
) -> Any:
    """One Arrow batch with all columns; those that are not given are null."""
    import pyarrow as pa

    begins = [low for low, _ in cell] if table is None else cell
    count = len(begins)
    words = pa.array(list(names), pa.string())
    arrays = [pa.array(begins, pa.int64()), pa.array([table] * count, pa.string())]
    arrays.append(pa.array(columns.get("position", [None] * count), pa.int64()))
    for name, kind in _COLUMNS.items():
        is_word = kind == "dictionary"
        if name not in columns:
            arrays.append(pa.nulls(count, pa.string() if is_word else pa.type_for_alias(kind)))
        elif is_word:
            arrays.append(words.take(pa.array(columns[name])))
        else:
            arrays.append(pa.array(columns[name]))
    return pa.RecordBatch.from_arrays(arrays, names=[*_KEYS, *_COLUMNS])


# ---------------------------------------------------------------- the runner


def reads_per_row(ledger: "Ledger", cells: "Sequence[MessageCell]") -> float:
    """How often cells would read each row, by the footers."""
    rows = {group.piece: group.rows for table in _TABLES for group in ledger.tables[table]}
    read = sum(rows[piece] for cell in cells for t in _TABLES for piece in getattr(cell, t))
    return read / max(sum(rows.values()), 1)


@dataclass(frozen=True)
class Frames:
    """Runs tasks about cells over a DataFrame of the ledger's rows, and all others by cells."""

    ledger: "Ledger"
    session: SparkSession

    def cuts(self, rows_per_cell: int) -> list[int]:
        """Where cells begin, so that each holds about as many rows, as a sample has it."""
        import numpy as np

        groups = [group for table in _TABLES for group in self.ledger.tables[table]]
        count = -(-sum(group.rows for group in groups) // rows_per_cell)
        if count < 2:
            return [0]
        every = -(-len(groups) // _MOST_SAMPLES)
        numbers = np.concatenate([self._sequences(place) for place in range(0, len(groups), every)])
        numbers = np.sort(numbers[numbers >= 0])
        places = np.arange(1, count) * len(numbers) // count
        return [0, *(int(cut) for cut in np.unique(numbers[places]) if cut > 0)]

    def _sequences(self, place: int) -> "Ints":
        from shoal.audit.read.read import Vocabulary, read_rows

        tables = [(table, group) for table in _TABLES for group in self.ledger.tables[table]]
        table, group = tables[place]
        rows = read_rows(table, [group.piece], ["sequence"], vocabulary=Vocabulary())
        return rows["sequence"]

    def run(self, tasks: "Sequence[Task]", setting: "Setting") -> "list[list[Part]]":
        """The answers of all tasks, in their order."""
        about_cells = {n: task for n, task in enumerate(tasks) if _cell(task) is not None}
        others = [n for n in range(len(tasks)) if n not in about_cells]
        told = run_on(self.session, [tasks[n] for n in others], setting)
        answers = dict(zip(others, told, strict=True))
        if about_cells:
            answers |= self._shuffle(about_cells, setting)
        return [answers.get(number, []) for number in range(len(tasks))]

    def _shuffle(self, tasks: "dict[int, Task]", setting: "Setting") -> "dict[int, list[Part]]":
        import pyarrow as pa

        from shoal.audit.parts import from_table

        by_low: dict[int, dict[int, str]] = {}
        ranges: dict[int, int] = {}
        for number, task in tasks.items():
            cell = cast("MessageCell", _cell(task))
            by_low.setdefault(cell.low, {})[number] = packed(_with_rows(task, {}))
            ranges[cell.low] = cell.high
        judge = _judging(by_low, packed(setting))
        columns = [col(name) for name in (*_KEYS, *_COLUMNS)]
        frame = self._rows(sorted(ranges.items())).groupBy("cell")
        try:
            told = frame.agg(judge(*columns).alias("answers")).toArrow()
        except PySparkException as error:
            raise cause_of(error) from error
        answers: dict[int, list[Part]] = {}
        for answer in told.column("answers").to_pylist():
            with pa.ipc.open_stream(answer) as stream:
                answers |= from_table(stream.read_all())
        return answers

    def _rows(self, cells: list[tuple[int, int]]) -> DataFrame:
        self.session.dataSource.register(RowSource)
        portions: list[list[tuple[str, Piece | Held]]] = [[]]
        rows = 0
        for table in _TABLES:
            for group in self.ledger.tables[table]:
                if any(group.overlaps("sequence", low, high) for low, high in cells):
                    if rows + group.rows > ROWS_PER_PARTITION and portions[-1]:
                        portions.append([])
                        rows = 0
                    portions[-1].append((table, group.piece))
                    rows += group.rows
        work = packed((portions, cells))
        return self.session.read.format(FORMAT).options(work=work).load()


def _cell(task: "Task") -> "MessageCell | None":
    from shoal.audit.tasks import MessageCell, OrderCell

    if isinstance(task, OrderCell):
        return task.cell
    return task if isinstance(task, MessageCell) else None


def _with_rows(task: "Task", held: "dict[str, Held]") -> "Task":
    """The task with these rows and no others."""
    from shoal.audit.tasks import OrderCell

    tables: dict[str, Any] = {n: (held[n],) if n in held else () for n in _TABLES}
    cell = replace(cast("MessageCell", _cell(task)), **tables)
    return replace(task, cell=cell) if isinstance(task, OrderCell) else cell


def _judging(by_low: dict[int, dict[int, str]], setting: str) -> Any:
    """A function of all rows of a cell: the answers to the tasks about it, as Arrow bytes."""
    import pyarrow as pa

    # An aggregate, by its type hints, of which pyspark's own types do not know yet.
    @arrow_udf("binary")  # type: ignore[call-overload, untyped-decorator]
    def judge(cell: pa.Array, *columns: pa.Array) -> bytes:
        from shoal.audit.audit import judge_task
        from shoal.audit.parts import to_record_batch

        rows = pa.table([cell, *columns], names=[*_KEYS, *_COLUMNS])
        held = {table: _held(rows, table) for table in _TABLES}
        batches = [
            to_record_batch(number, judge_task(_with_rows(unpacked(task), held), unpacked(setting)))
            for number, task in by_low[cell[0].as_py()].items()
        ]
        sink = io.BytesIO()
        with pa.ipc.new_stream(sink, batches[0].schema) as stream:
            for batch in batches:
                stream.write_batch(batch)
        return sink.getvalue()

    return judge


def _held(rows: Any, table: str) -> "Held":
    """The rows of one table, in ledger order."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    from shoal.audit.read.read import Held

    own = rows.filter(pc.equal(rows["table"], table)).sort_by("position")
    names: list[str] = []
    columns: dict[str, Any] = {}
    for name, kind in TABLES[table]:
        chunks = own[name].chunks
        column = pa.concat_arrays(chunks) if chunks else pa.array([], own[name].type)
        if kind == "dictionary":
            encoded = column.dictionary_encode()
            codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int32)
            columns[name] = codes + np.int32(len(names))
            names += encoded.dictionary.to_pylist()
        else:
            columns[name] = column.to_numpy(zero_copy_only=False)
    return Held(table, columns, names, 0, own["position"].to_numpy())
