"""The answers of an audit's tasks about a run that grows: only what new rows touch is judged again.

The state belongs to a position in the commit log: the answers of every cell, named by its rows, by
what the context says of its sequences, and the walks over all receipts so far. A row that is added
changes the answer of its cell of sequences and of its block of offsets; all others are kept.

Rules:
- Cells begin at cuts that are never moved: a new one is made above all rows so far, once the last
  cell has enough. Blocks of offsets begin at multiples of their width.
- The name of an answer is a digest of its row groups' names, so a row group never changes. It is
  the same in every process: a later one continues from the answers of this one (`snapshot`).
- Cells are judged without knowledge of other cells, which decides only about what is missing, in a
  context without what only pictures, latencies and missing messages need.
- Receipts are walked once, in the order in which they were committed.
"""

import hashlib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

import numpy as np

from shoal.audit.arrays import NONE, ints
from shoal.audit.context import AuditContext, Knowledge, Stream
from shoal.audit.parts import PartKind, TaskPart, make_part
from shoal.audit.plan import as_ranges, plan_cells, plan_offset_cells
from shoal.audit.read.folder import Ledger
from shoal.audit.read.read import Piece, RowGroupPiece
from shoal.audit.result.merge import Summaries
from shoal.audit.tasks import LedgerWalk, MessageCell, OffsetCell, Task
from shoal.audit.times.bins import Bins
from shoal.model.findings import Finding

ROWS_PER_CELL: Final = 250_000
PIECES_PER_WALK: Final = 64
_NO_STRETCHES: Final = 1 << 62
_NO_KNOWLEDGE: Final = Knowledge()
# All else is about what is missing, about order, or for pictures.
_KEPT: Final = frozenset(
    {
        *(PartKind.STREAMS, PartKind.TALLY, PartKind.WITNESS, PartKind.UNREADABLE),
        *(PartKind.DOUBTFUL, PartKind.UNPROVEN, PartKind.UNSETTLED),
        *(PartKind.WALK, PartKind.CONTESTED),
    }
)
_FINDINGS: Final = frozenset(finding.value for finding in Finding)

_DIGEST_BYTES: Final = 16

Run = Any  # `audit.Runner`, which this module must not import
_Answers = dict[bytes, list[TaskPart]]
_Judge = Callable[[Sequence[Task]], list[list[TaskPart]]]


def name_of(piece: Piece) -> Hashable:
    """Return the name of a row group; its place in the ledger may move as other workers write."""
    return (piece.path, piece.number) if isinstance(piece, RowGroupPiece) else piece.path


