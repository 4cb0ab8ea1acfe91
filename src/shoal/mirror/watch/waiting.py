"""Routes that cannot start yet: why, and when each is retried; pure.

Rules:
- Each route has its own backoff: one that keeps failing does not delay another.
- A route leaves when it has started, was refused, or is no longer wanted.
"""

import random
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Final

from shoal.client.transport.backoff import Backoff
from shoal.mirror.routes import Route
from shoal.model.errors import ShoalError

FIRST_RETRY_MS: Final = 250
LONGEST_RETRY_MS: Final = 5000


@dataclass(slots=True)
class _WaitingRoute:
    error: ShoalError
    backoff: Backoff
    not_before: float = 0.0


class WaitingRoutes:
    """The routes of one mirror that wait for a leader or a response."""

    def __init__(self, *, chance: Callable[[], float] = random.random) -> None:
        self._chance = chance
        self._waiting: dict[Route, _WaitingRoute] = {}

    @property
    def errors(self) -> dict[Route, ShoalError]:
        """Why each route waits."""
        return {route: each.error for route, each in self._waiting.items()}

    def __contains__(self, route: Route) -> bool:
        return route in self._waiting

    def put(self, route: Route, error: ShoalError, now: float) -> bool:
        """Add a route that could not start; returns whether the reason is new."""
        known = self._waiting.get(route)
        if known is None:
            backoff = Backoff(FIRST_RETRY_MS, LONGEST_RETRY_MS, chance=self._chance)
            known = self._waiting[route] = _WaitingRoute(error, backoff)
            is_news = True
        else:
            is_news = str(known.error) != str(error)
        known.error = error
        known.not_before = now + known.backoff.next_wait_s()
        return is_news

    def due(self, now: float) -> list[Route]:
        """Return the routes to retry now."""
        return sorted(route for route, each in self._waiting.items() if each.not_before <= now)

    def remove(self, route: Route) -> bool:
        return self._waiting.pop(route, None) is not None

    def keep_only(self, wanted: Container[Route]) -> None:
        for route in [route for route in self._waiting if route not in wanted]:
            del self._waiting[route]
