"""Copies the partitions that it is given, in this process: starts, checkpoints, the runner.

Rules:
- `assign` says which partitions it should copy from now on. New ones begin where the target's
  truth says (`shoal.mirror.starting`); those that are gone are let go
  when nothing of them is in flight and a last checkpoint is written.
- Checkpoints are read anew before partitions are begun: another process may have been there.
- A target partition is claimed by a checkpoint before the first record goes to it.
- A topic that cannot be begun is refused with its reason, and others are begun.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from dataclasses import replace

from shoal.client.client import Client
from shoal.mirror.config import MirrorConfig
from shoal.mirror.core import PartitionMirror
from shoal.mirror.routes import Route
from shoal.mirror.runner import MirrorRunner
from shoal.mirror.starting import Starter
from shoal.mirror.status import MirrorStatus
from shoal.model.errors import ConfigError, ShoalError

_log = logging.getLogger(__name__)


class Copier:
    """The copying part of one mirror. Make it and use it in one event loop."""

    def __init__(
        self, source: Client, target: Client, config: MirrorConfig, *, is_of_team: bool = False
    ) -> None:
        """One of a team goes on when everything it has is parked: it may be given more."""
        self._source = source
        self._target = target
        self._config = config
        self._starter = Starter(source, target, config)
        self._keeper = self._starter.keeper
        self._runner = MirrorRunner(
            source,
            target,
            self._starter.lane,
            limits=config.limits,
            throttle=self._starter.throttle,
            fails_on_loss=config.copy.on_loss == "fail",
            ends_when_parked=not is_of_team,
        )
        self._routes: dict[Route, PartitionMirror] = {}
        self._assigning = asyncio.Lock()
        self.refused: dict[str, ShoalError] = {}  # by topic of the source

    @property
    def routes(self) -> list[Route]:
        """What is being copied."""
        return list(self._routes)

    async def prepare(self) -> None:
        """Find out what is there of earlier starts."""
        await self._starter.look()

    async def check(self, routes: list[Route]) -> bool:
        """Refuse target partitions that are not ours to write to; whether any is ours."""
        return await self._starter.check(routes)

    async def assign(self, routes: Iterable[Route]) -> None:
        """Copy these, and no others."""
        wanted = set(routes)
        async with self._assigning:
            await self._let_go([route for route in self._routes if route not in wanted])
            await self._begin_all([r for r in sorted(wanted) if r not in self._routes])
            # What comes into being from now on is copied from its first record.
            self._starter.begin_new_at("earliest")

    async def run(self) -> None:
        """Copy until `stop`, or until everything is parked."""
        keeping = asyncio.create_task(self._keeper.keep())
        try:
            await self._runner.run()
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            await self._keeper.end()

    def stop(self) -> None:
        """Send no more, and let `run` end when all is answered."""
        self._runner.stop()

    def limit_rate(self, max_bytes_per_s: float) -> None:
        """Send no faster than this from now on; 0 for no limit."""
        self._starter.throttle.max_bytes_per_s = max_bytes_per_s

    def pause(self) -> None:
        """Fetch no more, until `resume`."""
        self._runner.pause()

    def resume(self) -> None:
        self._runner.resume()

    async def look_at_ends(self) -> None:
        """Ask the source how far it goes, for a true lag."""
        await self._runner.look_at_ends()

    def status(self) -> MirrorStatus:
        return replace(self._runner.status(), deliveries=self._starter.deliveries)

    async def _begin_all(self, routes: list[Route]) -> None:
        self.refused.clear()
        if not routes:
            return
        try:
            await self._begin(routes)
        except ConfigError as error:
            topics = sorted({route.source.topic for route in routes})
            if len(topics) == 1:
                self.refused[topics[0]] = error
                return
            # One of them: which one shows when each is begun alone.
            for topic in topics:
                await self._begin_alone(topic, [r for r in routes if r.source.topic == topic])

    async def _begin_alone(self, topic: str, routes: list[Route]) -> None:
        try:
            await self._begin(routes)
        except ConfigError as error:
            _log.error("%s is not copied, others go on: %s", topic, error)
            self.refused[topic] = error

    async def _begin(self, routes: list[Route]) -> None:
        await self._source.metadata({route.source.topic for route in routes})
        await self._target.metadata({route.target.topic for route in routes})
        # Another process may have copied some of them meanwhile.
        await self._starter.look(routes)
        begun = await self._starter.begin(routes)
        self._routes.update(begun)
        _log.info("mirroring %d partitions as %s", len(self._routes), self._config.name)
        self._runner.add(begun.values())

    async def _let_go(self, routes: list[Route]) -> None:
        if not routes:
            return
        mirrors = await self._runner.release([route.source for route in routes])
        with contextlib.suppress(TimeoutError):
            await self._keeper.let_go(mirrors)
        self._starter.lane.let_go(mirrors)
        for route in routes:
            del self._routes[route]
