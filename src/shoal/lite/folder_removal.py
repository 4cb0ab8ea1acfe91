"""Deletes the folders of logs, in a thread.

Rules of this file:
- A folder is renamed at once, so that a log of the same name finds no trace of it. What was
  renamed and is still there after a crash is removed at the next start: see `is_doomed`.
- The thread is given a few folders at a time, so that whoever stops the broker waits for those.
"""

import asyncio
import logging
import shutil
from collections import deque
from contextlib import suppress
from pathlib import Path
from uuid import UUID

from shoal.runtime.tasks import log_only, run_once

_DELETED_SUFFIX = "-delete"
_AT_ONCE = 20
_logger = logging.getLogger(__name__)


def is_doomed(folder: Path) -> bool:
    """Whether a folder was about to be deleted."""
    return folder.name.endswith(_DELETED_SUFFIX)


class FolderRemover:
    """Folders that wait for their deletion. Used in the event loop."""

    def __init__(self) -> None:
        self._waiting: deque[Path] = deque()
        self._task: asyncio.Task[None] | None = None

    def take(self, folder: Path, topic_id: UUID) -> None:
        """Rename the folder of a topic's log, and delete it soon."""
        doomed = folder.with_name(f"{folder.name}.{topic_id.hex}{_DELETED_SUFFIX}")
        try:
            folder.rename(doomed)
        except OSError as error:
            # Who opens a log there sees by its id that it is of another topic.
            _logger.warning("%s could not be renamed to be deleted: %s", folder.name, error)
            return
        self._waiting.append(doomed)
        if self._task is None or self._task.done():
            # What is left is removed at the next start.
            self._task = run_once("folder removal", self._run(), on_failure=log_only)

    async def _run(self) -> None:
        while self._waiting:
            count = min(_AT_ONCE, len(self._waiting))
            await asyncio.to_thread(_delete, [self._waiting.popleft() for _ in range(count)])

    async def stop(self) -> None:
        """Begin no more; what waits is removed at the next start."""
        self._waiting.clear()
        if self._task is not None:
            with suppress(asyncio.CancelledError):
                await self._task


def _delete(folders: list[Path]) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
