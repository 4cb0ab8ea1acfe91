"""Starts routes so that a route that cannot start delays no other.

    wanted ──► probe ──► start together ──► running
                 │              │
                 │         failed: each alone ──► running, refused
                 └──► waiting ◄─┘
                        └── retried with backoff, until it runs or is no longer wanted

Rules:
- Routes whose leaders answer start together, which is cheap. If that fails or takes long, each is
  started alone, concurrently, so that the failing one is identified and delays no other.
- A retriable error (no leader, no answer) makes a route wait; any other error refuses it until the
  next `start`.
- The error of a route stays in the status while the route is retried, which may take a minute.
  Each reason is logged once.
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

# How long one slow route may delay the routes that start together with it, and the caller.
PROMPT_S: Final = 10.0
# How long one route alone may take: longer than `shoal.mirror.run.resume` waits for replicas.
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
        """Start these; with `has_others`, running partitions must not wait for them."""
        loop = asyncio.get_running_loop()
        prompt_until = loop.time() + PROMPT_S
        self._begin([route for route in routes if route not in self._starting])
        while tasks := {task for route, task in self._starting.items() if route in routes}:
            await asyncio.wait(tasks, timeout=LOOK_EVERY_S)
            if loop.time() > prompt_until and (has_others or any(map(self._is_running, routes))):
                return

    @property
    def not_running(self) -> dict[Route, ShoalError]:
        """Why each wanted route does not run: it waits, is refused, or is being started."""
        starting = {r: _starting_error(r) for r in self._starting if not self._is_running(r)}
        return {**starting, **self.waiting.errors, **self.refused}

    async def retry(self) -> None:
        """Retry waiting routes, each at its time; runs until cancelled."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            now = asyncio.get_running_loop().time()
            self._begin([r for r in self.waiting.due(now) if r not in self._starting])

    async def keep_only(self, wanted: Container[Route]) -> None:
        """Drop routes that are no longer wanted."""
        self.waiting.keep_only(wanted)
        self.refused = {r: error for r, error in self.refused.items() if r in wanted}
        await self._cancel([route for route in self._starting if route not in wanted])

    async def close(self) -> None:
        await self._cancel(list(self._starting))

    async def _cancel(self, routes: Sequence[Route]) -> None:
        tasks = {self._starting[route] for route in routes}
        # Routes that start in the same task are interrupted too, and retried.
        for route in [r for r, task in self._starting.items() if task in tasks]:
            if route not in routes:
                self._on_not_started(route, _interruption_error(route))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, routes: Sequence[Route]) -> None:
        if not routes:
            return
        task = run_once(
            "mirror start",
            self._start_group(routes),
            on_failure=partial(self._on_unexpected_error, routes),
        )
        self._starting.update(dict.fromkeys(routes, task))

    async def _start_group(self, routes: Sequence[Route]) -> None:
        try:
            failed = await self._probe(routes)
            for route, error in failed.items():
                self._on_not_started(route, error)
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
                self._on_not_started(ready[0], _as_retriable(ready[0], error))
        else:
            for route in ready:
                self.refused.pop(route, None)
                if self.waiting.remove(route):
                    _log.info("%s started after waiting", route.source)

    def _on_not_started(self, route: Route, error: ShoalError) -> None:
        if not error.retriable:
            self.waiting.remove(route)
            if str(self.refused.get(route)) != str(error):
                _log.error("%s is not copied, other partitions continue: %s", route.source, error)
            self.refused[route] = error
            return
        self.refused.pop(route, None)
        if self.waiting.put(route, error, asyncio.get_running_loop().time()):
            _log.warning("%s waits to start, other partitions continue: %s", route.source, error)

    def _on_unexpected_error(self, routes: Sequence[Route], error: Exception) -> None:
        for route in routes:
            if not self._is_running(route):
                self._on_not_started(route, _as_retriable(route, error))


def _as_retriable(route: Route, error: Exception) -> ShoalError:
    if isinstance(error, ShoalError):
        return error
    what = "took too long" if isinstance(error, TimeoutError) else f"failed: {error!r}"
    failure = SystemFailure(
        f"the start of partition {route.source} {what}",
        remedy="it is retried; check the brokers that lead it on both sides",
    )
    failure.retriable = True
    return failure


def _starting_error(route: Route) -> ShoalError:
    failure = SystemFailure(
        f"partition {route.source} is being started",
        remedy="wait; if it does not start, check the brokers that lead it on both sides",
    )
    failure.retriable = True
    return failure


def _interruption_error(route: Route) -> ShoalError:
    failure = SystemFailure(f"the start of partition {route.source} was interrupted")
    failure.retriable = True
    return failure
