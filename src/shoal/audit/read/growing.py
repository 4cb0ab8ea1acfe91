"""The ledgers of a run that is still being written, in memory.

The state belongs to a position in the commit log: the lines that were read, and the rows of the
segments that they name. A segment is read once; a read takes what the new lines name.

Rules:
- Only the tables that the caller names are read.
- Rows are in the order of the commit log. That of each worker is the ledger order; workers follow
  one another as they committed.
- Rows are divided by ranges of sequences, so that new rows touch few of them. Small pieces of a
  range are joined, so that there are few, however many segments a run has.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shoal.audit.arrays import Ints, Rows, ints
from shoal.audit.read.folder import RANGED, Ledger, RowGroup, read_footer
from shoal.audit.read.read import MemoryPiece, Piece, RowGroupPiece, Vocabulary, read_rows
from shoal.model.errors import LedgerError
from shoal.model.ledger import TABLES
from shoal.model.run_folder import RunFolder

# More pieces of one block of a table than this are joined to one.
_MOST_PIECES: Final = 16


@dataclass
class _Block:
    """The rows of one table in one range of sequences, in a few pieces."""

    pieces: list[MemoryPiece] = field(default_factory=list)
    groups: list[RowGroup] = field(default_factory=list)


class GrowingLedger:
    """Reads a run folder again and again; each time only what is new."""

    def __init__(self, directory: Path, tables: Iterable[str]) -> None:
        self.directory = directory
        # The receipts that the last read has added, in the order in which they were committed.
        self.new_receipts: list[Piece] = []
        self._words = Vocabulary()
        self._tables = tuple(tables)
        self._blocks: dict[tuple[str, int], _Block] = {}
        self._rows: Counter[str] = Counter()  # by table
        self._read: set[Path] = set()
        self._footers: dict[Path, list[RowGroup]] = {}
        self._positions: Counter[str] = Counter()  # of the next footer, by table
        self._names = count()

    def count_committed(self) -> int:
        """Return the rows of these tables up to the last complete line of the commit log."""
        folder = RunFolder.open(self.directory)
        return sum(each.rows for table in self._tables for each in folder.segments(table))

    def open_segments(self) -> Ledger:
        """Return the ledgers as row groups of their segments, and free what is in memory.

        The footer of a segment is read once.
        """
        self._blocks.clear()
        folder = _with_one_clock(RunFolder.open(self.directory))
        self.new_receipts = []
        tables: dict[str, list[RowGroup]] = {table: [] for table in TABLES}
        for table in self._tables:
            for segment in folder.segments(table):
                if segment.path not in self._footers:
                    groups = list(read_footer(segment, table, self._positions[table]))
                    self._footers[segment.path] = groups
                    self._positions[table] += segment.rows
                tables[table] += self._footers[segment.path]
                if table == "receipts" and segment.path not in self._read:
                    self.new_receipts += [group.piece for group in self._footers[segment.path]]
                self._read.add(segment.path)
        return Ledger([folder], tables)

    def read(self, cuts: Sequence[int] = ()) -> Ledger:
        """Return the ledgers up to the last complete line of the commit log.

        The row groups of new rows do not cross these sequences; a row group never changes.
        """
        folder = RunFolder.open(self.directory)
        self.new_receipts = []
        for table in self._tables:
            new = [each for each in folder.segments(table) if each.path not in self._read]
            if new:
                self._add(
                    table, self._read_segments(table, [segment.path for segment in new]), cuts
                )
        tables: dict[str, list[RowGroup]] = {table: [] for table in TABLES}
        for (table, _), block in sorted(self._blocks.items()):
            tables[table] += block.groups
        return Ledger([_with_one_clock(folder)], tables)

    def _add(self, table: str, rows: Rows, cuts: Sequence[int]) -> None:
        """Add new rows of a table to their blocks."""
        size = len(next(iter(rows.values())))
        positions = np.arange(self._rows[table], self._rows[table] + size, dtype=np.int64)
        self._rows[table] += size
        if table == "receipts" and size:
            self.new_receipts.append(self._piece(table, rows, positions))
        numbers = np.zeros(size, dtype=np.int64)
        if "sequence" in rows:
            # Sequences below 0 have a block of their own.
            numbers = np.searchsorted(ints([0, *cuts]), rows["sequence"], side="right")
        for number in np.unique(numbers).tolist():
            own = np.flatnonzero(numbers == number)
            piece = self._piece(
                table, {n: column[own] for n, column in rows.items()}, positions[own]
            )
            block = self._blocks.setdefault((table, number), _Block())
            block.pieces.append(piece)
            if len(block.pieces) > _MOST_PIECES:
                joined = {
                    name: np.concatenate([each.columns[name] for each in block.pieces])
                    for name in rows
                }
                order = np.concatenate([_positions(each) for each in block.pieces])
                block.pieces[:] = [self._piece(table, joined, order)]
                block.groups.clear()
            block.groups += [self._group(each) for each in block.pieces[len(block.groups) :]]

    def _piece(self, table: str, rows: Rows, positions: Ints) -> MemoryPiece:
        """Name some rows: a name is never used twice."""
        path = f"{self.directory}#{table}-{next(self._names)}"
        return MemoryPiece(path, rows, self._words.names, int(positions[0]), positions)

    def _read_segments(self, table: str, paths: list[Path]) -> Rows:
        names = [name for name, _ in TABLES[table]]
        pieces = []
        for path in paths:
            try:
                groups = pq.read_metadata(path).num_row_groups
            except (OSError, pa.ArrowException) as error:
                raise LedgerError(f"{path} cannot be read as a segment: {error!s:.300}") from error
            pieces += [RowGroupPiece(str(path), number, 0) for number in range(groups)]
        rows = read_rows(table, pieces, names, vocabulary=self._words)
        self._read.update(paths)
        return rows

    def _group(self, piece: MemoryPiece) -> RowGroup:
        rows = piece.columns
        ranges: dict[str, tuple[int, int]] = {
            name: _range(rows[name]) for name in RANGED if name in rows
        }
        size = len(next(iter(rows.values())))
        return RowGroup(piece, size, ranges, self._only_group(rows))

    def _only_group(self, rows: Rows) -> str | None:
        groups = rows.get("group")
        if groups is None or groups.min() != groups.max():
            return None
        return self._words.names[int(groups[0])]


def _with_one_clock(folder: RunFolder) -> RunFolder:
    """Return the folder as one of workers with one clock; the caller considers whether they have.

    Pieces in memory do not know whose clock their times are of, and bounds between clocks change
    with every line about them, so that all rows would be judged again.
    """
    return replace(folder, plan={**folder.plan, "one_clock": True})


def _positions(piece: MemoryPiece) -> Ints:
    assert piece.positions is not None  # noqa: S101 - every piece made here has them
    return piece.positions


def _range(values: Any) -> tuple[int, int]:
    return int(values.min()), int(values.max())
