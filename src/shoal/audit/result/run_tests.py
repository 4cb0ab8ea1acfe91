"""Exact tests over runs, for counts of rare events whose noise is unknown (pure).

Losses come in bursts: one run loses forty messages, the next none. Their noise is not normal, and
messages of one run are not independent. So a run is one observation, and the test computes how
often runs that are assigned to the columns at random would differ as much as these do.

Rules:
- The statistic is that of Kruskal and Wallis over mid-ranks. In a sweep, ranks are computed and
  runs are permuted within each combination of the other parameters.
- Up to `MOST_ARRANGEMENTS`, all arrangements are counted. Above, that many are drawn with a fixed
  seed, and the observed one is added to them: the error rate stays exact.
- `least` is the smallest chance (p-value) that any arrangement of these values gives. Three runs
  against three give 0.1 at best, so they can show nothing at 5 %.
- `correct` is Holm's correction over only those tests that can reach the level at all (Tarone):
  whether they can does not depend on which run is in which column.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from shoal.audit.result.noise import LEVEL, holm

MOST_ARRANGEMENTS: Final = 20_000
_SEED: Final = 20_260_101
_EPSILON: Final = 1e-9

Floats = NDArray[np.float64]
# The values of one stratum, by level.
Stratum = Sequence[Sequence[float]]


@dataclass(frozen=True, slots=True)
class Chance:
    """The p-value of a difference; None if it cannot be computed."""

    value: float | None
    least: float = 0.0  # the smallest value that was possible


UNKNOWN: Final = Chance(None, 1.0)


def runs_chance(columns: Stratum) -> Chance:
    """Test whether columns of runs differ."""
    return strata_chance([columns])


def strata_chance(strata: Sequence[Stratum]) -> Chance:
    """Test whether levels differ, given the stratum of each run."""
    used = [stratum for stratum in strata if sum(map(bool, stratum)) > 1]
    if not used:
        return UNKNOWN
    counts = np.array([[len(values) for values in stratum] for stratum in used])
    ranks = [_centre_ranks(stratum) for stratum in used]
    total = math.prod(_arrangements(row) for row in counts)
    is_exact = total <= MOST_ARRANGEMENTS
    sums = (
        _sum_all_arrangements(ranks, counts)
        if is_exact
        else _sum_random_arrangements(ranks, counts)
    )
    weights = 1 / np.maximum(counts.sum(axis=0), 1)
    statistics = (sums**2 * weights).sum(axis=1)
    observed = (_sum_observed(ranks, counts) ** 2 * weights).sum()
    reached = int((statistics >= observed - _EPSILON).sum())
    best = int((statistics >= statistics.max() - _EPSILON).sum())
    if is_exact:
        return Chance(reached / len(sums), best / len(sums))
    return Chance((reached + 1) / (len(sums) + 1), best / len(sums))


def correct(chances: Sequence[Chance], level: float = LEVEL) -> list[float | None]:
    """Correct each chance for the number of testable ones; None for those that are not."""
    size = count_testable(chances, level)
    members = [
        place
        for place, each in enumerate(chances)
        if each.value is not None and each.least <= level / size
    ]
    corrected: list[float | None] = [None] * len(chances)
    known = holm([chances[place].value or 0.0 for place in members])
    for place, chance in zip(members, known, strict=True):
        corrected[place] = chance
    return corrected


def count_testable(chances: Sequence[Chance], level: float = LEVEL) -> int:
    """Return Tarone's number: the smallest k such that at most k tests can reach level / k."""
    least = [each.least for each in chances if each.value is not None]
    for size in range(1, len(least) + 1):
        if sum(each <= level / size for each in least) <= size:
            return size
    return 1


def least_affected(mine: int, theirs: int, level: float) -> int | None:
    """Return how many of `mine` runs must have an event, if none of `theirs` has, to differ."""
    for affected in range(1, mine + 1):
        ways = math.comb(mine + theirs, affected)
        one_sided = math.comb(mine, affected) + math.comb(theirs, affected)
        if one_sided / ways <= level:
            return affected
    return None


def _centre_ranks(stratum: Stratum) -> Floats:
    """Return the mid-ranks of all values, level by level, minus their mean."""
    pooled = np.array([value for values in stratum for value in values])
    _, inverse, counts = np.unique(pooled, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks: Floats = (ends - (counts - 1) / 2)[inverse]
    centred: Floats = ranks - ranks.mean()
    return centred


def _arrangements(counts: NDArray[np.int64]) -> int:
    """Count the ways in which runs can be assigned to levels of these sizes."""
    ways, left = 1, int(counts.sum())
    for count in counts:
        ways *= math.comb(left, int(count))
        left -= int(count)
    return ways


def _sum_observed(ranks: list[Floats], counts: NDArray[np.int64]) -> Floats:
    sums = np.zeros(counts.shape[1])
    for values, row in zip(ranks, counts, strict=True):
        labels = np.repeat(np.arange(len(row)), row)
        sums += np.bincount(labels, weights=values, minlength=len(row))
    return sums


def _sum_all_arrangements(ranks: list[Floats], counts: NDArray[np.int64]) -> Floats:
    """Return the sum of ranks of each level, for every arrangement."""
    levels = counts.shape[1]
    sums = np.zeros((1, levels))
    for values, row in zip(ranks, counts, strict=True):
        labels = _permute_labels(tuple(int(count) for count in row))
        one = np.stack([(labels == level) @ values for level in range(levels)], axis=1)
        sums = (sums[:, None, :] + one[None, :, :]).reshape(-1, levels)
    return sums


@functools.lru_cache(maxsize=256)
def _permute_labels(left: tuple[int, ...]) -> NDArray[np.int8]:
    """Return every order of labels, one a row; `left` is how often each label occurs."""
    if not any(left):
        return np.zeros((1, 0), np.int8)
    blocks = []
    for label, count in enumerate(left):
        if count:
            rest = _permute_labels((*left[:label], count - 1, *left[label + 1 :]))
            first = np.full((len(rest), 1), label, np.int8)
            blocks.append(np.hstack([first, rest]))
    return np.vstack(blocks)


def _sum_random_arrangements(ranks: list[Floats], counts: NDArray[np.int64]) -> Floats:
    chance = np.random.default_rng(_SEED)
    sums = np.zeros((MOST_ARRANGEMENTS, counts.shape[1]))
    for values, row in zip(ranks, counts, strict=True):
        # Sorted, so that the random numbers do not depend on which run is in which column.
        shuffled = chance.permuted(np.tile(np.sort(values), (MOST_ARRANGEMENTS, 1)), axis=1)
        ends = np.cumsum(row)
        for level, (end, count) in enumerate(zip(ends, row, strict=True)):
            sums[:, level] += shuffled[:, end - count : end].sum(axis=1)
    return sums
