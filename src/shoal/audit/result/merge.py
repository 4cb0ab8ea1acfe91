"""Merges the parts of all tasks, only by sums, minima and maxima of integers.

The result does not depend on the order in which tasks come back: counts are sums, witnesses are
minima, and parts that have an order (cells of a unit, walks of a table) are sorted before use.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shoal.audit.arrays import LARGEST, Ints, ints, sum_by_key
from shoal.audit.columns import LatestColumn, OrderColumn
from shoal.audit.context import AuditContext, Knowledge, Log, Stream, StreamKey, sort_key
from shoal.audit.gather.witnesses import smallest_witness
from shoal.audit.parts import PartKind, TaskPart
from shoal.audit.read.seen_transactions import Ask, SeenTransactions
from shoal.audit.result.streams import (
    AffectedLane,
    Lane,
    LaneParts,
    LaneTable,
    StreamTotals,
    add_lane_parts,
)
from shoal.audit.rules.batches import StreamBatches
from shoal.audit.rules.loss import STAGE_OF_CAUSE
from shoal.audit.rules.supersession import merge_latest
from shoal.audit.stages import STAGE_COUNTS
from shoal.audit.tasks import UnitName, Unproven
from shoal.audit.times.latency import latency_buckets
from shoal.audit.times.runs import REPLICATION, KnownLatencies
from shoal.audit.times.seconds import (
    Packed,
    percentiles_per_second,
    unpack_counts,
    unpack_latencies,
)
from shoal.model.findings import Finding

Group = str | None

_LATENCY_KINDS = (PartKind.LATENCY, PartKind.LATENCY_RUN, PartKind.LATENCY_FILE)


@dataclass
class Totals:
    """All counts of the cells, by group (None for logs and producers)."""

    # By group (None for logs and producers).
    counts: dict[Group, dict[str, int]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(int))
    )
    lanes: dict[Group, list[LaneParts]] = field(default_factory=lambda: defaultdict(list))
    stream_counts: dict[Group, dict[str, int]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(int))
    )
    longest: dict[Lane, int] = field(default_factory=lambda: defaultdict(int))
    # By group and finding: counts by lane and stretch.
    marks: dict[tuple[Group, str], dict[tuple[Lane, int], int]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(int))
    )
    affected: dict[str, list[AffectedLane]] = field(default_factory=lambda: defaultdict(list))
    excess: dict[tuple[Group, str], int] = field(default_factory=lambda: defaultdict(int))
    batches: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    producers: set[tuple[str, int]] = field(default_factory=set)
    stream_files: list[str] = field(default_factory=list)
    # By finding; those about order within a cell also by the first sequence of the cell.
    anomaly_files: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    late_files: dict[int, list[tuple[str, str]]] = field(default_factory=lambda: defaultdict(list))
    tables: dict[tuple[PartKind, Group, str], list[Ints]] = field(
        default_factory=lambda: defaultdict(list)
    )
    ranges: dict[tuple[Group, str], tuple[int, int]] = field(default_factory=dict)
    witnesses: dict[tuple[Group, str], dict[str, Any]] = field(default_factory=dict)
    # By group and name: counts by segment of time.
    segments: dict[tuple[Group, str], dict[int, int]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(int))
    )
    reached: dict[str, int] = field(default_factory=lambda: defaultdict(int))  # by cluster
    # By group: rows of `SlotColumn`.
    slot_stats: dict[str, list[Ints]] = field(default_factory=lambda: defaultdict(list))
    # By group: rows of `FaultTimes`, if tasks have reduced the slots to them.
    fault_times: dict[str, Ints] = field(default_factory=dict)
    latencies: KnownLatencies = field(default_factory=KnownLatencies)

    # By group and transaction: the first message that it lost.
    lost_transactions: dict[str, dict[int, tuple[StreamKey, int, Stream, int]]] = field(
        default_factory=lambda: defaultdict(dict)
    )

    def accept_late_files(self, *, except_of: Collection[int] = ()) -> None:
        """Add the files about order within cells, except of the cells that begin at these."""
        for low, files in self.late_files.items():
            for finding, path in files if low not in except_of else ():
                self.anomaly_files[finding].append(path)
        self.late_files.clear()

    def lane_table(self, *groups: Group) -> LaneTable:
        """Return the counts of these groups by lane."""
        return add_lane_parts(part for group in groups for part in self.lanes[group])

    def count(self, group: Group, name: str) -> int:
        return self.counts[group].get(name, 0)

    def streams_with(self, group: Group, name: str) -> int:
        return self.stream_counts[group].get(name, 0)

    def table(self, kind: PartKind, group: Group, name: str) -> Ints:
        """Return the sum of all tables of (key, count) of this name, ascending by key."""
        found = self.tables.get((kind, group, name))
        if not found:
            return np.empty((0, 2), dtype=np.int64)
        rows = np.concatenate(found)
        return np.stack(sum_by_key(*rows.T), axis=1)

    def second_percentiles(self, group: str) -> Ints:
        """Return rows of (second, p50, p99) of a group's latencies."""
        found = self.tables.get((PartKind.SECOND_PERCENTILES, group, ""))
        if found:
            return np.concatenate(found)
        return percentiles_per_second(self.table(PartKind.LATENCY_SECOND, group, ""))

    def latency_buckets(self, group: str) -> Ints:
        """Return rows of (bucket, count) of a group's latencies."""
        found = self.tables.get((PartKind.LATENCY_BUCKETS, group, ""))
        if found:
            return np.concatenate(found)
        return latency_buckets(self.table(PartKind.LATENCY_SECOND, group, ""))

    def count_in(self, group: str, name: str, segments: Iterable[int]) -> int:
        """Return a count of a group and of the logs in some segments of time."""
        held: list[Mapping[int, int]] = [self.segments.get((of, name), {}) for of in (None, group)]
        return sum(counts.get(segment, 0) for counts in held for segment in segments)

    def witness(self, group: Group, finding: str, details: dict[str, Any]) -> None:
        """Keep the smallest witness of a finding."""
        held = self.witnesses.get((group, finding))
        known = [] if held is None else [held]
        self.witnesses[group, finding] = smallest_witness([*known, details])


