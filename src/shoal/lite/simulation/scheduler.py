"""The scheduler of a simulated process, by its own clock; it calls nothing between two events."""

from collections.abc import Callable
from functools import partial
from typing import Any


class _SimulatedTimer:
    """A call at a time of the process's clock."""

    __slots__ = ("_timers", "call", "when_ms")

    def __init__(
        self, timers: "dict[_SimulatedTimer, None]", when_ms: int, call: Callable[[], None]
    ) -> None:
        self._timers = timers
        self.when_ms = when_ms
        self.call = call
        timers[self] = None

    def cancel(self) -> None:
        self._timers.pop(self, None)


class SimulatedScheduler:
    """The `Scheduler` of a simulated broker or controller."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        """`now_ms` is the clock of the process."""
        self.now_ms = now_ms
        # In the order in which they were made.
        self._timers: dict[_SimulatedTimer, None] = {}
        self._soon: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    def call_at_ms(self, when_ms: int, call: Callable[[], None]) -> _SimulatedTimer:
        return _SimulatedTimer(self._timers, when_ms, call)

    def call_later_ms(
        self, delay_ms: int, call: Callable[..., None], *arguments: Any
    ) -> _SimulatedTimer:
        return self.call_at_ms(self.now_ms() + delay_ms, partial(call, *arguments))

    def call_soon(self, call: Callable[..., None], *arguments: Any) -> None:
        """Make the call at the end of this event."""
        self._soon.append((call, arguments))

    call_soon_threadsafe = call_soon

    def next_deadline_ms(self) -> int | None:
        return min((timer.when_ms for timer in self._timers), default=None)

    def call_due(self, now_ms: int) -> None:
        """Make the calls whose time has come."""
        for timer in [timer for timer in self._timers if timer.when_ms <= now_ms]:
            if timer in self._timers:
                timer.cancel()
                timer.call()

    def finish_event(self) -> None:
        """Make the calls that were to be made soon."""
        while self._soon:
            soon, self._soon = self._soon, []
            for call, arguments in soon:
                call(*arguments)
