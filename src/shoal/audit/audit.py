"""An audit from ledger to result, in at most two rounds of tasks.

The first round looks at every row once: message cells and walks. From what they tell of
themselves follows the second, mostly small or empty: cells that were undecided, cells of
streams whose order interleaves with other cells, offsets that are in doubt or were jumped
over. Whoever runs the tasks (`Runner`) may do so in any order and on any machine.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from shoal.audit.arrays import Ints, ints
from shoal.audit.context import Setting, make_setting
from shoal.audit.memory import keep_freed_memory
from shoal.audit.parts import Part
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
from shoal.audit.read.walk import walk
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
from shoal.audit.rules.offsets import judge_offsets
from shoal.audit.rules.order import are_apart, zones
from shoal.audit.rules.order_cell import hand_out_order
from shoal.audit.rules.polls import Steps, gather_steps, numbered_jumps
from shoal.audit.tasks import LedgerWalk, MessageCell, OffsetCell, OrderCell, Task, UnitName
from shoal.audit.times.staleness import judge_polls
from shoal.model.findings import Finding
from shoal.model.result import Result

Runner = Callable[[Sequence[Task], Setting], list[list[Part]]]


@dataclass(frozen=True)
class Sizes:
    """How much work one task may have."""

    rows_per_cell: int = ROWS_PER_CELL
    rows_per_walk: int = ROWS_PER_WALK
    offsets_per_cell: int = OFFSETS_PER_CELL


def judge_task(task: Task, setting: Setting) -> list[Part]:
    """The work of any one task."""
    keep_freed_memory()
    if isinstance(task, MessageCell):
        return judge_cell(task, setting)
    if isinstance(task, OrderCell):
        return hand_out_order(task, setting)
    if isinstance(task, LedgerWalk):
        return judge_polls(task, setting) if task.table == "polls" else walk(task)
    return judge_offsets(task, setting)


def run_here(tasks: Sequence[Task], setting: Setting) -> list[list[Part]]:
    """A runner that does all tasks in this process, one after another."""
    return [judge_task(task, setting) for task in tasks]


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
    """Count everything that the ledgers of one run say; `cuts` are for `plan_cells`."""
    sizes = sizes or Sizes()
    setting = make_setting(ledger)
    planned = [extent.planned for extent in setting.extents.values()]
    cells = plan_cells(ledger, planned, rows_per_cell=sizes.rows_per_cell, cuts=cuts)
    walks = plan_walks(ledger, rows_per_walk=sizes.rows_per_walk)
    answers = runner([*cells, *walks], setting)
    of_cells, of_walks = answers[: len(cells)], answers[len(cells) :]
    setting = _settle_offsets(cells, of_cells, setting, runner)

    totals, summaries = Totals(), Summaries()
    for parts in of_cells:
        add_cell(parts, None if is_undecided(parts) else totals, summaries)
    for parts in of_walks:
        add_latencies(parts, totals)
    assignments = ledger.small_table("assignments")
    polls = gather_steps(of_walks, "receipts", _begins(assignments))
    tangled = _tangled_units(summaries)
    second = _Round(
        again=_undecided_cells(cells, of_cells, setting, (summaries, assignments)),
        order=_order_cells(cells, tangled, summaries),
        offsets=_offset_cells(ledger, setting, summaries, (polls, of_walks, sizes)),
    )
    more = runner(second.tasks(), setting)
    of_again = more[: len(second.again)]
    of_order = more[len(of_again) : len(of_again) + len(second.order)]
    of_offsets = more[len(of_again) + len(of_order) :]

    for parts in of_again:
        add_cell(parts, totals, None)
    settle_order(totals, summaries, tangled, of_order, stretch=setting.stretch)
    settle_tails(totals, Finding.TAIL_LOSS)
    settle_transactions(totals, summaries)
    settle_replication(totals)
    return Evidence(setting, totals, settle_polls(polls, of_offsets))


def _settle_offsets(
    cells: Sequence[MessageCell], answers: list[list[Part]], setting: Setting, runner: Runner
) -> Setting:
    """Ask again, in place, where an offset is evidence only if its transaction was seen.

    This is rare: an attempt in an open transaction that names an offset without an answer.
    """
    unsettled = [n for n, parts in enumerate(answers) if any(p.kind == "unsettled" for p in parts)]
    if not unsettled:
        return setting
    seen = [p.values for parts in answers for p in parts if p.kind == "seen transactions"]
    known = replace(setting, delivered_transactions=np.unique(np.concatenate([ints(), *seen])))
    for number, parts in zip(unsettled, runner([cells[n] for n in unsettled], known), strict=True):
        answers[number] = parts
    return known


def _begins(assignments: Iterable[dict[str, Any]]) -> dict[tuple[Any, ...], int]:
    """Where each reader was told to begin; if it was told twice, at the higher offset."""
    names = ("group", "consumer", "assignment", "topic", "partition")
    begins: dict[tuple[Any, ...], int] = {}
    for row in assignments:
        reader = tuple(row[name] for name in names)
        begins[reader] = max(row["offset"], begins.get(reader, 0))
    return begins


def _undecided_cells(
    cells: Sequence[MessageCell],
    answers: Sequence[list[Part]],
    setting: Setting,
    known: tuple[Summaries, list[dict[str, Any]]],
) -> list[MessageCell]:
    summaries, assignments = known
    assigned: dict[tuple[str, int], int] = {}
    for row in assignments:
        log = (row["topic"], row["partition"])
        assigned[log] = min(row["offset"], assigned.get(log, row["offset"]))
    knowledge = summaries.knowledge(setting, assigned)
    return [
        replace(c, knowledge=knowledge)
        for c, parts in zip(cells, answers, strict=True)
        if is_undecided(parts)
    ]


def _tangled_units(summaries: Summaries) -> dict[UnitName, Ints | None]:
    """Units whose cells interleave, with their zones; None for those in several partitions."""
    tangled: dict[UnitName, Ints | None] = {}
    for unit, rows in summaries.order.items():
        table = np.array(sorted(row.tolist() for row in rows), dtype=np.int64)
        if table[:, 9].min() != table[:, 10].max():
            tangled[unit] = None
        elif not are_apart(table):
            spans = [
                summaries.spans.get((unit, int(row[0])), row[2:4].reshape(1, 2)) for row in table
            ]
            tangled[unit] = zones(np.concatenate(spans))
    return tangled


def _order_cells(
    cells: Sequence[MessageCell], tangled: dict[UnitName, Ints | None], summaries: Summaries
) -> list[OrderCell]:
    wanted: dict[int, dict[UnitName, tuple[tuple[int, int], ...] | None]] = defaultdict(dict)
    for unit, found in tangled.items():
        spans = None if found is None else tuple(as_ranges(found))
        for row in summaries.order[unit]:
            wanted[int(row[0])][unit] = spans
    return [OrderCell(cell, wanted[cell.low]) for cell in cells if cell.low in wanted]


def _offset_cells(
    ledger: Ledger,
    setting: Setting,
    summaries: Summaries,
    context: tuple[Steps, list[list[Part]], Sizes],
) -> list[OffsetCell]:
    polls, of_walks, sizes = context
    scans = gather_steps(of_walks, "log", {})
    cells: list[OffsetCell] = []
    for cluster in ("source", "target"):
        doubtful = as_ranges(np.concatenate([ints(), *map(np.ravel, summaries.doubtful[cluster])]))
        # A scan that did not read its log upwards may have met an offset twice.
        again = [scans.spans[log] for log in scans.falls if log[0] == cluster]
        ranges = [*doubtful, *((low, high + 1) for low, high in again)]
        jumps = numbered_jumps(polls) if cluster == setting.read_cluster else []
        cells += plan_offset_cells(
            ledger,
            cluster,
            ranges,
            jumps=jumps,
            unproven=summaries.unproven if cluster == "source" else (),
            offsets_per_cell=sizes.offsets_per_cell,
        )
    return cells