@dataclass
class Summaries:
    """Parts of cells that mean something only together with those of all other cells."""

    order: dict[UnitName, list[Ints]] = field(default_factory=lambda: defaultdict(list))
    spans: dict[tuple[UnitName, int], Ints] = field(default_factory=dict)
    late: dict[tuple[UnitName, int], Ints] = field(default_factory=dict)
    late_segments: dict[tuple[UnitName, int], Ints] = field(default_factory=dict)
    doubtful: dict[str, list[Ints]] = field(default_factory=lambda: defaultdict(list))
    unproven: list[Unproven] = field(default_factory=list)
    mirror_reach: dict[tuple[str, int], int] = field(default_factory=dict)
    group_reach: dict[tuple[str, str, int], int] = field(default_factory=dict)
    began: dict[Log, int] = field(default_factory=dict)
    seen: SeenTransactions = field(default_factory=SeenTransactions)
    wanted_transactions: list[Ints] = field(default_factory=list)
    latest: list[tuple[str, Stream, Ints]] = field(default_factory=list)
    delivered_until: dict[tuple[str, Stream], int] = field(default_factory=dict)
    placed_since: dict[Stream, int] = field(default_factory=dict)
    last_in_target: dict[Stream, list[tuple[int, int, int]]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def knowledge(
        self,
        context: AuditContext,
        assigned: Mapping[tuple[str, int], int],
        delivered_transactions: Ints,
    ) -> Knowledge:
        """Return the knowledge for the second round.

        `assigned` is the lowest start offset of any assignment, by log. `delivered_transactions`
        are those of `wanted_transactions` of which a group received a message.
        """
        seen = dict(self.began)
        for (topic, partition), offset in assigned.items():
            log = (context.read_cluster, topic, partition)
            seen[log] = min(offset, seen.get(log, offset))
        moved = {log for log, offset in seen.items() if offset < context.scans.get(log, (0, 0))[0]}
        begun = {(context.read_cluster, *place) for place in assigned}
        return Knowledge(
            group_reach=dict(self.group_reach),
            mirror_reach=dict(self.mirror_reach),
            delivered_until=dict(self.delivered_until),
            placed_since=dict(self.placed_since),
            moved=frozenset(moved),
            unmoved=frozenset(begun - moved),
            delivered_transactions=delivered_transactions,
            latest=merge_latest(self.latest),
            last_in_target={s: tuple(sorted(rows)) for s, rows in self.last_in_target.items()},
        )


def add_latencies(parts: Iterable[TaskPart], totals: Totals) -> None:
    """Add the latencies that a walk measured, if any."""
    for part in parts:
        if part.kind in _LATENCY_KINDS:
            totals.latencies.add(part)


@dataclass(frozen=True)
class Sinks:
    """Where the parts of a task are added; None: left out."""

    totals: Totals | None = None
    streams: StreamTotals | None = None
    summaries: Summaries | None = None


def add_cell(parts: Iterable[TaskPart], sinks: Sinks) -> None:
    """Add the answer of one task about messages.

    Summaries do not depend on whether the cell was undecided, so they are taken from the first
    round; all other parts of an undecided cell are taken from the second round.
    """
    listed = list(parts)
    numbered = [_streams_of(part.label) for part in listed if part.kind == PartKind.STREAMS]
    streams = numbered[0] if numbered else []
    for part in listed:
        if part.kind in SUMMARY_KINDS:
            if sinks.summaries is not None:
                SUMMARY_KINDS[part.kind](sinks.summaries, part, streams)
        elif part.kind in STREAM_KINDS:
            if sinks.streams is not None:
                STREAM_KINDS[part.kind](sinks.streams, part, streams)
        elif sinks.totals is not None:
            _TOTAL_KINDS[part.kind](sinks.totals, part, streams)
        if part.kind == PartKind.UNREADABLE and sinks.totals is not None:
            add_unreadable_witness(sinks.totals, part)


def is_undecided(parts: Iterable[TaskPart]) -> bool:
    return any(part.kind == PartKind.UNDECIDED for part in parts)


def _streams_of(label: Iterable[Any]) -> list[Stream]:
    return [Stream(*names) for names in label]


# ---------------------------------------------------------------- totals


def _add_tally(totals: StreamTotals, part: TaskPart, streams: list[Stream]) -> None:
    group, names = part.label
    table = part.values.reshape(len(streams), len(names))
    for column, name in enumerate(names):
        counts = totals.counts[group][name]
        for row in np.flatnonzero(table[:, column]).tolist():
            counts[streams[row]] += int(table[row, column])


def _add_segments(totals: Totals, part: TaskPart, _streams: list[Stream]) -> None:
    group, names = part.label
    for name, counts in zip(names, part.values.reshape(-1, len(names)).T, strict=True):
        for segment in np.flatnonzero(counts).tolist():
            totals.segments[group, name][segment] += int(counts[segment])


def _add_slot_stats(totals: Totals, part: TaskPart, _streams: list[Stream]) -> None:
    totals.slot_stats[part.label].append(part.rows)


def _add_packed_seconds(totals: Totals, part: TaskPart, _streams: list[Stream]) -> None:
    group, name, start, size = part.label
    rows = unpack_counts(Packed(start, size, part.values))
    totals.tables[PartKind.SECOND, group, name].append(rows)


def _add_packed_latencies(totals: Totals, part: TaskPart, _streams: list[Stream]) -> None:
    group, start, size = part.label
    percentiles, maxima = unpack_latencies(Packed(start, size, part.values))
    totals.tables[PartKind.SECOND_PERCENTILES, group, ""].append(percentiles)
    totals.tables[PartKind.LATENCY_MAX, group, ""].append(maxima)


def _add_fault_times(totals: Totals, part: TaskPart, _streams: list[Stream]) -> None:
    totals.fault_times[part.label] = part.rows


def _add_latency(totals: Totals, part: TaskPart, _streams: list[Stream]) -> None:
    totals.latencies.add(part)


def _add_witness(totals: Totals, part: TaskPart, _streams: list[Stream]) -> None:
    group, finding, details = part.label
    totals.witness(group, finding, details)


def _add_marks(totals: StreamTotals, part: TaskPart, streams: list[Stream]) -> None:
    group, finding = part.label
    for stream, stretch, count in part.rows.tolist():
        totals.marks[group, finding][streams[stream], stretch] += count


def _add_range(totals: Totals, part: TaskPart, _streams: list[Stream]) -> None:
    group, name = part.label
    low, high = part.values.tolist()
    held = totals.ranges.get((group, name), (low, high))
    totals.ranges[group, name] = (min(low, held[0]), max(high, held[1]))


def _add_table(totals: Totals, part: TaskPart, _streams: list[Stream]) -> None:
    group, name = part.label if isinstance(part.label, list) else (part.label, "")
    totals.tables[part.kind, group, name].append(part.rows)


def _add_stretches(totals: StreamTotals, part: TaskPart, streams: list[Stream]) -> None:
    if len(part.values):
        totals.stretches.append((streams, part.rows))


def _add_reached(totals: Totals, part: TaskPart, _streams: list[Stream]) -> None:
    totals.reached[part.label] += int(part.values[0])


def _add_tail(totals: StreamTotals, part: TaskPart, streams: list[Stream]) -> None:
    for stream, *row in part.rows.tolist():
        totals.tails[part.label, streams[stream]].append(row)


def _add_batches(totals: StreamTotals, part: TaskPart, streams: list[Stream]) -> None:
    for stream, *row in part.rows.tolist():
        totals.batches[part.label][streams[stream]].append(StreamBatches(*row))


def _add_lost_transactions(totals: Totals, part: TaskPart, streams: list[Stream]) -> None:
    held = totals.lost_transactions[part.label]
    for transaction, stream, sequence, cause in part.rows.tolist():
        found = (sort_key(streams[stream]), sequence, streams[stream], cause)
        held[transaction] = min(found, held.get(transaction, found))


def _add_unreadable(totals: StreamTotals, part: TaskPart, _streams: list[Stream]) -> None:
    topic, partition, _, stages = part.label
    stream = Stream("", topic, partition)
    for name, count in zip((Finding.UNREADABLE, *stages), part.values.tolist(), strict=True):
        totals.find(None, name, stream, count)


def add_unreadable_witness(totals: Totals, part: TaskPart) -> None:
    topic, partition, where, _ = part.label
    stream = Stream("", topic, partition)
    details = {"topic": topic, "partition": partition, **where}
    totals.witness(None, Finding.UNREADABLE, {**stream.to_witness(), "sequence": -1, **details})


def _add_lane_counts(totals: Totals, part: TaskPart, _streams: list[Stream]) -> None:
    group, names, topics = part.label
    rows = part.values.reshape(-1, 2 + len(names))
    totals.lanes[group].append(LaneParts(names, topics, rows))
    for name, count in zip(names, rows[:, 2:].sum(axis=0).tolist(), strict=True):
        totals.counts[group][name] += count


def _add_lane_lengths(totals: Totals, part: TaskPart, _streams: list[Stream]) -> None:
    for topic, lane, longest in part.rows.tolist():
        key = (part.label[topic], lane)
        totals.longest[key] = max(totals.longest[key], longest)


def _add_lane_marks(totals: Totals, part: TaskPart, _streams: list[Stream]) -> None:
    group, finding, topics = part.label
    held = totals.marks[group, finding]
    for topic, lane, stretch, count in part.rows.tolist():
        held[(topics[topic], lane), stretch] += count


def _add_lane_rows(totals: Totals, part: TaskPart, _streams: list[Stream]) -> None:
    group, rows = part.label
    totals.affected[group] += map(AffectedLane.from_json, rows)


def _add_stream_counts(totals: Totals, part: TaskPart, _streams: list[Stream]) -> None:
    group, names = part.label
    for name, count in zip(names, part.values.tolist(), strict=True):
        totals.stream_counts[group][name] += count


def _add_stream_file(totals: Totals, part: TaskPart, _streams: list[Stream]) -> None:
    totals.stream_files.append(part.label)


def _add_anomaly_file(totals: Totals, part: TaskPart, _streams: list[Stream]) -> None:
    finding, path, _ = part.label
    totals.anomaly_files[finding].append(path)


def _add_late_file(totals: Totals, part: TaskPart, _streams: list[Stream]) -> None:
    finding, path, low = part.label
    totals.late_files[low].append((finding, path))


def _add_producers(totals: Totals, part: TaskPart, _streams: list[Stream]) -> None:
    totals.producers.update((name, incarnation) for name, incarnation in part.label)


def _add_excess(totals: Totals, part: TaskPart, _streams: list[Stream]) -> None:
    group, name = part.label
    totals.excess[group, name] += int(part.values[0])


def _add_batch_count(totals: Totals, part: TaskPart, _streams: list[Stream]) -> None:
    totals.batches[part.label] += int(part.values[0])


# What is added by stream, and settled where all cells of a stream are together.
STREAM_KINDS: dict[PartKind, Callable[[StreamTotals, TaskPart, list[Stream]], None]] = {
    PartKind.TALLY: _add_tally,
    PartKind.MARKS: _add_marks,
    PartKind.STRETCHES: _add_stretches,
    PartKind.TAIL: _add_tail,
    PartKind.BATCHES: _add_batches,
    PartKind.UNREADABLE: _add_unreadable,
}

_TOTAL_KINDS: dict[PartKind, Callable[[Totals, TaskPart, list[Stream]], None]] = {
    PartKind.SEGMENTS: _add_segments,
    PartKind.SLOT_STATS: _add_slot_stats,
    PartKind.WITNESS: _add_witness,
    PartKind.RANGE: _add_range,
    PartKind.SECOND: _add_table,
    **dict.fromkeys(_LATENCY_KINDS, _add_latency),
    PartKind.LATENCY_SECOND: _add_table,
    PartKind.LATENCY_MAX: _add_table,
    PartKind.SECOND_PERCENTILES: _add_table,
    PartKind.PACKED_SECONDS: _add_packed_seconds,
    PartKind.PACKED_LATENCIES: _add_packed_latencies,
    PartKind.LATENCY_BUCKETS: _add_table,
    PartKind.FAULT_TIMES: _add_fault_times,
    PartKind.BINS: _add_table,
    PartKind.BIN_LATENCY: _add_table,
    PartKind.REACHED: _add_reached,
    PartKind.LOST_TRANSACTIONS: _add_lost_transactions,
    PartKind.LANE_COUNTS: _add_lane_counts,
    PartKind.LANE_LENGTHS: _add_lane_lengths,
    PartKind.LANE_MARKS: _add_lane_marks,
    PartKind.LANE_ROWS: _add_lane_rows,
    PartKind.STREAM_COUNTS: _add_stream_counts,
    PartKind.STREAM_FILE: _add_stream_file,
    PartKind.ANOMALY_FILE: _add_anomaly_file,
    PartKind.LATE_FILE: _add_late_file,
    PartKind.PRODUCERS: _add_producers,
    PartKind.EXCESS: _add_excess,
    PartKind.BATCH_COUNT: _add_batch_count,
    PartKind.UNDECIDED: lambda _totals, _part, _streams: None,
    PartKind.UNSETTLED: lambda _totals, _part, _streams: None,
}


# ---------------------------------------------------------------- summaries


def _add_order(summaries: Summaries, part: TaskPart, streams: list[Stream]) -> None:
    kind, group = part.label
    for stream, summary in zip(part.rows[:, 0].tolist(), part.rows[:, 1:], strict=True):
        partition = int(summary[OrderColumn.PARTITION])
        unit = UnitName.of(kind, group, streams[stream], partition)
        summaries.order[unit].append(summary)


def _add_spans(summaries: Summaries, part: TaskPart, streams: list[Stream]) -> None:
    kind, group, stream, partition, low = part.label
    tables = {PartKind.LATE: summaries.late, PartKind.LATE_SEGMENTS: summaries.late_segments}
    unit = UnitName.of(kind, group, streams[stream], partition)
    tables.get(part.kind, summaries.spans)[unit, low] = part.rows


def _add_doubtful(summaries: Summaries, part: TaskPart, _streams: list[Stream]) -> None:
    summaries.doubtful[part.label].append(part.rows)


def _add_unproven(summaries: Summaries, part: TaskPart, streams: list[Stream]) -> None:
    for stream, sequence, offset in part.rows.tolist():
        summaries.unproven.append(Unproven(streams[stream], sequence, offset))


def _add_mirror_reach(summaries: Summaries, part: TaskPart, _streams: list[Stream]) -> None:
    [topics] = part.label
    for topic, partition, reach in part.rows.tolist():
        log = (topics[topic], partition)
        summaries.mirror_reach[log] = max(reach, summaries.mirror_reach.get(log, 0))


def _add_group_reach(summaries: Summaries, part: TaskPart, _streams: list[Stream]) -> None:
    group, topics = part.label
    for topic, partition, reach in part.rows.tolist():
        log = (group, topics[topic], partition)
        summaries.group_reach[log] = max(reach, summaries.group_reach.get(log, 0))


def _add_began(summaries: Summaries, part: TaskPart, _streams: list[Stream]) -> None:
    cluster, topics = part.label
    for topic, partition, negative in part.rows.tolist():
        log = (cluster, topics[topic], partition)
        summaries.began[log] = min(-negative, summaries.began.get(log, -negative))


def _add_seen(summaries: Summaries, part: TaskPart, _streams: list[Stream]) -> None:
    summaries.seen.add(part)


def _add_wanted(summaries: Summaries, part: TaskPart, _streams: list[Stream]) -> None:
    summaries.wanted_transactions.append(part.values)


def _add_latest(summaries: Summaries, part: TaskPart, streams: list[Stream]) -> None:
    numbers = part.rows[:, LatestColumn.STREAM]
    for stream in np.unique(numbers).tolist():
        summaries.latest.append((part.label, streams[stream], part.rows[numbers == stream]))


def _add_delivered_until(summaries: Summaries, part: TaskPart, streams: list[Stream]) -> None:
    for stream, until in part.rows.tolist():
        key = (part.label, streams[stream])
        held = summaries.delivered_until.get(key, until)
        summaries.delivered_until[key] = max(until, held)


def _add_placed_since(summaries: Summaries, part: TaskPart, streams: list[Stream]) -> None:
    for number, since in part.rows.tolist():
        stream = streams[number]
        summaries.placed_since[stream] = min(since, summaries.placed_since.get(stream, since))


def _add_last_in_target(summaries: Summaries, part: TaskPart, streams: list[Stream]) -> None:
    for stream, low, partition, offset in part.rows.tolist():
        summaries.last_in_target[streams[stream]].append((low, partition, offset))


SUMMARY_KINDS: dict[PartKind, Callable[[Summaries, TaskPart, list[Stream]], None]] = {
    PartKind.STREAMS: lambda _summaries, _part, _streams: None,
    PartKind.ORDER: _add_order,
    PartKind.SPANS: _add_spans,
    PartKind.LATE: _add_spans,
    PartKind.LATE_SEGMENTS: _add_spans,
    PartKind.DOUBTFUL: _add_doubtful,
    PartKind.UNPROVEN: _add_unproven,
    PartKind.MIRROR_REACH: _add_mirror_reach,
    PartKind.LAST_IN_TARGET: _add_last_in_target,
    PartKind.GROUP_REACH: _add_group_reach,
    PartKind.BEGAN: _add_began,
    PartKind.SEEN_TRANSACTIONS: _add_seen,
    PartKind.SEEN_FILE: _add_seen,
    PartKind.WANTED_TRANSACTIONS: _add_wanted,
    PartKind.LATEST: _add_latest,
    PartKind.DELIVERED_UNTIL: _add_delivered_until,
    PartKind.PLACED_SINCE: _add_placed_since,
}


# ---------------------------------------------------------------- tails


def settle_tails(totals: Totals, streams: StreamTotals, finding: str) -> None:
    """Add tail losses: lost messages above the highest delivered sequence of their stream."""
    for (group, stream), rows in streams.tails.items():
        by_cell = sorted(rows)
        lost, first = 0, LARGEST
        for _low, highest, lost_here, above, first_lost, first_above in by_cell:
            if highest >= 0:  # losses below a delivery are not a tail
                lost, first = above, first_above
            else:
                lost, first = lost + lost_here, min(first, first_lost)
        if lost:
            streams.find(group, finding, stream, lost)
            totals.witness(group, finding, {**stream.to_witness(), "sequence": first})


def settle_replication(totals: Totals) -> None:
    """Drop the replication latency if all append times at the target are those of the source.

    Compare-and-append keeps the append times, so they contain nothing about the target. One cell
    cannot detect this: all of its messages may have been copied within one microsecond.
    """
    found = totals.latencies.summary(None, REPLICATION)
    if found is not None and found.lowest_us == found.highest_us == 0:
        totals.latencies.sections.pop((None, REPLICATION))


def settle_transactions(
    totals: Totals, streams: StreamTotals, seen: SeenTransactions, ask: Ask
) -> None:
    """Add torn transactions: one message was delivered and another is lost.

    The witness is the first lost message.
    """
    for group, lost in totals.lost_transactions.items():
        for transaction in seen.find(group, ints([*lost]), ask).tolist():
            _, sequence, stream, cause = lost[transaction]
            streams.find(group, Finding.TORN_TRANSACTION, stream, 1)
            if cause in STAGE_OF_CAUSE:
                name = STAGE_COUNTS[STAGE_OF_CAUSE[cause], Finding.TORN_TRANSACTION]
                streams.find(group, name, stream, 1)
            details = {**stream.to_witness(), "sequence": sequence, "transaction": transaction}
            totals.witness(group, Finding.TORN_TRANSACTION, details)


def latency_maxima(totals: Totals, group: str) -> dict[int, int]:
    """Return the largest latency of each second."""
    tables = totals.tables.get((PartKind.LATENCY_MAX, group, ""), [])
    rows = np.concatenate(tables) if tables else ints().reshape(0, 2)
    maxima: dict[int, int] = {}
    for second, value in rows.tolist():
        maxima[second] = max(value, maxima.get(second, value))
    return maxima
