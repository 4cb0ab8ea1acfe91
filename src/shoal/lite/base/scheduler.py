"""The clock and timers of partitions and controllers: those of the event loop or of a simulation.

Rules of this file:
- A shell knows no other time than that of its `Scheduler`, so that a simulation can drive it.
- All times are in milliseconds of one monotonic clock, which is that of the event loop.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Protocol


class Timer(Protocol):
    """A call that is scheduled."""

    def cancel(self) -> None: ...


class Scheduler(Protocol):
    """A clock, and calls at a later time."""

    def now_ms(self) -> int: ...
    def call_at_ms(self, when_ms: int, call: Callable[[], None]) -> Timer: ...
    def call_later_ms(self, delay_ms: int, call: Callable[..., None], *arguments: Any) -> Timer: ...
    def call_soon(self, call: Callable[..., None], *arguments: Any) -> object:
        """Make the call after the present event."""

    def call_soon_threadsafe(self, call: Callable[[], None]) -> object:
        """Make the call soon, from any thread."""


def monotonic_ms() -> int:
    """Return the time of the event loop's clock in milliseconds; all time-outs use it."""
    return time.monotonic_ns() // 1_000_000


class EventLoopScheduler:
    """The timers of the running event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.call_soon = self._loop.call_soon
        self.call_soon_threadsafe = self._loop.call_soon_threadsafe

    # Not a method of its own: it is called for every batch.
    now_ms = staticmethod(monotonic_ms)

    def call_at_ms(self, when_ms: int, call: Callable[[], None]) -> Timer:
        return self._loop.call_at(when_ms / 1000, call)

    def call_later_ms(self, delay_ms: int, call: Callable[..., None], *arguments: Any) -> Timer:
        return self._loop.call_later(delay_ms / 1000, call, *arguments)
