"""Routes that are being started: what is known of them stays known until it is decided again."""

import asyncio
from collections.abc import Sequence

import pytest

from shoal.mirror.routes import Route
from shoal.mirror.watch.starts import RouteStarts
from shoal.model.errors import ConfigError, ShoalError
from shoal.model.topics import TopicPartition

GOOD = Route(TopicPartition("good", 0), TopicPartition("good", 0))
BAD = Route(TopicPartition("bad", 0), TopicPartition("bad", 0))


class Target:
    """Refuses a route after as long a look as the test wants."""

    def __init__(self) -> None:
        self.running: set[Route] = set()
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.error: ShoalError | None = ConfigError("records are gone", remedy="compare both")
        self.starts = RouteStarts(self.probe, self.start, is_running=self.running.__contains__)

    async def probe(self, routes: Sequence[Route]) -> dict[Route, ShoalError]:
        return {}

    async def start(self, routes: Sequence[Route]) -> None:
        if BAD in routes:
            await self.may_answer.wait()
            if self.error is not None:
                raise self.error
        self.running.update(routes)


async def test_a_refusal_stands_while_the_route_is_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    target = Target()
    starts = target.starts
    await starts.start([GOOD, BAD], has_others=False)
    assert starts.not_running == {BAD: target.error}
    target.may_answer.clear()
    again = asyncio.create_task(starts.start([BAD], has_others=True))
    for _ in range(5):
        await asyncio.sleep(0.01)
        assert starts.not_running == starts.refused == {BAD: target.error}
    target.may_answer.set()
    await again
    assert starts.not_running == {BAD: target.error}
    # The same reason is logged once.
    assert caplog.text.count("records are gone") == 1
    target.error = None
    await starts.start([BAD], has_others=True)
    assert starts.not_running == starts.refused == {}


async def test_a_route_that_is_not_decided_yet_is_known_as_starting() -> None:
    target = Target()
    starts = target.starts
    target.may_answer.clear()
    task = asyncio.create_task(starts.start([BAD], has_others=False))
    await asyncio.sleep(0.05)
    (error,) = starts.not_running.values()
    assert "is being started" in str(error)
    assert error.remedy
    await starts.close()
    await asyncio.gather(task, return_exceptions=True)
    assert starts.not_running == {}


async def test_a_refusal_goes_with_a_route_that_is_no_longer_wanted() -> None:
    target = Target()
    await target.starts.start([BAD], has_others=False)
    await target.starts.keep_only({GOOD})
    assert target.starts.not_running == {}
