"""Measures how long an event loop is blocked by its own callbacks.

A timer samples the CPU time of the loop's thread every 50 ms. The CPU time between two samples is
what other callbacks had to wait for. CPU time is used because on a busy machine a sample is also
late when other processes run. It does not include waiting for a disk.
"""

import time
from collections.abc import Callable

from shoal.runtime.tasks import RepeatingCall, call_every

_SAMPLE_S = 0.05


class LoopWatch:
    """Watches the running event loop; create it in the loop's thread."""

    def __init__(self, cpu_s: Callable[[], float] = time.thread_time) -> None:
        self._cpu_s = cpu_s
        self._sampled_s = cpu_s()
        self._longest_s = 0.0
        self._timer: RepeatingCall = call_every("event loop watch", lambda: _SAMPLE_S, self.sample)

    @property
    def longest_hold_ms(self) -> int:
        """The most CPU time between two samples, rounded down to 10 ms."""
        return int(self._longest_s * 100) * 10

    def sample(self) -> None:
        now_s = self._cpu_s()
        self._longest_s = max(self._longest_s, now_s - self._sampled_s)
        self._sampled_s = now_s

    def close(self) -> None:
        self._timer.cancel()