@dataclass
class Increments:
    """What was judged up to a position in the commit log."""

    rows_per_cell: int = ROWS_PER_CELL
    cuts: list[int] = field(default_factory=lambda: [0])
    judged: int = 0  # tasks of the last look
    # By the digest of a task's name: of cells, and of blocks of offsets.
    of_cells: dict[bytes, list[TaskPart]] = field(default_factory=dict)
    of_blocks: dict[bytes, list[TaskPart]] = field(default_factory=dict)
    walks: list[list[TaskPart]] = field(default_factory=list)
    _walked: set[Hashable] = field(default_factory=set)
    _streams: dict[Stream, bytes] = field(default_factory=dict)  # their digests

    def judge_cells(
        self, ledger: Ledger, context: AuditContext, run: Run
    ) -> tuple[list[list[TaskPart]], AuditContext]:
        """Return the answers of all cells, and the context in which they were judged."""
        self._extend_cuts(ledger)
        lean = make_lean(context)
        planned = [extent.planned for extent in lean.extents.values()]
        cells = [
            replace(cell, is_again=True) for cell in plan_cells(ledger, planned, cuts=self.cuts)
        ]
        known = _CellNames(lean, self._streams)
        names = [known.name(cell) for cell in cells]
        self.judged = 0
        answers, self.of_cells = self._run(cells, names, self.of_cells, lambda own: run(own, lean))
        return answers, lean

    def judge_offsets(
        self, ledger: Ledger, summaries: Summaries, run: Run, lean: AuditContext
    ) -> list[list[TaskPart]]:
        """Return the answers of all blocks of offsets at which something is known."""
        cells: list[OffsetCell] = []
        width = self._block_width(ledger)
        for cluster in ("source", "target"):
            doubtful = map(np.ravel, summaries.doubtful.get(cluster, ()))
            ranges = as_ranges(np.concatenate([ints(), *doubtful]))
            unproven = summaries.unproven if cluster == "source" else ()
            blocks = {n for low, high in ranges for n in range(low // width, -(-high // width))}
            for number in sorted(blocks):
                own = [(number * width, (number + 1) * width)]
                cells += plan_offset_cells(
                    ledger, cluster, own, unproven=unproven, offsets_per_cell=width
                )
        names = [
            _digest(
                cell.cluster, cell.ranges, cell.unproven, *_pieces(cell.attempts, cell.receipts)
            )
            for cell in cells
        ]
        judged = self._run(cells, names, self.of_blocks, lambda own: run(own, lean))
        answers, self.of_blocks = judged
        return answers

    def walk(self, pieces: Sequence[Piece], run: Run, lean: AuditContext) -> list[list[TaskPart]]:
        """Walk row groups of receipts that were not walked, and return all walks so far."""
        new = [piece for piece in pieces if name_of(piece) not in self._walked]
        tasks = [
            LedgerWalk(len(self.walks) + number, "receipts", tuple(new[at : at + PIECES_PER_WALK]))
            for number, at in enumerate(range(0, len(new), PIECES_PER_WALK))
        ]
        self.walks += [_thin(parts) for parts in (run(tasks, lean) if tasks else ())]
        self._walked.update(map(name_of, new))
        return self.walks

    def _run(
        self, tasks: Sequence[Task], names: Sequence[bytes], known: _Answers, judge: _Judge
    ) -> tuple[list[list[TaskPart]], _Answers]:
        """Return the answers in the order of the tasks, and by name without those of no task."""
        new = [n for n, name in enumerate(names) if name not in known]
        answers = judge([tasks[n] for n in new]) if new else []
        self.judged += len(new)
        judged = {names[n]: _thin(parts) for n, parts in zip(new, answers, strict=True)}
        kept = {name: judged.get(name) or known.get(name, []) for name in names}
        return [kept[name] for name in names], kept

    def _extend_cuts(self, ledger: Ledger) -> None:
        """Close the last cell when it has enough rows: later sequences belong to a new one."""
        groups = [group for table in ("attempts", "receipts") for group in ledger.tables[table]]
        last = self.cuts[-1]
        above = [group for group in groups if group.ranges["sequence"][1] >= last]
        if sum(group.rows for group in above) > self.rows_per_cell:
            top = max(group.ranges["sequence"][1] for group in above) + 1
            self.cuts.append(max(top, last + 1))

    def _block_width(self, ledger: Ledger) -> int:
        """Return a power of two, for blocks with about as many rows as cells have."""
        groups = [group for table in ("attempts", "receipts") for group in ledger.tables[table]]
        rows = sum(group.rows for group in groups)
        top = max((group.ranges["offset"][1] for group in groups), default=0) + 1
        return 1 << max(10, (self.rows_per_cell * top // max(rows, 1)).bit_length())


def make_lean(context: AuditContext) -> AuditContext:
    """Return the context without what changes while a run continues and decides nothing certain."""
    return replace(
        context,
        bins=Bins(),
        stretch=_NO_STRETCHES,
        edges_us=(),
        slot_us=0,
        measure_from_us=NONE,
        all_drained=False,
        drained=frozenset(),
        overdue_us=NONE,
        knowledge=_NO_KNOWLEDGE,
    )


class _CellNames:
    """Names cells by their rows and by what the context says of their sequences."""

    def __init__(self, lean: AuditContext, digests: dict[Stream, bytes]) -> None:
        """`digests` are those of streams that are known; others are added."""
        kept = replace(lean, extents={}, scratch=None)
        self._shared = [(each.name, _in_order(getattr(kept, each.name))) for each in fields(kept)]
        streams = sorted(lean.extents)
        digests |= {stream: _digest(*stream) for stream in streams if stream not in digests}
        joined = b"".join(digests[stream] for stream in streams)
        self._streams = np.frombuffer(joined, dtype=np.uint8).reshape(-1, _DIGEST_BYTES)
        self._extents = np.array(
            [lean.extents[stream] for stream in streams], dtype=np.int64
        ).reshape(-1, 2)

    def name(self, cell: MessageCell) -> bytes:
        own = np.clip(self._extents, cell.low, cell.high)
        begun = np.flatnonzero((own > cell.low).any(axis=1))
        tables = (cell.attempts, cell.receipts, cell.log, cell.keys, cell.transactions)
        extents = (self._streams[begun].tobytes(), own[begun].tobytes())
        return _digest(cell.low, cell.high, _pieces(*tables), *extents, self._shared)


def _in_order(value: Any) -> Any:
    """Return sets and mappings as lists whose order is the same in every process."""
    if isinstance(value, Mapping):
        return sorted((repr(key), repr(_in_order(each))) for key, each in value.items())
    return sorted(map(repr, value)) if isinstance(value, frozenset) else value


def _digest(*name: Any) -> bytes:
    return hashlib.blake2b(repr(name).encode(), digest_size=_DIGEST_BYTES).digest()


def _pieces(*tables: Iterable[Piece]) -> tuple[tuple[Hashable, ...], ...]:
    return tuple(tuple(map(name_of, pieces)) for pieces in tables)


def _thin(parts: Iterable[TaskPart]) -> list[TaskPart]:
    """Return what a look needs: of most cells very little, however many streams they have."""
    kept = []
    for part in parts:
        if part.kind is PartKind.TALLY:
            group, names = part.label
            columns = [n for n, name in enumerate(names) if name in _FINDINGS]
            counts = part.values.reshape(-1, len(names))[:, columns]
            if counts.any():
                label = [group, [names[n] for n in columns]]
                kept.append(make_part(PartKind.TALLY, label, counts))
        elif part.kind in _KEPT:
            kept.append(part)
    if {part.kind for part in kept} <= {PartKind.STREAMS, PartKind.DOUBTFUL}:
        return [part for part in kept if part.kind is PartKind.DOUBTFUL]
    return kept
