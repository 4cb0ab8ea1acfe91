"""The checkpoint of the high watermarks of a broker's replicas.

    replication-offset-checkpoint    version 0, the number of lines, then topic, partition, offset

Rules of this file:
- A value that is too low, or missing, is always safe. A value of a deleted topic is not, so it is
  removed together with the replica.
- While the broker serves, a thread writes the file, because replacing it takes long on a busy disk.
  An older write never replaces a newer one.
"""

import asyncio
import logging
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from shoal.lite.storage.files import replace_file
from shoal.model.topics import TopicPartition
from shoal.runtime.tasks import log_only, run_once

HIGH_WATERMARKS = "replication-offset-checkpoint"
_logger = logging.getLogger(__name__)


class HighWatermarks:
    """The checkpoint file. Used in the event loop."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / HIGH_WATERMARKS
        # The values found at the start, without replicas that were removed since.
        self._found = _read(self._path)
        # The current content of the file, as far as it is known.
        self._written = dict(self._found)
        self._lock = threading.Lock()
        self._number = 0
        self._last_number = 0
        self._writing: asyncio.Task[None] | None = None

    def of(self, key: TopicPartition) -> int:
        """The high watermark that an earlier process stored for a replica; 0 without one."""
        return self._found.get(key, 0)

    def forget(self, key: TopicPartition) -> None:
        self._found.pop(key, None)

    def forget_all(self) -> None:
        self._found.clear()

    def write(self, marks: Mapping[TopicPartition, int]) -> None:
        """Write the file now."""
        if marks != self._written:
            self._number += 1
            if self._replace(_encode(marks), self._number):
                self._written = dict(marks)

    def write_soon(self, marks: Mapping[TopicPartition, int]) -> None:
        """Write the file in a thread, unless a write is running: then skip this one."""
        is_busy = self._writing is not None and not self._writing.done()
        if marks != self._written and not is_busy:
            self._number += 1
            work = self._write(dict(marks), self._number)
            self._writing = run_once("high watermark write", work, on_failure=log_only)

    async def _write(self, marks: dict[TopicPartition, int], number: int) -> None:
        if await asyncio.to_thread(self._replace, _encode(marks), number):
            self._written = marks

    def _replace(self, content: bytes, number: int) -> bool:
        """Replace the file; returns whether it has this content now."""
        with self._lock:
            if number < self._last_number:
                return False
            self._last_number = number
            try:
                replace_file(self._path, content, durable=False)
            except OSError as error:
                _logger.warning("cannot write the high watermark checkpoint: %s", error)
                return False
            return True


def _encode(marks: Mapping[TopicPartition, int]) -> bytes:
    lines = [f"{key.topic} {key.partition} {mark}" for key, mark in marks.items()]
    return "\n".join(["0", str(len(lines)), *lines, ""]).encode()


def _read(path: Path) -> dict[TopicPartition, int]:
    """The values in the file; none if it cannot be read, which is safe."""
    marks = {}
    with suppress(OSError, ValueError):
        for line in path.read_text().split("\n")[2:]:
            if line:
                topic, index, mark = line.split(" ")
                marks[TopicPartition(topic, int(index))] = int(mark)
    return marks
