"""Work on many keys in slices: who has a turn when, and what a failure costs."""

import asyncio
from itertools import count

import pytest

from shoal.lite.base.sliced_work import Backlog, SlicedWork


class Clock:
    """Every key costs so much time."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.mark.parametrize(
    ("cost_s", "least", "keys", "at_once"),
    [
        (0.0, 1, 1000, 1000),
        (0.001, 1, 5, 5),
        (0.001, 1, 100, 10),
        (0.004, 1, 100, 3),
        (1.0, 1, 100, 1),
        (1.0, 64, 50, 50),
        (1.0, 64, 100, 64),
    ],
)
def test_the_caller_does_a_slice_or_as_many_as_it_must(
    cost_s: float, least: int, keys: int, at_once: int
) -> None:
    clock = Clock()
    done: list[int] = []

    def work(key: int) -> None:
        done.append(key)
        clock.now_s += cost_s

    backlog: Backlog[int] = Backlog(clock)
    backlog.process_new(range(keys), work, least)
    assert done == list(range(at_once))
    assert len(backlog) == keys - at_once
    while backlog:
        before_s = clock.now_s
        backlog.process_slice(work)
        assert clock.now_s - before_s <= max(0.01 + cost_s, cost_s)
    assert done == list(range(keys))


def test_what_has_just_come_goes_first_and_what_waits_is_done_once() -> None:
    clock = Clock()
    done: list[str] = []

    def work(key: str) -> None:
        done.append(key)
        clock.now_s += 1

    backlog: Backlog[str] = Backlog(clock)
    backlog.process_new(["a", "b", "c"], work, 1)
    backlog.process_new(["c", "d", "b"], work, 1)
    assert done == ["a", "c"]
    while backlog:
        backlog.process_slice(work)
    assert done == ["a", "c", "b", "d"]


async def test_others_have_their_turn_and_a_failure_costs_no_other_key() -> None:
    clock = Clock()
    done: list[int] = []
    failed: list[int] = []
    turns = count()

    def work(key: int) -> None:
        clock.now_s += 0.005
        if key % 3 == 0:
            raise LookupError("unexpected")
        done.append(key)

    sliced: SlicedWork[int] = SlicedWork(
        "test work",
        work,
        on_failed=lambda key, _: failed.append(key),
        now_s=clock,
    )
    sliced.add(range(20))
    assert len(done) + len(failed) == 2
    while not sliced.is_idle:
        next(turns)
        await asyncio.sleep(0)
    assert next(turns) >= 8
    assert (done, failed) == ([n for n in range(20) if n % 3], list(range(0, 20, 3)))


async def test_what_is_called_after_a_slice_may_fail() -> None:
    clock = Clock()
    done: list[int] = []

    def work(key: int) -> None:
        clock.now_s += 1
        done.append(key)

    def fail() -> None:
        raise LookupError("unexpected")

    sliced: SlicedWork[int] = SlicedWork("test work", work, on_drained=fail, now_s=clock)
    sliced.add(range(5))
    for _ in range(100):
        await asyncio.sleep(0)
    assert done == list(range(5))


async def test_after_the_end_nothing_is_done() -> None:
    clock = Clock()
    done: list[int] = []

    def work(key: int) -> None:
        clock.now_s += 1
        done.append(key)

    sliced: SlicedWork[int] = SlicedWork("test work", work, now_s=clock)
    sliced.add(range(5))
    sliced.stop()
    await asyncio.sleep(0.01)
    assert done == [0]
