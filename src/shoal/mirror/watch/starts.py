"""Starts routes so that one that cannot start holds back no other.

    wanted ──► probe ──► start together ──► running
                 │              │
                 │         failed: each alone ──► running, refused
                 └──► waiting ◄─┘
                        └── tried again with backoff, until it runs or is not wanted

Rules:
- Routes whose leaders answer start together, which is cheap. If that fails or takes long, each
  is started alone, at the same time, so that the failing one is known and delays no other.
- An error that may pass (no leader, no answer) makes a route wait; any other error refuses it
  until it is wanted again.
- What is known of a route stays known while it is tried again, which may take a minute: a status
  must not look as if all was well meanwhile. A reason is logged once.
- `start` returns when every route is decided, or, once some run, after a short time.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Container, Sequence
from functools import partial
from typing import Final

from shoal.mirror.routes import Route
from shoal.mirror.watch.waiting import WaitingRoutes
from shoal.model.errors import ShoalError, SystemFailure
from shoal.runtime.tasks import run_once

# How long routes that start together, and those who wait for them, are delayed by a slow one.
PROMPT_S: Final = 10.0
# How long one route alone may take: longer than a target's replicas may take to agree.
ALONE_S: Final = 120.0
LOOK_EVERY_S: Final = 0.2

Probe = Callable[[Sequence[Route]], Awaitable[dict[Route, ShoalError]]]
Start = Callable[[Sequence[Route]], Awaitable[None]]

_log = logging.getLogger(__name__)


class RouteStarts:
    """Starts the routes of one mirror."""

    def __init__(self, probe: Probe, start: Start, *, is_running: Callable[[Route], bool]) -> None:
        self._probe = probe
        self._start = start
        self._is_running = is_running
        self._starting: dict[Route, asyncio.Task[None]] = {}
        self.waiting = WaitingRoutes()
        self.refused: dict[Route, ShoalError] = {}

    async def start(self, routes: Sequence[Route], *, has_others: bool) -> None:
        """Start these; `has_others` says that partitions run which must not wait for them."""
        loop = asyncio.get_running_loop()
        prompt_until = loop.time() + PROMPT_S
        self._begin([route for route in routes if route not in self._starting])
        while tasks := {task for route, task in self._starting.items() if route in routes}:
            await asyncio.wait(tasks, timeout=LOOK_EVERY_S)
            if loop.time() > prompt_until and (has_others or any(map(self._is_running, routes))):
                return

    @property
    def not_running(self) -> dict[Route, ShoalError]:
        """Why each route that is wanted does not run: it waits, is refused, or is being started."""
        starting = {r: _unfinished(r) for r in self._starting if not self._is_running(r)}
        return {**starting, **self.waiting.errors, **self.refused}

    async def retry(self) -> None:
        """Try again those that wait, each at its time; endless."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            now = asyncio.get_running_loop().time()
            self._begin([r for r in self.waiting.due(now) if r not in self._starting])

    async def keep_only(self, wanted: Container[Route]) -> None:
        """Give up those that are no longer wanted."""
        self.waiting.keep_only(wanted)
        self.refused = {r: error for r, error in self.refused.items() if r in wanted}
        await self._cancel([route for route in self._starting if route not in wanted])

    async def close(self) -> None:
        await self._cancel(list(self._starting))

    async def _cancel(self, routes: Sequence[Route]) -> None:
        tasks = {self._starting[route] for route in routes}
        # Others that start with them are tried again.
        for route in [r for r, task in self._starting.items() if task in tasks]:
            if route not in routes:
                self._not_started(route, _interrupted(route))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, routes: Sequence[Route]) -> None:
        if not routes:
            return
        task = run_once(
            "mirror start",
            self._start_group(routes),
            on_failure=partial(self._failed_unexpectedly, routes),
        )
        self._starting.update(dict.fromkeys(routes, task))

    async def _start_group(self, routes: Sequence[Route]) -> None:
        try:
            failed = await self._probe(routes)
            for route, error in failed.items():
                self._not_started(route, error)
            if ready := [route for route in routes if route not in failed]:
                await self._start_ready(ready)
        finally:
            for route in routes:
                self._starting.pop(route, None)

    async def _start_ready(self, ready: Sequence[Route]) -> None:
        try:
            async with asyncio.timeout(ALONE_S if len(ready) == 1 else PROMPT_S):
                await self._start(ready)
        except (ShoalError, TimeoutError) as error:
            if len(ready) > 1:
                await asyncio.gather(*(self._start_ready([route]) for route in ready))
            else:
                self._not_started(ready[0], _as_retriable(ready[0], error))
        else:
            for route in ready:
                self.refused.pop(route, None)
                if self.waiting.remove(route):
                    _log.info("%s started after it had to wait", route.source)

    def _not_started(self, route: Route, error: ShoalError) -> None:
        if not error.retriable:
            self.waiting.remove(route)
            if str(self.refused.get(route)) != str(error):
                _log.error("%s is not copied, others continue: %s", route.source, error)
            self.refused[route] = error
            return
        self.refused.pop(route, None)
        if self.waiting.put(route, error, asyncio.get_running_loop().time()):
            _log.warning("%s waits, others continue: %s", route.source, error)

    def _failed_unexpectedly(self, routes: Sequence[Route], error: Exception) -> None:
        for route in routes:
            if not self._is_running(route):
                self._not_started(route, _as_retriable(route, error))


def _as_retriable(route: Route, error: Exception) -> ShoalError:
    if isinstance(error, ShoalError):
        return error
    what = "took too long" if isinstance(error, TimeoutError) else f"failed: {error!r}"
    failure = SystemFailure(
        f"the start of {route.source} {what}",
        remedy="it is tried again; look at the brokers that lead it on both sides",
    )
    failure.retriable = True
    return failure


def _unfinished(route: Route) -> ShoalError:
    failure = SystemFailure(
        f"{route.source} is being started",
        remedy="wait; if it stays so, look at the brokers that lead it on both sides",
    )
    failure.retriable = True
    return failure


def _interrupted(route: Route) -> ShoalError:
    failure = SystemFailure(f"the start of {route.source} was interrupted")
    failure.retriable = True
    return failure
