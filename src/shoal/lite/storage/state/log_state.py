"""The state of one open log, which all its operations share.

Rules of this file:
- The operations are functions over this object, one module for each job: `log_recovery`,
  `appending`, `fetched`, `reading`, `truncation`, `deletion`, `cleaning`. `PartitionLog` offers
  them as methods.
- Only what several jobs need is a method here.
- A log that is offline stays offline until it is opened again: the content of the disk is unknown.
"""

from collections.abc import Callable
from pathlib import Path

from shoal.lite.base.log_settings import LogSettings
from shoal.lite.storage.files import encode_checkpoint, replace_file
from shoal.lite.storage.flushing import EPOCH_CHECKPOINT, Flusher
from shoal.lite.storage.offline import LogOffline, describe_failure
from shoal.lite.storage.recovery.log_end_file import LogEndMark
from shoal.lite.storage.recovery.start_offset import StartOffsetCheckpoint
from shoal.lite.storage.recovery.truncation_marker import TruncationMarker
from shoal.lite.storage.segment import Segment
from shoal.lite.storage.state.epochs import EpochHistory
from shoal.lite.storage.state.producer_state import ProducerStates
from shoal.lite.storage.state.replaying import restore_producers
from shoal.lite.storage.state.snapshots import Snapshots


class LogState:
    """A log whose segments are not open yet; `log_recovery.recover` opens them."""

    def __init__(self, folder: Path, settings: LogSettings, end_mark: LogEndMark) -> None:
        self.folder = folder
        self.settings = settings
        self.producers = ProducerStates()
        self.epochs = EpochHistory()
        self.start_offset = 0
        self.end_offset = 0
        self.offline_reason: str | None = None
        # Called once, in the thread that found the error.
        self.on_offline: Callable[[], None] = lambda: None
        # Set if records were missing when the log was opened, until the controller knows it.
        self.truncation_marker = TruncationMarker(folder)
        # Whether they were missing at its start: until this log leads, the leader has them.
        self.lacks_start = False

        # The files, for the modules of `storage` only. The last segment is the active one.
        self.segments: list[Segment] = []
        self.snapshots = Snapshots(folder)
        self.start_checkpoint = StartOffsetCheckpoint(folder)
        self.flusher = Flusher(folder)
        self.end_mark = end_mark
        # Records below it are compacted.
        self.first_dirty = 0
        # Whether batches were written as units, see `units`.
        self.has_units = False
        self.expiry_checked_ms = 0

    def require_online(self) -> None:
        """Raise `LogOffline` if the log is offline."""
        if self.offline_reason is not None:
            raise LogOffline(self.offline_reason)

    def go_offline(self, verb: str, error: Exception) -> LogOffline:
        """Take the log offline after an error of its files, or of a job in another thread."""
        if self.offline_reason is None:
            self.offline_reason = describe_failure(self.folder, verb, error)
            self.on_offline()
        return LogOffline(self.offline_reason)

    def write_epochs(self) -> None:
        path = self.folder / EPOCH_CHECKPOINT
        replace_file(path, encode_checkpoint(self.epochs.entries), durable=False)

    def move_start(self, offset: int) -> None:
        """Move the log start offset, and store it; the records below it are not deleted."""
        self.start_checkpoint.write(offset)
        self.start_offset = offset
        self.lacks_start = False

    def roll(self) -> Segment:
        """Seal the active segment, and begin a new one at the log end."""
        sealed = self.segments[-1]
        sealed.seal()
        self.flusher.on_segment_sealed(sealed)
        # Before the segment: recovery relies on a snapshot at the base offset of a segment.
        self.snapshots.write(self.end_offset, self.producers)
        segment = Segment(self.folder, self.end_offset)
        segment.create_index(self.settings.index_interval_bytes)
        self.segments.append(segment)
        self.keep_snapshots()
        return segment

    def keep_snapshots(self) -> None:
        """Remove the snapshots that no segment begins with."""
        self.snapshots.keep({segment.base_offset for segment in self.segments})

    def restore_producers(self, end_offset: int) -> None:
        """Restore the producer state at an offset from a snapshot and the segments."""
        snapshot = self.snapshots.latest(end_offset)
        self.producers = restore_producers(snapshot, self.segments, end_offset)

    def expire_producers(self, now_ms: int) -> None:
        """Forget producers whose last batch is older than `producer.id.expiration.ms`."""
        self.expiry_checked_ms = now_ms
        self.producers.forget_older_than(now_ms - self.settings.producer_id_expiration_ms)
