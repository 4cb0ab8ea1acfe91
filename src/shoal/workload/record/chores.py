"""Slow work beside a loop that must not wait for it: sealing, reserving."""

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any

from shoal.runtime.tasks import run_awaited


class Chore:
    """At most one coroutine at a time. What it raises is raised by `check` and `finish`."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        return self._task is not None

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin; nothing may be running."""
        self._task = run_awaited("chore", work)

    def check(self) -> None:
        """Take note of an end; raise what went wrong."""
        if self._task is not None and self._task.done():
            task, self._task = self._task, None
            task.result()

    async def finish(self) -> None:
        """Wait for the end of what is running, if anything is."""
        if self._task is not None:
            await asyncio.wait([self._task])
            self.check()

    async def cancel(self) -> None:
        """End what is running, whatever it raises."""
        if self._task is not None:
            task, self._task = self._task, None
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task
