"""Routes that cannot start yet: why, and when each is tried again; pure.

Rules:
- Each route has its own backoff: one that fails again and again does not delay another.
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
class _Waiting:
    error: ShoalError
    backoff: Backoff
    not_before: float = 0.0


class WaitingRoutes:
    """The routes of one mirror that wait for a leader, or for an answer."""

    def __init__(self, *, chance: Callable[[], float] = random.random) -> None:
        self._chance = chance
        self._waiting: dict[Route, _Waiting] = {}

    @property
    def errors(self) -> dict[Route, ShoalError]:
        """Why each waits."""
        return {route: each.error for route, each in self._waiting.items()}

    def __contains__(self, route: Route) -> bool:
        return route in self._waiting

    def put(self, route: Route, error: ShoalError, now: float) -> bool:
        """A route could not start; returns whether that is new, or for another reason."""
        known = self._waiting.get(route)
        if known is None:
            backoff = Backoff(FIRST_RETRY_MS, LONGEST_RETRY_MS, chance=self._chance)
            known = self._waiting[route] = _Waiting(error, backoff)
            is_news = True
        else:
            is_news = str(known.error) != str(error)
        known.error = error
        known.not_before = now + known.backoff.failed()
        return is_news

    def due(self, now: float) -> list[Route]:
        """The routes to try now."""
        return sorted(route for route, each in self._waiting.items() if each.not_before <= now)

    def remove(self, route: Route) -> bool:
        return self._waiting.pop(route, None) is not None

    def keep_only(self, wanted: Container[Route]) -> None:
        for route in [route for route in self._waiting if route not in wanted]:
            del self._waiting[route]
