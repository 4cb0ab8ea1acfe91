"""Slow work, such as sealing and reserving, beside a loop that must not wait for it."""

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any

from shoal.runtime.tasks import run_awaited


class BackgroundTask:
    """Runs at most one coroutine at a time; `check` and `finish` raise what it raised."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        return self._task is not None

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a coroutine; none may be running."""
        self._task = run_awaited("background task", work)

    def check(self) -> None:
        """If the coroutine has ended, forget it, and raise its error."""
        if self._task is not None and self._task.done():
            task, self._task = self._task, None
            task.result()

    async def finish(self) -> None:
        """Wait until the running coroutine, if any, has ended."""
        if self._task is not None:
            await asyncio.wait([self._task])
            self.check()

    async def cancel(self) -> None:
        """Cancel the running coroutine, and ignore its error."""
        if self._task is not None:
            task, self._task = self._task, None
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task
