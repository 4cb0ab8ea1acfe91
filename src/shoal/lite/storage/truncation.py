"""Truncates a log at its end, or deletes all its records.

Rules of this file:
- Before a batch is removed, everything that says it exists is lowered: the epochs, the recovery
  point and the log end mark. A process that is killed in between finds less, never more.
- Jobs of other threads that were created before are void.
"""

from shoal.lite.storage.offline import offline_on_error
from shoal.lite.storage.segment import Segment, segment_index_of, wall_ms
from shoal.lite.storage.state.epochs import EpochHistory
from shoal.lite.storage.state.log_state import LogState
from shoal.lite.storage.state.producer_state import ProducerStates


@offline_on_error("cut")
def truncate_to(log: LogState, offset: int) -> None:
    """Truncate the log, and its epochs, to the batches that end below `offset`."""
    log.require_online()
    log.start_checkpoint.keep_start(log.start_offset)
    # Before the batches: an epoch without batches must not survive a crash in between.
    if log.epochs.truncate_from_end(offset):
        log.write_epochs()
    if offset < log.end_offset:
        truncate_segments(log, max(offset, log.start_offset))
    if log.end_offset < log.start_offset:
        # The log start offset lies inside the truncated batch.
        truncate_fully(log, log.start_offset)


@offline_on_error("cut")
def truncate_fully(log: LogState, start_offset: int) -> None:
    """Delete all records; the empty log begins at `start_offset`."""
    log.require_online()
    log.epochs = EpochHistory()
    log.write_epochs()
    log.move_start(start_offset)
    log.flusher.lower_recovery_point(start_offset)
    start_over(log)


def start_over(log: LogState) -> None:
    """Begin an empty log at the start offset: all records left are below it."""
    log.end_mark.set(log.start_offset)
    for segment in log.segments:
        segment.delete()
    segment = Segment(log.folder, log.start_offset)
    segment.create_index(log.settings.index_interval_bytes)
    log.segments = [segment]
    log.flusher.on_truncated(log.segments)
    log.snapshots.drop_above(0)
    log.producers = ProducerStates()
    log.end_offset = log.start_offset


def truncate_segments(log: LogState, offset: int) -> None:
    """Remove the batches from the one that contains `offset` on; not their epochs."""
    active = log.segments[segment_index_of(log.segments, offset)]
    # First: this segment becomes active, and what it gets from now on is not synced.
    log.flusher.lower_recovery_point(active.base_offset)
    log.end_mark.set(min(offset, active.base_offset))
    while log.segments[-1] is not active:
        log.segments.pop().delete()
    log.end_offset = active.truncate(offset, log.settings.index_interval_bytes)
    log.end_mark.set(log.end_offset)
    log.first_dirty = min(log.first_dirty, log.end_offset)
    log.flusher.on_truncated(log.segments)
    log.snapshots.drop_above(log.end_offset)
    if not log.producers.truncate_from_end(log.end_offset):
        log.restore_producers(log.end_offset)
        log.expire_producers(wall_ms())
