"""The ledgers of a run that is still being written, in memory.

The state belongs to a position in the commit log: the lines that were read, and the rows of the
segments that they name. A segment is read once; a read takes what the new lines name.

Rules:
- Only the tables that the caller names are read.
- Rows are in the order of the commit log. That of each worker is the ledger order; workers follow
  one another as they committed.
- Rows are divided by ranges of sequences, so that new rows touch few of them. Small pieces of a
  range are joined, so that there are few, however many segments a run has.
- Every piece names the row groups that its rows are from, so that another process can have the
  same pieces, and reads their rows only when it needs them (`snapshot`).
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from shoal.audit.arrays import LARGEST, Ints, Rows, ints
from shoal.audit.read.folder import RANGED, Ledger, RowGroup, read_footer
from shoal.audit.read.read import (
    KeptPiece,
    MemoryPiece,
    Piece,
    RowGroupPiece,
    Vocabulary,
    Within,
    read_rows,
)
from shoal.model.errors import LedgerError
from shoal.model.ledger import POSITION, TABLES
from shoal.model.run_folder import RunFolder
from shoal.storage.parquet import describe_unreadable_segment, open_parquet

# More pieces of one block of a table than this are joined to one.
_MOST_PIECES: Final = 16


@dataclass
class LedgerBlock:
    """The rows of one table in one range of sequences, in a few pieces."""

    pieces: list[KeptPiece] = field(default_factory=list)
    groups: list[RowGroup] = field(default_factory=list)


@dataclass
class GrowingState:
    """What was read up to a line of the commit log: rows, or the footers of segments."""

    lines: int = 0
    blocks: dict[tuple[str, int], LedgerBlock] = field(default_factory=dict)
    footers: dict[str, list[RowGroup]] = field(default_factory=dict)
    rows: Counter[str] = field(default_factory=Counter)  # in blocks, by table
    positions: Counter[str] = field(default_factory=Counter)  # of the next footer, by table
    names: int = 0  # of pieces


class RunCompacted(LedgerError):
    """Nothing is early: the run has ended."""


class GrowingLedger:
    """Reads a run folder again and again; each time only what is new."""

    def __init__(
        self, directory: Path, tables: Iterable[str], state: GrowingState | None = None
    ) -> None:
        """`state` is that of an earlier process, whose ledgers were the first lines of these."""
        self.directory = directory.resolve()  # pieces have the same names in every process
        self.state = state or GrowingState()
        # The receipts that the last read has added, in the order in which they were committed.
        self.new_receipts: list[Piece] = []
        self._words = Vocabulary()
        self._tables = tuple(tables)
        self._read: set[str] = set()
        if self.state.lines:
            folder = RunFolder.open(self.directory)
            folder = replace(folder, commits=folder.commits[: self.state.lines])
            self._read = {each.path for table in self._tables for each in folder.segments(table)}

    def count_committed(self) -> int:
        """Return the rows of these tables up to the last complete line of the commit log."""
        folder = RunFolder.open(self.directory)
        return sum(each.rows for table in self._tables for each in folder.segments(table))

    def _open_folder(self) -> RunFolder:
        folder = RunFolder.open(self.directory)
        if folder.is_compacted:
            raise RunCompacted(
                f"the ledgers in {self.directory} were compacted: the run no longer grows",
                remedy="judge the whole run: shoal audit RUN",
            )
        return folder

    def open_segments(self) -> Ledger:
        """Return the ledgers as row groups of their segments, and free what is in memory.

        The footer of a segment is read once.
        """
        state = self.state
        state.blocks.clear()
        folder = _with_one_clock(self._open_folder())
        state.lines = len(folder.commits)
        self.new_receipts = []
        tables: dict[str, list[RowGroup]] = {table: [] for table in TABLES}
        for table in self._tables:
            for segment in folder.segments(table):
                if segment.path not in state.footers:
                    groups = list(read_footer(segment, table, state.positions[table]))
                    state.footers[segment.path] = groups
                    state.positions[table] += segment.rows
                tables[table] += state.footers[segment.path]
                if table == "receipts" and segment.path not in self._read:
                    self.new_receipts += [group.piece for group in state.footers[segment.path]]
                self._read.add(segment.path)
        return Ledger([folder], tables)

    def read(self, cuts: Sequence[int] = ()) -> Ledger:
        """Return the ledgers up to the last complete line of the commit log.

        The row groups of new rows do not cross these sequences; a row group never changes.
        """
        folder = self._open_folder()
        self.state.lines = len(folder.commits)
        self.new_receipts = []
        for table in self._tables:
            new = [each.path for each in folder.segments(table) if each.path not in self._read]
            if new:
                self._add(table, self._find_row_groups(table, new), cuts)
                self._read.update(new)
        tables: dict[str, list[RowGroup]] = {table: [] for table in TABLES}
        for (table, _), block in sorted(self.state.blocks.items()):
            tables[table] += block.groups
        return Ledger([_with_one_clock(folder)], tables)

    def _find_row_groups(self, table: str, paths: list[str]) -> list[tuple[RowGroupPiece, int]]:
        """Return the row groups of new segments, each with its rows."""
        found = []
        for path in paths:
            try:
                with open_parquet(path) as file:
                    footer = file.metadata
            except (OSError, pa.ArrowException) as error:
                raise describe_unreadable_segment(path, error) from error
            for number in range(footer.num_row_groups):
                size = footer.row_group(number).num_rows
                found.append((RowGroupPiece(path, number, self.state.rows[table]), size))
                self.state.rows[table] += size
        return found

    def _add(
        self, table: str, added: Sequence[tuple[RowGroupPiece, int]], cuts: Sequence[int]
    ) -> None:
        """Add new row groups of a table to their blocks."""
        sources = [source for source, _ in added]
        rows = self._read_rows(table, sources)
        size = len(rows[POSITION])
        if table == "receipts" and size:
            self.new_receipts.append(self._piece(table, rows, sources))
        edges = ints([0, *cuts])
        numbers = np.zeros(size, dtype=np.int64)
        if "sequence" in rows:
            # Sequences below 0 have a block of their own.
            numbers = np.searchsorted(edges, rows["sequence"], side="right")
        source_of_row = np.repeat(np.arange(len(added)), [count for _, count in added])
        for number in np.unique(numbers).tolist():
            own = np.flatnonzero(numbers == number)
            within = Within("sequence", [_bounds(edges, number)]) if "sequence" in rows else None
            block = self.state.blocks.setdefault((table, number), LedgerBlock())
            own_sources = [sources[n] for n in np.unique(source_of_row[own]).tolist()]
            own_rows = {name: column[own] for name, column in rows.items()}
            block.pieces.append(self._piece(table, own_rows, own_sources, within))
            if len(block.pieces) > _MOST_PIECES:
                joined = [source for each in block.pieces for source in each.sources]
                together = self._read_rows(table, block.pieces)
                block.pieces[:] = [self._piece(table, together, joined, within)]
                block.groups.clear()
            block.groups += [self._group(each) for each in block.pieces[len(block.groups) :]]

    def _read_rows(self, table: str, pieces: Sequence[Piece]) -> Rows:
        names = [POSITION, *(name for name, _ in TABLES[table])]
        return read_rows(table, pieces, names, vocabulary=self._words)

    def _piece(
        self,
        table: str,
        rows: Rows,
        sources: Sequence[RowGroupPiece],
        within: Within | None = None,
    ) -> KeptPiece:
        """Name some rows: a name is never used twice."""
        path = f"#{table}-{self.state.names}"
        self.state.names += 1
        positions = rows[POSITION]
        columns = {name: column for name, column in rows.items() if name != POSITION}
        held = MemoryPiece(path, columns, self._words.names, int(positions[0]), positions)
        return KeptPiece(path, table, tuple(sources), within, held)

    def _group(self, piece: KeptPiece) -> RowGroup:
        rows = piece.load().columns
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


def _bounds(edges: Ints, number: int) -> tuple[int, int]:
    """Return the sequences [low, high) of a block."""
    low = int(edges[number - 1]) if number else -LARGEST
    return low, int(edges[number]) if number < len(edges) else LARGEST


def _range(values: Any) -> tuple[int, int]:
    return int(values.min()), int(values.max())
