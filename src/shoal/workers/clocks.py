"""Bounds the offset between a worker's clock and the driver's, by round trips; pure.

The driver sends a probe at `driver_us`, the worker answers at `worker_us`, and the answer arrives
at `returned_us`, each by the clock in its name. So the worker's clock minus the driver's is between
`worker_us - returned_us` and `worker_us - driver_us`. Within a window in which the clocks drift
little, the tightest bounds are used.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class ClockBounds:
    """The tightest bounds since the last `take`."""

    low_us: int | None = None
    high_us: int | None = None

    def add(self, *, driver_us: int, worker_us: int, returned_us: int) -> None:
        if returned_us < driver_us:
            return  # the driver's clock was set back during the round trip: no information
        low_us, high_us = worker_us - returned_us, worker_us - driver_us
        self.low_us = low_us if self.low_us is None else max(self.low_us, low_us)
        self.high_us = high_us if self.high_us is None else min(self.high_us, high_us)

    def take(self) -> tuple[int, int] | None:
        """Return the bounds, if there are any, and start a new window."""
        low_us, high_us = self.low_us, self.high_us
        self.low_us = self.high_us = None
        if low_us is None or high_us is None:
            return None
        # If a clock was set during the window, the bounds cross: then return the wider range.
        return min(low_us, high_us), max(low_us, high_us)
