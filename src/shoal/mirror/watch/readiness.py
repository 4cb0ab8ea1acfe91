"""Checks that the leaders of both sides answer for a route before it starts.

Rules:
- All routes are checked at once and each is judged separately, with a short timeout: a partition
  without a leader, or with a leader that does not answer, is reported and delays no other.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from shoal.client.client import Client
from shoal.client.results import EARLIEST
from shoal.mirror.routes import Route
from shoal.model.errors import ShoalError

# Long enough for an ordinary leader election; the route is checked again later in any case.
PROBE_S: Final = 3.0
BRING_BACK: Final = "restart its brokers; this partition then starts automatically"


async def probe_routes(
    source: Client, target: Client, routes: Sequence[Route], *, timeout_s: float = PROBE_S
) -> dict[Route, ShoalError]:
    """Return the routes that cannot start now, with the reason."""
    ours, theirs = await asyncio.gather(
        source.list_offsets_or_errors({r.source: EARLIEST for r in routes}, timeout_s=timeout_s),
        target.list_offsets_or_errors({r.target: EARLIEST for r in routes}, timeout_s=timeout_s),
    )
    found: dict[Route, ShoalError] = {}
    for route in routes:
        for side, errors, tp in (
            ("source", ours.errors, route.source),
            ("target", theirs.errors, route.target),
        ):
            if route not in found and (error := errors.get(tp)) is not None:
                found[route] = unavailable_error(side, str(tp), error)
    return found


def unavailable_error(side: str, where: str, error: ShoalError) -> ShoalError:
    """Return an error that also names the side and a remedy."""
    text = f"the {side} partition {where} is not available: {error.message}"
    named = ShoalError(text, remedy=error.remedy or BRING_BACK)
    named.retriable = error.retriable
    return named
