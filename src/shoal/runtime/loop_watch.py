"""How long an event loop was held up by its own work.

A look is due every few hundredths of a second. The CPU time that the loop's thread has used since
the look before is what other callbacks had to wait for. On a busy machine a look comes late also
because other processes run: CPU time does not count them. It counts no waiting for a disk either.
"""

import time
from collections.abc import Callable

from shoal.runtime.tasks import RepeatingCall, call_every

_LOOK_S = 0.05


class LoopWatch:
    """Watches the running event loop, from the thread that it runs in."""

    def __init__(self, cpu_s: Callable[[], float] = time.thread_time) -> None:
        self._cpu_s = cpu_s
        self._looked_s = cpu_s()
        self._longest_s = 0.0
        self._timer: RepeatingCall = call_every("event loop watch", lambda: _LOOK_S, self.look)

    @property
    def longest_hold_ms(self) -> int:
        """The most CPU time between two looks, in hundredths of a second."""
        return int(self._longest_s * 100) * 10

    def look(self) -> None:
        now_s = self._cpu_s()
        self._longest_s = max(self._longest_s, now_s - self._looked_s)
        self._looked_s = now_s

    def close(self) -> None:
        self._timer.cancel()
