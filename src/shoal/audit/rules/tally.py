"""Records the counts and findings of one cell as parts.

Streams are numbered within the cell; the first part contains their names. Counts are per stream. A
finding has a count, its smallest witness (by topic, producer, lane, sequence) and marks for the
strips of the report.
"""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from shoal.audit.arrays import (
    NONE,
    Array,
    Bools,
    Ints,
    counts_of_values,
    ends_of_groups,
    ints,
)
from shoal.audit.columns import OrderColumn
from shoal.audit.parts import PartKind, TaskPart, make_part
from shoal.audit.read.evidence import NEVER, Deliveries, Places, offset_of, partition_of
from shoal.audit.read.seen_transactions import record_seen
from shoal.audit.read.view import CellView
from shoal.audit.rules.anomalies import AnomalyRows
from shoal.audit.rules.order import Units, late_elements, summarise
from shoal.audit.tasks import UnitKind
from shoal.audit.times.latency import histogram
from shoal.audit.times.runs import record_latencies
from shoal.audit.times.segments import histogram_by_segment
from shoal.model.findings import Finding
from shoal.model.ledger import OUTCOMES

_MOST_PLACES = 8  # in a witness

ORDER_FINDINGS: Final[Mapping[UnitKind, Finding]] = {
    "consumers": Finding.REORDERED,
    "source": Finding.REORDERED_SOURCE,
    "target": Finding.REORDERED_TARGET,
}


class CellRecorder:
    """Collects the parts of one cell."""

    def __init__(self, view: CellView, outcome: Array) -> None:
        self._view, self._outcome = view, outcome
        self._tallies: dict[str | None, dict[str, Ints]] = {}
        self._segments: dict[str | None, dict[str, Ints]] = {}
        self._latencies: list[tuple[str | None, str, Ints]] = []
        self._anomalies, self._late = AnomalyRows(), AnomalyRows()
        self._parts = [make_part(PartKind.STREAMS, [list(stream) for stream in view.index.streams])]

    def parts(self) -> list[TaskPart]:
        """Return all parts, once; of a cell that is judged again no file is written."""
        if not any(part.kind is PartKind.UNDECIDED for part in self._parts):
            self._parts += record_latencies(self._latencies, self._view.context.scratch)
            self._parts += self._anomalies.write(self._view, self._outcome)
            self._parts += self._late.write(self._view, self._outcome, PartKind.LATE_FILE)
        counted = ((PartKind.TALLY, self._tallies), (PartKind.SEGMENTS, self._segments))
        return self._parts + [
            make_part(kind, [group, list(counts)], np.stack(list(counts.values()), axis=1))
            for kind, by_group in counted
            for group, counts in by_group.items()
        ]

    def write(self, kind: PartKind, label: Any, rows: Any = ()) -> None:
        self._parts.append(make_part(kind, label, rows))

    def record_seen(self, group: str, transactions: Ints) -> None:
        """Record of which transactions a group received a message."""
        self._parts += record_seen(group, transactions, self._view.context.scratch)

    def add(self, group: str | None, name: str, per_stream: Ints) -> None:
        tally = self._tallies.setdefault(group, {})
        tally[name] = tally[name] + per_stream if name in tally else per_stream

    def count(self, group: str | None, name: str, slots: Ints) -> None:
        """Count each slot; a slot given several times counts as often."""
        if len(slots):
            self.add(group, name, self._view.index.count_per_stream(slots))
            self.count_times(group, name, self._view.segments(slots))

    def count_times(self, group: str | None, name: str, segments: Ints) -> None:
        """Count the entries by segment of time; NONE is left out."""
        edges_us = self._view.context.edges_us
        if edges_us:
            counts = np.bincount(segments + 1, minlength=len(edges_us) + 2)[1:]
            held = self._segments.setdefault(group, {})
            held[name] = held[name] + counts if name in held else counts

    def measure(self, group: str | None, name: str, slots: Ints, waits_us: Ints) -> None:
        """Record a latency of each slot."""
        if self._view.context.edges_us:
            rows = histogram_by_segment(self._view.segment[slots], waits_us)
        else:
            rows = np.insert(histogram(waits_us), 0, 0, axis=1)
        self._latencies.append((group, name, rows))

    def find(
        self,
        group: str | None,
        finding: Finding,
        slots: Ints,
        *,
        deliveries: Deliveries | None = None,
    ) -> None:
        """Record a finding in each slot; a slot given several times counts as often."""
        if not len(slots):
            return
        self.count(group, finding, slots)
        self._anomalies.add(group, finding, slots, deliveries)
        details = self.describe(int(slots.min()), deliveries)
        self.write(PartKind.WITNESS, [group, finding, details], [details["sequence"]])
        index = self._view.index
        self.mark(group, finding, index.stream_of(slots), index.sequence_of(slots))

    def list_late(
        self, group: str | None, kind: UnitKind, slots: Ints, deliveries: Deliveries | None
    ) -> None:
        """List messages that came late within the cell."""
        self._late.add(group, ORDER_FINDINGS[kind], slots, deliveries)

    def mark(self, group: str | None, finding: str, stream: Ints, sequence: Ints) -> None:
        """Record marks for a strip: rows of (stream, stretch, count)."""
        stretch = sequence // self._view.context.stretch
        order = np.lexsort((stretch, stream))
        stream, stretch = stream[order], stretch[order]
        fresh = np.append(True, (np.diff(stream) != 0) | (np.diff(stretch) != 0))
        starts = np.flatnonzero(fresh)
        counts = np.diff(np.append(starts, len(stream)))
        rows = np.stack([stream[starts], stretch[starts], counts], axis=1)
        self.write(PartKind.MARKS, [group, finding], rows)

    def describe(self, slot: int, deliveries: Deliveries | None = None) -> dict[str, Any]:
        """Return what the ledgers record about one message, at most `_MOST_PLACES` of each list."""
        view, one = self._view, ints([slot])
        stream = view.index.streams[int(view.index.stream_of(one)[0])]
        outcome = int(self._outcome[slot])
        details: dict[str, Any] = {
            **stream.to_witness(),
            "sequence": int(view.index.sequence_of(one)[0]),
            "outcome": None if outcome == NEVER else OUTCOMES[outcome],
        }
        attempts = view.attempts
        times_us = {
            "intended_us": attempts.intended_us,
            "sent_us": attempts.sent_us,
            "acked_us": attempts.acked_us,
        }
        for name, known in times_us.items():
            time_us = int(known[slot])
            details[name] = None if time_us == NONE else time_us
        details["source"] = _places(view.source_places, slot)
        if view.context.has_mirror:
            details["target"] = _places(view.target_places, slot)
        if deliveries is not None:
            details["deliveries"] = self._deliveries(deliveries, slot)
        return details

    def _deliveries(self, deliveries: Deliveries, slot: int) -> list[dict[str, int]]:
        rows = deliveries.rows[deliveries.slots == slot][:_MOST_PLACES]
        names = ("partition", "offset", "assignment", "received_us")
        return [{name: int(self._view.receipts[name][row]) for name in names} for row in rows]


