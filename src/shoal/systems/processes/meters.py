"""What a process tree uses: CPU seconds, and memory at its peak, sampled from outside.

Rules:
- CPU is the sum over all that ever were in the tree: of the living what they used themselves,
  of the dead what they handed to whoever waited for them. The sum never falls.
- Memory is the resident set of all living processes together, at the worst sample.
- A process that ends between two looks is simply not there any more.
"""

import threading
from dataclasses import dataclass
from typing import Any, Final

import psutil

from shoal.runtime.tasks import log_only, start_thread

SAMPLE_EVERY_S: Final = 0.2


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


class Meter:
    """Watches one tree after the other, and remembers them all."""

    def __init__(self) -> None:
        self._before_s = 0.0
        self._now_s = 0.0
        self._peak_bytes = 0
        self._starts = 0
        self._root: psutil.Process | None = None
        self._thread: threading.Thread | None = None
        self._end = threading.Event()

    def watch(self, pid: int) -> None:
        """Begins with a tree, by its first process."""
        self.leave()
        self._starts += 1
        try:
            self._root = psutil.Process(pid)
        except psutil.NoSuchProcess:
            return
        self._end.clear()
        # What is not measured any more is missing in the sums, and the log says so.
        self._thread = start_thread("meter", self._run, on_failure=log_only)

    def leave(self) -> None:
        """Takes a last look and ends; the sums stay."""
        if self._thread is not None:
            self._end.set()
            self._thread.join()
            self._thread = None
            self.sample()
        self._before_s += self._now_s
        self._now_s, self._root = 0.0, None

    def usage(self) -> Usage:
        return Usage(self._before_s + self._now_s, self._peak_bytes, self._starts)

    def sample(self) -> None:
        """Looks once, for instance before a kill."""
        cpu_s, memory_bytes = 0.0, 0
        for process in tree_of(self._root):
            try:
                times = process.cpu_times()
                memory_bytes += process.memory_info().rss
            except psutil.Error:
                continue
            cpu_s += times.user + times.system
            cpu_s += times.children_user + times.children_system
        self._now_s = max(self._now_s, cpu_s)
        self._peak_bytes = max(self._peak_bytes, memory_bytes)

    def _run(self) -> None:
        while not self._end.wait(SAMPLE_EVERY_S):
            self.sample()


def tree_of(root: psutil.Process | None) -> list[psutil.Process]:
    """The living processes of a tree, its root first."""
    if root is None:
        return []
    try:
        return [root, *root.children(recursive=True)] if root.is_running() else []
    except psutil.Error:
        return []
