"""Exact measures of order, also for a stream that is divided into cells.

An order unit is a set of messages with two orders: by sequence and by key (arrival, or the offset
in a log). The ranks by both orders form a permutation. Its elements are grouped into runs:
neighbours by key that are also neighbours by sequence. Every measure is exact on runs:
- all elements of a run are displaced by the same amount, so F is a sum of length times
  displacement;
- two runs are inverted as a whole or not at all, so K is a sum of products of lengths;
- a run is below the running maximum as a whole or not at all.
A unit in order is one run, however long, so the work grows with the disorder only.

Cells of one unit whose keys do not interleave are measured separately, and the measures add up.
Where they do interleave, `find_zones` returns the spans of keys in which more than one cell has
runs, and each cell returns `pieces_of` the unit: runs cut at the borders of zones, and single
elements inside zones. `measure` on the pieces of all cells is then exact. Ties of keys are broken
by sequence.
"""

from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np

from shoal.audit.arrays import NONE, Bools, Ints, ints, starts_of_groups
from shoal.audit.columns import OrderColumn

MOST_RUNS = 4096  # whose spans a cell returns; with more, its whole span of keys counts as one


class OrderMeasure(NamedTuple):
    """Measures of a unit.

    `witness` is the lowest reordered sequence, `witness_after` the highest one that came before it.
    """

    F: int
    K: int
    reordered: int
    witness: int
    witness_after: int


CLEAN = OrderMeasure(0, 0, 0, NONE, NONE)
_MEASURE = slice(OrderColumn.F, OrderColumn.WITNESS_AFTER + 1)  # the columns of an OrderMeasure


class RunPieces(NamedTuple):
    """Runs, or parts of runs, as columns."""

    first_key: Ints
    last_key: Ints
    first_sequence: Ints
    last_sequence: Ints
    length: Ints
    segment: Ints  # the segment of time of its intended sends (see `times.segments`)


def measure(pieces: RunPieces) -> OrderMeasure:
    """Measure a permutation, given as runs in the order of keys."""
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
    return OrderMeasure(
        F=footrule,
        K=inversions(rank, length),
        reordered=int(length[late].sum()),
        witness=int(sequence[first]),
        witness_after=int(pieces.last_sequence[:first].max()),
    )


def late_pieces(pieces: RunPieces) -> Bools:
    """Which pieces, in the order of keys, are below the running maximum."""
    highest = np.maximum.accumulate(pieces.last_sequence)
    return np.append(np.zeros(1, dtype=np.bool_), pieces.first_sequence[1:] < highest[:-1])


def late_elements(sequence_by_key: Ints) -> Bools:
    """Which elements, in the order of keys, are below the running maximum."""
    late: Bools = sequence_by_key < np.maximum.accumulate(sequence_by_key)
    return late


