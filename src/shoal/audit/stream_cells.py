"""Judges and settles all sequences of some streams in one task.

Of such a task only sums leave, so what the driver receives does not grow with the number of
streams. A task whose cells need knowledge about other streams (how far a log was read, say) returns
its share of that knowledge, and is run again with the whole.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from shoal.audit.arrays import Ints, ints
from shoal.audit.columns import OrderColumn
from shoal.audit.context import AuditContext, Stream
from shoal.audit.gather.combine import WITH_STREAMS, combine
from shoal.audit.gather.join_files import join_files
from shoal.audit.parts import PartKind, TaskPart, make_part
from shoal.audit.plan import as_ranges
from shoal.audit.result.merge import (
    STREAM_KINDS,
    SUMMARY_KINDS,
    Sinks,
    Summaries,
    Totals,
    add_cell,
    add_unreadable_witness,
    is_undecided,
    settle_tails,
)
from shoal.audit.result.settle import settle_order
from shoal.audit.result.streams import StreamTotals, reduce_streams
from shoal.audit.rules.cell import judge_cell
from shoal.audit.rules.order import find_zones, has_disjoint_keys
from shoal.audit.rules.order_cell import collect_order_pieces, list_late_messages
from shoal.audit.tasks import LateCell, MessageCell, OrderCell, StreamCell, UnitName
from shoal.model.findings import Finding

# Parts that only the cells of the same streams need.
_SETTLED_HERE: Final = (
    *(PartKind.STREAMS, PartKind.ORDER, PartKind.SPANS, PartKind.LATE, PartKind.LATE_SEGMENTS),
    *(PartKind.LAST_IN_TARGET, PartKind.DELIVERED_UNTIL, PartKind.PLACED_SINCE),
    PartKind.LATE_FILE,
    *STREAM_KINDS,
)
NO_SPANS: Final = np.empty((0, 2), dtype=np.int64)


def judge_stream_cell(task: StreamCell, context: AuditContext) -> list[TaskPart]:
    """Judge the cells of the task; return one answer for all of them."""
    return join_files(combine([_judge_cells(task, context)]), context.scratch)


def _judge_cells(task: StreamCell, context: AuditContext) -> list[TaskPart]:
    answers = [judge_cell(cell, context) for cell in task.cells]
    summaries = Summaries()
    for parts in answers:
        add_cell(parts, Sinks(summaries=summaries))
    undecided = [is_undecided(parts) for parts in answers]
    if any(undecided) and not task.is_again:
        known = [part for parts in answers for part in parts if part.kind in SUMMARY_KINDS]
        kept = [*_renumber(answers, known), *_pass_on(known)]
        unsettled = [p for parts in answers for p in parts if p.kind == PartKind.UNSETTLED]
        return [*kept, *unsettled, make_part(PartKind.UNDECIDED, None)]
    if any(undecided):
        answers = [
            _judge_again(cell, context, summaries) if is_open else parts
            for cell, parts, is_open in zip(task.cells, answers, undecided, strict=True)
        ]
    every = [part for parts in answers for part in parts]
    settled = _settle(task.cells, answers, summaries, context)
    return [*_renumber(answers, every), *_pass_on(every), *settled]


def _judge_again(cell: MessageCell, context: AuditContext, summaries: Summaries) -> list[TaskPart]:
    own = summaries.knowledge(context, {}, ints())
    known = context.knowledge and replace(
        context.knowledge,
        delivered_until=own.delivered_until,
        placed_since=own.placed_since,
        last_in_target=own.last_in_target,
    )
    return judge_cell(replace(cell, is_again=True, knowledge=known), context)


def _pass_on(parts: Iterable[TaskPart]) -> Iterator[TaskPart]:
    """Return the parts that the driver adds up as they are."""
    omitted = (*_SETTLED_HERE, *WITH_STREAMS, PartKind.UNDECIDED)
    return (part for part in parts if part.kind not in omitted)


def _renumber(
    answers: Iterable[Sequence[TaskPart]], wanted: Sequence[TaskPart]
) -> Iterator[TaskPart]:
    """Return the parts that name streams, with one numbering for all cells of the task."""
    numbers: dict[Stream, int] = {}
    found: list[TaskPart] = []
    chosen = {id(part) for part in wanted}
    for parts in answers:
        label = next(part.label for part in parts if part.kind == PartKind.STREAMS)
        for part in parts:
            if id(part) in chosen and part.kind in WITH_STREAMS and len(part.values):
                column = WITH_STREAMS[part.kind]
                rows = part.rows.copy()
                own, places = np.unique(rows[:, column], return_inverse=True)
                new = [numbers.setdefault(Stream(*label[n]), len(numbers)) for n in own.tolist()]
                rows[:, column] = np.array(new, dtype=np.int64)[places]
                found.append(make_part(part.kind, part.label, rows))
    yield make_part(PartKind.STREAMS, [list(stream) for stream in numbers])
    yield from found


def _settle(
    cells: Sequence[MessageCell],
    answers: Sequence[list[TaskPart]],
    summaries: Summaries,
    context: AuditContext,
) -> list[TaskPart]:
    """Return the sums over all streams of the task, and the findings about whole streams."""
    totals, streams = Totals(), StreamTotals()
    for parts in answers:
        add_cell(parts, Sinks(streams=streams))
        for part in parts:
            if part.kind == PartKind.UNREADABLE:
                add_unreadable_witness(totals, part)
    interleaved = find_interleaved_units(summaries)
    orders = plan_order_cells(cells, interleaved, summaries)
    pieces = [collect_order_pieces(order, context) for order in orders]
    sinks = (totals, streams)
    came_late = settle_order(sinks, summaries, interleaved, pieces, stretch=context.stretch)
    late_files = [
        part
        for parts in answers
        for part in parts
        if part.kind == PartKind.LATE_FILE and part.label[-1] not in {o.cell.low for o in orders}
    ]
    for late in plan_late_cells(orders, came_late, context):
        late_files += list_late_messages(late, context)
    settle_tails(totals, streams, Finding.TAIL_LOSS)
    witnesses = [
        make_part(PartKind.WITNESS, [group, finding, details], [details["sequence"]])
        for (group, finding), details in totals.witnesses.items()
    ]
    return [
        *witnesses,
        *(part._replace(kind=PartKind.ANOMALY_FILE) for part in late_files),
        *_segment_parts(totals, context),
        *reduce_streams(streams, context, groups=context.groups),
    ]


def _segment_parts(totals: Totals, context: AuditContext) -> Iterator[TaskPart]:
    for (group, name), counts in totals.segments.items():
        column = np.zeros(len(context.edges_us) + 1, dtype=np.int64)
        for segment, count in counts.items():
            column[segment] += count
        yield make_part(PartKind.SEGMENTS, [group, [name]], column)


# ---------------------------------------------------------------- order across cells


def find_interleaved_units(summaries: Summaries) -> dict[UnitName, Ints | None]:
    """Find the units whose cells interleave, with their zones.

    The zones are None for units that are in several partitions.
    """
    interleaved: dict[UnitName, Ints | None] = {}
    for unit, rows in summaries.order.items():
        if len(rows) == 1 and (
            rows[0][OrderColumn.PARTITION] == rows[0][OrderColumn.LAST_PARTITION]
        ):
            continue
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


def plan_order_cells(
    cells: Sequence[MessageCell], interleaved: dict[UnitName, Ints | None], summaries: Summaries
) -> list[OrderCell]:
    wanted: dict[int, dict[UnitName, tuple[tuple[int, int], ...] | None]] = defaultdict(dict)
    for unit, found in interleaved.items():
        spans = None if found is None else tuple(as_ranges(found))
        for row in summaries.order[unit]:
            wanted[int(row[OrderColumn.LOW])][unit] = spans
    return [OrderCell(cell, wanted[cell.low]) for cell in cells if cell.low in wanted]


def plan_late_cells(
    orders: Sequence[OrderCell], came_late: dict[UnitName, Ints], context: AuditContext
) -> list[LateCell]:
    """Plan to list what came late in cells with units that interleave, if it is kept."""
    if context.scratch is None:
        return []
    cells = []
    for order in orders:
        spans = {unit: came_late.get(unit, NO_SPANS) for unit in order.units}
        own = {
            unit: rows[(rows[:, 1] >= order.cell.low) & (rows[:, 0] < order.cell.high)]
            for unit, rows in spans.items()
        }
        cells.append(LateCell(order.cell, {unit: tuple(as_ranges(r)) for unit, r in own.items()}))
    return cells
