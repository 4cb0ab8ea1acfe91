"""Work on many keys in slices, so that it does not block the event loop.

Rules of this file:
- A slice ends after `SLICE_S`; between two slices other tasks of the event loop run.
- `add` does the first slice before it returns, and works on at least `least` keys: so a small
  change is complete then. One task does the rest, in the order in which the keys were added.
- A key that is added again while it waits is worked on once. Work uses the state at the time it
  runs, not at the time its key was added.
- If the work on a key fails, the other keys are not affected. `on_failed` is called, and the key
  is not tried again.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from shoal.runtime.tasks import record_failure, run_once

K = TypeVar("K")

SLICE_S = 0.01
# At least so many keys in the first slice. An internal topic has 50 partitions.
MIN_AT_ONCE = 64


class Backlog(Generic[K]):
    """The keys that wait. Pure, apart from the given clock."""

    def __init__(self, now_s: Callable[[], float], slice_s: float = SLICE_S) -> None:
        self._now_s = now_s
        self._slice_s = slice_s
        self._waiting: dict[K, None] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, key: K) -> bool:
        return key in self._waiting

    def add(self, keys: Iterable[K]) -> None:
        """Append keys; those that wait already keep their position."""
        for key in keys:
            self._waiting.setdefault(key)

    def process_new(self, keys: Iterable[K], work: Callable[[K], None], least: int) -> None:
        """Work on new keys, ahead of those that wait; append those that do not fit the slice."""
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

    def process_slice(self, work: Callable[[K], None]) -> None:
        """Work on waiting keys until the slice is over; on at least one."""
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
    """Works on keys in the event loop; create and use it there."""

    def __init__(
        self,
        name: str,
        work: Callable[[K], None],
        *,
        on_drained: Callable[[], None] = lambda: None,
        on_failed: Callable[[K, Exception], None] = lambda _key, _error: None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_drained` is called after each slice of the task, to publish what was done."""
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
        """Whether a key still waits."""
        return key in self._backlog

    def add(self, keys: Iterable[K], *, least: int = 1) -> None:
        """Work on keys: on at least `least` of them now, on the others soon."""
        self._backlog.process_new(keys, self._try, least)
        if self._backlog and (self._task is None or self._task.done()):
            self._task = run_once(self._name, self._drain(), on_failure=self._on_task_failed)

    async def _drain(self) -> None:
        while self._backlog:
            await asyncio.sleep(0)
            self._backlog.process_slice(self._try)
            self._on_drained()

    def _try(self, key: K) -> None:
        try:
            self._work(key)
        except Exception as error:  # noqa: BLE001 - the other keys must be worked on
            record_failure(self._name, error, f"{key} is left unchanged; the other keys continue")
            self._on_failed(key, error)

    def _on_task_failed(self, _: Exception) -> None:
        """`on_drained` has failed: continue with the waiting keys."""
        if self._backlog:
            self._task = run_once(self._name, self._drain(), on_failure=self._on_task_failed)

    async def finish(self) -> None:
        """Wait until no key waits."""
        while self._task is not None and not self._task.done():
            await asyncio.wait([self._task])

    def stop(self) -> None:
        """Drop the waiting keys and stop the task."""
        self._backlog.clear()
        if self._task is not None:
            self._task.cancel()
