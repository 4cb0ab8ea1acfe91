"""Deletes the folders of logs, in a thread.

Rules of this file:
- A folder is renamed before anything in it is deleted. What was renamed and is still there after a
  crash is removed at the next start, see `is_doomed`; so is what was not renamed yet, by the id of
  its topic.
- The thread renames too: a disk that is busy takes long for it. Who needs the place of a folder
  before that, because a topic has the same name, renames it first (`clear_way`).
- The thread is given a few folders at a time, so that whoever stops the broker waits for those.
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


def is_doomed(folder: Path) -> bool:
    """Whether a folder was about to be deleted."""
    return folder.name.endswith(_DELETED_SUFFIX)


class _DoomedFolder:
    """The folder of a topic's log that is to be deleted. For any thread.

    Paths are strings: thousands of these are made at once.
    """

    __slots__ = ("_lock", "_new_path", "_path", "_was_moved", "name")

    def __init__(self, parent: str, name: str, topic_id: UUID) -> None:
        self.name = name
        self._path = f"{parent}/{name}"
        self._new_path = f"{parent}/{name}.{topic_id.hex}{_DELETED_SUFFIX}"
        self._lock = threading.Lock()
        self._was_moved = False

    def move_away(self) -> None:
        """Rename it, unless that was done."""
        with self._lock:
            if self._was_moved:
                return
            self._was_moved = True
            try:
                os.rename(self._path, self._new_path)  # noqa: PTH104
            except OSError as error:
                # Who opens a log there sees by its id that it is of another topic.
                _logger.warning("cannot rename %s to delete it: %s", self.name, error)

    def delete(self) -> None:
        self.move_away()
        shutil.rmtree(self._new_path, ignore_errors=True)


class FolderRemover:
    """Folders that wait for their deletion. Used in the event loop."""

    def __init__(self, parent: Path) -> None:
        """`parent` is where the folders lie."""
        self._parent = str(parent)
        self._waiting: deque[_DoomedFolder] = deque()
        # Those whose place may be needed.
        self._in_place: dict[str, _DoomedFolder] = {}
        self._task: asyncio.Task[None] | None = None

    def add(self, name: str, topic_id: UUID) -> None:
        """Delete the folder of a topic's log soon."""
        doomed = self._in_place[name] = _DoomedFolder(self._parent, name, topic_id)
        self._waiting.append(doomed)
        if self._task is None or self._task.done():
            # What is left is removed at the next start.
            self._task = run_once("folder removal", self._run(), on_failure=log_only)

    def clear_way(self, name: str) -> None:
        """Make sure that nothing is left in the place of a folder that is to be deleted."""
        if (doomed := self._in_place.pop(name, None)) is not None:
            doomed.move_away()

    async def _run(self) -> None:
        while self._waiting:
            count = min(_AT_ONCE, len(self._waiting))
            some = [self._waiting.popleft() for _ in range(count)]
            await asyncio.to_thread(_delete, some)
            for doomed in some:
                if self._in_place.get(doomed.name) is doomed:
                    del self._in_place[doomed.name]

    async def stop(self) -> None:
        """Begin no more; what waits is removed at the next start."""
        self._waiting.clear()
        if self._task is not None:
            with suppress(asyncio.CancelledError):
                await self._task


def _delete(folders: list[_DoomedFolder]) -> None:
    for folder in folders:
        folder.delete()
