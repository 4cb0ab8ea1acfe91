"""Where workers run: the small interface that a process, or a Spark task, can meet.

Rules:
- `start` returns at once; the worker dials the driver by itself. If it cannot be started,
  `start` raises `SystemFailure`.
- A placement starts exactly one try of an assignment. It never restarts by itself: the lease
  of the assignment would be refused.
- Methods are called from one thread, the supervisor's, and must not block.
"""

from typing import Protocol

from shoal.workers.specs import Assignment


class Handle(Protocol):
    """One started worker."""

    @property
    def pid(self) -> int | None:
        """Its process, where it is one of this machine that a fault may hit."""

    def poll(self) -> str | None:
        """None while it runs; then how it ended, in words."""

    def interrupt(self) -> None:
        """Ask it to stop by itself."""

    def kill(self) -> None:
        """End it now. `poll` tells when that is done."""


class Placement(Protocol):
    def start(self, assignment: Assignment) -> Handle:
        """Begin one worker."""

    def close(self) -> None:
        """Let go of what was held for workers; all of them have ended."""
