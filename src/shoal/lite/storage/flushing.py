"""Syncs a log to disk, mostly without blocking the threads that write to it.

A log creates a `FlushJob`, another thread runs it, and the log is notified. Data written after the
job was created is left for the next job.

    recovery-point-checkpoint    segments that begin below it are completely on disk, with their
                                 indexes, their snapshots and the epochs of their records

Rules of this file:
- Sealed segments are synced once, soon after they were sealed; only then the recovery point moves
  forward. Before a log is truncated below the recovery point, it moves back, and that is synced.
- The file is a hint: if it is missing or cannot be read, everything is checked.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.lite.base.log_settings import LogSettings
from shoal.lite.storage.disk import sync
from shoal.lite.storage.files import read_offset, sync_folder, write_offset
from shoal.lite.storage.segment import Segment, wall_ms
from shoal.lite.storage.slices import OpenFile
from shoal.lite.storage.state.snapshots import Snapshots

RECOVERY_POINT = "recovery-point-checkpoint"
EPOCH_CHECKPOINT = "leader-epoch-checkpoint"


@dataclass(frozen=True, slots=True)
class FlushJob:
    """The files to sync. `run` may be called from any thread."""

    folder: Path
    # The `.log` files.
    logs: Sequence[OpenFile]
    # Small files; one that no longer exists when the job runs is not needed.
    others: Sequence[Path]
    # After the job, segments that begin below it are completely on disk.
    recovery_point: int

    def run(self) -> None:
        """Sync the files; `OSError` if the disk fails."""
        for file in self.logs:
            sync(file.descriptor)
        for path in self.others:
            try:
                descriptor = os.open(path, os.O_RDONLY)
            except FileNotFoundError:
                continue
            try:
                sync(descriptor)
            finally:
                os.close(descriptor)
        sync_folder(self.folder)


class Flusher:
    """Tracks which parts of a log are not on disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._snapshots = Snapshots(folder)
        self.recovery_point = read_offset(folder / RECOVERY_POINT)
        self._sealed: list[Segment] = []
        # The running job, and the sizes of its segments when it began.
        self._job: tuple[FlushJob, list[tuple[Segment, int]]] | None = None
        self._records = 0
        self._flushed_ms = wall_ms()

    def on_segment_sealed(self, segment: Segment) -> None:
        """A segment is complete: sync it with the next job."""
        if segment.base_offset >= self.recovery_point:
            self._sealed.append(segment)

    def on_append(self, record_count: int, active: Segment, settings: LogSettings) -> None:
        """Records were written; sync them now if `flush.messages` demands it."""
        self._records += record_count
        if self._records >= settings.flush_messages:
            for segment in (*self._sealed, active):
                segment.flush()
            self._records = 0
            self._flushed_ms = wall_ms()

    def next_job(
        self, now_ms: int, segments: Sequence[Segment], settings: LogSettings
    ) -> FlushJob | None:
        """A job for sealed segments, and for the active one after `flush.ms`; None if not due."""
        waits = self._records > 0 and now_ms - self._flushed_ms >= settings.flush_ms
        if self._job is not None or not (self._sealed or waits):
            return None
        return self.begin_job(segments, with_active=waits)

    def begin_job(self, segments: Sequence[Segment], *, with_active: bool) -> FlushJob:
        """A job for all sealed segments and, with `with_active`, for the active one."""
        chosen = [*self._sealed, *(segments[-1:] if with_active else ())]
        others = [path for segment in self._sealed for path in segment.index_paths]
        others += [
            self._snapshots.path(segment.base_offset)
            for segment in segments[1:]
            if segment.base_offset > self.recovery_point
        ]
        job = FlushJob(
            self._folder,
            [segment.file for segment in chosen],
            [*others, self._folder / EPOCH_CHECKPOINT],
            recovery_point=segments[-1].base_offset,
        )
        self._job = (job, [(segment, segment.size) for segment in chosen])
        if with_active:
            self._records = 0
            self._flushed_ms = wall_ms()
        return job

    def on_job_done(self, job: FlushJob) -> None:
        """A job is done; it is ignored if the log was truncated meanwhile."""
        if self._job is None or self._job[0] is not job:
            return
        for segment, size in self._job[1]:
            segment.on_flushed(size)
        self._job = None
        self._sealed = [segment for segment in self._sealed if not segment.is_flushed]
        if job.recovery_point > self.recovery_point:
            self._write_checkpoint(job.recovery_point, durable=False)

    def on_truncated(self, segments: Sequence[Segment]) -> None:
        """The log was truncated: only these segments are left, and the last one is active."""
        self._job = None
        self._sealed = [segment for segment in segments[:-1] if segment in self._sealed]

    def lower_recovery_point(self, offset: int) -> None:
        """Move the recovery point back before a segment at `offset` becomes active again."""
        if self.recovery_point > offset:
            self._write_checkpoint(offset, durable=True)

    def _write_checkpoint(self, offset: int, *, durable: bool) -> None:
        write_offset(self._folder / RECOVERY_POINT, offset, durable=durable)
        self.recovery_point = offset
