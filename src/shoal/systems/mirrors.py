"""Mirrors under test behind one small interface, whoever wrote them.

Rules of every kind:
- A mirror is a process tree of its own, started by a command line and killed like any other
  process; it never outlives the process that started it.
- What the tree uses is sampled while it runs, over all its starts: CPU seconds, and memory
  at its peak. Nothing is known of a mirror that somebody else runs.
- Its own internal topics are its own business: nobody judges them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

KINDS: Final = ("shoal", "mm2", "mm1", "external", "none")
MODES: Final = ("shallow", "deep")
DELIVERIES: Final = ("idempotent", "at-least-once", "transactional", "compare-and-append", "auto")


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process tree used so far, all its starts together."""

    cpu_s: float = 0.0
    peak_memory_bytes: int = 0
    starts: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "cpu_s": round(self.cpu_s, 3),
            "peak_memory_bytes": self.peak_memory_bytes,
            "starts": self.starts,
        }


class Mirror(Protocol):
    """What copies from source to target."""

    @property
    def kind(self) -> str: ...

    def start(self) -> None:
        """Starts it; also again, after a kill or a stop."""

    def stop(self) -> None:
        """Lets it finish what is in flight and end; calling it again does nothing."""

    def kill(self) -> None:
        """SIGKILL to every process of the tree."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def is_running(self) -> bool: ...

    def pids(self) -> tuple[int, ...]:
        """The living processes of the tree, the first one that we started first."""

    def check(self) -> None:
        """Raises if it ended by itself: what it does not copy would look like loss."""

    def usage(self) -> Usage: ...

    def target_topic(self, topic: str) -> str:
        """How the copy of a topic is called on the target."""

    def positions(self) -> Mapping[tuple[str, int], int]:
        """How far it says that it has read each source partition; empty if it does not say."""

    @property
    def log_file(self) -> Path | None:
        """What it writes about itself, if that is known."""
