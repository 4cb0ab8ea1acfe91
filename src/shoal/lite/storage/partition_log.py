"""The log of one partition: a folder of segments, and the state that follows from their batches.

    <topic>-<partition>/
        00000000000000000000.log .index .timeindex .txnindex    see `segment`
        00000000000000000042.snapshot                 see `snapshots`
        leader-epoch-checkpoint                       see `epochs`
        log-start-offset-checkpoint                   only after records were deleted
        recovery-point-checkpoint                     segments below it are completely on disk
        cleaner-offset-checkpoint                     records below it are compacted
        was-cut                                       see `truncation_marker`

Rules of this file:
- A method that another module implements is that module's function itself, so that nothing is
  called in between: the function's first argument is the log.
- A failed write, or damage that a read finds, takes the log offline. Every call then raises
  `LogOffline` until the log is opened again.
"""

from pathlib import Path

from shoal.lite.base.log_settings import LogSettings
from shoal.lite.storage import appending, fetched, reading, truncation
from shoal.lite.storage.appending import LogAppendInfo
from shoal.lite.storage.cleaning import cleaning, deletion
from shoal.lite.storage.flushing import FlushJob
from shoal.lite.storage.offline import offline_on_error
from shoal.lite.storage.recovery.last_shutdown import LastShutdown
from shoal.lite.storage.recovery.log_end_file import LogEndMark, NoLogEndMark
from shoal.lite.storage.recovery.log_recovery import recover
from shoal.lite.storage.state.log_state import LogState

__all__ = ["LogAppendInfo", "PartitionLog"]


class PartitionLog(LogState):
    """The open log of a partition. One process has it open at a time."""

    def __init__(
        self,
        folder: Path,
        settings: LogSettings,
        *,
        last_shutdown: LastShutdown,
        end_mark: LogEndMark | None = None,
    ) -> None:
        """Open the log in `folder`, which is created if it does not exist."""
        super().__init__(folder, settings, end_mark or NoLogEndMark())
        recover(self, last_shutdown)

    append = appending.append
    append_unit = appending.append_unit
    append_fetched = fetched.append_fetched
    begin_epoch = appending.begin_epoch
    can_reach = appending.can_reach

    read = reading.read
    content = reading.content
    check_batch = reading.check_batch
    find_aborted = reading.find_aborted
    batch_at = reading.batch_at
    batch_of_time = reading.batch_of_time
    batch_of_max_time = reading.batch_of_max_time

    truncate_to = truncation.truncate_to
    truncate_fully = truncation.truncate_fully

    delete_before = deletion.delete_before
    due_expiry = deletion.due_expiry
    on_expired = deletion.on_expired

    due_cleaning = cleaning.due_cleaning
    on_cleaned = cleaning.on_cleaned

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.segments)

    def due_flush(self, now_ms: int) -> FlushJob | None:
        """A job that syncs sealed segments, and everything after `flush.ms`; None if not due.

        Run it, in any thread; then call `on_flushed`, or `go_offline` if it failed.
        """
        self.require_online()
        return self.flusher.next_job(now_ms, self.segments, self.settings)

    @offline_on_error("written")
    def on_flushed(self, job: FlushJob) -> None:
        """A flush job is done."""
        self.flusher.on_job_done(job)

    @offline_on_error("flushed")
    def flush(self) -> None:
        """Sync everything to disk."""
        self.require_online()
        job = self.flusher.begin_job(self.segments, with_active=True)
        job.run()
        self.on_flushed(job)

    def close(self) -> None:
        """Write the indexes and close the files. A log that is offline is left as it is."""
        self.start_checkpoint.cancel_jobs()
        if self.offline_reason is None and self.segments:
            self.snapshots.write(self.end_offset, self.producers)
        for segment in self.segments:
            if self.offline_reason is None:
                segment.close()
            else:
                segment.abandon()
        self.segments = []

    def abandon(self) -> None:
        """Close the files and write nothing more: they are about to be deleted."""
        if self.offline_reason is None:
            self.offline_reason = f"{self.folder.name} was deleted"
        self.start_checkpoint.cancel_jobs()
        # A running flush must not write its checkpoint: the folder may belong to another log.
        self.flusher.on_truncated([])
        for segment in self.segments:
            segment.abandon()
        self.segments = []
