"""The transactional ids of one process: the partitions of a stuck one continue under another.

    lane 0:  A  B  C          B loses its leader: the transaction cannot end, nor a next one begin
    lane 0:  B                waits for B's leader, and continues
    lane 1:  A  C             continue once the outcome of lane 0's transaction is known there

Rules:
- Inside a transaction that has begun nothing can be saved: commit and abort both need the marker
  of every partition. So a partition without a leader is left out before a transaction begins,
  and one that loses it inside a transaction keeps its lane busy.
- The others move when no transaction is open in them any more: what lane 0 wrote there is
  committed or aborted for good, and its positions are read after that. They are claimed for the
  other lane as any later process would claim them (`shoal.mirror.run.transaction_session`).
- A partition stays in its new lane. Lanes that are free again are used before new ones are made.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from shoal.mirror.copy.delivery.transactional import TransactionalMirror
from shoal.mirror.copy.partition import PartitionMirror
from shoal.mirror.offsets.checkpoints import Checkpoint
from shoal.mirror.routes import Route
from shoal.mirror.run.transaction_session import LaneStuck, TransactionLane
from shoal.model.errors import ConfigError
from shoal.model.topics import TopicPartition
from shoal.runtime.tasks import run_awaited

MOST_LANES: Final = 16
_LOOK_EVERY_S: Final = 0.5

_log = logging.getLogger(__name__)


class TransactionLanes:
    """Writes the batches of transactional partitions, under as many ids as are needed."""

    def __init__(self, make_lane: Callable[[int], TransactionLane]) -> None:
        """`make_lane` makes the lane of a number; 0 is the one that is always there."""
        self._make_lane = make_lane
        self._lanes: list[TransactionLane] = []
        self._works: dict[int, asyncio.Task[None]] = {}
        self._is_running = False
        self._begun: dict[TopicPartition, TransactionLane] = {}
        self.on_progress: Callable[[], None] = lambda: None
        self._add()

    def _add(self) -> TransactionLane:
        number = len(self._lanes)
        lane = self._make_lane(number)
        lane.on_progress = self._report_progress
        lane.on_stuck = self._move_healthy
        self._lanes.append(lane)
        if self._is_running:
            self._run(number)
        return lane

    def _report_progress(self) -> None:
        self.on_progress()

    # Partitions come and go.

    async def end_open(self, routes: Iterable[Route], workers: Iterable[int]) -> None:
        """Abort what the former holders of these places left open, if anything is."""
        await self._lanes[0].end_open(routes, workers)

    async def begin(self, routes: Iterable[Route]) -> dict[Route, Checkpoint]:
        """Take these over; returns where each begins or goes on."""
        return await self._begin(list(routes), avoid=None)

    async def _begin(
        self, routes: list[Route], avoid: TransactionLane | None
    ) -> dict[Route, Checkpoint]:
        for number in range(MOST_LANES):
            lane = self._lanes[number] if number < len(self._lanes) else self._add()
            if lane is avoid or lane.is_stuck:
                continue
            try:
                claimed = await lane.begin(routes)
            except LaneStuck as stuck:
                _log.warning("%s", stuck)
                continue
            self._begun.update((route.target, lane) for route in routes)
            return claimed
        raise ConfigError(
            f"{MOST_LANES} transactional ids of this mirror wait for partitions without a leader",
            remedy="bring the target's brokers back",
        )

    def follow(self, mirrors: Iterable[TransactionalMirror]) -> None:
        """Write the batches of these, which were begun."""
        for mirror in mirrors:
            self._begun.pop(mirror.target).follow([mirror])

    def let_go(self, mirrors: Iterable[PartitionMirror]) -> None:
        """No longer of these, of which nothing is in flight: another may go on with them."""
        gone = list(mirrors)
        for lane in self._lanes:
            lane.let_go(gone)

    async def drop(self, mirrors: Iterable[PartitionMirror]) -> None:
        """No longer of these, whose target topic is another one; waits for open transactions."""
        gone = list(mirrors)
        for lane in self._lanes:
            await lane.drop(gone)

    async def restore(self) -> set[TopicPartition]:
        """Write all positions again, to a checkpoint topic that was made again."""
        restored: set[TopicPartition] = set()
        for lane in self._lanes:
            restored |= await lane.restore()
        return restored

    async def _move_healthy(
        self, lane: TransactionLane, healthy: list[TransactionalMirror]
    ) -> None:
        """Let these, whose lane is stuck for others, continue under another id."""
        routes = [Route(mirror.partition, mirror.target) for mirror in healthy]
        claimed = await self._begin(routes, avoid=lane)
        lane.let_go(healthy)
        for route, mirror in zip(routes, healthy, strict=True):
            mirror.go_back(claimed[route].source_offset, claimed[route].target_offset)
        self.follow(healthy)
        names = ", ".join(str(mirror.target) for mirror in healthy)
        _log.warning("%s is stuck: %s continue under another transactional.id", lane.id, names)
        self.on_progress()

    # The copying.

    def wake(self) -> None:
        """There may be batches to send."""
        for lane in self._lanes:
            lane.wake()

    def stop(self) -> None:
        """End when the open transactions have ended."""
        for lane in self._lanes:
            lane.stop()

    async def run(self) -> None:
        """Write until `stop`."""
        self._is_running = True
        for number in range(len(self._lanes)):
            self._run(number)
        try:
            while unfinished := [work for work in self._works.values() if not work.done()]:
                # Not for ever: a lane may be added meanwhile.
                await asyncio.wait(
                    unfinished, timeout=_LOOK_EVERY_S, return_when=asyncio.FIRST_COMPLETED
                )
                for work in self._works.values():
                    if work.done():
                        work.result()
        finally:
            self._is_running = False
            for work in self._works.values():
                work.cancel()
            await asyncio.gather(*self._works.values(), return_exceptions=True)

    def _run(self, number: int) -> None:
        self._works[number] = run_awaited("mirror lane", self._lanes[number].run())
