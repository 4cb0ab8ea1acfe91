"""The second formulation of the audit: ledgers as a DataFrame, grouped into cells by a shuffle.

In the first formulation, cells read the row groups that overlap their range of sequences. If
sequences are sparse, or unordered in the ledgers, nearly every row group overlaps nearly every
cell, and most of what is read is discarded. Here every row is read once, as a row of a DataFrame
that is grouped by cells (whose cuts follow the rows). A cell is judged when all of its rows are
together. All other tasks (jumps of readers, offsets in doubt) run as in the first formulation.

A `StreamCell` has the rows of its buckets of streams, in the same way.

Both formulations use the same kernels and must give the same result to the last byte.
"""

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, cast

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.functions import col
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import StructType

from shoal.model.ledger import POSITION, TABLES
from shoal.pipeline.cells import run_on
from shoal.pipeline.failures import translate_failures
from shoal.pipeline.parcels import make_parcel, open_shared, pickle_to_text, unpickle_text
from shoal.pipeline.session import set_shuffle_partitions
from shoal.pipeline.slots import limit_width

if TYPE_CHECKING:
    from shoal.audit.arrays import Ints
    from shoal.audit.context import AuditContext
    from shoal.audit.parts import TaskPart
    from shoal.audit.read.folder import Ledger
    from shoal.audit.read.read import MemoryPiece, Piece, RowGroupPiece
    from shoal.audit.tasks import MessageCell, Task

FORMAT: Final = "shoal-ledger-rows"

# If cells would read each row more often than this, a shuffle is cheaper.
MOST_READS_PER_ROW: Final = 4.0
ROWS_PER_PARTITION: Final = 1_000_000
LARGEST: Final = 2**63 - 1
_MOST_SAMPLES: Final = 64  # row groups that are read to choose the cuts

# The tables of a cell, as in `shoal.audit.plan`.
_TABLES: Final = ("attempts", "receipts", "log", "keys", "transactions", "batches")
_SPARK_TYPES: Final = {
    "dictionary": "string",
    "int8": "tinyint",
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "bool": "boolean",
}
# All columns of all tables; in a row the columns of other tables are null.
_COLUMNS: Final = {name: kind for table in _TABLES for name, kind in TABLES[table]}
_KEYS: Final = {"cell": "bigint", "table": "string", "position": "bigint"}


# ---------------------------------------------------------------- rows


