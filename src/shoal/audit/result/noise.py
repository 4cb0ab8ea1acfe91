"""Tests whether numbers of several runs differ by more than the noise between runs (pure).

The tests and their assumptions:
- `factor_p`: the effect of one parameter in a sweep, by the F-test of its levels' means against
  the variance between repeats of the same combination (unweighted means, so that a few missing
  runs do no harm). The other parameters are averaged over, not assumed to have no effect.
- `groups_p`: several groups of samples, perhaps with different noise, by Welch's test.
- A sample is a run. Seconds of one run are not independent of each other and are never used as
  samples. Fewer than three runs a side show nothing.
- Both tests assume independent, approximately normal samples. Latencies are passed as logarithms,
  because their noise is proportional. A group without any noise is not plausible: None is
  returned, and `shoal.audit.result.run_tests` has a test that needs no noise.
- Many tests at once: `holm` corrects for how many there are, so that with 5 % the chance of one
  false 'differs' on the whole page is at most 5 %.
"""

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, variance
from typing import Final

LEVEL: Final = 0.05
# Fewer runs than this do not show their noise.
LEAST_RUNS: Final = 3
# The probability with which a detectable effect is detected.
POWER: Final = 0.8
_TINY: Final = 1e-300
_STEPS: Final = 500

Combination = tuple[str, ...]


def factor_p(cells: Mapping[Combination, Sequence[float]], place: int) -> float | None:
    """Return the p-value of the effect of the parameter at index `place`.

    None if it cannot be computed: one level only, fewer than three runs of a level, or repeats that
    show no noise at all.
    """
    filled = {combination: values for combination, values in cells.items() if values}
    levels: dict[str, list[float]] = {}
    for combination, values in filled.items():
        levels.setdefault(combination[place], []).append(fmean(values))
    freedom = sum(len(values) - 1 for values in filled.values())
    if len(levels) < 2 or _least_runs(filled, place) < LEAST_RUNS:
        return None
    within = _pool_variance(filled.values(), freedom) if freedom else 0.0
    if within <= 0:
        return None
    means = {level: fmean(found) for level, found in levels.items()}
    grand = fmean(means.values())
    # The number of runs behind the mean of a level, if all levels had the same.
    harmonic = len(filled) / sum(1 / len(values) for values in filled.values())
    weight = harmonic * fmean([len(found) for found in levels.values()])
    between = weight * sum((mean - grand) ** 2 for mean in means.values()) / (len(means) - 1)
    return f_tail(between / within, len(means) - 1, freedom)


def _least_runs(cells: Mapping[Combination, Sequence[float]], place: int) -> int:
    """Return the number of runs of the level with the fewest."""
    runs: dict[str, int] = {}
    for combination, values in cells.items():
        runs[combination[place]] = runs.get(combination[place], 0) + len(values)
    return min(runs.values())


def groups_p(groups: Sequence[Sequence[float]]) -> float | None:
    """Return the p-value of the differences between groups; None if it is unknown."""
    if len(groups) < 2 or any(len(group) < LEAST_RUNS for group in groups):
        return None
    variances = [variance(group) for group in groups]
    if min(variances) <= 0:
        return None
    weights = [len(group) / spread for group, spread in zip(groups, variances, strict=True)]
    total, count = sum(weights), len(groups)
    means = [fmean(group) for group in groups]
    grand = sum(w * mean for w, mean in zip(weights, means, strict=True)) / total
    between = sum(w * (m - grand) ** 2 for w, m in zip(weights, means, strict=True)) / (count - 1)
    unsure = sum(
        (1 - w / total) ** 2 / (len(group) - 1) for w, group in zip(weights, groups, strict=True)
    )
    statistic = between / (1 + 2 * (count - 2) / (count**2 - 1) * unsure)
    return f_tail(statistic, count - 1, (count**2 - 1) / (3 * unsure))


def _pool_variance(groups: Iterable[Sequence[float]], freedom: int) -> float:
    """Return the variance within groups."""
    return sum((len(g) - 1) * variance(g) for g in groups if len(g) > 1) / freedom


def holm(chances: Sequence[float]) -> list[float]:
    """Correct each p-value for the number of tests."""
    corrected = [1.0] * len(chances)
    highest = 0.0
    for rank, place in enumerate(sorted(range(len(chances)), key=lambda place: chances[place])):
        highest = max(highest, min(1.0, (len(chances) - rank) * chances[place]))
        corrected[place] = highest
    return corrected


def detectable(
    groups: Sequence[Sequence[float]], sizes: Sequence[int], level: float
) -> float | None:
    """Return the smallest difference of two means of these sizes that shows in 8 of 10 cases.

    The noise is that within `groups`.
    """
    spread_groups = [group for group in groups if len(group) > 1]
    freedom = sum(len(group) - 1 for group in spread_groups)
    if freedom < 1:
        return None
    within = _pool_variance(spread_groups, freedom)
    error = math.sqrt(within * sum(1 / size for size in sizes))
    return (t_quantile(level, freedom) + t_quantile(2 * (1 - POWER), freedom)) * error


@functools.lru_cache(maxsize=1024)
def t_quantile(level: float, freedom: float) -> float:
    """Return the value that the absolute value of Student's t exceeds with this probability."""
    low, high = 0.0, 1.0
    while f_tail(high * high, 1, freedom) > level:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if f_tail(middle**2, 1, freedom) > level else (low, middle)
    return high


def f_tail(statistic: float, freedom: float, rest: float) -> float:
    """Return the probability that an F-distributed value is at least this large."""
    if statistic <= 0:
        return 1.0
    return _beta(rest / (rest + freedom * statistic), rest / 2, freedom / 2)


def _beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function, by its continued fraction."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(x, a, b) / a
    return 1 - front * _fraction(1 - x, b, a) / b


def _fraction(x: float, a: float, b: float) -> float:
    """Evaluate the continued fraction of the incomplete beta function by Lentz's method."""
    c, d = 1.0, 1 / _off_zero(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, _STEPS):
        for step in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / _off_zero(1 + step * d)
            c = _off_zero(1 + step / c)
            value *= c * d
        if abs(c * d - 1) < 1e-14:
            break
    return value


def _off_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
