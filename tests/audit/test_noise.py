"""The tests of noise, checked against published tables and by simulation."""

import random
from statistics import fmean

import pytest

from shoal.audit.result.noise import LEVEL, detectable, f_tail, factor_p, groups_p, holm, t_quantile

# Critical values of the F distribution, as every textbook prints them.
TABLE = [
    (161.448, 1, 1, 0.05),
    (4.965, 1, 10, 0.05),
    (3.326, 5, 10, 0.05),
    (5.636, 5, 10, 0.01),
    (2.348, 10, 20, 0.05),
    (3.841, 1, 1e7, 0.05),
    (6.635, 1, 1e7, 0.01),
    (99.499, 199, 2, 0.01),
]


@pytest.mark.parametrize(("value", "freedom", "rest", "chance"), TABLE)
def test_the_tail_of_f_is_that_of_the_tables(
    value: float, freedom: float, rest: float, chance: float
) -> None:
    assert f_tail(value, freedom, rest) == pytest.approx(chance, rel=0.005)


def test_two_groups_agree_with_shuffling_them() -> None:
    chance = random.Random(3)
    one = [chance.gauss(10, 2) for _ in range(15)]
    two = [chance.gauss(11.5, 2) for _ in range(15)]
    found = groups_p([one, two])
    assert found is not None
    apart = abs(fmean(one) - fmean(two))
    pool, hits, shuffles = [*one, *two], 0, 20_000
    for _ in range(shuffles):
        chance.shuffle(pool)
        hits += abs(fmean(pool[:15]) - fmean(pool[15:])) >= apart
    assert found == pytest.approx(hits / shuffles, abs=0.01)
    assert groups_p([one, list(reversed(one))]) == pytest.approx(1.0)


def test_too_few_runs_or_no_noise_give_no_result() -> None:
    assert groups_p([[1.0, 2.0], [3.0, 4.0]]) is None
    assert groups_p([[1.0, 1.0, 1.0], [1.0, 1.0, 2.0]]) is None
    assert factor_p({("a",): [1.0, 2.0], ("b",): [0.5, 1.5]}, 0) is None
    assert factor_p({("a",): [1.0] * 3, ("b",): [0.5] * 3}, 0) is None
    assert factor_p({("a",): [1.0], ("b",): [0.5]}, 0) is None
    assert factor_p({("a",): [1.0, 2.0, 3.0]}, 0) is None


@pytest.mark.parametrize(
    ("level", "freedom", "value"),
    [(0.05, 10, 2.228), (0.05, 4, 2.776), (0.01, 4, 4.604), (0.4, 10, 0.879), (0.05, 1e7, 1.960)],
)
def test_quantiles_of_t_are_those_of_the_tables(level: float, freedom: float, value: float) -> None:
    assert t_quantile(level, freedom) == pytest.approx(value, rel=0.001)


def test_what_is_called_detectable_is_detected_in_eight_of_ten_cases() -> None:
    chance = random.Random(11)
    hits, trials = 0, 1000
    for _ in range(trials):
        effect = detectable([[0.0, 1.0, 2.0]] * 4, [6, 6], LEVEL)
        assert effect is not None
        # The noise of [0, 1, 2] has variance 1, known by 8 degrees of freedom.
        one = [chance.gauss(0, 1) for _ in range(6)]
        two = [chance.gauss(effect, 1) for _ in range(6)]
        hits += (groups_p([one, two]) or 1) < LEVEL
    assert 0.75 * trials < hits < 0.88 * trials


def sweep(
    chance: random.Random, effect: float, repeats: int = 3
) -> dict[tuple[str, ...], list[float]]:
    """Two parameters: the first does something, the second nothing."""
    return {
        (one, two): [effect * (one == "b") + chance.gauss(0, 1) for _ in range(repeats)]
        for one in "abc"
        for two in "xy"
    }


@pytest.mark.slow
def test_false_alarms_are_as_rare_as_promised() -> None:
    chance = random.Random(5)
    trials = 2000
    alarms = 0.0
    for _ in range(trials):
        cells = sweep(chance, 0.0)
        found = factor_p(cells, 0), factor_p(cells, 1)
        alarms += sum(one is not None and one < LEVEL for one in found) / 2
    assert 0.03 * trials < alarms < 0.07 * trials


def test_an_effect_is_found_where_it_is_and_not_elsewhere() -> None:
    chance = random.Random(7)
    cells = sweep(chance, 5.0)
    first, second = factor_p(cells, 0), factor_p(cells, 1)
    assert first is not None
    assert second is not None
    assert first < 0.001 < LEVEL < second
    # A run that is missing does not change that.
    cells["a", "x"].pop()
    assert (factor_p(cells, 0) or 1) < 0.001


def test_holm_keeps_the_order_and_never_makes_anything_likelier() -> None:
    assert holm([0.01, 0.04, 0.03]) == [0.03, 0.06, 0.06]
    assert holm([]) == []
    assert holm([0.5, 0.9]) == [1.0, 1.0]
