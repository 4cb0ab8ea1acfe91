"""The tests of noise: against tables that others computed, and against chance itself."""

import random
from statistics import fmean

import pytest

from shoal.audit.noise import LEVEL, block_means, f_tail, factor_p, groups_p, holm

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


def test_no_noise_at_all() -> None:
    assert groups_p([[1.0, 1.0], [1.0, 1.0]]) == 1.0
    assert groups_p([[1.0, 1.0], [2.0, 2.0]]) == 0.0
    assert groups_p([[1.0], [2.0, 2.0]]) is None
    assert factor_p({("a",): [1.0, 1.0], ("b",): [1.0, 1.0]}, 0) == 1.0
    assert factor_p({("a",): [1.0, 1.0], ("b",): [0.5, 0.5]}, 0) == 0.0
    assert factor_p({("a",): [1.0], ("b",): [0.5]}, 0) is None
    assert factor_p({("a",): [1.0, 2.0]}, 0) is None


def sweep(
    chance: random.Random, effect: float, repeats: int = 3
) -> dict[tuple[str, ...], list[float]]:
    """Two parameters: the first does something, the second nothing."""
    return {
        (one, two): [effect * (one == "b") + chance.gauss(0, 1) for _ in range(repeats)]
        for one in "abc"
        for two in "xy"
    }


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


def test_blocks_take_all_seconds() -> None:
    assert block_means([1.0, 1.0, 3.0, 3.0], 2) == [1.0, 3.0]
    assert block_means([1.0, 2.0, 3.0]) == []
    assert len(block_means([float(second) for second in range(100)])) == 10
