"""Exact tests over runs, checked by enumeration and by simulation."""

import random

import pytest

from shoal.audit.result.noise import LEVEL
from shoal.audit.result.run_tests import (
    UNKNOWN,
    Chance,
    correct,
    count_testable,
    least_affected,
    runs_chance,
    strata_chance,
)


@pytest.mark.parametrize(
    ("columns", "value", "least"),
    [
        # 20 ways to deal out six runs; two of them are this far apart.
        ([[0, 0, 0], [1, 2, 3]], 0.1, 0.1),
        # Forty losses in one run of three: any of six runs could have been it.
        ([[0, 0, 40], [0, 0, 0]], 1.0, 1.0),
        ([[0] * 6, [40] * 6], 2 / 924, 2 / 924),
        ([[0] * 6, [0, 0, 0, 1, 2, 3]], 40 / 220, 40 / 220),
        ([[1, 2], [3, 4], [5, 6]], 6 / 90, 6 / 90),
        ([[5, 5, 5], [5, 5, 5]], 1.0, 1.0),
    ],
)
def test_all_arrangements_of_runs_are_counted(
    columns: list[list[float]], value: float, least: float
) -> None:
    found = runs_chance(columns)
    assert found.value == pytest.approx(value)
    assert found.least == pytest.approx(least)


def test_runs_are_permuted_within_their_stratum() -> None:
    # In each of two strata the second level lost more: 2 of 20 by 20 ways.
    strata = [[[0, 0, 0], [1, 2, 3]], [[10, 11, 12], [20, 21, 22]]]
    assert strata_chance(strata).value == pytest.approx(2 / 400)
    # The strata differ, and the levels do not.
    found = strata_chance([[[0, 1], [0, 1]], [[100, 101], [100, 101]]])
    assert found.value == pytest.approx(1.0)


def test_one_level_gives_no_result() -> None:
    assert strata_chance([[[1, 2, 3], []]]) == UNKNOWN


def test_many_runs_are_drawn_and_come_close() -> None:
    one, two = list(range(0, 60, 2)), list(range(15, 75, 2))
    found = runs_chance([one, two])
    assert found.value is not None
    assert 0 < found.value < 0.01
    assert runs_chance([one, two]) == found


def test_false_alarms_are_no_more_than_promised() -> None:
    """Losses in bursts: a run in five loses some, and often many."""
    chance = random.Random(3)

    def lost() -> float:
        return float(chance.choice([1, 40, 400]) if chance.random() < 0.2 else 0)

    trials = 1000
    alarms = sum(
        (runs_chance([[lost() for _ in range(6)], [lost() for _ in range(6)]]).value or 0) < LEVEL
        for _ in range(trials)
    )
    assert alarms <= LEVEL * trials


def test_tests_that_can_show_nothing_cost_the_others_nothing() -> None:
    idle = [Chance(1.0, 1.0)] * 10 + [Chance(0.1, 0.1)]
    chances = [*idle, Chance(0.03, 0.0)]
    assert count_testable(chances) == 1
    assert correct(chances) == [None] * 11 + [pytest.approx(0.03)]
    assert correct([Chance(0.03), Chance(0.04)]) == [pytest.approx(0.06), pytest.approx(0.06)]
    assert correct([]) == []
    assert correct([UNKNOWN]) == [None]


@pytest.mark.parametrize(
    ("mine", "theirs", "level", "expected"),
    [(3, 3, 0.05, None), (4, 4, 0.05, 4), (6, 6, 0.05, 5), (6, 6, 0.0022, 6), (6, 6, 0.002, None)],
)
def test_how_many_runs_must_be_affected(
    mine: int, theirs: int, level: float, expected: int | None
) -> None:
    assert least_affected(mine, theirs, level) == expected
