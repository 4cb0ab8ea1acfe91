"""Brings the rows of a run with many streams to the tasks that judge them: one pass of tasks.

See `read.regroup` for the files. They are in the audit's scratch folder, unless the run was
compacted at its end: then its ledgers are such files, and nothing is left to do.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from shoal.audit.context import AuditContext
from shoal.audit.parts import TaskPart
from shoal.audit.plan import Division, reads_per_row
from shoal.audit.read.folder import Ledger, RowGroup, read_footer
from shoal.audit.read.read import RowGroupPiece
from shoal.audit.read.regroup import STREAM_TABLES, Regroup, plan_regrouping
from shoal.model.ledger import FORMAT
from shoal.model.run_folder import LedgerSegment
from shoal.storage.files import map_places
from shoal.storage.places import is_url

MOST_READS_PER_ROW = 2.5  # with more, one pass that regroups rows is cheaper

_Runner = Callable[[Sequence[Any], AuditContext], list[list[TaskPart]]]


def needs_regrouping(
    ledger: Ledger, division: Division, most_reads: float = MOST_READS_PER_ROW
) -> bool:
    """Whether tasks that divide the streams would read each row too often."""
    return division.shares > 1 and reads_per_row(ledger, division) > most_reads


def regroup_ledger(
    ledger: Ledger,
    division: Division,
    context: AuditContext,
    runner: _Runner,
    *,
    rows_per_file: int,
) -> Ledger:
    """Return the same rows with the row groups of tables of messages divided by streams."""
    tasks: list[Regroup] = []
    for table in STREAM_TABLES:
        tasks += plan_regrouping(
            table,
            ledger.tables[table],
            division.bucket_edges,
            first=len(tasks),
            rows_per_file=rows_per_file,
        )
    answers = runner(tasks, context)
    tables: dict[str, list[RowGroup]] = {table: [] for table in STREAM_TABLES}
    written = [(task, part) for task, [part] in zip(tasks, answers, strict=True)]
    footers = map_places(
        lambda each: _read_groups(*each, context), written, is_remote=is_url(str(context.scratch))
    )
    for (task, _), groups in zip(written, footers, strict=True):
        tables[task.table] += groups
    return replace(ledger, tables={**ledger.tables, **tables})


def _read_groups(task: Regroup, part: TaskPart, context: AuditContext) -> Sequence[RowGroup]:
    number, place = part.label
    [rows] = part.values.tolist()
    segment = LedgerSegment("", 0, number, place, rows, FORMAT)
    first = task.pieces[0]
    position = first.position if isinstance(first, RowGroupPiece) else 0
    return list(read_footer(segment, task.table, position, partitions=context.source_partitions))
