"""One flow of a mirror: finds topics, copies them and runs periodic tasks until it is stopped.

Rules:
- At the start it inspects both clusters. If nothing can be copied, it raises the reason. Later,
  topics that cannot be copied are reported in the status and retried.
- Topics are inspected again at every refresh, and immediately when the copying finds a topic
  missing or recreated.
- Periodic tasks (new topics, configs, groups, heartbeats, log starts) never end the flow: a
  failure is logged, and the task runs again at its next interval.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, Protocol

from shoal.client.client import Client
from shoal.mirror.config import MirrorConfig
from shoal.mirror.mm2.heartbeats import Heartbeats
from shoal.mirror.mm2.topics import TopicPlan, Topics
from shoal.mirror.offsets.positions import PositionsFile
from shoal.mirror.routes import Route
from shoal.mirror.run.clients import open_clients
from shoal.mirror.run.copier import Copier
from shoal.mirror.run.latencies import MirrorLatencies
from shoal.mirror.status import MirrorStatus
from shoal.mirror.translation import GroupSync, Translator
from shoal.mirror.watch.log_starts import LogStarts
from shoal.model.errors import LedgerError, ShoalError
from shoal.runtime.tasks import keep_running, log_only, record_failure, run_once

STATUS_EVERY_S: Final = 1.0
LOG_STARTS_EVERY_S: Final = 60.0
# With refresh disabled, topic ids are still compared, to detect recreated topics.
COMPARE_IDS_EVERY_S: Final = 10.0
REFRESH_PAUSE_S: Final = 1.0
# How often configs are synced while a record is larger than the target topic allows.
LIMITS_EVERY_S: Final = 2.0

OnStatus = Callable[[MirrorStatus], None]

_log = logging.getLogger(__name__)


class CopyBackend(Protocol):
    """What copies the partitions: `Copier` in this process, or a `MirrorTeam` of workers."""

    changed: asyncio.Event  # set when a topic is missing or was recreated

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

    async def refresh_log_ends(self) -> None: ...

    def status(self) -> MirrorStatus: ...

    @property
    def latencies(self) -> MirrorLatencies | None: ...


MakeCopyBackend = Callable[[Client, Client, MirrorConfig], CopyBackend]


class Flow:
    """One source, one target, one set of topics."""

    def __init__(
        self,
        config: MirrorConfig,
        on_status: OnStatus | None = None,
        *,
        make_backend: MakeCopyBackend = Copier,
    ) -> None:
        self._make_backend = make_backend
        self._config = config
        self._on_status = on_status
        self._copier: CopyBackend | None = None
        self._plan = TopicPlan()
        path = config.positions
        self._positions = None if path is None else PositionsFile(path)

    @property
    def is_copying(self) -> bool:
        """Whether copying has started, so that `stop` must wait for batches in flight."""
        return self._copier is not None

    @property
    def latencies(self) -> MirrorLatencies | None:
        """Those of this process; None before copying starts, and with workers."""
        return None if self._copier is None else self._copier.latencies

    def stop(self) -> None:
        if self._copier is not None:
            self._copier.stop()

    async def run(self) -> MirrorStatus:
        config = self._config
        async with open_clients(config) as (source, target):
            copier = self._make_backend(source, target, config)
            await copier.prepare()
            topics = Topics(source, target, config, copier.check)
            await self._assign(topics, copier)
            if not copier.routes and (refused := self._refusals(copier)):
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

    def _duties(self, topics: Topics, copier: CopyBackend) -> list[Coroutine[Any, Any, None]]:
        rules = self._config.rules
        duties = [self._refresh(topics, copier)]
        if rules.sync_configs:
            duties.append(_repeat(rules.sync_configs_s, topics.sync_configs, at_once=True))
            duties.append(_repeat(LIMITS_EVERY_S, partial(self._sync_limits, topics, copier)))
        return duties

    def _duties_at_target(self, source: Client, target: Client) -> list[Coroutine[Any, Any, None]]:
        config = self._config
        duties = []
        translator = Translator(target, config.name, source=source)
        if config.groups.sync:
            groups = GroupSync(source, target, translator)
            sync = partial(groups.sync, config.group_selection())
            duties.append(_repeat(config.groups.sync_s, sync))
        if config.rules.follow_log_start:
            follower = LogStarts(source, target, translator)
            duties.append(_repeat(config.rules.refresh_s or LOG_STARTS_EVERY_S, follower.follow))
        if config.heartbeats.emit:
            heartbeats = Heartbeats(target, config.rules.naming)
            duties.append(_repeat(config.heartbeats.every_s, heartbeats.emit, at_once=True))
        return duties

    def pause(self) -> None:
        """Fetch nothing until `resume`; fetched batches are still delivered."""
        if self._copier is not None:
            self._copier.pause()

    def resume(self) -> None:
        if self._copier is not None:
            self._copier.resume()

    async def status(self) -> MirrorStatus | None:
        """The current status, with fresh log ends of the source; None before copying starts."""
        if self._copier is None:
            return None
        try:
            await self._copier.refresh_log_ends()
        except ShoalError as error:
            _log.warning(
                "cannot read the log ends of the source; the lag may be out of date: %s", error
            )
        return self._status(self._copier)

    def _status(self, copier: CopyBackend) -> MirrorStatus:
        return replace(copier.status(), refused=tuple(self._refusals(copier)))

    async def _assign(self, topics: Topics, copier: CopyBackend) -> None:
        self._plan = await topics.refresh()
        await copier.assign(self._plan.routes)

    async def _refresh(self, topics: Topics, copier: CopyBackend) -> None:
        """Inspect topics periodically, and when one has changed; failures are retried."""
        every_s = self._config.rules.refresh_s
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(copier.changed.wait(), every_s or COMPARE_IDS_EVERY_S)
            copier.changed.clear()
            try:
                self._plan = await topics.refresh(finds_new=every_s > 0)
                await copier.assign(self._plan.routes)
            except ShoalError as error:
                _log.warning("%s", error)
            # A change that cannot be handled yet is signalled again at once: pause in between.
            await asyncio.sleep(min(every_s or REFRESH_PAUSE_S, REFRESH_PAUSE_S))

    async def _sync_limits(self, topics: Topics, copier: CopyBackend) -> None:
        """Sync the configs of topics in which a record waits for a higher max.message.bytes."""
        partitions = copier.status().partitions
        waiting = {each.route.source.topic for each in partitions if each.waits_for_limit}
        if waiting:
            await topics.sync_configs(waiting)

    def _refusals(self, copier: CopyBackend) -> list[ShoalError]:
        return [*self._plan.refused.values(), *copier.refused.values()]

    async def _copy(self, copier: CopyBackend) -> MirrorStatus:
        # An unwritable positions file must be reported before anything is copied.
        self._report(copier, final=False)
        reporting = keep_running("mirror status", lambda: self._report_periodically(copier))
        in_order = False
        try:
            await copier.run()
            in_order = True
        finally:
            reporting.cancel()
            await asyncio.gather(reporting, return_exceptions=True)
            status = self._report(copier, final=in_order)
        return status

    async def _report_periodically(self, copier: CopyBackend) -> None:
        while True:
            await asyncio.sleep(STATUS_EVERY_S)
            try:
                self._report(copier, final=False)
            except LedgerError as error:
                _log.warning("%s", error)

    def _report(self, copier: CopyBackend, *, final: bool) -> MirrorStatus:
        status = self._status(copier)
        if self._positions is not None:
            self._positions.write(status, final=final, now_s=time.monotonic())
        if self._on_status is not None:
            self._on_status(status)
        return status


async def _repeat(
    pause_s: float, duty: Callable[[], Awaitable[object]], *, at_once: bool = False
) -> None:
    """Run a task periodically; a failure is logged and does not end the loop."""
    if not at_once:
        await asyncio.sleep(pause_s)
    while True:
        try:
            await duty()
        except ShoalError as error:
            _log.warning("%s", error)
        except Exception as error:  # noqa: BLE001 - a duty must not end silently
            record_failure("mirror duty", error, "it runs again at its next interval")
        await asyncio.sleep(pause_s)
