"""Findings that need the answers of several tasks: order across cells, polls across ledgers."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from shoal.audit.arrays import Ints
from shoal.audit.columns import OrderColumn
from shoal.audit.context import Log
from shoal.audit.parts import PartKind, TaskPart
from shoal.audit.read.walk import GroupReaderKey
from shoal.audit.result.merge import Group, Summaries, Totals
from shoal.audit.result.streams import StreamTotals
from shoal.audit.rules.order import (
    CLEAN,
    OrderMeasure,
    RunPieces,
    Units,
    by_key,
    late_pieces,
    measure,
    pieces_of,
)
from shoal.audit.rules.polls import OffsetStep, OffsetSteps
from shoal.audit.rules.tally import ORDER_FINDINGS
from shoal.audit.tasks import UnitName

_NO_ROWS: Final = np.empty((0, 2), dtype=np.int64)


def settle_order(
    sinks: tuple[Totals, StreamTotals],
    summaries: Summaries,
    interleaved: dict[UnitName, Ints | None],
    answers: Iterable[list[TaskPart]],
    *,
    stretch: int,
) -> dict[UnitName, Ints]:
    """Add the order measures of every unit: from its cells, or from its pieces if interleaved.

    Late messages are counted in bins of `stretch` sequences. Return what came late in interleaved
    units: rows of (first sequence, last sequence).
    """
    came_late: dict[UnitName, Ints] = {}
    pieces_by_unit = _gather_pieces(answers, interleaved, stretch)
    for unit, rows in summaries.order.items():
        if len(rows) == 1 and unit not in interleaved and not rows[0][OrderColumn.REORDERED]:
            _add(sinks, unit, int(rows[0][OrderColumn.COUNT]), _IN_ORDER)
            continue
        table = np.stack(rows)
        if unit in interleaved:
            pieces = pieces_by_unit[unit]
            late = late_pieces(pieces)
            places = pieces.first_sequence[late] // stretch
            marks = np.stack([places, pieces.length[late]], axis=1)
            by_segment = np.stack([pieces.segment[late], pieces.length[late]], axis=1)
            found = _FoundOrder(measure(pieces), marks, by_segment)
            spans = [pieces.first_sequence[late], pieces.last_sequence[late]]
            came_late[unit] = np.stack(spans, axis=1)
        else:
            lows = table[:, OrderColumn.LOW].tolist()
            marks, by_segment = (
                np.concatenate(
                    [_NO_ROWS, *(held[unit, low] for low in lows if (unit, low) in held)]
                )
                for held in (summaries.late, summaries.late_segments)
            )
            found = _FoundOrder(_sum(table), marks, by_segment)
        _add(sinks, unit, int(table[:, OrderColumn.COUNT].sum()), found)
    return came_late


class _FoundOrder(NamedTuple):
    """The measures of a unit; rows of (stretch, late messages) and (segment, late messages)."""

    measured: OrderMeasure
    marks: Ints
    by_segment: Ints


_IN_ORDER: Final = _FoundOrder(CLEAN, _NO_ROWS, _NO_ROWS)


def _gather_pieces(
    answers: Iterable[list[TaskPart]], interleaved: dict[UnitName, Ints | None], stretch: int
) -> dict[UnitName, RunPieces]:
    tables: dict[UnitName, list[Ints]] = defaultdict(list)
    for part in (part for parts in answers for part in parts):
        tables[UnitName(*part.label)].append(part.rows)
    pieces_by_unit = {}
    for name, found in tables.items():
        rows = np.concatenate(found)
        if interleaved[name] is None:
            pieces_by_unit[name] = _by_time(rows, stretch)
        else:
            pieces_by_unit[name] = by_key(RunPieces(*rows.T))
    return pieces_by_unit


def _by_time(rows: Ints, stretch: int) -> RunPieces:
    """Return the pieces of a stream in several partitions.

    Arrival is by time, then by ledger order.
    """
    sequence, time_us, key, segment = rows[np.argsort(rows[:, 0])].T
    rank = np.empty(len(sequence), dtype=np.int64)
    rank[np.lexsort((key, time_us))] = np.arange(len(sequence))
    same = np.zeros(len(sequence), dtype=np.int64)
    return pieces_of(Units(same, same, sequence, rank, same, segment, same), _NO_ROWS, stretch)


def _sum(table: Ints) -> OrderMeasure:
    """Add up the measures of cells that do not interleave; the witness is the lowest."""
    found = table[table[:, OrderColumn.REORDERED] > 0]
    if not len(found):
        return CLEAN
    lowest = found[np.argmin(found[:, OrderColumn.WITNESS])]
    return OrderMeasure(
        F=int(found[:, OrderColumn.F].sum()),
        K=int(found[:, OrderColumn.K].sum()),
        reordered=int(found[:, OrderColumn.REORDERED].sum()),
        witness=int(lowest[OrderColumn.WITNESS]),
        witness_after=int(lowest[OrderColumn.WITNESS_AFTER]),
    )


def _add(
    sinks: tuple[Totals, StreamTotals], unit: UnitName, count: int, found: _FoundOrder
) -> None:
    totals, streams = sinks
    is_log = unit.kind != "consumers"
    group: Group = None if is_log else unit.group
    stream, finding, measured = unit.stream, ORDER_FINDINGS[unit.kind], found.measured
    if not is_log:
        streams.find(group, "F", stream, measured.F)
        streams.find(group, "K", stream, measured.K)
        streams.find(group, "F_limit", stream, count * count // 2)
    if not measured.reordered:
        return
    streams.find(group, finding, stream, measured.reordered)
    details: dict[str, Any] = {**stream.to_witness(), "sequence": measured.witness}
    details["after_sequence"] = measured.witness_after
    if is_log:
        details["partition"] = unit.partition
    totals.witness(group, finding, details)
    for place, times in found.marks.tolist():
        streams.marks[group, finding][stream, place] += times
    for segment, times in found.by_segment.tolist():
        totals.segments[group, finding][segment] += times


# ---------------------------------------------------------------- polls


CountedStep = tuple[
    OffsetStep[GroupReaderKey], int
]  # with the skipped offset, or the number of falls


class ContestedOffsets(NamedTuple):
    """Offsets of one log with two messages each."""

    log: Log
    offset: int  # the lowest
    offsets: int  # how many
    messages: list[Any]  # two of those at the lowest: (producer, lane, sequence, incarnation)


@dataclass
class PollFindings:
    """Findings about offsets: polls by group, contested offsets for all groups."""

    skips: dict[str, list[CountedStep]] = field(default_factory=lambda: defaultdict(list))
    falls: dict[str, list[CountedStep]] = field(default_factory=lambda: defaultdict(list))
    contested: list[ContestedOffsets] = field(default_factory=list)


def settle_polls(
    steps: OffsetSteps[GroupReaderKey], answers: Sequence[list[TaskPart]]
) -> PollFindings:
    polls = PollFindings()
    for reader, count in steps.falls.items():
        polls.falls[reader.group].append((steps.least_fall[reader], count))
    skipped: dict[int, int] = {}
    for part in (part for parts in answers for part in parts):
        if part.kind == PartKind.SKIPS:
            for number, offset in part.rows.tolist():
                skipped[number] = min(offset, skipped.get(number, offset))
        elif part.kind == PartKind.CONTESTED:
            cluster, topic, partition, messages = part.label
            count, offset = part.values.tolist()
            log = (cluster, topic, partition)
            polls.contested.append(ContestedOffsets(log, offset, count, messages))
    for number, offset in skipped.items():
        step = steps.jumps[number]
        polls.skips[step.reader.group].append((step, offset))
    return polls
