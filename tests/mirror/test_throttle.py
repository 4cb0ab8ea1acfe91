"""One budget for all that a mirror sends."""

import asyncio

import pytest

from shoal.cli.mirror.copy_options import read_topic_limits
from shoal.lite.cluster import LiteCluster
from shoal.mirror.config import MirrorLimits
from shoal.mirror.copy.throttle import Throttle, divide_limit
from shoal.mirror.status import MirrorStatus
from shoal.model.errors import UsageError
from support.mirror.copies import config_of, fill, make_topic
from support.mirror.runs import running


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


@pytest.mark.parametrize("delivery", ["idempotent", "transactional", "compare-and-append"])
@pytest.mark.quick("idempotent")
async def test_the_limit_of_a_topic_holds_back_no_other(
    source: LiteCluster, target: LiteCluster, delivery: str
) -> None:
    limited, free = f"limited-{delivery}", f"free-{delivery}"
    for topic in (limited, free):
        await make_topic(source.bootstrap, topic, 2)
        await asyncio.to_thread(fill, source.bootstrap, topic, range(200), partitions=2)
    # After its first batch it is closed for minutes.
    limits = MirrorLimits(topic_max_bytes_per_s={limited: 1})
    config = config_of(
        source.bootstrap,
        target.bootstrap,
        limited,
        free,
        name=limited,
        delivery=delivery,
        limits=limits,
    )
    async with running(config) as mirror:
        status = await mirror.until(
            lambda status: sum(_positions(status, free)) == 200 and any(_positions(status, limited))
        )
        assert sum(_positions(status, limited)) < 200


def _positions(status: MirrorStatus, topic: str) -> list[int]:
    return [max(0, at) for tp, at in status.positions.items() if tp.topic == topic]


def test_a_limit_of_a_topic_is_a_number_of_bytes() -> None:
    assert read_topic_limits(("orders=1000", "pay=5")) == {"orders": 1000, "pay": 5}
    for wrong in ("orders=0", "orders=fast", "orders=-1"):
        with pytest.raises(UsageError, match="not a limit of bytes per second"):
            read_topic_limits((wrong,))