def _places(known: Places, slot: int) -> list[dict[str, int]]:
    places = known.of(slot)[:_MOST_PLACES]
    pairs = zip(partition_of(places).tolist(), offset_of(places).tolist(), strict=True)
    return [{"partition": partition, "offset": offset} for partition, offset in pairs]


def is_measured(view: CellView) -> Bools:
    """Which slots are after the warm-up."""
    measured: Bools = view.attempts.intended_us >= view.context.measure_from_us
    return measured


def write_range(recorder: CellRecorder, group: str | None, name: str, times_us: Ints) -> None:
    if len(times_us):
        recorder.write(PartKind.RANGE, [group, name], [int(times_us.min()), int(times_us.max())])


def write_order(
    view: CellView,
    recorder: CellRecorder,
    *,
    kind: UnitKind,
    units: Units,
    by: tuple[str | None, Deliveries | None] = (None, None),
) -> None:
    """Write the summaries of order units; for units in disorder also spans of keys and marks.

    `by` is the group that received the units, and its deliveries.
    """
    group, deliveries = by
    table, spans = summarise(units, view.cell.low)
    starts = units.starts()
    ends = ends_of_groups(units.unit) + 1
    streams = units.stream[starts]
    recorder.write(PartKind.ORDER, [kind, group], np.column_stack([streams, table]))
    partitions = table[:, OrderColumn.PARTITION]

    def label(number: int) -> list[Any]:
        return [kind, group, int(streams[number]), int(partitions[number]), view.cell.low]

    for number, span in spans.items():
        recorder.write(PartKind.SPANS, label(number), span)
    for number in np.flatnonzero(table[:, OrderColumn.REORDERED]).tolist():
        unit = units.slice(starts[number], ends[number])
        by_key = np.argsort(unit.key, kind="stable")
        is_late = late_elements(unit.sequence[by_key])
        recorder.list_late(group, kind, unit.slot[by_key][is_late], deliveries)
        late = unit.sequence[by_key][is_late] // view.context.stretch
        recorder.write(PartKind.LATE, label(number), np.stack(counts_of_values(late), axis=1))
        if view.context.edges_us:
            late = unit.segment[by_key][is_late]
            counts = np.stack(counts_of_values(late), axis=1)
            recorder.write(PartKind.LATE_SEGMENTS, label(number), counts)


def spans_of(offsets: Ints, gap: int) -> Ints:
    """Return offsets as ranges [low, high) that bridge gaps up to a size."""
    distinct, _ = counts_of_values(offsets)
    if not len(distinct):
        return np.empty((0, 2), dtype=np.int64)
    breaks = np.flatnonzero(np.diff(distinct) > gap)
    lows = distinct[np.append(0, breaks + 1)]
    highs = distinct[np.append(breaks, len(distinct) - 1)] + 1
    return np.stack([lows, highs], axis=1)
