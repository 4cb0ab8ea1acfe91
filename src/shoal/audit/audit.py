"""An audit from ledger to result, in at most two rounds of tasks.

The first round reads every row once: message cells and walks. Their answers determine the second
round, which is mostly small or empty: cells that were undecided, cells of streams whose order
interleaves with other cells, offsets that are in doubt or were jumped over. A `Runner` may run the
tasks of a round in any order and on any machine.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from shoal.audit.arrays import Ints, ints
from shoal.audit.columns import OrderColumn
from shoal.audit.context import AuditContext, build_context
from shoal.audit.memory import keep_freed_memory
from shoal.audit.parts import PartKind, TaskPart
from shoal.audit.plan import (
    OFFSETS_PER_CELL,
    ROWS_PER_CELL,
    ROWS_PER_WALK,
    as_ranges,
    plan_cells,
    plan_offset_cells,
    plan_walks,
)
from shoal.audit.read.folder import Ledger
from shoal.audit.read.walk import GroupReader, LogReader, walk
from shoal.audit.result.conclude import Evidence, conclude
from shoal.audit.result.merge import (
    Summaries,
    Totals,
    add_cell,
    add_latencies,
    is_undecided,
    settle_replication,
    settle_tails,
    settle_transactions,
)
from shoal.audit.result.settle import settle_order, settle_polls
from shoal.audit.rules.cell import judge_cell
from shoal.audit.rules.offsets import check_offsets
from shoal.audit.rules.order import find_zones, has_disjoint_keys
from shoal.audit.rules.order_cell import collect_order_pieces
from shoal.audit.rules.polls import OffsetSteps, gather_steps, number_jumps
from shoal.audit.tasks import LedgerWalk, MessageCell, OffsetCell, OrderCell, Task, UnitName
from shoal.audit.times.staleness import judge_polls
from shoal.model.findings import Finding
from shoal.model.result import Result

Runner = Callable[[Sequence[Task], AuditContext], list[list[TaskPart]]]


@dataclass(frozen=True)
class Sizes:
    """How much work one task may have."""

    rows_per_cell: int = ROWS_PER_CELL
    rows_per_walk: int = ROWS_PER_WALK
    offsets_per_cell: int = OFFSETS_PER_CELL


def judge_task(task: Task, context: AuditContext) -> list[TaskPart]:
    """Run one task."""
    keep_freed_memory()
    if isinstance(task, MessageCell):
        return judge_cell(task, context)
    if isinstance(task, OrderCell):
        return collect_order_pieces(task, context)
    if isinstance(task, LedgerWalk):
        return judge_polls(task, context) if task.table == "polls" else walk(task)
    return check_offsets(task, context)


def run_here(tasks: Sequence[Task], context: AuditContext) -> list[list[TaskPart]]:
    """A `Runner` that runs all tasks in this process, one after another."""
    return [judge_task(task, context) for task in tasks]


@dataclass
class _Round:
    """The tasks of the second round, by kind, in the order in which they are run."""

    again: list[MessageCell] = field(default_factory=list)
    order: list[OrderCell] = field(default_factory=list)
    offsets: list[OffsetCell] = field(default_factory=list)

    def tasks(self) -> list[Task]:
        return [*self.again, *self.order, *self.offsets]


def audit(ledger: Ledger, runner: Runner = run_here, *, sizes: Sizes | None = None) -> Result:
    """Judge the ledgers of one run."""
    return conclude(ledger, examine(ledger, runner, sizes=sizes))


def examine(
    ledger: Ledger,
    runner: Runner = run_here,
    *,
    sizes: Sizes | None = None,
    cuts: Sequence[int] = (),
) -> Evidence:
    """Count everything that the ledgers of one run record; `cuts` are for `plan_cells`."""
    sizes = sizes or Sizes()
    context = build_context(ledger)
    planned = [extent.planned for extent in context.extents.values()]
    cells = plan_cells(ledger, planned, rows_per_cell=sizes.rows_per_cell, cuts=cuts)
    walks = plan_walks(ledger, rows_per_walk=sizes.rows_per_walk)
    answers = runner([*cells, *walks], context)
    of_cells, of_walks = answers[: len(cells)], answers[len(cells) :]
    context = _settle_offsets(cells, of_cells, context, runner)

    totals, summaries = Totals(), Summaries()
    for parts in of_cells:
        add_cell(parts, None if is_undecided(parts) else totals, summaries)
    for parts in of_walks:
        add_latencies(parts, totals)
    assignments = ledger.small_table("assignments")
    polls = gather_steps(of_walks, GroupReader, _assignment_starts(assignments))
    interleaved = _find_interleaved_units(summaries)
    second = _Round(
        again=_plan_undecided_cells(cells, of_cells, context, (summaries, assignments)),
        order=_plan_order_cells(cells, interleaved, summaries),
        offsets=_plan_doubtful_offsets(ledger, context, summaries, (polls, of_walks, sizes)),
    )
    more = runner(second.tasks(), context)
    of_again = more[: len(second.again)]
    of_order = more[len(of_again) : len(of_again) + len(second.order)]
    of_offsets = more[len(of_again) + len(of_order) :]

    for parts in of_again:
        add_cell(parts, totals, None)
    settle_order(totals, summaries, interleaved, of_order, stretch=context.stretch)
    settle_tails(totals, Finding.TAIL_LOSS)
    settle_transactions(totals, summaries)
    settle_replication(totals)
    return Evidence(context, totals, settle_polls(polls, of_offsets))


def _settle_offsets(
    cells: Sequence[MessageCell],
    answers: list[list[TaskPart]],
    context: AuditContext,
    runner: Runner,
) -> AuditContext:
    """Judge cells again, in place, in which an offset is evidence only if its transaction was seen.

    This is rare: an attempt in an open transaction that has an offset but no answer.
    """
    unsettled = [
        n for n, parts in enumerate(answers) if any(p.kind == PartKind.UNSETTLED for p in parts)
    ]
    if not unsettled:
        return context
    seen = [p.values for parts in answers for p in parts if p.kind == PartKind.SEEN_TRANSACTIONS]
    known = replace(context, delivered_transactions=np.unique(np.concatenate([ints(), *seen])))
    for number, parts in zip(unsettled, runner([cells[n] for n in unsettled], known), strict=True):
        answers[number] = parts
    return known


def _assignment_starts(assignments: Iterable[dict[str, Any]]) -> dict[GroupReader, int]:
    """Return the start offset of each assignment; of two for one reader, the higher one."""
    begins: dict[GroupReader, int] = {}
    for row in assignments:
        reader = GroupReader(*(row[name] for name in GroupReader._fields))
        begins[reader] = max(row["offset"], begins.get(reader, 0))
    return begins


def _plan_undecided_cells(
    cells: Sequence[MessageCell],
    answers: Sequence[list[TaskPart]],
    context: AuditContext,
    known: tuple[Summaries, list[dict[str, Any]]],
) -> list[MessageCell]:
    summaries, assignments = known
    assigned: dict[tuple[str, int], int] = {}
    for row in assignments:
        log = (row["topic"], row["partition"])
        assigned[log] = min(row["offset"], assigned.get(log, row["offset"]))
    knowledge = summaries.knowledge(context, assigned)
    return [
        replace(c, knowledge=knowledge)
        for c, parts in zip(cells, answers, strict=True)
        if is_undecided(parts)
    ]


def _find_interleaved_units(summaries: Summaries) -> dict[UnitName, Ints | None]:
    """Find the units whose cells interleave, with their zones.

    The zones are None for units that are in several partitions.
    """
    interleaved: dict[UnitName, Ints | None] = {}
    for unit, rows in summaries.order.items():
        table = np.array(sorted(row.tolist() for row in rows), dtype=np.int64)
        if table[:, OrderColumn.PARTITION].min() != table[:, OrderColumn.LAST_PARTITION].max():
            interleaved[unit] = None
        elif not has_disjoint_keys(table):
            whole = table[:, [OrderColumn.FIRST_KEY, OrderColumn.LAST_KEY]]
            spans = [
                summaries.spans.get((unit, low), whole[number : number + 1])
                for number, low in enumerate(table[:, OrderColumn.LOW].tolist())
            ]
            interleaved[unit] = find_zones(np.concatenate(spans))
    return interleaved


def _plan_order_cells(
    cells: Sequence[MessageCell], interleaved: dict[UnitName, Ints | None], summaries: Summaries
) -> list[OrderCell]:
    wanted: dict[int, dict[UnitName, tuple[tuple[int, int], ...] | None]] = defaultdict(dict)
    for unit, found in interleaved.items():
        spans = None if found is None else tuple(as_ranges(found))
        for row in summaries.order[unit]:
            wanted[int(row[OrderColumn.LOW])][unit] = spans
    return [OrderCell(cell, wanted[cell.low]) for cell in cells if cell.low in wanted]


def _plan_doubtful_offsets(
    ledger: Ledger,
    context: AuditContext,
    summaries: Summaries,
    walked: tuple[OffsetSteps[GroupReader], list[list[TaskPart]], Sizes],
) -> list[OffsetCell]:
    polls, of_walks, sizes = walked
    scans = gather_steps(of_walks, LogReader, {})
    cells: list[OffsetCell] = []
    for cluster in ("source", "target"):
        doubtful = as_ranges(np.concatenate([ints(), *map(np.ravel, summaries.doubtful[cluster])]))
        # A scan that did not read its log in ascending order may have read an offset twice.
        again = [scans.spans[log] for log in scans.falls if log.cluster == cluster]
        ranges = [*doubtful, *((low, high + 1) for low, high in again)]
        jumps = number_jumps(polls) if cluster == context.read_cluster else []
        cells += plan_offset_cells(
            ledger,
            cluster,
            ranges,
            jumps=jumps,
            unproven=summaries.unproven if cluster == "source" else (),
            offsets_per_cell=sizes.offsets_per_cell,
        )
    return cells
