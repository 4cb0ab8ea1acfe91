"""Adds the answers of many tasks up to one answer of the same kinds of parts.

A run of a billion messages has thousands of tasks, and each returns what it knows of every lane,
log and second. Their sum is no larger than one of them. So tasks keep their answers as files in the
scratch folder, other tasks add these up, a few at a time, and the driver receives one answer.

Only parts that mean the same in all tasks can be added: those of `StreamCell` and `LedgerWalk`.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from shoal.audit.arrays import Ints, ints, starts_of_groups, sum_by_key
from shoal.audit.columns import SlotColumn
from shoal.audit.context import Stream
from shoal.audit.gather.witnesses import smallest_witness
from shoal.audit.parts import PartKind, TaskPart, make_part
from shoal.audit.read.walk import join_walks
from shoal.audit.result.streams import AffectedLane, LaneParts, add_lane_parts, number_lanes
from shoal.audit.times.durations import merge_slots
from shoal.model.pages.run import MOST_LANES

# Parts that name streams by number, and the column of the number.
WITH_STREAMS: Final = {
    PartKind.UNPROVEN: 0,
    PartKind.LATEST: 0,
    PartKind.LOST_TRANSACTIONS: 1,
}

_Label = Any
_Adder = Callable[[_Label, list[Ints]], Iterable[TaskPart]]


def combine(answers: Iterable[Sequence[TaskPart]]) -> list[TaskPart]:
    """Return one answer that says the same as all of these."""
    combiner = Combiner()
    for parts in answers:
        combiner.add(parts)
    return combiner.parts()


class Combiner:
    """Adds up answers; what it holds does not grow with their number."""

    def __init__(self) -> None:
        self._streams: dict[Stream, int] = {}
        # By kind and label (as text): the values of parts that were not added up yet.
        self._held: dict[tuple[PartKind, str], list[Ints]] = defaultdict(list)
        self._walks: dict[str, list[TaskPart]] = defaultdict(list)

    def add(self, parts: Sequence[TaskPart]) -> None:
        names = [part.label for part in parts if part.kind is PartKind.STREAMS]
        streams = [Stream(*name) for name in names[0]] if names else []
        for part in parts:
            if part.kind is PartKind.STREAMS:
                continue
            if part.kind in (PartKind.WALK, PartKind.JUMPS):
                table = part.label[0] if part.kind is PartKind.WALK else "receipts"
                self._walks[table].append(part)
                continue
            values = self._renumber(part, streams) if part.kind in WITH_STREAMS else part.values
            self._held[part.kind, json.dumps(part.label)].append(values)
        for (kind, label), held in self._held.items():
            if len(held) > 1 and kind in _BY_LABEL:
                [whole] = _BY_LABEL[kind](kind, json.loads(label), held)
                held[:] = [whole.values]

    def _renumber(self, part: TaskPart, streams: list[Stream]) -> Ints:
        column = WITH_STREAMS[part.kind]
        if not len(part.values):
            return part.values
        rows = part.rows.copy()
        own, places = np.unique(rows[:, column], return_inverse=True)
        new = [self._streams.setdefault(streams[n], len(self._streams)) for n in own.tolist()]
        rows[:, column] = ints(new)[places]
        return rows.reshape(-1)

    def parts(self) -> list[TaskPart]:
        """Return the sum of all answers."""
        found = [make_part(PartKind.STREAMS, [list(stream) for stream in self._streams])]
        across: dict[PartKind, list[tuple[_Label, Ints]]] = defaultdict(list)
        for (kind, label), values in self._held.items():
            if kind in _ACROSS_LABELS:
                across[kind] += [(json.loads(label), own) for own in values]
            elif kind in _BY_LABEL:
                found += _BY_LABEL[kind](kind, json.loads(label), values)
            else:
                found += [make_part(kind, json.loads(label), own) for own in values]
        for kind, listed in across.items():
            found += _ACROSS_LABELS[kind](kind, listed)
        for table in self._walks.values():
            found += join_walks(table)
        return found


# ---------------------------------------------------------------- parts of one label


def _sum_by_key(kind: PartKind, label: _Label, values: list[Ints]) -> Iterator[TaskPart]:
    rows = np.concatenate(values).reshape(-1, 2)
    yield make_part(kind, label, np.stack(sum_by_key(*rows.T), axis=1))


def _highest_by_key(kind: PartKind, label: _Label, values: list[Ints]) -> Iterator[TaskPart]:
    rows = np.concatenate(values).reshape(-1, 2)
    rows = rows[np.lexsort((rows[:, 1], rows[:, 0]))]
    last = np.append(rows[1:, 0] != rows[:-1, 0], True)[: len(rows)]
    yield make_part(kind, label, rows[last])


def _sum(kind: PartKind, label: _Label, values: list[Ints]) -> Iterator[TaskPart]:
    yield make_part(kind, label, np.sum(values, axis=0))


def _distinct(kind: PartKind, label: _Label, values: list[Ints]) -> Iterator[TaskPart]:
    yield make_part(kind, label, np.unique(np.concatenate(values)))


def _distinct_rows(kind: PartKind, label: _Label, values: list[Ints]) -> Iterator[TaskPart]:
    rows = np.concatenate(values).reshape(-1, len(kind.columns))
    yield make_part(kind, label, np.unique(rows, axis=0))


def _hull(kind: PartKind, label: _Label, values: list[Ints]) -> Iterator[TaskPart]:
    low, high = np.array(values, dtype=np.int64).T
    yield make_part(kind, label, [low.min(), high.max()])


def _add_latencies(kind: PartKind, label: _Label, values: list[Ints]) -> Iterator[TaskPart]:
    rows = np.concatenate(values).reshape(-1, len(kind.columns))
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    starts = starts_of_groups(rows[:, 0])
    reducers = (np.add, np.add, np.add, np.minimum, np.maximum, np.add)
    sums = [how.reduceat(rows[:, n + 1], starts) for n, how in enumerate(reducers)]
    yield make_part(kind, label, np.column_stack([rows[starts, 0], *sums]))


def _add_slots(kind: PartKind, label: _Label, values: list[Ints]) -> Iterator[TaskPart]:
    yield make_part(kind, label, merge_slots(np.concatenate(values).reshape(-1, len(SlotColumn))))


_BY_LABEL: Final = {
    **dict.fromkeys(
        (PartKind.BINS, PartKind.BIN_LATENCY, PartKind.SECOND, PartKind.LATENCY_SECOND),
        _sum_by_key,
    ),
    **dict.fromkeys(
        (PartKind.REACHED, PartKind.BATCH_COUNT, PartKind.EXCESS, PartKind.RANK_COUNTS), _sum
    ),
    **dict.fromkeys((PartKind.SEEN_TRANSACTIONS, PartKind.WANTED_TRANSACTIONS), _distinct),
    PartKind.LATENCY_MAX: _highest_by_key,
    PartKind.LATENCY: _add_latencies,
    PartKind.RANGE: _hull,
    PartKind.DOUBTFUL: _distinct_rows,
    PartKind.SLOT_STATS: _add_slots,
}


# ---------------------------------------------------------------- parts of several labels

_Listed = list[tuple[_Label, Ints]]


def _add_named(kind: PartKind, listed: _Listed) -> Iterator[TaskPart]:
    """Add up columns that labels [group, names] name."""
    sums: dict[str | None, dict[str, Ints]] = defaultdict(dict)
    for (group, names), values in listed:
        for name, column in zip(names, values.reshape(-1, len(names)).T, strict=True):
            own = sums[group]
            own[name] = own[name] + column if name in own else column
    for group, columns in sums.items():
        yield make_part(kind, [group, list(columns)], np.stack(list(columns.values()), axis=1))


def _highest_of_logs(kind: PartKind, listed: _Listed) -> Iterator[TaskPart]:
    """Keep the highest number of each log; the topics are the last entry of the label."""
    highest: dict[str, dict[tuple[str, int], int]] = defaultdict(dict)
    for (*rest, topics), values in listed:
        held = highest[json.dumps(rest)]
        for topic, partition, number in values.reshape(-1, 3).tolist():
            log = (topics[topic], partition)
            held[log] = max(number, held.get(log, number))
    for label, held in highest.items():
        topics, keys = number_lanes(held)
        rows = np.column_stack([keys, ints([*held.values()])])
        yield make_part(kind, [*json.loads(label), topics], rows)


def _add_lane_counts(kind: PartKind, listed: _Listed) -> Iterator[TaskPart]:
    by_group: dict[str | None, list[LaneParts]] = defaultdict(list)
    for (group, names, topics), values in listed:
        rows = values.reshape(-1, 2 + len(names))
        by_group[group].append(LaneParts(names, topics, rows))
    for group, parts in by_group.items():
        table = add_lane_parts(parts)
        topics, keys = number_lanes(table.lanes)
        yield make_part(kind, [group, table.names, topics], np.column_stack([keys, table.counts]))


def _longest_lanes(kind: PartKind, listed: _Listed) -> Iterator[TaskPart]:
    longest: dict[tuple[str, int], int] = {}
    for topics, values in listed:
        for topic, lane, length in values.reshape(-1, 3).tolist():
            key = (topics[topic], lane)
            longest[key] = max(length, longest.get(key, 0))
    topics, keys = number_lanes(longest)
    yield make_part(kind, topics, np.column_stack([keys, ints([*longest.values()])]))


def _add_lane_marks(kind: PartKind, listed: _Listed) -> Iterator[TaskPart]:
    marks: dict[str, dict[tuple[tuple[str, int], int], int]] = defaultdict(dict)
    for (group, finding, topics), values in listed:
        held = marks[json.dumps([group, finding])]
        for topic, lane, stretch, count in values.reshape(-1, 4).tolist():
            key = ((topics[topic], lane), stretch)
            held[key] = held.get(key, 0) + count
    for label, held in marks.items():
        topics, keys = number_lanes(lane for lane, _ in held)
        stretches, counts = ints([stretch for _, stretch in held]), ints([*held.values()])
        rows = np.column_stack([keys, stretches, counts])
        yield make_part(kind, [*json.loads(label), topics], rows)


def _choose_lane_rows(kind: PartKind, listed: _Listed) -> Iterator[TaskPart]:
    by_group: dict[str, list[AffectedLane]] = defaultdict(list)
    for (group, rows), _ in listed:
        by_group[group] += map(AffectedLane.from_json, rows)
    for group, lanes in by_group.items():
        chosen = sorted(lanes, key=lambda row: row.rank)[:MOST_LANES]
        yield make_part(kind, [group, [row.to_json() for row in chosen]])


def _join_producers(kind: PartKind, listed: _Listed) -> Iterator[TaskPart]:
    names = {(name, incarnation) for label, _ in listed for name, incarnation in label}
    yield make_part(kind, sorted(map(list, names)))


def _choose_witnesses(kind: PartKind, listed: _Listed) -> Iterator[TaskPart]:
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for (group, finding, details), _ in listed:
        found[json.dumps([group, finding])].append(details)
    for label, witnesses in found.items():
        details = smallest_witness(witnesses)
        yield make_part(kind, [*json.loads(label), details], [details["sequence"]])


_ACROSS_LABELS: Final = {
    **dict.fromkeys((PartKind.SEGMENTS, PartKind.STREAM_COUNTS), _add_named),
    **dict.fromkeys(
        (PartKind.BEGAN, PartKind.MIRROR_REACH, PartKind.GROUP_REACH), _highest_of_logs
    ),
    PartKind.LANE_COUNTS: _add_lane_counts,
    PartKind.LANE_LENGTHS: _longest_lanes,
    PartKind.LANE_MARKS: _add_lane_marks,
    PartKind.LANE_ROWS: _choose_lane_rows,
    PartKind.PRODUCERS: _join_producers,
    PartKind.WITNESS: _choose_witnesses,
}
