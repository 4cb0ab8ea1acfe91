"""An audit from ledger to result, in two rounds of tasks that read ledgers.

The first round reads every row once: message cells and walks. Their answers determine the second
round, which is mostly small or empty: cells that were undecided, cells of streams whose order
interleaves with other cells, offsets that are in doubt or were jumped over. If order interleaves,
a third round lists the messages that came late. A `Runner` may run the
tasks of a round in any order and on any machine. Exact percentiles take a few short rounds more,
which read latency runs (`times.runs`) and no ledger.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from shoal.audit.arrays import ints
from shoal.audit.context import AuditContext, build_context
from shoal.audit.gather.answers import combine_answers, gather_answers, keep_answer
from shoal.audit.memory import keep_freed_memory
from shoal.audit.parts import PartKind, TaskPart
from shoal.audit.plan import (
    OFFSETS_PER_CELL,
    ROWS_PER_CELL,
    ROWS_PER_WALK,
    Division,
    as_ranges,
    divide,
    plan_cells,
    plan_offset_cells,
    plan_stream_cells,
    plan_walks,
)
from shoal.audit.read.folder import Ledger
from shoal.audit.read.regroup import ROWS_PER_FILE, Regroup, regroup
from shoal.audit.read.regrouping import MOST_READS_PER_ROW, needs_regrouping, regroup_ledger
from shoal.audit.read.seen_transactions import SeenLookup, SeenTransactions, look_up
from shoal.audit.read.walk import GroupReaderKey, LogReaderKey, walk
from shoal.audit.result.conclude import Evidence, conclude
from shoal.audit.result.latencies import ROWS_READ_HERE, measure_latencies
from shoal.audit.result.merge import (
    Sinks,
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
from shoal.audit.result.streams import StreamTotals, reduce_streams
from shoal.audit.rules.cell import judge_cell
from shoal.audit.rules.offsets import check_offsets
from shoal.audit.rules.order_cell import collect_order_pieces, list_late_messages
from shoal.audit.rules.polls import OffsetSteps, gather_steps, number_jumps
from shoal.audit.stream_cells import (
    find_interleaved_units,
    judge_stream_cell,
    plan_late_cells,
    plan_order_cells,
)
from shoal.audit.tasks import (
    Combination,
    LateCell,
    LedgerWalk,
    MessageCell,
    OffsetCell,
    OrderCell,
    StreamCell,
    Task,
    Wanted,
)
from shoal.audit.times.faults import FaultWindow, all_faults
from shoal.audit.times.runs import Question, RankCount, count_ranks
from shoal.audit.times.segments import MOST_WINDOWS
from shoal.audit.times.staleness import judge_polls
from shoal.model.findings import Finding
from shoal.model.result import Result

Runner = Callable[[Sequence[Task], AuditContext], list[list[TaskPart]]]
_KEPT = (StreamCell, LedgerWalk, RankCount)  # tasks whose answers may be added up by tasks


@dataclass(frozen=True)
class Sizes:
    """How much work one task may have."""

    rows_per_cell: int = ROWS_PER_CELL
    rows_per_walk: int = ROWS_PER_WALK
    offsets_per_cell: int = OFFSETS_PER_CELL
    rows_per_file: int = ROWS_PER_FILE  # of regrouped rows
    reads_per_row: float = MOST_READS_PER_ROW  # with more, rows are regrouped
    rows_read_here: int = ROWS_READ_HERE  # of latency runs; more are counted by tasks
    # How many tasks share the streams; 0: cells are ranges of sequences; None: as `count_shares`.
    shares: int | None = None


def judge_task(task: Task, context: AuditContext) -> list[TaskPart]:
    """Run one task; its answer stays beside it if the audit adds answers up in tasks."""
    keep_freed_memory()
    parts = _judge(task, context)
    if context.keeps_answers and isinstance(task, _KEPT):
        return keep_answer(parts, context)
    return parts


def _judge(task: Task, context: AuditContext) -> list[TaskPart]:
    if isinstance(task, MessageCell):
        known = replace(task, knowledge=context.knowledge) if task.is_again else task
        return judge_cell(known, context)
    if isinstance(task, StreamCell):
        return judge_stream_cell(task, context)
    if isinstance(task, OrderCell):
        return collect_order_pieces(task, context)
    if isinstance(task, LateCell):
        return list_late_messages(task, context)
    if isinstance(task, LedgerWalk):
        return judge_polls(task, context) if task.table == "polls" else walk(task, context)
    if isinstance(task, SeenLookup):
        return look_up(task)
    if isinstance(task, Regroup):
        return regroup(task, context)
    if isinstance(task, Combination):
        return combine_answers(task, context)
    return count_ranks(task) if isinstance(task, RankCount) else check_offsets(task, context)


def run_here(tasks: Sequence[Task], context: AuditContext) -> list[list[TaskPart]]:
    """A `Runner` that runs all tasks in this process, one after another."""
    return [judge_task(task, context) for task in tasks]


@dataclass
class _Round:
    """The tasks of the second round, by kind, in the order in which they are run."""

    again: list[MessageCell | StreamCell] = field(default_factory=list)
    order: list[OrderCell] = field(default_factory=list)
    offsets: list[OffsetCell] = field(default_factory=list)

    def tasks(self) -> list[Task]:
        return [*self.again, *self.order, *self.offsets]


def audit(
    ledger: Ledger,
    runner: Runner = run_here,
    *,
    sizes: Sizes | None = None,
    scratch: Path | str | None = None,
) -> Result:
    """Judge the ledgers of one run."""
    return conclude(ledger, examine(ledger, runner, sizes=sizes, scratch=scratch))


def examine(
    ledger: Ledger,
    runner: Runner = run_here,
    *,
    sizes: Sizes | None = None,
    context: AuditContext | None = None,
    division: Division | None = None,
    has_rows: bool = True,
    scratch: Path | str | None = None,
) -> Evidence:
    """Count everything that the ledgers of one run record.

    `context` and `division` are those of `build_context` and `divide_messages`, if the caller has
    them. Without `has_rows` the runner brings the rows of messages to their tasks.
    `scratch` is a folder, or its URL, that all tasks can write to; without one they return what
    they would put there.
    """
    sizes = sizes or Sizes()
    context = context or build_context(ledger)
    division = division or divide_messages(ledger, context, sizes)
    if scratch is not None:
        context = replace(context, scratch=str(scratch), keeps_answers=division.shares > 0)
    by_stream = ledger
    if has_rows:
        by_stream = _group_by_streams(ledger, division, context, runner, sizes=sizes)
    cells = _plan_messages(by_stream, context, division, has_rows=has_rows)
    walks = plan_walks(ledger, rows_per_walk=sizes.rows_per_walk)
    answers = runner([*cells, *walks], context)
    of_cells, of_walks = answers[: len(cells)], answers[len(cells) :]
    context = _settle_offsets(cells, of_cells, context, runner)
    faults = all_faults(folder.commits for folder in ledger.folders)
    first = _FirstRound(of_cells, of_walks, faults)
    summed, of_walks = first.gather(runner, context)
    totals, streams, summaries = _add_first_round(summed, of_walks)
    assignments = ledger.small_table("assignments")
    polls = gather_steps(of_walks, GroupReaderKey, find_assignment_starts(assignments))
    interleaved = find_interleaved_units(summaries)
    second = _plan_again(cells, of_cells)
    by_range = [cell for cell in cells if isinstance(cell, MessageCell)]
    second.order = plan_order_cells(by_range, interleaved, summaries)
    walked = (polls, of_walks, sizes)
    second.offsets = _plan_doubtful_offsets(ledger, context, summaries, walked)
    if second.again:
        context = _with_knowledge(context, summaries, assignments, runner)
    more = runner(second.tasks(), context)
    of_again = more[: len(second.again)]
    of_order = more[len(of_again) : len(of_again) + len(second.order)]
    of_offsets = more[len(of_again) + len(of_order) :]
    for parts in first.gather_again(of_again, runner, context):
        add_cell(parts, Sinks(totals, streams))
    sinks = (totals, streams)
    came_late = settle_order(sinks, summaries, interleaved, of_order, stretch=context.stretch)
    for parts in runner(plan_late_cells(second.order, came_late, context), context):
        add_cell(parts, Sinks(totals))
    totals.accept_late_files(except_of={order.cell.low for order in second.order})
    settle_tails(totals, streams, Finding.TAIL_LOSS)
    settle_transactions(totals, streams, summaries.seen, lambda tasks: runner(tasks, context))
    settle_replication(totals)
    add_cell(reduce_streams(streams, context, groups=context.groups), Sinks(totals))
    latencies = measure_latencies(
        context,
        totals,
        faults,
        lambda tasks, questions: _count_ranks(tasks, questions, runner, context),
        rows_read_here=sizes.rows_read_here,
    )
    return Evidence(context, totals, settle_polls(polls, of_offsets), latencies)


def _group_by_streams(
    ledger: Ledger, division: Division, context: AuditContext, runner: Runner, *, sizes: Sizes
) -> Ledger:
    """Return the rows as tasks that divide the streams read them."""
    if not context.keeps_answers or not needs_regrouping(ledger, division, sizes.reads_per_row):
        return ledger
    return regroup_ledger(ledger, division, context, runner, rows_per_file=sizes.rows_per_file)


@dataclass
class _FirstRound:
    """Answers of the first round, which tasks add up if they were kept.

    If a cell was undecided, all sums wait for the second round then: what is reduced to a few
    numbers must be whole.
    """

    of_cells: list[list[TaskPart]]
    of_walks: list[list[TaskPart]]
    faults: Sequence[FaultWindow]

    def gather(
        self, runner: Runner, context: AuditContext
    ) -> tuple[list[list[TaskPart]], list[list[TaskPart]]]:
        """Return the answers of cells and of walks, or their sums."""
        if not context.keeps_answers:
            return self.of_cells, self.of_walks
        last = self._last("all" if self._decided == self.of_cells else "summaries")
        whole = gather_answers([*self.of_cells, *self.of_walks], last, runner, context)
        of_walks = [part for part in whole if part.kind in (PartKind.WALK, PartKind.JUMPS)]
        of_cells = [part for part in whole if part.kind not in (PartKind.WALK, PartKind.JUMPS)]
        return [of_cells], [of_walks]

    def gather_again(
        self, of_again: list[list[TaskPart]], runner: Runner, context: AuditContext
    ) -> list[list[TaskPart]]:
        """Return the answers of the second round, or the sums that waited for it."""
        if not context.keeps_answers or not of_again:
            return of_again
        answers = [*self._decided, *self.of_walks, *of_again]
        return [gather_answers(answers, self._last("sums"), runner, context)]

    @property
    def _decided(self) -> list[list[TaskPart]]:
        return [parts for parts in self.of_cells if not is_undecided(parts)]

    def _last(self, wanted: Wanted) -> Combination:
        return Combination((), wanted, faults=tuple(self.faults[:MOST_WINDOWS]))


def _count_ranks(
    tasks: Sequence[RankCount],
    questions: Sequence[Question],
    runner: Runner,
    context: AuditContext,
) -> list[list[TaskPart]]:
    answers = runner(tasks, context)
    if not context.keeps_answers:
        return answers
    last = Combination((), questions=tuple(questions))
    return [
        [
            part
            for part in gather_answers(answers, last, runner, context)
            if part.kind is not PartKind.STREAMS
        ]
    ]


def _add_first_round(
    of_cells: Iterable[list[TaskPart]], of_walks: Iterable[list[TaskPart]]
) -> tuple[Totals, StreamTotals, Summaries]:
    """Add the first answers; those of undecided cells only to the summaries."""
    totals, streams, summaries = Totals(), StreamTotals(), Summaries()
    for parts in of_cells:
        is_open = is_undecided(parts)
        add_cell(parts, Sinks(None if is_open else totals, None if is_open else streams, summaries))
    for parts in of_walks:
        add_latencies(parts, totals)
    return totals, streams, summaries


def divide_messages(
    ledger: Ledger, context: AuditContext, sizes: Sizes, *, cuts: Sequence[int] = ()
) -> Division:
    """Divide the messages among tasks: by ranges of sequences, or by streams."""
    return divide(
        ledger,
        len(context.extents),
        rows_per_cell=sizes.rows_per_cell,
        shares=sizes.shares,
        cuts=cuts,
    )


def _plan_messages(
    ledger: Ledger, context: AuditContext, division: Division, *, has_rows: bool
) -> Sequence[MessageCell | StreamCell]:
    """Plan the tasks that judge messages."""
    planned = [extent.planned for extent in context.extents.values()]
    if division.shares:
        return plan_stream_cells(ledger, planned, division, has_rows=has_rows)
    return plan_cells(ledger, planned, cuts=division.cuts, has_rows=has_rows)


def _settle_offsets(
    cells: Sequence[MessageCell | StreamCell],
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
    seen, wanted = SeenTransactions(), [ints()]
    for part in (part for parts in answers for part in parts):
        if part.kind in (PartKind.SEEN_TRANSACTIONS, PartKind.SEEN_FILE):
            seen.add(part)
        elif part.kind is PartKind.UNSETTLED:
            wanted.append(part.values)
    found = seen.find_in_any(np.concatenate(wanted), lambda tasks: runner(tasks, context))
    known = replace(context, delivered_transactions=found)
    for number, parts in zip(unsettled, runner([cells[n] for n in unsettled], known), strict=True):
        answers[number] = parts
    return known


def find_assignment_starts(assignments: Iterable[dict[str, Any]]) -> dict[GroupReaderKey, int]:
    """Return the start offset of each assignment; of two for one reader, the higher one."""
    begins: dict[GroupReaderKey, int] = {}
    for row in assignments:
        reader = GroupReaderKey(*(row[name] for name in GroupReaderKey._fields))
        begins[reader] = max(row["offset"], begins.get(reader, 0))
    return begins


def _plan_again(
    cells: Sequence[MessageCell | StreamCell], answers: Sequence[list[TaskPart]]
) -> _Round:
    """Plan to judge the cells again that were undecided."""
    return _Round(
        [
            replace(cell, is_again=True)
            for cell, parts in zip(cells, answers, strict=True)
            if is_undecided(parts)
        ]
    )


def _with_knowledge(
    context: AuditContext,
    summaries: Summaries,
    assignments: list[dict[str, Any]],
    runner: Runner,
) -> AuditContext:
    """Return the context of the second round: it has what all cells together show."""
    assigned: dict[tuple[str, int], int] = {}
    for row in assignments:
        log = (row["topic"], row["partition"])
        assigned[log] = min(row["offset"], assigned.get(log, row["offset"]))
    wanted = np.concatenate([ints(), *summaries.wanted_transactions])
    found = summaries.seen.find_in_any(wanted, lambda tasks: runner(tasks, context))
    return replace(context, knowledge=summaries.knowledge(context, assigned, found))


def _plan_doubtful_offsets(
    ledger: Ledger,
    context: AuditContext,
    summaries: Summaries,
    walked: tuple[OffsetSteps[GroupReaderKey], list[list[TaskPart]], Sizes],
) -> list[OffsetCell]:
    polls, of_walks, sizes = walked
    scans = gather_steps(of_walks, LogReaderKey, {})
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
