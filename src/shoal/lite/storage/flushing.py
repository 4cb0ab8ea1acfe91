"""Forcing a log to the disk, mostly without stopping those who write to it.

A log says what is to be forced (`FlushJob`), a thread does it, and the log is told. What was
written since is left for the next time.

    recovery-point-checkpoint    segments that begin below it are on the disk, whole, with their
                                 indexes, their snapshots and the epochs of their records

Rules of this file:
- Sealed segments are forced once, soon after they were sealed: only then the recovery point
  moves on. It moves back, and that is forced to the disk, before a log is cut below it.
- The file is a hint: where it is missing or cannot be read, everything is checked.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.lite.base.log_settings import LogSettings
from shoal.lite.storage.disk import sync
from shoal.lite.storage.files import (
    DamagedFile,
    decode_checkpoint,
    encode_checkpoint,
    replace_file,
    sync_folder,
)
from shoal.lite.storage.segment import Segment, wall_ms
from shoal.lite.storage.slices import OpenFile
from shoal.lite.storage.state.snapshots import Snapshots

RECOVERY_POINT = "recovery-point-checkpoint"
EPOCH_CHECKPOINT = "leader-epoch-checkpoint"


@dataclass(frozen=True, slots=True)
class FlushJob:
    """What to force to the disk. `run` may be called from any thread."""

    folder: Path
    # The files of records.
    logs: Sequence[OpenFile]
    # Small files; those that are gone by then are not needed any more.
    others: Sequence[Path]
    # Segments that begin below it are on the disk then, whole.
    recovery_point: int

    def run(self) -> None:
        """Force it; `OSError` if the disk fails."""
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
    """Knows what of a log is not on the disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._snapshots = Snapshots(folder)
        self.recovery_point = self._read()
        self._sealed: list[Segment] = []
        # The job that is being done, and how long its segments were when it began.
        self._job: tuple[FlushJob, list[tuple[Segment, int]]] | None = None
        self._records = 0
        self._flushed_ms = wall_ms()

    def _read(self) -> int:
        path = self._folder / RECOVERY_POINT
        try:
            [(_, offset)] = decode_checkpoint(path.read_bytes(), source=str(path))
        except (FileNotFoundError, DamagedFile, ValueError):
            return 0
        return offset

    def sealed(self, segment: Segment) -> None:
        """A segment is complete."""
        if segment.base_offset >= self.recovery_point:
            self._sealed.append(segment)

    def wrote(self, record_count: int, active: Segment, settings: LogSettings) -> None:
        """Records were written; `flush.messages` may want them on the disk now."""
        self._records += record_count
        if self._records >= settings.flush_messages:
            for segment in (*self._sealed, active):
                segment.flush()
            self._records = 0
            self._flushed_ms = wall_ms()

    def due(
        self, now_ms: int, segments: Sequence[Segment], settings: LogSettings
    ) -> FlushJob | None:
        """What to force now: sealed segments, and the last one too after `flush.ms`."""
        waits = self._records > 0 and now_ms - self._flushed_ms >= settings.flush_ms
        if self._job is not None or not (self._sealed or waits):
            return None
        return self.begin(segments, with_active=waits)

    def begin(self, segments: Sequence[Segment], *, with_active: bool) -> FlushJob:
        """A job for all sealed segments, and the one that is written to if that is wanted."""
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

    def done(self, job: FlushJob) -> None:
        """A job is done; it does not count if the log was cut meanwhile."""
        if self._job is None or self._job[0] is not job:
            return
        for segment, size in self._job[1]:
            segment.flushed(size)
        self._job = None
        self._sealed = [segment for segment in self._sealed if not segment.is_flushed]
        if job.recovery_point > self.recovery_point:
            self._write(job.recovery_point, durable=False)

    def cut(self, segments: Sequence[Segment]) -> None:
        """Only these segments are left of the log; the last one is written to."""
        self._job = None
        self._sealed = [segment for segment in segments[:-1] if segment in self._sealed]

    def take_back(self, offset: int) -> None:
        """Before the log is cut so that it is written to from a segment on."""
        if self.recovery_point > offset:
            self._write(offset, durable=True)

    def _write(self, offset: int, *, durable: bool) -> None:
        content = encode_checkpoint([(0, offset)])
        replace_file(self._folder / RECOVERY_POINT, content, durable=durable)
        self.recovery_point = offset
