"""A small selection of rows that covers every pair of values of any two columns; pure.

Greedy: rows are taken while they cover pairs that no earlier row has, those with most new pairs
first. The result is not the smallest one, and is the same for the same rows and seed.
"""

import random
from collections.abc import Hashable, Iterable, Sequence
from itertools import combinations
from typing import TypeVar

Row = TypeVar("Row", bound=Sequence[Hashable])
Pair = tuple[int, Hashable, int, Hashable]


def pairs_of(row: Sequence[Hashable]) -> set[Pair]:
    """The pairs of values that a row covers, by the numbers of their columns."""
    return {(i, row[i], j, row[j]) for i, j in combinations(range(len(row)), 2)}


def cover_pairs(rows: Iterable[Row], *, seed: int = 0) -> list[Row]:
    """Rows of these which together cover all pairs that these cover, in the order of these."""
    wanted = list(rows)
    shuffled = list(range(len(wanted)))
    random.Random(seed).shuffle(shuffled)
    missing = {pair for row in wanted for pair in pairs_of(row)}
    # A row covers at most so many new pairs; later passes take what the earlier ones left out.
    most = max((len(pairs_of(row)) for row in wanted), default=0)
    chosen: set[int] = set()
    for least in range(most, 0, -1):
        for number in shuffled:
            new = pairs_of(wanted[number]) & missing
            if len(new) >= least:
                chosen.add(number)
                missing -= new
    return [wanted[number] for number in sorted(chosen)]