def inversions(rank: Ints, weight: Ints) -> int:
    """Return the sum of products of weights over all inverted pairs.

    Works bit by bit from the highest: a pair that agrees above a bit and differs in it is inverted
    if the element with the bit set comes first. Elements stay grouped by the bits above.
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
    """The elements of many units, grouped by unit, ascending by sequence within each."""

    unit: Ints
    stream: Ints
    sequence: Ints
    key: Ints
    partition: Ints
    segment: Ints
    slot: Ints  # in the cell

    def starts(self) -> Ints:
        return starts_of_groups(self.unit)

    def is_falling(self) -> Bools:
        """Whether the key of each element but the first is lower than the key before it."""
        falls: Bools = (self.key[1:] < self.key[:-1]) & (self.unit[1:] == self.unit[:-1])
        return falls

    def slice(self, low: int, high: int) -> "Units":
        return Units(*(getattr(self, field.name)[low:high] for field in fields(self)))


def summarise(units: Units, low: int) -> tuple[Ints, dict[int, Ints]]:
    """Return a row of `OrderColumn` for each unit, and the spans of keys of units in disorder.

    A span is (first key, last key) of a run. Units with 2 to MOST_RUNS runs have spans; the only
    span of another unit is that of its summary.
    """
    starts = units.starts()
    table = np.zeros((len(starts), len(OrderColumn)), dtype=np.int64)
    if not len(starts):
        return table, {}
    ends = np.append(starts[1:], len(units.unit))
    table[:, OrderColumn.LOW] = low
    table[:, OrderColumn.COUNT] = ends - starts
    table[:, OrderColumn.FIRST_KEY] = np.minimum.reduceat(units.key, starts)
    table[:, OrderColumn.LAST_KEY] = np.maximum.reduceat(units.key, starts)
    table[:, _MEASURE] = CLEAN
    table[:, OrderColumn.PARTITION] = np.minimum.reduceat(units.partition, starts)
    table[:, OrderColumn.LAST_PARTITION] = np.maximum.reduceat(units.partition, starts)
    spans: dict[int, Ints] = {}
    falls = np.flatnonzero(units.is_falling())
    for group in np.unique(np.searchsorted(starts, falls, side="right") - 1).tolist():
        runs = runs_of(units.slice(starts[group], ends[group]))
        table[group, _MEASURE] = measure(runs)
        if len(runs.length) <= MOST_RUNS:
            spans[group] = np.stack([runs.first_key, runs.last_key], axis=1)
    return table, spans


def runs_of(unit: Units) -> RunPieces:
    """Return the runs of one unit, in the order of keys."""
    rank = np.argsort(unit.key, kind="stable")
    breaks = np.flatnonzero(np.diff(rank) != 1) + 1
    return _split_runs(unit, rank, np.concatenate([[0], breaks]))


def pieces_of(unit: Units, zones: Ints, stretch: int) -> RunPieces:
    """Return runs cut at borders of zones, stretches and segments, and elements inside zones.

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
    return _split_runs(unit, rank, np.concatenate([[0], np.flatnonzero(broken) + 1]))


def _split_runs(unit: Units, rank: Ints, starts: Ints) -> RunPieces:
    if not len(rank):
        return RunPieces(*(ints() for _ in RunPieces._fields))
    key, sequence = unit.key[rank], unit.sequence[rank]
    ends = np.append(starts[1:], len(rank)) - 1
    of_keys, of_sequences = (key[starts], key[ends]), (sequence[starts], sequence[ends])
    return RunPieces(*of_keys, *of_sequences, ends - starts + 1, unit.segment[rank][starts])


def find_zones(spans: Ints) -> Ints:
    """Return where at least two of the spans (first key, last key) overlap, as disjoint rows."""
    edges = np.concatenate([spans[:, 0], spans[:, 1] + 1])
    steps = np.concatenate([np.ones(len(spans)), -np.ones(len(spans))]).astype(np.int64)
    edges, index = np.unique(edges, return_inverse=True)
    depth = np.cumsum(np.bincount(index, weights=steps).astype(np.int64))
    deep = depth >= 2
    opens = np.flatnonzero(deep & ~np.concatenate([[False], deep[:-1]]))
    closes = np.flatnonzero(deep & ~np.concatenate([deep[1:], [False]]))
    return np.stack([edges[opens], edges[closes + 1] - 1], axis=1)


def by_key(pieces: RunPieces) -> RunPieces:
    """Sort the pieces of several cells for `measure`: by key, then by sequence."""
    order = np.lexsort((pieces.first_sequence, pieces.first_key))
    return RunPieces(*(column[order] for column in pieces))


def has_disjoint_keys(table: Ints) -> bool:
    """Whether the cells of one unit, rows of `OrderColumn` by LOW, do not interleave by key."""
    filled = table[table[:, OrderColumn.COUNT] > 0]
    firsts, lasts = filled[:, OrderColumn.FIRST_KEY], filled[:, OrderColumn.LAST_KEY]
    return bool((firsts[1:] > lasts[:-1]).all())
