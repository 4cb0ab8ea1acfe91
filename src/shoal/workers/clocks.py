"""How far a worker's clock is from the driver's, bounded by round trips; pure.

The driver's probe left at `driver_us`, was answered by the worker at `worker_us` and was back
at `returned_us`, by the clocks of their names. So the worker's clock minus the driver's lies
between `worker_us - returned_us` and `worker_us - driver_us`. Over a window in which the
clocks drift little, the tightest pair counts.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class ClockBounds:
    """The tightest bounds since they were last taken."""

    low_us: int | None = None
    high_us: int | None = None

    def add(self, *, driver_us: int, worker_us: int, returned_us: int) -> None:
        if returned_us < driver_us:
            return  # the driver's own clock was set back during the round trip: it says nothing
        low_us, high_us = worker_us - returned_us, worker_us - driver_us
        self.low_us = low_us if self.low_us is None else max(self.low_us, low_us)
        self.high_us = high_us if self.high_us is None else min(self.high_us, high_us)

    def take(self) -> tuple[int, int] | None:
        """The bounds, if there are any, and begin a new window."""
        low_us, high_us = self.low_us, self.high_us
        self.low_us = self.high_us = None
        if low_us is None or high_us is None:
            return None
        # A clock that was set during the window leaves bounds that cross: then both ends count.
        return min(low_us, high_us), max(low_us, high_us)
