"""Order, exactly, also where a stream is cut into cells.

An order unit is a set of messages with two orders: by sequence and by key (arrival, or the
offset in a log). Rank by the one and by the other give a permutation. Its elements are
taken together in runs: neighbours by key that are also neighbours by sequence. Every
measure is exact on runs:
- all elements of a run are displaced alike, so F is a sum of length times displacement;
- two runs are inverted as a whole or not at all, so K is a sum of products of lengths;
- a run lies below the running maximum as a whole or not at all.
A clean unit is one run, however long, and the work follows the disorder.

Cells of one unit whose keys do not interleave are measured alone and added up. Where they
do interleave, `zones` says in which spans of keys more than one cell has runs, and each
cell hands out `pieces_of` it: runs cut at the borders of zones, single elements inside.
`measure` on the pieces of all cells is then exact. Ties of keys are broken by sequence.
"""

from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np

from shoal.audit.arrays import NONE, Bools, Ints, ints, starts_of_groups

MOST_RUNS = 4096  # that a cell tells of; with more, its whole span of keys counts as one

# Columns of the summary of one unit in one cell.
SUMMARY = (
    "low",
    "count",
    "first_key",
    "last_key",
    "F",
    "K",
    "reordered",
    "witness",
    "witness_after",
    "partition",
    "last_partition",
)


class Measure(NamedTuple):
    """`witness` is the lowest reordered sequence, `witness_after` the highest before it."""

    F: int
    K: int
    reordered: int
    witness: int
    witness_after: int


CLEAN = Measure(0, 0, 0, NONE, NONE)


class Pieces(NamedTuple):
    """Runs, or parts of runs."""

    first_key: Ints
    last_key: Ints
    first_sequence: Ints
    last_sequence: Ints
    length: Ints
    segment: Ints  # between which edges of faults all of it was meant to leave


def measure(pieces: Pieces) -> Measure:
    """Measures of a permutation, given as runs in the order of keys."""
    sequence, length = pieces.first_sequence, pieces.length
    if len(sequence) < 2 or bool((sequence[1:] > sequence[:-1]).all()):
        return CLEAN
    by_sequence = np.argsort(sequence, kind="stable")
    rank = np.empty_like(by_sequence)
    rank[by_sequence] = np.arange(len(by_sequence))
    place = np.cumsum(length) - length
    home = np.empty_like(place)
    home[by_sequence] = np.cumsum(length[by_sequence]) - length[by_sequence]
    footrule = int((np.abs(home - place) * length).sum())
    late = late_pieces(pieces)
    first = int(np.flatnonzero(late)[np.argmin(sequence[late])])
    return Measure(
        F=footrule,
        K=inversions(rank, length),
        reordered=int(length[late].sum()),
        witness=int(sequence[first]),
        witness_after=int(pieces.last_sequence[:first].max()),
    )


def late_pieces(pieces: Pieces) -> Bools:
    """Which pieces, in the order of keys, lie below the running maximum."""
    highest = np.maximum.accumulate(pieces.last_sequence)
    return np.append(np.zeros(1, dtype=np.bool_), pieces.first_sequence[1:] < highest[:-1])


def late_elements(sequence_by_key: Ints) -> Bools:
    """Which elements, in the order of keys, lie below the running maximum."""
    late: Bools = sequence_by_key < np.maximum.accumulate(sequence_by_key)
    return late


def inversions(rank: Ints, weight: Ints) -> int:
    """Sum of products of weights over all pairs that stand in the wrong order.

    Bit by bit from the highest: pairs that agree above a bit and differ in it are inverted
    if the one with the bit set stands first. Elements stay grouped by the bits above.
    """
    total = 0
    for bit in reversed(range(max(len(rank) - 1, 1).bit_length())):
        high = (rank >> bit) & 1
        ones = np.cumsum(np.where(high == 1, weight, 0))
        starts = starts_of_groups(rank >> (bit + 1))
        before = ones[starts] - np.where(high[starts] == 1, weight[starts], 0)
        sizes = np.diff(np.append(starts, len(rank)))
        ahead = ones - np.repeat(before, sizes)
        total += int((ahead * weight)[high == 0].sum())
        order = np.argsort(rank >> bit, kind="stable")
        rank, weight = rank[order], weight[order]
    return total


@dataclass(frozen=True)
class Units:
    """Elements of many units: grouped by unit, ascending by sequence within each."""

    unit: Ints
    stream: Ints
    sequence: Ints
    key: Ints
    partition: Ints
    segment: Ints

    def starts(self) -> Ints:
        return starts_of_groups(self.unit)

    def is_falling(self) -> Bools:
        """For each element but the first, whether its key is lower than that before it."""
        falls: Bools = (self.key[1:] < self.key[:-1]) & (self.unit[1:] == self.unit[:-1])
        return falls

    def slice(self, low: int, high: int) -> "Units":
        return Units(*(getattr(self, field.name)[low:high] for field in fields(self)))


