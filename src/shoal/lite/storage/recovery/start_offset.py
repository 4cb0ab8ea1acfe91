"""The checkpoint of where a log begins, which a thread may write beside those who use the log.

    log-start-offset-checkpoint    only after records were deleted

It is forced to the disk before the records go, and that takes long. So a log says where it should
begin (`StartJob`), a thread writes that down, and the log is told; only then it deletes anything.

Rules of this file:
- Whatever else moves the start of a log, cuts it or deletes it in between makes the job void: the
  thread writes nothing any more, and what it has written is replaced.
- A log that is deleted is never written to again: its folder may be that of another log by then.
"""

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shoal.lite.storage.files import decode_checkpoint, encode_checkpoint, replace_file

START_CHECKPOINT: Final = "log-start-offset-checkpoint"


class StartCheckpoint:
    """The file of one log. `StartJob.run` is for any thread, all else for the event loop's."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / START_CHECKPOINT
        # Held while the file is written: a job that has become void is never the last to write.
        self._lock = threading.Lock()
        self._version = 0
        # Whether a job has written what does not hold yet.
        self._is_ahead = False

    def read(self) -> int | None:
        """What was written down; None if there is no file."""
        if not self._path.exists():
            return None
        [(_, offset)] = decode_checkpoint(self._path.read_bytes(), source=str(self._path))
        return offset

    def write(self, offset: int) -> None:
        """Bring an offset to the disk, now; jobs are void."""
        with self._lock:
            self._write(offset)
            self._version += 1
            self._is_ahead = False

    def hold(self, offset: int) -> None:
        """The log is about to be cut, and begins where it did: jobs are void."""
        with self._lock:
            self._version += 1
            if self._is_ahead:
                self._write(offset)
                self._is_ahead = False

    def forget(self) -> None:
        """The log is closed, or deleted: jobs are void."""
        with self._lock:
            self._version += 1

    def begin(self, offset: int) -> "StartJob":
        """A job that brings an offset to the disk."""
        return StartJob(self, offset, self._version)

    def write_for(self, job: "StartJob") -> bool:
        """Do a job, unless it is void; says whether it was done."""
        with self._lock:
            if job.version != self._version:
                return False
            self._write(job.offset)
            self._is_ahead = True
            return True

    def take(self, job: "StartJob") -> bool:
        """Whether a job was done and holds: the log begins there from now on."""
        with self._lock:
            if not job.is_done or job.version != self._version:
                return False
            self._version += 1
            self._is_ahead = False
            return True

    def _write(self, offset: int) -> None:
        replace_file(self._path, encode_checkpoint([(0, offset)]))


@dataclass(slots=True)
class StartJob:
    """A log should begin at `offset`. `run` may be called from any thread, once."""

    checkpoint: StartCheckpoint
    offset: int
    version: int
    is_done: bool = False

    def run(self) -> None:
        """Write it down; `OSError` if the disk fails."""
        self.is_done = self.checkpoint.write_for(self)
