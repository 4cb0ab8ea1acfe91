"""Exponential backoff between attempts. Pure: the random source is an argument.

The wait doubles with each failure from `first_ms` up to `most_ms`, and is then spread by ±20 %, so
that clients that failed at the same time do not retry at the same time (KIP-144, KIP-580).
"""

import random
from collections.abc import Callable

_SPREAD = 0.2
# Bounds the exponent; 2 ** 30 is above every sensible ratio of `most_ms` to `first_ms`.
_MOST_DOUBLINGS = 30


class Backoff:
    """The waits between attempts for one node, request or partition."""

    __slots__ = ("_chance", "_first_s", "_most_s", "failures")

    def __init__(
        self, first_ms: int, most_ms: int, *, chance: Callable[[], float] = random.random
    ) -> None:
        self._first_s = first_ms / 1000
        self._most_s = max(first_ms, most_ms) / 1000
        self._chance = chance
        self.failures = 0

    def next_wait_s(self) -> float:
        """Count a failure; returns the seconds to wait before the next attempt."""
        doublings = min(self.failures, _MOST_DOUBLINGS)
        self.failures += 1
        wait_s = min(self._first_s * 2.0**doublings, self._most_s)
        return wait_s * (1 + _SPREAD * (2 * self._chance() - 1))

    def reset(self) -> None:
        """Start again with the shortest wait, after a success."""
        self.failures = 0
