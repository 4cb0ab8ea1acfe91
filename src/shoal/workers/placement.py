"""Where workers run: the interface that processes and Spark tasks implement.

Rules:
- `start` returns immediately; the worker connects to the driver. If the worker cannot be started,
  `start` raises `SystemFailure`.
- A placement starts exactly one attempt of an assignment and never restarts it: the lease of that
  assignment would be refused.
- Methods are called from one thread, the supervisor's, and must not block.
"""

from pathlib import Path
from typing import Protocol

from shoal.workers.specs import Assignment


def log_path(assignment: Assignment) -> Path:
    """The file in the run's folder to which a worker logs."""
    return Path(assignment.run_dir, "logs", f"{assignment.worker}-{assignment.epoch}.log")


class Handle(Protocol):
    """One started worker."""

    @property
    def pid(self) -> int | None:
        """Its process id, if it is a process on this machine; faults are injected there."""

    def poll(self) -> str | None:
        """None while it runs; then a sentence that says how it ended."""

    def interrupt(self) -> None:
        """Ask it to stop."""

    def kill(self) -> None:
        """Kill it; `poll` returns not None once it has ended."""


class Placement(Protocol):
    def start(self, assignment: Assignment) -> Handle:
        """Start one worker."""

    def close(self) -> None:
        """Release resources; all workers have ended."""
