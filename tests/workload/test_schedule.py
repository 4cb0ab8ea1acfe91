"""The schedule: exact, monotone, never above the rate."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.model.errors import UsageError
from shoal.workload.send.schedule import (
    HIGHEST_RATE_PER_S,
    Schedule,
    SteadySchedule,
    burst_schedule,
    ramp_schedule,
)

START_US = 1_763_000_000_000_000
rates = st.one_of(
    st.integers(1, HIGHEST_RATE_PER_S).map(float),
    st.floats(0.001, HIGHEST_RATE_PER_S, allow_nan=False),
)


seconds = st.floats(1.0, 1000.0)
steady = rates.map(lambda rate: SteadySchedule.at_rate(START_US, rate))
bursts = st.builds(
    lambda rate, burst_s, pause_s: burst_schedule(
        START_US, max(rate, 1.0), burst_s=burst_s, pause_s=pause_s
    ),
    *(rates, seconds, seconds),
)
ramps = st.builds(
    lambda rate, part, ramp_s: ramp_schedule(
        START_US, max(rate, 1.0), from_per_s=max(rate * part, 0.001), ramp_s=ramp_s
    ),
    *(rates, st.floats(0.001, 1.0), seconds),
)
shapes = st.one_of(steady, bursts, ramps)


@given(schedule=shapes, number=st.one_of(st.integers(0, 1000), st.integers(0, 10**10)))
def test_due_and_intended_agree_to_the_microsecond(schedule: Schedule, number: int) -> None:
    intended_us = schedule.due_time_us(number)
    assert schedule.due(intended_us) > number
    assert schedule.due(intended_us - 1) <= number


@given(rate=rates, elapsed_us=st.integers(0, 10**13))
def test_never_above_the_rate(rate: float, elapsed_us: int) -> None:
    due = SteadySchedule.at_rate(START_US, rate).due(START_US + elapsed_us)
    # The first message leaves at the start itself; after that the rate is a ceiling.
    assert due - 1 <= rate * elapsed_us / 1e6 * (1 + 1e-12)


@given(rate=rates, times=st.lists(st.integers(0, 10**10), min_size=2, max_size=2), shape=st.data())
def test_no_shape_is_above_the_rate_at_any_time(
    rate: float, times: list[int], shape: st.DataObject
) -> None:
    rate = max(rate, 1.0)
    low, high = sorted(times)
    schedule = shape.draw(
        st.sampled_from(
            [
                burst_schedule(START_US, rate, burst_s=2.0, pause_s=0.7),
                ramp_schedule(START_US, rate, from_per_s=rate / 7, ramp_s=33.0),
            ]
        )
    )
    sent = schedule.due(START_US + high) - schedule.due(START_US + low)
    assert sent <= rate * (high - low) / 1e6 * (1 + 1e-12) + 1


def test_bursts_pause_and_ramps_climb() -> None:
    burst = burst_schedule(0, 1000, burst_s=1.0, pause_s=3.0)
    assert [burst.due(second * 1_000_000) for second in (0, 1, 2, 4, 5, 8)] == [
        *(1, 1001, 1001, 1001, 2001, 2001)
    ]
    ramp = ramp_schedule(0, 1000, from_per_s=100, ramp_s=10.0)
    counts = [ramp.due(second * 1_000_000) for second in range(21)]
    sent = np.diff(counts)
    assert (np.diff(sent[:10]) > 0).all()
    assert sent[10:].tolist() == [1000] * 10
    assert 5300 <= counts[10] <= 5500


@given(schedule=shapes, numbers=st.lists(st.integers(0, 10**10), max_size=20))
def test_many_at_once_equal_one_at_a_time(schedule: Schedule, numbers: list[int]) -> None:
    together = schedule.due_times_us(np.array(numbers, np.int64))
    assert together.tolist() == [schedule.due_time_us(number) for number in numbers]


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


def test_impossible_shapes_are_refused() -> None:
    for burst_s, pause_s in ((0.0, 1.0), (1.0, 0.0), (0.0001, 1.0)):
        with pytest.raises(UsageError):
            burst_schedule(START_US, 100, burst_s=burst_s, pause_s=pause_s)
    for low, ramp_s in ((200.0, 1.0), (0.0, 1.0), (1.0, 0.0)):
        with pytest.raises(UsageError):
            ramp_schedule(START_US, 100, from_per_s=low, ramp_s=ramp_s)
