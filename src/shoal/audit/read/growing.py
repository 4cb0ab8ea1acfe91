"""The ledgers of a run that is still being written, in memory.

The state belongs to a position in the commit log: the lines that were read, and the rows of the
segments that they name. A segment is read once; a read takes what the new lines name.

Rules:
- Only the tables that the caller names are read.
- Rows are in the order of the commit log. That of each worker is the ledger order; workers follow
  one another as they committed.
- Small pieces are joined, so that there are few, however many segments a run has.
"""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shoal.audit.arrays import Rows
from shoal.audit.read.folder import RANGED, Ledger, RowGroup
from shoal.audit.read.read import MemoryPiece, RowGroupPiece, Vocabulary, read_rows
from shoal.model.errors import LedgerError
from shoal.model.ledger import TABLES
from shoal.model.run_folder import RunFolder

# More pieces of a table than this are joined to one.
_MOST_PIECES: Final = 16


class GrowingLedger:
    """Reads a run folder again and again; each time only what is new."""

    def __init__(self, directory: Path, tables: Iterable[str]) -> None:
        self.directory = directory
        self._words = Vocabulary()
        self._pieces: dict[str, list[Rows]] = {table: [] for table in tables}
        self._read: set[Path] = set()

    def count_committed(self) -> int:
        """Return the rows of these tables up to the last complete line of the commit log."""
        folder = RunFolder.open(self.directory)
        return sum(each.rows for table in self._pieces for each in folder.segments(table))

    def forget(self) -> None:
        """Free the memory; the next read is one of everything."""
        self._pieces = {table: [] for table in self._pieces}
        self._read.clear()

    def read(self) -> Ledger:
        """Return the ledgers up to the last complete line of the commit log."""
        folder = RunFolder.open(self.directory)
        for table, pieces in self._pieces.items():
            new = [each for each in folder.segments(table) if each.path not in self._read]
            if new:
                pieces.append(self._read_segments(table, [segment.path for segment in new]))
                if len(pieces) > _MOST_PIECES:
                    joined = {
                        name: np.concatenate([piece[name] for piece in pieces])
                        for name in pieces[0]
                    }
                    pieces[:] = [joined]
        # The pieces no longer know whose clock their times are of; the caller considers that.
        plan = {**folder.plan, "one_clock": True}
        tables = {table: tuple(self._groups(table)) for table in TABLES}
        return Ledger([replace(folder, plan=plan)], tables)

    def _read_segments(self, table: str, paths: list[Path]) -> Rows:
        names = [name for name, _ in TABLES[table]]
        pieces = []
        for path in paths:
            try:
                count = pq.read_metadata(path).num_row_groups
            except (OSError, pa.ArrowException) as error:
                raise LedgerError(f"{path} cannot be read as a segment: {error!s:.300}") from error
            pieces += [RowGroupPiece(str(path), number, 0) for number in range(count)]
        rows = read_rows(table, pieces, names, vocabulary=self._words)
        self._read.update(paths)
        return rows

    def _groups(self, table: str) -> Iterable[RowGroup]:
        position = 0
        for rows in self._pieces.get(table, ()):
            count = len(next(iter(rows.values())))
            if not count:
                continue
            piece = MemoryPiece(str(self.directory), rows, self._words.names, position)
            ranges: dict[str, tuple[int, int]] = {
                name: _range(rows[name]) for name in RANGED if name in rows
            }
            yield RowGroup(piece, count, ranges, self._only_group(rows))
            position += count

    def _only_group(self, rows: Rows) -> str | None:
        groups = rows.get("group")
        if groups is None or groups.min() != groups.max():
            return None
        return self._words.names[int(groups[0])]


def _range(values: Any) -> tuple[int, int]:
    return int(values.min()), int(values.max())