def summarise(units: Units, low: int) -> tuple[Ints, dict[int, Ints]]:
    """A row of `SUMMARY` for each unit, and the spans of keys of those that need them.

    Spans, (first key, last key) of each run, are given for units with 2 to MOST_RUNS runs;
    the others' only span is that of the summary.
    """
    starts = units.starts()
    table = np.zeros((len(starts), len(SUMMARY)), dtype=np.int64)
    if not len(starts):
        return table, {}
    ends = np.append(starts[1:], len(units.unit))
    table[:, 0] = low
    table[:, 1] = ends - starts
    table[:, 2] = np.minimum.reduceat(units.key, starts)
    table[:, 3] = np.maximum.reduceat(units.key, starts)
    table[:, 7:9] = NONE
    table[:, 9] = np.minimum.reduceat(units.partition, starts)
    table[:, 10] = np.maximum.reduceat(units.partition, starts)
    spans: dict[int, Ints] = {}
    falls = np.flatnonzero(units.is_falling())
    for group in np.unique(np.searchsorted(starts, falls, side="right") - 1).tolist():
        runs = runs_of(units.slice(starts[group], ends[group]))
        table[group, 4:9] = measure(runs)
        if len(runs.length) <= MOST_RUNS:
            spans[group] = np.stack([runs.first_key, runs.last_key], axis=1)
    return table, spans


def runs_of(unit: Units) -> Pieces:
    """The runs of one unit, in the order of keys."""
    rank = np.argsort(unit.key, kind="stable")
    breaks = np.flatnonzero(np.diff(rank) != 1) + 1
    return _cut(unit, rank, np.concatenate([[0], breaks]))


def pieces_of(unit: Units, zones: Ints, stretch: int) -> Pieces:
    """Runs cut at the borders of zones, stretches and segments; single elements inside zones.

    `zones` are rows of (first key, last key), disjoint and ascending.
    """
    rank = np.argsort(unit.key, kind="stable")
    key = unit.key[rank]
    broken = (np.diff(rank) != 1) | (np.diff(unit.sequence[rank] // stretch) != 0)
    broken |= np.diff(unit.segment[rank]) != 0
    if len(zones):
        opens = np.searchsorted(zones[:, 0], key, side="right")
        inside = (opens > 0) & (key <= zones[np.maximum(opens - 1, 0), 1])
        broken |= (np.diff(opens) != 0) | inside[1:] | inside[:-1]
    return _cut(unit, rank, np.concatenate([[0], np.flatnonzero(broken) + 1]))


def _cut(unit: Units, rank: Ints, starts: Ints) -> Pieces:
    if not len(rank):
        return Pieces(*(ints() for _ in Pieces._fields))
    key, sequence = unit.key[rank], unit.sequence[rank]
    ends = np.append(starts[1:], len(rank)) - 1
    of_keys, of_sequences = (key[starts], key[ends]), (sequence[starts], sequence[ends])
    return Pieces(*of_keys, *of_sequences, ends - starts + 1, unit.segment[rank][starts])


def zones(spans: Ints) -> Ints:
    """Where at least two of the spans (first key, last key) overlap, as disjoint rows."""
    edges = np.concatenate([spans[:, 0], spans[:, 1] + 1])
    steps = np.concatenate([np.ones(len(spans)), -np.ones(len(spans))]).astype(np.int64)
    edges, index = np.unique(edges, return_inverse=True)
    depth = np.cumsum(np.bincount(index, weights=steps).astype(np.int64))
    deep = depth >= 2
    opens = np.flatnonzero(deep & ~np.concatenate([[False], deep[:-1]]))
    closes = np.flatnonzero(deep & ~np.concatenate([deep[1:], [False]]))
    return np.stack([edges[opens], edges[closes + 1] - 1], axis=1)


def by_key(pieces: Pieces) -> Pieces:
    """Pieces of several cells in the order in which `measure` wants them."""
    order = np.lexsort((pieces.first_sequence, pieces.first_key))
    return Pieces(*(column[order] for column in pieces))


def are_apart(table: Ints) -> bool:
    """Whether the cells of one unit, rows of `SUMMARY` by `low`, follow one another by key."""
    filled = table[table[:, 1] > 0]
    return bool((filled[1:, 2] > filled[:-1, 3]).all())
