"""Work on many things that does not hold up the event loop: a slice at a time.

Rules of this file:
- A slice ends when it has lasted long enough; between two slices everyone else has a turn.
- The first slice is done by the caller, before `add` returns, and takes as many keys as that one
  says at least: a small change is complete then. One task does the rest, in the order in which
  the keys came.
- A key that comes again while it waits is worked on once. Work looks at what is so when its turn
  comes, not at what was so when its key came.
- A key whose work fails costs no other key. It is told to `on_failed`, and is not tried again.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from shoal.runtime.tasks import record_failure, run_once

K = TypeVar("K")

SLICE_S = 0.01
# So many are worked on at once. An internal topic has 50 partitions.
LEAST_AT_ONCE = 64


class Backlog(Generic[K]):
    """Keys that wait. Pure but for the clock that is given."""

    def __init__(self, now_s: Callable[[], float], slice_s: float = SLICE_S) -> None:
        self._now_s = now_s
        self._slice_s = slice_s
        self._waiting: dict[K, None] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, key: K) -> bool:
        return key in self._waiting

    def add(self, keys: Iterable[K]) -> None:
        """Let keys wait behind all others; those that wait already keep their place."""
        for key in keys:
            self._waiting.setdefault(key)

    def take_new(self, keys: Iterable[K], work: Callable[[K], None], least: int) -> None:
        """Work on keys that have just come, before those that wait; the rest of them waits."""
        deadline_s = self._now_s() + self._slice_s
        done = 0
        rest = iter(keys)
        while done < least or self._now_s() < deadline_s:
            try:
                key = next(rest)
            except StopIteration:
                return
            self._waiting.pop(key, None)
            work(key)
            done += 1
        self.add(rest)

    def take_slice(self, work: Callable[[K], None]) -> None:
        """Work on keys that wait until the slice is over; on one at least."""
        deadline_s = self._now_s() + self._slice_s
        while self._waiting:
            key = next(iter(self._waiting))
            del self._waiting[key]
            work(key)
            if self._now_s() >= deadline_s:
                return

    def clear(self) -> None:
        self._waiting.clear()


class SlicedWork(Generic[K]):
    """Works on keys in the event loop. Made and used there."""

    def __init__(
        self,
        name: str,
        work: Callable[[K], None],
        *,
        on_drained: Callable[[], None] = lambda: None,
        on_failed: Callable[[K, Exception], None] = lambda _key, _error: None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_drained` is called after each slice of the task, so that what was done counts."""
        self._name = name
        self._work = work
        self._on_drained = on_drained
        self._on_failed = on_failed
        self._backlog: Backlog[K] = Backlog(now_s)
        self._task: asyncio.Task[None] | None = None

    @property
    def is_idle(self) -> bool:
        return not self._backlog

    def waits(self, key: K) -> bool:
        """Whether a key has not had its turn."""
        return key in self._backlog

    def add(self, keys: Iterable[K], *, least: int = 1) -> None:
        """Work on keys: on the first ones now, at least on so many, on the others soon."""
        self._backlog.take_new(keys, self._try, least)
        if self._backlog and (self._task is None or self._task.done()):
            self._task = run_once(self._name, self._drain(), on_failure=self._on_task_failed)

    async def _drain(self) -> None:
        while self._backlog:
            await asyncio.sleep(0)
            self._backlog.take_slice(self._try)
            self._on_drained()

    def _try(self, key: K) -> None:
        try:
            self._work(key)
        except Exception as error:  # noqa: BLE001 - the other keys have their turn
            record_failure(self._name, error, f"{key} is left as it is; the others go on")
            self._on_failed(key, error)

    def _on_task_failed(self, _: Exception) -> None:
        """What comes after the slices has failed: the keys that wait still have their turn."""
        if self._backlog:
            self._task = run_once(self._name, self._drain(), on_failure=self._on_task_failed)

    async def finish(self) -> None:
        """Until nothing waits."""
        while self._task is not None and not self._task.done():
            await asyncio.wait([self._task])

    def stop(self) -> None:
        """Let what waits be."""
        self._backlog.clear()
        if self._task is not None:
            self._task.cancel()
