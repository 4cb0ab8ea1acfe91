"""One flow of a mirror: topics found, copied, and looked after, until it is stopped.

Rules:
- It begins by looking at both clusters. If nothing can be copied then, it raises the reason;
  afterwards what cannot be copied is told in its status, and tried again.
- Topics are looked at again at every refresh, and at once where the copying finds one missing or
  created again.
- Duties beside the copying (new topics, settings, groups, heartbeats, log starts) never end
  it: what fails is logged and tried again at its next turn.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, Protocol

from shoal.client.client import Client
from shoal.mirror.config import MirrorConfig
from shoal.mirror.mm2.heartbeats import Heartbeats
from shoal.mirror.mm2.topics import TopicPlan, Topics
from shoal.mirror.offsets.positions import write_positions
from shoal.mirror.routes import Route
from shoal.mirror.run.clients import both_clients
from shoal.mirror.run.copier import Copier
from shoal.mirror.status import MirrorStatus
from shoal.mirror.translation import GroupSync, Translator
from shoal.mirror.watch.log_starts import LogStarts
from shoal.model.errors import LedgerError, ShoalError
from shoal.runtime.tasks import keep_running, log_only, record_failure, run_once

STATUS_EVERY_S: Final = 1.0
LOG_STARTS_EVERY_S: Final = 60.0
# Where no refresh is wanted, topics are still compared with those that were begun.
COMPARE_IDS_EVERY_S: Final = 10.0
REFRESH_PAUSE_S: Final = 1.0
# How soon settings follow where a record is larger than the target's topic allows.
LIMITS_EVERY_S: Final = 2.0

OnStatus = Callable[[MirrorStatus], None]

_log = logging.getLogger(__name__)


class Hands(Protocol):
    """Who copies: `Copier` in this process, or a team of workers."""

    changed: asyncio.Event  # set when a topic is missing or another one

    @property
    def refused(self) -> Mapping[str, ShoalError]: ...

    @property
    def routes(self) -> list[Route]: ...

    async def prepare(self) -> None: ...

    async def check(self, routes: list[Route]) -> bool: ...

    async def assign(self, routes: Iterable[Route]) -> None: ...

    async def run(self) -> None: ...

    def stop(self) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    async def look_at_ends(self) -> None: ...

    def status(self) -> MirrorStatus: ...


MakeHands = Callable[[Client, Client, MirrorConfig], Hands]


class Flow:
    """One source, one target, one set of topics."""

    def __init__(
        self,
        config: MirrorConfig,
        on_status: OnStatus | None = None,
        *,
        hands: MakeHands = Copier,
    ) -> None:
        self._make_hands = hands
        self._config = config
        self._on_status = on_status
        self._copier: Hands | None = None
        self._plan = TopicPlan()

    @property
    def copies(self) -> bool:
        """Whether it has begun, and so must be stopped in order."""
        return self._copier is not None

    def stop(self) -> None:
        if self._copier is not None:
            self._copier.stop()

    async def run(self) -> MirrorStatus:
        config = self._config
        async with both_clients(config) as (source, target):
            copier = self._make_hands(source, target, config)
            await copier.prepare()
            topics = Topics(source, target, config, copier.check)
            await self._assign(topics, copier)
            if not copier.routes and (refused := self._refused(copier)):
                raise refused[0]
            self._copier = copier
            works = self._duties(topics, copier) + self._duties_at_target(source, target)
            duties = [run_once("mirror duty", each, on_failure=log_only) for each in works]
            try:
                return await self._copy(copier)
            finally:
                for duty in duties:
                    duty.cancel()
                await asyncio.gather(*duties, return_exceptions=True)

    def _duties(self, topics: Topics, copier: Hands) -> list[Coroutine[Any, Any, None]]:
        rules = self._config.rules
        duties = [self._refresh(topics, copier)]
        if rules.sync_configs:
            duties.append(_every(rules.sync_configs_s, topics.sync_configs, at_once=True))
            duties.append(_every(LIMITS_EVERY_S, partial(self._sync_limits, topics, copier)))
        return duties

    def _duties_at_target(self, source: Client, target: Client) -> list[Coroutine[Any, Any, None]]:
        config = self._config
        duties = []
        translator = Translator(target, config.name, source=source)
        if config.groups.sync:
            groups = GroupSync(source, target, translator)
            sync = partial(groups.sync, config.group_selection())
            duties.append(_every(config.groups.sync_s, sync))
        if config.rules.follow_log_start:
            follower = LogStarts(source, target, translator)
            duties.append(_every(config.rules.refresh_s or LOG_STARTS_EVERY_S, follower.follow))
        if config.heartbeats.emit:
            heartbeats = Heartbeats(target, config.rules.naming)
            duties.append(_every(config.heartbeats.every_s, heartbeats.beat, at_once=True))
        return duties

    def pause(self) -> None:
        """Copy nothing until `resume`; what was fetched is still delivered."""
        if self._copier is not None:
            self._copier.pause()

    def resume(self) -> None:
        if self._copier is not None:
            self._copier.resume()

    async def status(self) -> MirrorStatus | None:
        """How far it is, by what the source says now; None before it has begun."""
        if self._copier is None:
            return None
        try:
            await self._copier.look_at_ends()
        except ShoalError as error:
            _log.warning("the source does not tell how far it goes: %s", error)
        return self._status(self._copier)

    def _status(self, copier: Hands) -> MirrorStatus:
        return replace(copier.status(), refused=tuple(self._refused(copier)))

    async def _assign(self, topics: Topics, copier: Hands) -> None:
        self._plan = await topics.look()
        await copier.assign(self._plan.routes)

    async def _refresh(self, topics: Topics, copier: Hands) -> None:
        """Look at topics now and then, and when one has changed; what fails is tried again."""
        every_s = self._config.rules.refresh_s
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(copier.changed.wait(), every_s or COMPARE_IDS_EVERY_S)
            copier.changed.clear()
            try:
                self._plan = await topics.look(finds_new=every_s > 0)
                await copier.assign(self._plan.routes)
            except ShoalError as error:
                _log.warning("%s", error)
            # A change that cannot be dealt with yet is announced again and again.
            await asyncio.sleep(min(every_s or REFRESH_PAUSE_S, REFRESH_PAUSE_S))

    async def _sync_limits(self, topics: Topics, copier: Hands) -> None:
        """Bring settings at once to topics in which a record waits for a higher limit."""
        partitions = copier.status().partitions
        waiting = {each.route.source.topic for each in partitions if each.waits_for_limit}
        if waiting:
            await topics.sync_configs(waiting)

    def _refused(self, copier: Hands) -> list[ShoalError]:
        return [*self._plan.refused.values(), *copier.refused.values()]

    async def _copy(self, copier: Hands) -> MirrorStatus:
        # A place that cannot be written to must show before anything is copied.
        self._report(copier, final=False)
        reporting = keep_running("mirror status", lambda: self._report_now_and_then(copier))
        in_order = False
        try:
            await copier.run()
            in_order = True
        finally:
            reporting.cancel()
            await asyncio.gather(reporting, return_exceptions=True)
            status = self._report(copier, final=in_order)
        return status

    async def _report_now_and_then(self, copier: Hands) -> None:
        while True:
            await asyncio.sleep(STATUS_EVERY_S)
            try:
                self._report(copier, final=False)
            except LedgerError as error:
                _log.warning("%s", error)

    def _report(self, copier: Hands, *, final: bool) -> MirrorStatus:
        status = self._status(copier)
        if self._config.positions is not None:
            write_positions(self._config.positions, status, final=final)
        if self._on_status is not None:
            self._on_status(status)
        return status


async def _every(
    pause_s: float, duty: Callable[[], Awaitable[object]], *, at_once: bool = False
) -> None:
    """Do it again and again; what fails is told and does not end it."""
    if not at_once:
        await asyncio.sleep(pause_s)
    while True:
        try:
            await duty()
        except ShoalError as error:
            _log.warning("%s", error)
        except Exception as error:  # noqa: BLE001 - a duty must not end silently
            record_failure("mirror duty", error, "it is tried again at its next time")
        await asyncio.sleep(pause_s)
