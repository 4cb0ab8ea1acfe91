"""The checkpoint of the log start offset, which a thread may write while the log is used.

    log-start-offset-checkpoint    only after records were deleted

It is synced to disk before the records are deleted, and that takes long. So a log creates a
`StartOffsetJob`, a thread writes the checkpoint, and the log is notified; only then it deletes.

Rules of this file:
- Anything else that moves the start of the log, truncates it or deletes it makes the job void: the
  thread writes nothing after that, and what it has written is replaced.
- A deleted log is never written to again: its folder may belong to another log by then.
"""

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shoal.lite.storage.files import decode_checkpoint, write_offset

START_CHECKPOINT: Final = "log-start-offset-checkpoint"


class StartOffsetCheckpoint:
    """The file of one log. Only `StartOffsetJob.run` may be called from other threads."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / START_CHECKPOINT
        # Held during a write: a void job is never the last one to write.
        self._lock = threading.Lock()
        self._version = 0
        # Whether a job has written an offset that is not in effect yet.
        self._is_ahead = False

    def read(self) -> int | None:
        """The stored offset; None without a file."""
        if not self._path.exists():
            return None
        [(_, offset)] = decode_checkpoint(self._path.read_bytes(), source=str(self._path))
        return offset

    def write(self, offset: int) -> None:
        """Write an offset now; makes jobs void."""
        with self._lock:
            self._write(offset)
            self._version += 1
            self._is_ahead = False

    def keep_start(self, offset: int) -> None:
        """Keep the start offset before a truncation; makes jobs void."""
        with self._lock:
            self._version += 1
            if self._is_ahead:
                self._write(offset)
                self._is_ahead = False

    def cancel_jobs(self) -> None:
        """Make jobs void: the log is closed or deleted."""
        with self._lock:
            self._version += 1

    def begin(self, offset: int) -> "StartOffsetJob":
        """A job that writes an offset."""
        return StartOffsetJob(self, offset, self._version)

    def run_job(self, job: "StartOffsetJob") -> bool:
        """Write the offset of a job, unless it is void; returns whether it was written."""
        with self._lock:
            if job.version != self._version:
                return False
            self._write(job.offset)
            self._is_ahead = True
            return True

    def complete(self, job: "StartOffsetJob") -> bool:
        """Put the offset of a job into effect; False if it was not written or is void."""
        with self._lock:
            if not job.is_done or job.version != self._version:
                return False
            self._version += 1
            self._is_ahead = False
            return True

    def _write(self, offset: int) -> None:
        write_offset(self._path, offset, durable=True)


@dataclass(slots=True)
class StartOffsetJob:
    """Moves the log start to `offset`. `run` may be called from any thread, once."""

    checkpoint: StartOffsetCheckpoint
    offset: int
    version: int
    is_done: bool = False

    def run(self) -> None:
        """Write the checkpoint; `OSError` if the disk fails."""
        self.is_done = self.checkpoint.run_job(self)
