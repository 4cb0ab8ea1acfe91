"""One budget for all that a mirror sends."""

import pytest

from shoal.mirror.copy.throttle import Throttle, divide_limit


def test_an_average_is_kept_over_all_senders() -> None:
    throttle, now_s, sent = Throttle(1_000), 0.0, 0
    while now_s < 10:
        if throttle.is_open(now_s):
            throttle.spend(300, now_s)  # one sender
            throttle.spend(200, now_s)  # and another, in the same moment
            sent += 500
        now_s = max(now_s + 0.001, throttle.open_at_s)
    assert 10_000 <= sent <= 10_500


def test_without_a_limit_it_is_always_open() -> None:
    throttle = Throttle()
    throttle.spend(1 << 40, 5.0)
    assert throttle.is_open(5.0)
    assert throttle.limit_request(8_000_000) == 8_000_000


@pytest.mark.parametrize(("rate", "expected"), [(80_000, 10_000), (1, 1), (10**9, 1_000_000)])
def test_requests_are_small_under_a_limit(rate: int, expected: int) -> None:
    assert Throttle(rate).limit_request(1_000_000) == expected


def test_workers_divide_a_limit_by_their_partitions() -> None:
    shares = [divide_limit(1_000, part, 10) for part in (7, 3, 0)]
    assert shares == [700, 300, 1]
    assert divide_limit(0, 3, 10) == 0
