"""Counts by stream, and what a result needs of them: sums.

A run may have hundreds of thousands of streams. They are settled where all cells of a stream are
together: in the driver if cells are ranges of sequences of all streams, in a task if it has all
sequences of some streams (`StreamCell`). Either way `reduce_streams` returns parts whose size does
not depend on the number of streams, and the counts of each stream go into a file for the table
`streams`.
"""

import heapq
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from shoal.audit.arrays import Ints, ints, starts_of_groups
from shoal.audit.context import AuditContext, Stream, sort_key
from shoal.audit.parts import PartKind, TaskPart, make_part
from shoal.audit.result.stream_files import write_stream_counts
from shoal.audit.rules.batches import StreamBatches, count_batches
from shoal.audit.stages import StageCount
from shoal.model.findings import Finding
from shoal.model.pages.run import MOST_LANES

Group = str | None
ByStream = dict[Stream, int]
Lane = tuple[str, int]  # topic and lane


@dataclass
class StreamTotals:
    """All counts by stream, by group (None for logs and producers)."""

    counts: dict[Group, dict[str, ByStream]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(lambda: defaultdict(int)))
    )
    marks: dict[tuple[Group, str], dict[tuple[Stream, int], int]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(int))
    )
    # By cell: its streams, and rows of (stream, stretch, due, first and last intended send).
    stretches: list[tuple[list[Stream], Ints]] = field(default_factory=list)
    tails: dict[tuple[str, Stream], list[list[int]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    batches: dict[str, dict[Stream, list[StreamBatches]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )

    def find(self, group: Group, finding: str, stream: Stream, count: int) -> None:
        self.counts[group][finding][stream] += count


def reduce_streams(
    streams: StreamTotals, context: AuditContext, *, groups: Iterable[str]
) -> list[TaskPart]:
    """Return the sums of the counts by stream; they add up over all tasks."""
    parts: list[TaskPart] = []
    producers: set[tuple[str, int]] = set()
    for group, by_name in streams.counts.items():
        parts += _sum_by_lane(group, by_name)
        held = {name: sum(1 for n in own.values() if n) for name, own in by_name.items()}
        parts.append(make_part(PartKind.STREAM_COUNTS, [group, list(held)], list(held.values())))
        producers.update((s.producer, s.incarnation) for own in by_name.values() for s in own)
    if producers:
        parts.append(make_part(PartKind.PRODUCERS, sorted(map(list, producers))))
    parts += _excesses(streams, context, groups)
    for group, batches in streams.batches.items():
        parts.append(make_part(PartKind.BATCH_COUNT, group, [count_batches(batches, context)]))
    parts += _marks_by_lane(streams)
    parts += [
        make_part(PartKind.LANE_ROWS, [group, [row.to_json() for row in rows]])
        for group in groups
        if (rows := _most_affected(streams, group))
    ]
    if context.scratch is not None and streams.counts:
        path, count = write_stream_counts(streams.counts, context.scratch)
        parts.append(make_part(PartKind.STREAM_FILE, path, [count]))
    return parts


def _sum_by_lane(group: Group, by_name: Mapping[str, ByStream]) -> Iterator[TaskPart]:
    """Return all counts of a group summed by topic and lane, and the longest stream of each."""
    names = list(by_name)
    sums: dict[Lane, list[int]] = {}
    longest: dict[Lane, int] = {}
    for column, name in enumerate(names):
        for stream, count in by_name[name].items():
            lane = (stream.topic, stream.lane)
            row = sums.get(lane)
            if row is None:
                row = sums[lane] = [0] * len(names)
            row[column] += count
            if name == "attempts" and group is None:
                longest[lane] = max(count, longest.get(lane, 0))
    if sums:
        topics, keys = number_lanes(sums)
        rows = np.column_stack([keys, np.array(list(sums.values()), dtype=np.int64)])
        yield make_part(PartKind.LANE_COUNTS, [group, names, topics], rows)
    if longest:
        topics, keys = number_lanes(longest)
        yield make_part(
            PartKind.LANE_LENGTHS, topics, np.column_stack([keys, ints([*longest.values()])])
        )


def number_lanes(lanes: Iterable[Lane]) -> tuple[list[str], Ints]:
    """Return the topics, and rows of (number of the topic, lane)."""
    numbers: dict[str, int] = {}
    rows = [(numbers.setdefault(topic, len(numbers)), lane) for topic, lane in lanes]
    return list(numbers), np.array(rows, dtype=np.int64).reshape(-1, 2)


def _excesses(
    streams: StreamTotals, context: AuditContext, groups: Iterable[str]
) -> Iterator[TaskPart]:
    """Return how many more are reordered than in the stage before, stream by stream."""
    source = streams.counts[None][Finding.REORDERED_SOURCE]
    target = streams.counts[None][Finding.REORDERED_TARGET]
    found: list[tuple[Group, StageCount, int]] = [
        (None, StageCount.REORDERED_MIRROR, _count_excess(target, source))
    ]
    in_read_log = target if context.has_mirror else source
    for group in groups:
        seen = streams.counts[group][Finding.REORDERED]
        found.append((group, StageCount.REORDERED_CONSUMERS, _count_excess(seen, in_read_log)))
    for of, name, count in found:
        if count:
            yield make_part(PartKind.EXCESS, [of, name], [count])


def _count_excess(found: Mapping[Stream, int], before: Mapping[Stream, int]) -> int:
    """Sum by how much each stream has more than in the stage before; fewer is no credit."""
    return sum(max(count - before.get(stream, 0), 0) for stream, count in found.items())


def _marks_by_lane(streams: StreamTotals) -> Iterator[TaskPart]:
    for (group, finding), by_place in streams.marks.items():
        sums: dict[tuple[Lane, int], int] = defaultdict(int)
        for (stream, stretch), count in by_place.items():
            sums[(stream.topic, stream.lane), stretch] += count
        topics, keys = number_lanes(lane for lane, _ in sums)
        columns = [keys, ints([stretch for _, stretch in sums]), ints([*sums.values()])]
        yield make_part(PartKind.LANE_MARKS, [group, finding, topics], np.column_stack(columns))


# ---------------------------------------------------------------- lanes of the page


class AffectedLane(NamedTuple):
    """One lane of one producer for the page; `model.pages.run.LaneRow` has its final form."""

    stream: Stream
    due: int
    affected: int
    findings: dict[str, int]
    stretches: list[list[int]]  # first and last intended send, due, affected

    def to_json(self) -> list[Any]:
        return [list(self.stream), *self[1:]]

    @classmethod
    def from_json(cls, row: list[Any]) -> "AffectedLane":
        return cls(Stream(*row[0]), *row[1:])

    @property
    def rank(self) -> tuple[Any, ...]:
        """Sorts the lanes of which findings affect the largest share first."""
        share = min(self.affected / self.due, 1.0) if self.due else float(bool(self.affected))
        return -share, sort_key(self.stream)


def _most_affected(streams: StreamTotals, group: str) -> list[AffectedLane]:
    marks: dict[Stream, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    findings: dict[Stream, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for (of, finding), places in streams.marks.items():
        if of in (None, group) and finding != Finding.SUPERSEDED:
            for (stream, stretch), count in places.items():
                marks[stream][stretch] += count
                findings[stream][str(finding)] += count
    # Lanes without a finding fill up what is left, in the order of their names.
    due = {names[n] for names, rows in streams.stretches for n in np.unique(rows[:, 0]).tolist()}
    calm = heapq.nsmallest(MOST_LANES, due - marks.keys(), key=sort_key)
    chosen = _stretches_of({*marks, *calm}, streams)
    rows = [
        _lane_row(stream, own, marks.get(stream, {}), findings.get(stream, {}))
        for stream, own in chosen.items()
    ]
    return sorted(rows, key=lambda row: row.rank)[:MOST_LANES]


def _stretches_of(
    wanted: Collection[Stream], streams: StreamTotals
) -> dict[Stream, dict[int, tuple[int, int, int]]]:
    """Return by stream and stretch: messages due, first and last intended send."""
    found: dict[Stream, dict[int, tuple[int, int, int]]] = defaultdict(dict)
    for names, rows in streams.stretches:
        is_wanted = np.array([name in wanted for name in names], dtype=np.bool_)
        for number, stretch, due, first, last in rows[is_wanted[rows[:, 0]]].tolist():
            own = found[names[number]]
            held_due, held_first, held_last = own.get(stretch, (0, first, last))
            own[stretch] = (held_due + due, min(held_first, first), max(held_last, last))
    return found


def _lane_row(
    stream: Stream,
    stretches: Mapping[int, tuple[int, int, int]],
    marks: Mapping[int, int],
    findings: Mapping[str, int],
) -> AffectedLane:
    cells = [
        [first, last, due, min(marks.get(number, 0), due)]
        for number, (due, first, last) in sorted(stretches.items())
    ]
    due, affected = (sum(cell[place] for cell in cells) for place in (2, 3))
    return AffectedLane(stream, due, affected, dict(sorted(findings.items())), cells)


# ---------------------------------------------------------------- sums of all tasks


@dataclass(frozen=True)
class LaneTable:
    """Counts of lanes, ascending by topic and lane: a row for each lane, a column for each name."""

    lanes: list[Lane]
    names: list[str]
    counts: Ints

    def of(self, name: str) -> Ints:
        """Return the counts of one name for each lane."""
        if name not in self.names:
            return np.zeros(len(self.lanes), dtype=np.int64)
        column: Ints = self.counts[:, self.names.index(name)]
        return column


class LaneParts(NamedTuple):
    """The content of a part `LANE_COUNTS`."""

    names: list[str]
    topics: list[str]
    rows: Ints


def add_lane_parts(parts: Iterable[LaneParts]) -> LaneTable:
    """Add up the counts of all parts by lane and name."""
    listed = list(parts)
    names = sorted({name for part in listed for name in part.names})
    topics = sorted({topic for part in listed for topic in part.topics})
    name_at = {name: number for number, name in enumerate(names)}
    topic_at = {topic: number for number, topic in enumerate(topics)}
    tables = [np.empty((0, 2 + len(names)), dtype=np.int64)]
    for part in listed:
        table = np.zeros((len(part.rows), 2 + len(names)), dtype=np.int64)
        table[:, 0] = ints([topic_at[topic] for topic in part.topics])[part.rows[:, 0]]
        table[:, 1] = part.rows[:, 1]
        table[:, [2 + name_at[name] for name in part.names]] = part.rows[:, 2:]
        tables.append(table)
    rows = np.concatenate(tables)
    rows = rows[np.lexsort((rows[:, 1], rows[:, 0]))]
    distinct = (rows[1:, :2] != rows[:-1, :2]).any(axis=1)
    starts = starts_of_groups(np.cumsum(np.append(0, distinct))[: len(rows)])
    if not len(starts):
        return LaneTable([], names, np.empty((0, len(names)), dtype=np.int64))
    lanes = [(topics[topic], lane) for topic, lane in rows[starts, :2].tolist()]
    return LaneTable(lanes, names, np.add.reduceat(rows[:, 2:], starts))
