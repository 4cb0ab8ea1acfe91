"""Findings that no single task can make: order across cells, polls across ledgers."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from shoal.audit.arrays import NONE, Ints
from shoal.audit.context import Stream
from shoal.audit.parts import Part
from shoal.audit.result.merge import Group, Summaries, Totals
from shoal.audit.rules.order import (
    SUMMARY,
    Measure,
    Pieces,
    Units,
    by_key,
    late_pieces,
    measure,
    pieces_of,
)
from shoal.audit.rules.polls import Step, Steps
from shoal.audit.tasks import UnitName
from shoal.model.findings import Finding

_NO_ROWS: Final = np.empty((0, 2), dtype=np.int64)

FINDINGS = {
    "consumers": Finding.REORDERED,
    "source": Finding.REORDERED_SOURCE,
    "target": Finding.REORDERED_TARGET,
}


def settle_order(
    totals: Totals,
    summaries: Summaries,
    tangled: dict[UnitName, Ints | None],
    answers: Iterable[list[Part]],
    *,
    stretch: int,
) -> None:
    """Order of every unit, from its cells where they are apart, else from its pieces."""
    handed = _handed_out(answers, tangled, stretch)
    for unit, rows in summaries.order.items():
        table = np.array([row.tolist() for row in rows], dtype=np.int64)
        if unit in tangled:
            pieces = handed[unit]
            late = late_pieces(pieces)
            places = pieces.first_sequence[late] // stretch
            marks = np.stack([places, pieces.length[late]], axis=1)
            by_segment = np.stack([pieces.segment[late], pieces.length[late]], axis=1)
            found = _Found(measure(pieces), marks, by_segment)
        else:
            lows = table[:, 0].tolist()
            marks, by_segment = (
                np.concatenate(
                    [_NO_ROWS, *(held[unit, low] for low in lows if (unit, low) in held)]
                )
                for held in (summaries.late, summaries.late_segments)
            )
            found = _Found(_sum(table), marks, by_segment)
        _add(totals, unit, int(table[:, 1].sum()), found)


class _Found(NamedTuple):
    """The measures of a unit; rows of (stretch, late ones) and of (segment, late ones)."""

    measured: Measure
    marks: Ints
    by_segment: Ints


def _handed_out(
    answers: Iterable[list[Part]], tangled: dict[UnitName, Ints | None], stretch: int
) -> dict[UnitName, Pieces]:
    tables: dict[UnitName, list[Ints]] = defaultdict(list)
    for part in (part for parts in answers for part in parts):
        name: UnitName = tuple(part.label)
        tables[name].append(part.values.reshape(-1, 4 if tangled[name] is None else 6))
    handed = {}
    for name, found in tables.items():
        rows = np.concatenate(found)
        if tangled[name] is None:
            handed[name] = _by_time(rows, stretch)
        else:
            handed[name] = by_key(Pieces(*rows.T))
    return handed


def _by_time(rows: Ints, stretch: int) -> Pieces:
    """A stream in several partitions: arrival is by time, and in ledger order within that."""
    sequence, time_us, key, segment = rows[np.argsort(rows[:, 0])].T
    rank = np.empty(len(sequence), dtype=np.int64)
    rank[np.lexsort((key, time_us))] = np.arange(len(sequence))
    same = np.zeros(len(sequence), dtype=np.int64)
    return pieces_of(Units(same, same, sequence, rank, same, segment), _NO_ROWS, stretch)


def _sum(table: Ints) -> Measure:
    """The measures of cells that are apart add up; the witness is the lowest."""
    columns = {name: table[:, number] for number, name in enumerate(SUMMARY)}
    found = np.flatnonzero(columns["reordered"])
    lowest = found[np.argmin(columns["witness"][found])] if len(found) else NONE
    return Measure(
        F=int(columns["F"].sum()),
        K=int(columns["K"].sum()),
        reordered=int(columns["reordered"].sum()),
        witness=int(columns["witness"][lowest]) if len(found) else NONE,
        witness_after=int(columns["witness_after"][lowest]) if len(found) else NONE,
    )


def _add(totals: Totals, unit: UnitName, count: int, found: _Found) -> None:
    kind, group_name, producer, topic, lane, incarnation, partition = unit
    group: Group = group_name if kind == "consumers" else None
    stream, finding = Stream(producer, topic, lane, incarnation), FINDINGS[kind]
    measured = found.measured
    if kind == "consumers":
        totals.find(group, "F", stream, measured.F)
        totals.find(group, "K", stream, measured.K)
        totals.find(group, "F_limit", stream, count * count // 2)
    if not measured.reordered:
        return
    totals.find(group, finding, stream, measured.reordered)
    details: dict[str, Any] = {**stream.described(), "sequence": measured.witness}
    details["after_sequence"] = measured.witness_after
    if kind != "consumers":
        details["partition"] = partition
    totals.witness(group, finding, details)
    for place, times in found.marks.tolist():
        totals.marks[group, finding][stream, place] += times
    for segment, times in found.by_segment.tolist():
        totals.segments[group, finding][segment] += times


# ---------------------------------------------------------------- polls


@dataclass
class Polls:
    """Findings about offsets: by group for polls, for all groups for contested offsets."""

    skips: dict[str, list[tuple[Step, int]]] = field(default_factory=lambda: defaultdict(list))
    falls: dict[str, list[tuple[Step, int]]] = field(default_factory=lambda: defaultdict(list))
    # (cluster, topic, partition), lowest such offset, how many, two of the messages there
    contested: list[tuple[tuple[str, str, int], int, int, list[Any]]] = field(default_factory=list)


def settle_polls(steps: Steps, answers: Sequence[list[Part]]) -> Polls:
    polls = Polls()
    for reader, count in steps.falls.items():
        polls.falls[reader[0]].append((steps.least_fall[reader], count))
    skipped: dict[int, int] = {}
    for part in (part for parts in answers for part in parts):
        if part.kind == "skips":
            for number, offset in part.values.reshape(-1, 2).tolist():
                skipped[number] = min(offset, skipped.get(number, offset))
        elif part.kind == "contested":
            cluster, topic, partition, messages = part.label
            count, offset = part.values.tolist()
            polls.contested.append(((cluster, topic, partition), offset, count, messages))
    for number, offset in skipped.items():
        step = steps.jumps[number]
        polls.skips[step.reader[0]].append((step, offset))
    return polls
