"""CPU seconds and peak memory of a process tree, sampled from outside.

Rules:
- CPU is the sum over all processes that were ever in the tree: the own time of those that run,
  and for those that exited the time that the kernel adds to the parent that waited for them. The
  sum never falls.
- Memory is the resident set of all running processes together, at the highest sample.
- A process that exits between two samples is skipped, not an error.
"""

import threading
from dataclasses import dataclass
from typing import Any, Final

import psutil

from shoal.runtime.tasks import log_only, start_thread

SAMPLE_EVERY_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process tree used so far, over all its starts."""

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
    """Measures one process tree after another, and sums them up."""

    def __init__(self) -> None:
        self._earlier_cpu_s = 0.0
        self._current_cpu_s = 0.0
        self._peak_bytes = 0
        self._starts = 0
        self._root: psutil.Process | None = None
        self._thread: threading.Thread | None = None
        self._end = threading.Event()

    def watch(self, pid: int) -> None:
        """Start sampling the tree below the process `pid`."""
        self.stop_watching()
        self._starts += 1
        try:
            self._root = psutil.Process(pid)
        except psutil.NoSuchProcess:
            return
        self._end.clear()
        # If the thread fails, its error is logged and the sums lack what was used from then on.
        self._thread = start_thread("meter", self._run, on_failure=log_only)

    def stop_watching(self) -> None:
        """Take a last sample and stop; the sums stay."""
        if self._thread is not None:
            self._end.set()
            self._thread.join()
            self._thread = None
            self.sample()
        self._earlier_cpu_s += self._current_cpu_s
        self._current_cpu_s, self._root = 0.0, None

    def usage(self) -> Usage:
        return Usage(self._earlier_cpu_s + self._current_cpu_s, self._peak_bytes, self._starts)

    def sample(self) -> None:
        """Take one sample, for example before a kill."""
        cpu_s, memory_bytes = 0.0, 0
        for process in tree_of(self._root):
            try:
                times = process.cpu_times()
                memory_bytes += process.memory_info().rss
            except psutil.Error:
                continue
            cpu_s += times.user + times.system
            cpu_s += times.children_user + times.children_system
        self._current_cpu_s = max(self._current_cpu_s, cpu_s)
        self._peak_bytes = max(self._peak_bytes, memory_bytes)

    def _run(self) -> None:
        while not self._end.wait(SAMPLE_EVERY_S):
            self.sample()


def tree_of(root: psutil.Process | None) -> list[psutil.Process]:
    """The running processes of a tree, its root first."""
    if root is None:
        return []
    try:
        return [root, *root.children(recursive=True)] if root.is_running() else []
    except psutil.Error:
        return []
