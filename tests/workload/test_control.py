"""The local control, and slow work beside a loop."""

import asyncio
import time
from typing import Any

import pytest

from shoal.workload.control import Arrival, LocalControl, StreamLane, sleep_unless_stopped
from shoal.workload.record.background_task import BackgroundTask


async def test_a_lane_is_drained_when_every_group_has_seen_a_marker() -> None:
    lines: list[dict[str, Any]] = []
    control = LocalControl(groups=["a", "b"], commit=lines.append)
    await control.commit_drained([Arrival("p", 7, "t", 3, "a"), Arrival("p", 7, "t", 3, "a")])
    assert control.lanes_drained("p") == frozenset()
    await control.commit_drained([Arrival("p", 8, "t", 3, "b")])  # another producer with that id
    assert control.lanes_drained("p") == frozenset()
    await control.commit_drained([Arrival("p", 7, "t", 3, "b"), Arrival("p", 7, "t", 4, "b")])
    assert control.lanes_drained("p") == {StreamLane(7, "t", 3)}
    assert control.lanes_drained("other") == frozenset()
    assert [(line["kind"], line["lane"], line["group"]) for line in lines] == [
        ("drained", 3, "a"),
        ("drained", 3, "b"),
        ("drained", 3, "b"),
        ("drained", 4, "b"),
    ]


async def test_stop_implies_finish_and_ends_sleep() -> None:
    control = LocalControl()
    assert not await sleep_unless_stopped(control, 0.01)
    control.finish()
    assert control.is_finishing()
    assert not control.is_stopping()
    asyncio.get_running_loop().call_later(0.05, control.stop)
    began_s = time.monotonic()
    assert await sleep_unless_stopped(control, 60)
    assert time.monotonic() - began_s < 30
    assert control.is_finishing()
    assert await sleep_unless_stopped(control, 60)


async def test_a_chore_tells_what_went_wrong_once() -> None:
    async def fail() -> None:
        raise ValueError("disk full")

    chore = BackgroundTask()
    chore.check()
    await chore.finish()
    chore.start(fail())
    with pytest.raises(ValueError, match="disk full"):
        await chore.finish()
    assert not chore.is_running
    chore.check()


async def test_a_cancelled_chore_is_gone() -> None:
    chore = BackgroundTask()
    chore.start(asyncio.sleep(60))
    await chore.cancel()
    assert not chore.is_running
    await chore.cancel()
