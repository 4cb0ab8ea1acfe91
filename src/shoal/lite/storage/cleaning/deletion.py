"""Deletes records at the start of a log: on request, and those that retention does not keep.

Rules of this file:
- The new log start offset is on disk before a segment is deleted. For retention a thread writes
  it: run the job of `due_expiry`, then call `on_expired`.
- Only complete segments are deleted; the records below the start in the first one are not read.
"""

import logging

from shoal.lite.storage.cleaning.retention import find_expired_offset, retention_segments
from shoal.lite.storage.offline import offline_on_error
from shoal.lite.storage.recovery.start_offset import StartOffsetJob
from shoal.lite.storage.state.log_state import LogState

_logger = logging.getLogger(__name__)


@offline_on_error("shortened")
def delete_before(log: LogState, offset: int) -> None:
    """Move the log start offset to `offset`; segments completely below it are removed."""
    log.require_online()
    if offset < log.start_offset or (offset == log.start_offset and not log.lacks_start):
        return
    log.move_start(offset)
    _drop_before(log, offset)


def due_expiry(log: LogState, now_ms: int, *, high_watermark: int) -> StartOffsetJob | None:
    """A job that deletes what retention does not keep. Run it, then call `on_expired`."""
    log.require_online()
    kept = retention_segments(log.segments, log.end_offset)
    offset = find_expired_offset(kept, log.settings, committed=high_watermark, now_ms=now_ms)
    if offset is None or offset <= log.start_offset:
        return None
    _logger.info("%s: retention deletes records below offset %d", log.folder.name, offset)
    return log.start_checkpoint.begin(offset)


@offline_on_error("shortened")
def on_expired(log: LogState, job: StartOffsetJob) -> None:
    """A job is done: delete the records, unless the log has changed and the job is void."""
    log.require_online()
    if log.start_checkpoint.complete(job):
        log.start_offset, log.lacks_start = job.offset, False
        _drop_before(log, job.offset)


def _drop_before(log: LogState, offset: int) -> None:
    if offset == log.end_offset and log.segments[-1].size:
        log.roll()
    while len(log.segments) > 1 and log.segments[1].base_offset <= offset:
        log.segments.pop(0).delete()
    log.flusher.on_truncated(log.segments)
    log.keep_snapshots()
    if log.epochs.truncate_from_start(offset):
        log.write_epochs()
