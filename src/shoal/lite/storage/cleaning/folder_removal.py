"""Deletes the folders of logs in a thread.

Rules of this file:
- A folder is renamed before anything in it is deleted. A renamed folder that still exists after a
  crash is removed at the next start, see `is_marked_for_deletion`; so is one that was not renamed
  yet, because the id of its topic is no longer known.
- The thread renames folders too, because a rename takes long on a busy disk. A caller that needs
  the name earlier, because a new topic has it, renames the folder first (`free_name`).
- The thread gets a few folders at a time, so that a broker that stops waits only for those.
"""

import asyncio
import logging
import os
import shutil
import threading
from collections import deque
from contextlib import suppress
from pathlib import Path
from uuid import UUID

from shoal.runtime.tasks import log_only, run_once

_DELETED_SUFFIX = "-delete"
_AT_ONCE = 20
_logger = logging.getLogger(__name__)


def is_marked_for_deletion(folder: Path) -> bool:
    """Whether a folder was renamed to be deleted."""
    return folder.name.endswith(_DELETED_SUFFIX)


class _FolderToDelete:
    """The folder of a log that is to be deleted. Thread-safe.

    Paths are strings, because thousands of these may be created at once.
    """

    __slots__ = ("_is_renamed", "_lock", "_new_path", "_path", "name")

    def __init__(self, parent: str, name: str, topic_id: UUID) -> None:
        self.name = name
        self._path = f"{parent}/{name}"
        self._new_path = f"{parent}/{name}.{topic_id.hex}{_DELETED_SUFFIX}"
        self._lock = threading.Lock()
        self._is_renamed = False

    def rename(self) -> None:
        """Rename the folder, unless that was done."""
        with self._lock:
            if self._is_renamed:
                return
            self._is_renamed = True
            try:
                os.rename(self._path, self._new_path)  # noqa: PTH104
            except OSError as error:
                # A log that is opened there shows by its topic id that it belongs to another topic.
                _logger.warning("cannot rename %s to delete it: %s", self.name, error)

    def delete(self) -> None:
        self.rename()
        shutil.rmtree(self._new_path, ignore_errors=True)


class FolderRemover:
    """Deletes folders in the background. Used in the event loop."""

    def __init__(self, parent: Path) -> None:
        """`parent` contains the folders."""
        self._parent = str(parent)
        self._waiting: deque[_FolderToDelete] = deque()
        # Folders that may still have their name.
        self._in_place: dict[str, _FolderToDelete] = {}
        self._task: asyncio.Task[None] | None = None

    def add(self, name: str, topic_id: UUID) -> None:
        """Delete the folder of a topic's log soon."""
        folder = self._in_place[name] = _FolderToDelete(self._parent, name, topic_id)
        self._waiting.append(folder)
        if self._task is None or self._task.done():
            # If it fails, the folders are removed at the next start.
            self._task = run_once("folder removal", self._run(), on_failure=log_only)

    def free_name(self, name: str) -> None:
        """Make sure that no folder to be deleted has this name any longer."""
        if (folder := self._in_place.pop(name, None)) is not None:
            folder.rename()

    async def _run(self) -> None:
        while self._waiting:
            count = min(_AT_ONCE, len(self._waiting))
            some = [self._waiting.popleft() for _ in range(count)]
            await asyncio.to_thread(_delete, some)
            for folder in some:
                if self._in_place.get(folder.name) is folder:
                    del self._in_place[folder.name]

    async def stop(self) -> None:
        """Stop after the current folders; the others are removed at the next start."""
        self._waiting.clear()
        if self._task is not None:
            with suppress(asyncio.CancelledError):
                await self._task


def _delete(folders: list[_FolderToDelete]) -> None:
    for folder in folders:
        folder.delete()
