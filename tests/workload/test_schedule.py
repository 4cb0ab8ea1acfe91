"""The schedule: exact, monotone, never above the rate."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.model.errors import UsageError
from shoal.workload.schedule import HIGHEST_RATE_PER_S, SteadySchedule

START_US = 1_763_000_000_000_000
rates = st.one_of(
    st.integers(1, HIGHEST_RATE_PER_S).map(float),
    st.floats(0.001, HIGHEST_RATE_PER_S, allow_nan=False),
)


@given(rate=rates, number=st.integers(0, 10**10))
def test_due_and_intended_agree_to_the_microsecond(rate: float, number: int) -> None:
    schedule = SteadySchedule.at_rate(START_US, rate)
    intended_us = schedule.intended_at_us(number)
    assert schedule.due(intended_us) > number
    assert schedule.due(intended_us - 1) <= number


@given(rate=rates, elapsed_us=st.integers(0, 10**13))
def test_never_above_the_rate(rate: float, elapsed_us: int) -> None:
    due = SteadySchedule.at_rate(START_US, rate).due(START_US + elapsed_us)
    # The first message leaves at the start itself; after that the rate is a ceiling.
    assert due - 1 <= rate * elapsed_us / 1e6 * (1 + 1e-12)


@given(rate=rates, numbers=st.lists(st.integers(0, 10**9), max_size=20))
def test_many_at_once_equal_one_at_a_time(rate: float, numbers: list[int]) -> None:
    schedule = SteadySchedule.at_rate(START_US, rate)
    together = schedule.intended_us(np.array(numbers, np.int64))
    assert together.tolist() == [schedule.intended_at_us(number) for number in numbers]


def test_nothing_is_due_before_the_start() -> None:
    schedule = SteadySchedule.at_rate(START_US, 1000)
    assert schedule.due(START_US - 1) == 0
    assert schedule.due(START_US) == 1
    assert schedule.due(START_US + 999) == 1
    assert schedule.due(START_US + 1_000_000) == 1001


@pytest.mark.parametrize("rate", [0, -1, 0.0001, HIGHEST_RATE_PER_S + 1])
def test_impossible_rates_are_refused(rate: float) -> None:
    with pytest.raises(UsageError):
        SteadySchedule.at_rate(START_US, rate)
