"""Order measures: exact on runs, whole and cut into cells."""

from itertools import combinations, pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shoal.audit.rules.order import (
    OrderMeasure,
    RunPieces,
    Units,
    by_key,
    find_zones,
    has_disjoint_keys,
    inversions,
    late_pieces,
    measure,
    pieces_of,
    runs_of,
    summarise,
)
from support.audit.bruteforce import footrule, late


def unit(elements: list[tuple[int, int]]) -> Units:
    """One unit from (sequence, key) pairs."""
    rows = np.array(sorted(elements), dtype=np.int64).reshape(-1, 2)
    same = np.zeros(len(rows), dtype=np.int64)
    return Units(same, same, rows[:, 0], rows[:, 1], same, same, same)


@st.composite
def arrivals(draw: st.DrawFn) -> list[int]:
    """Sequences in order of arrival: in order with a few stragglers, or in any order."""
    sequences = sorted(draw(st.sets(st.integers(0, 40), max_size=30)))
    if draw(st.booleans()):
        return draw(st.permutations(sequences))
    for _ in range(draw(st.integers(0, 3)) if sequences else 0):
        moved = sequences.pop(draw(st.integers(0, len(sequences) - 1)))
        sequences.insert(draw(st.integers(0, len(sequences))), moved)
    return sequences


def brute(order: list[int]) -> tuple[int, int, int]:
    return footrule(order), sum(a > b for a, b in combinations(order, 2)), late(order)


@given(arrivals())
def test_runs_measure_a_whole_unit(order: list[int]) -> None:
    runs = runs_of(unit([(sequence, key) for key, sequence in enumerate(order)]))
    found = measure(runs)
    assert found[:3] == brute(order)
    assert int(runs.length.sum()) == len(order)
    if found.reordered:
        highest = [max(order[:n], default=-1) for n in range(len(order))]
        behind = {s: top for s, top in zip(order, highest, strict=True) if s < top}
        assert found.witness == min(behind)
        assert found.witness_after == behind[found.witness]


@given(arrivals(), st.sets(st.integers(1, 40), max_size=6), st.sampled_from([1, 4, 64]))
def test_cells_measure_what_the_whole_unit_has(
    order: list[int], cuts: set[int], stretch: int
) -> None:
    elements = [(sequence, 3 * key) for key, sequence in enumerate(order)]
    cells = [
        unit([e for e in elements if low <= e[0] < high])
        for low, high in pairwise([0, *sorted(cuts), 99])
    ]
    tables, spans = [], []
    for cell in cells:
        table, own_spans = summarise(cell, 0)
        tables += list(table)
        spans += [own_spans.get(0, table[:, 2:4])] if len(table) else []
    if not tables:
        return
    rows = np.array(tables)
    if has_disjoint_keys(rows):
        assert tuple(rows[:, 4:7].sum(axis=0)) == brute(order)
    overlaps = find_zones(np.concatenate(spans))
    handed = [pieces_of(cell, overlaps, stretch) for cell in cells]
    pieces = by_key(RunPieces(*(np.concatenate(column) for column in zip(*handed, strict=True))))
    assert measure(pieces)[:3] == brute(order)
    assert marks_of(pieces, stretch) == [
        s // stretch for n, s in enumerate(order) if s < max(order[:n], default=-1)
    ]


def marks_of(pieces: RunPieces, stretch: int) -> list[int]:
    late_ones = late_pieces(pieces)
    places = pieces.first_sequence[late_ones] // stretch
    return [int(place) for place in np.repeat(places, pieces.length[late_ones])]


def test_only_overlapping_spans_are_expanded() -> None:
    # One straggler from the first cell arrives in the middle of the second: the second is
    # cut in two, not taken apart.
    first = unit([(0, 0), (1, 1), (2, 145), (3, 3), (4, 4)])
    second = unit([(n, 10 * n) for n in range(10, 20)])
    spans = np.concatenate([summarise(first, 0)[1][0], summarise(second, 0)[0][:, 2:4]])
    pieces = pieces_of(second, find_zones(spans), 64)
    assert pieces.length.tolist() == [5, 5]


@given(st.permutations(range(12)), st.lists(st.integers(1, 9), min_size=12, max_size=12))
def test_weighted_inversions(rank: list[int], weight: list[int]) -> None:
    expected = sum(
        weight[a] * weight[b] for a, b in combinations(range(12), 2) if rank[a] > rank[b]
    )
    assert inversions(np.array(rank), np.array(weight)) == expected


def test_a_million_in_order_is_one_run() -> None:
    sequence = np.arange(1_000_000)
    same = np.zeros_like(sequence)
    whole = Units(same, same, sequence, sequence, same, same, sequence)
    assert runs_of(whole).length.tolist() == [1_000_000]
    assert measure(runs_of(whole)) == OrderMeasure(0, 0, 0, -1, -1)
