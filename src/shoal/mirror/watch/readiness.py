"""Whether the leaders of both sides answer for a route, asked before it starts.

Rules:
- All routes are asked at once and each is judged alone, within a short time: a partition without
  a leader, or with one that does not answer, is reported and delays no other.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from shoal.client.client import Client
from shoal.client.results import EARLIEST
from shoal.mirror.routes import Route
from shoal.model.errors import ShoalError

# Long enough for an ordinary election; the route is asked again later in any case.
PROBE_S: Final = 3.0
BRING_BACK: Final = "bring its brokers back; this partition then starts without a restart"


async def probe_routes(
    source: Client, target: Client, routes: Sequence[Route], *, timeout_s: float = PROBE_S
) -> dict[Route, ShoalError]:
    """The routes that cannot start now, and why."""
    ours, theirs = await asyncio.gather(
        source.list_offsets_each({r.source: EARLIEST for r in routes}, timeout_s=timeout_s),
        target.list_offsets_each({r.target: EARLIEST for r in routes}, timeout_s=timeout_s),
    )
    found: dict[Route, ShoalError] = {}
    for route in routes:
        for side, errors, tp in (
            ("source", ours.errors, route.source),
            ("target", theirs.errors, route.target),
        ):
            if route not in found and (error := errors.get(tp)) is not None:
                found[route] = unavailable(side, str(tp), error)
    return found


def unavailable(side: str, where: str, error: ShoalError) -> ShoalError:
    """An error of the same kind that names the side, and what to do."""
    text = f"the {side}'s partition {where} is not available: {error}"
    named = ShoalError(text, remedy=error.remedy or BRING_BACK)
    named.retriable = error.retriable
    return named
