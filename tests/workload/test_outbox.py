"""The producer's plan: every number once, in order, never early, never unreserved."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shoal.workload.send.outbox import RESERVE_AHEAD_US, TopicOutbox
from shoal.workload.send.schedule import SteadySchedule

START_US = 1_000_000


def outbox(lanes: int, partitions: int, end: int, first: int = 0) -> TopicOutbox:
    schedule = SteadySchedule.at_rate(START_US, 1000)
    return TopicOutbox(
        lanes=lanes, partitions=partitions, schedule=schedule, end_number=end, first_number=first
    )


@given(
    lanes=st.integers(1, 9),
    partitions=st.integers(1, 9),
    end=st.integers(0, 500),
    ticks=st.lists(st.tuples(st.integers(0, 80_000), st.integers(1, 40), st.booleans())),
)
def test_every_number_leaves_once_in_order_and_when_due(
    lanes: int, partitions: int, end: int, ticks: list[tuple[int, int, bool]]
) -> None:
    box = outbox(lanes, partitions, end)
    box.reserved_rows = 10_000
    seen: list[int] = []
    now_us = START_US
    for step_us, most, is_blocked in [*ticks, *[(80_000, 100, False)] * 20]:
        now_us += step_us
        blocked = box.partitions[0]
        blocked.unanswered = 5 if is_blocked else 0
        can_take = box.can_take(now_us, max_unanswered=5)
        shares = box.take(now_us, most=most, max_unanswered=5)
        assert can_take == bool(shares)
        for share in shares:
            assert not (is_blocked and share.partition == blocked.partition)
            assert len(share) <= most
            assert (share.numbers % lanes == share.lanes).all()
            assert (share.numbers // lanes == share.sequences).all()
            assert (share.lanes % partitions == share.partition).all()
            assert (box.schedule.due_times_us(share.numbers) <= now_us).all()
            assert (np.diff(share.numbers) > 0).all()
            mine = [number for number in seen if number % lanes % partitions == share.partition]
            assert not mine or mine[-1] < share.numbers[0]
            seen += share.numbers.tolist()
        assert box.behind(now_us) == box.due(now_us) - len(seen)
    assert sorted(seen) == list(range(end))
    assert box.is_done
    assert box.lane_counts().tolist() == [len(range(lane, end, lanes)) for lane in range(lanes)]


def test_nothing_leaves_unreserved() -> None:
    box = outbox(lanes=4, partitions=2, end=10_000)
    later_us = START_US + 500_000
    assert box.take(later_us, most=1000, max_unanswered=5) == []
    box.reserved_rows = 10
    taken = sum(map(len, box.take(later_us, most=1000, max_unanswered=5)))
    assert taken == 40


def test_reservations_stay_ahead_but_not_beyond_the_end() -> None:
    box = outbox(lanes=4, partitions=2, end=2500)
    assert box.rows_to_reserve(START_US - RESERVE_AHEAD_US) is None
    assert box.rows_to_reserve(START_US) == 501  # two seconds of 1000/s, in rows of four
    box.reserved_rows = 501
    assert box.rows_to_reserve(START_US + 500_000) is None
    assert box.rows_to_reserve(START_US + 1_100_000) == 625
    box.reserved_rows = 625
    assert box.rows_to_reserve(START_US + 100_000_000) is None


def test_a_new_incarnation_begins_behind_the_old_ones_reservations() -> None:
    box = outbox(lanes=4, partitions=2, end=1000, first=602)
    assert box.reserved_rows == 151
    assert box.next_due_us() == box.schedule.due_time_us(604)
    box.reserved_rows = 250
    shares = box.take(START_US + 10_000_000, most=10_000, max_unanswered=5)
    numbers = sorted(number for share in shares for number in share.numbers.tolist())
    assert numbers == list(range(604, 1000))


def test_counts_say_what_was_used_up() -> None:
    box = outbox(lanes=3, partitions=2, end=100)
    box.reserved_rows = 100
    box.take(START_US + 6_000, most=100, max_unanswered=5)  # numbers 0 to 6
    assert box.lane_counts().tolist() == [3, 2, 2]
    assert box.next_due_us() == START_US + 7_000