class RowSource(DataSource):
    """The rows of a ledger, each with the first sequence of its cell."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        columns = {**_KEYS, **{name: _SPARK_TYPES[kind] for name, kind in _COLUMNS.items()}}
        return ", ".join(f"`{name}` {kind}" for name, kind in columns.items())

    def reader(self, schema: StructType) -> DataSourceReader:
        del schema
        return _RowReader(self.options["work"])


@dataclass(frozen=True)
class _Division:
    """How rows are divided among cells: by sequence, or by bucket of their stream.

    A cell is named by the lower end of its range; ranges [low, high) are ascending and disjoint.
    """

    ranges: list[tuple[int, int]]
    partitions: Mapping[str, int] | None = None  # of source topics; given if divided by bucket


class _Portion(InputPartition):
    """Some row groups, as text."""

    def __init__(self, number: int, pieces: str, division: str) -> None:
        super().__init__(number)
        self.pieces = pieces
        self.division = division


class _RowReader(DataSourceReader):
    def __init__(self, work: str) -> None:
        self._work = work

    def partitions(self) -> Sequence[InputPartition]:
        portions, division = unpickle_text(self._work)
        return [
            _Portion(n, pickle_to_text(pieces), pickle_to_text(division))
            for n, pieces in enumerate(portions)
        ]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        portion = cast("_Portion", partition)
        pieces, division = unpickle_text(portion.pieces), unpickle_text(portion.division)
        if portion.value == 0:  # so that cells without any row are judged too
            yield _record_batch(None, {}, division.ranges)
        for table, piece in pieces:
            yield _rows(table, piece, division)


def _rows(table: str, piece: "RowGroupPiece", division: _Division) -> Any:
    import numpy as np

    from shoal.audit.read.buckets import bucket_of_rows
    from shoal.audit.read.read import PRODUCER_NUMBER, Vocabulary, Within, read_rows

    words = Vocabulary()
    names = [*(name for name, _ in TABLES[table]), POSITION, PRODUCER_NUMBER]
    columns = read_rows(table, [piece], names, vocabulary=words)
    if division.partitions is None:
        numbers = columns["sequence"]
    else:
        numbers = bucket_of_rows(columns, words, division.partitions)
    del columns[PRODUCER_NUMBER]
    kept = np.flatnonzero(Within("", division.ranges).mask(numbers))
    begins = np.array([low for low, _ in division.ranges], dtype=np.int64)
    at = np.searchsorted(begins, numbers[kept], side="right") - 1
    own = {name: column[kept] for name, column in columns.items()}
    return _record_batch(table, own, begins[at], words.names)


def _record_batch(
    table: str | None, columns: dict[str, Any], cell: Any, names: Sequence[str] = ()
) -> Any:
    """Return an Arrow batch with all columns; those that are not given are null."""
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


@dataclass(frozen=True)
class Frames:
    """Runs tasks about cells on a DataFrame of the rows, and all others as `run_on` does."""

    ledger: "Ledger"
    session: SparkSession

    def cuts(self, rows_per_cell: int) -> list[int]:
        """Choose the first sequence of each cell from a sample, for cells of about equal size."""
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

    def run(self, tasks: "Sequence[Task]", context: "AuditContext") -> "list[list[TaskPart]]":
        """Run all tasks and return their answers, in the order of the tasks."""
        about_cells = {n: task for n, task in enumerate(tasks) if _cells(task)}
        others = [n for n in range(len(tasks)) if n not in about_cells]
        other_answers = run_on(self.session, [tasks[n] for n in others], context)
        answers = dict(zip(others, other_answers, strict=True))
        if about_cells:
            answers |= self._shuffle(about_cells, context)
        return [answers.get(number, []) for number in range(len(tasks))]

    def _shuffle(
        self, tasks: "dict[int, Task]", context: "AuditContext"
    ) -> "dict[int, list[TaskPart]]":
        import pyarrow as pa

        from shoal.audit.parts import from_table

        by_low: dict[int, dict[int, str]] = {}
        ranges: dict[int, int] = {}
        is_by_stream = False
        for number, task in tasks.items():
            cell = _cells(task)[0]
            is_by_stream = is_by_stream or _is_by_stream(task)
            low, high = cell.buckets if is_by_stream else (cell.low, cell.high)
            by_low.setdefault(low, {})[number] = pickle_to_text(_with_rows(task, {}))
            ranges[low] = high
        partitions = context.source_partitions if is_by_stream else None
        division = _Division(sorted(ranges.items()), partitions)
        judge = _make_judge(by_low, make_parcel(pickle_to_text(context), context.scratch))
        set_shuffle_partitions(self.session, len(by_low))
        columns = [col(name) for name in (*_KEYS, *_COLUMNS)]
        frame = self._rows(division).groupBy("cell")
        with translate_failures():
            found = frame.agg(judge(*columns).alias("answers")).toArrow()
        answers: dict[int, list[TaskPart]] = {}
        for answer in found.column("answers").to_pylist():
            with pa.ipc.open_stream(answer) as stream:
                answers |= from_table(stream.read_all())
        return answers

    def _rows(self, division: _Division) -> DataFrame:
        self.session.dataSource.register(RowSource)
        portions: list[list[tuple[str, Piece]]] = [[]]
        rows = 0
        everything = [(-LARGEST, LARGEST)]
        ranges = everything if division.partitions is not None else division.ranges
        for table in _TABLES:
            counts = {group.piece: group.rows for group in self.ledger.tables[table]}
            for piece in self.ledger.footers[table].pieces("sequence", ranges):
                if rows + counts[piece] > ROWS_PER_PARTITION and portions[-1]:
                    portions.append([])
                    rows = 0
                portions[-1].append((table, piece))
                rows += counts[piece]
        width = limit_width(self.session)
        if width:  # the first portion stays the first
            portions = [
                [piece for portion in portions[place::width] for piece in portion]
                for place in range(min(width, len(portions)))
            ]
        work = pickle_to_text((portions, division))
        return self.session.read.format(FORMAT).options(work=work).load()


def _cells(task: "Task") -> "tuple[MessageCell, ...]":
    """Return the cells of a task about messages; none for any other task."""
    from shoal.audit.tasks import LateCell, MessageCell, OrderCell, StreamCell

    if isinstance(task, OrderCell | LateCell):
        return (task.cell,)
    if isinstance(task, StreamCell):
        return task.cells
    return (task,) if isinstance(task, MessageCell) else ()


def _is_by_stream(task: "Task") -> bool:
    from shoal.audit.tasks import StreamCell

    return isinstance(task, StreamCell)


def _with_rows(task: "Task", held: "dict[str, MemoryPiece]") -> "Task":
    """Return the task with these rows and no others."""
    from shoal.audit.tasks import LateCell, OrderCell, StreamCell

    tables: dict[str, Any] = {n: (held[n],) if n in held else () for n in _TABLES}
    cells = tuple(replace(cell, **tables) for cell in _cells(task))
    if isinstance(task, StreamCell):
        return replace(task, cells=cells)
    return replace(task, cell=cells[0]) if isinstance(task, OrderCell | LateCell) else cells[0]


def _make_judge(by_low: dict[int, dict[int, str]], context: list[str]) -> Any:
    """Return a function from all rows of a cell to the answers of its tasks, as Arrow bytes."""
    import pyarrow as pa

    # Its type hints make it an aggregate; pyspark's own type stubs lack this case.
    @arrow_udf("binary")  # type: ignore[call-overload, untyped-decorator]
    def judge(cell: pa.Array, *columns: pa.Array) -> bytes:
        from shoal.audit.audit import judge_task
        from shoal.audit.parts import to_record_batch

        rows = pa.table([cell, *columns], names=[*_KEYS, *_COLUMNS])
        held = {table: _collect_rows(rows, table) for table in _TABLES}
        batches = [
            to_record_batch(
                number, judge_task(_with_rows(unpickle_text(task), held), open_shared(context))
            )
            for number, task in by_low[cell[0].as_py()].items()
        ]
        sink = io.BytesIO()
        with pa.ipc.new_stream(sink, batches[0].schema) as stream:
            for batch in batches:
                stream.write_batch(batch)
        return sink.getvalue()

    return judge


def _collect_rows(rows: Any, table: str) -> "MemoryPiece":
    """Return the rows of one table, in ledger order."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    from shoal.audit.read.read import MemoryPiece

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
    return MemoryPiece(table, columns, names, 0, own["position"].to_numpy())
