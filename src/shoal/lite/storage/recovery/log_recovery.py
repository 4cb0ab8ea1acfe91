"""Opens a log after a restart: trusts, checks or truncates its segments.

Rules of this file:
- After an unclean shutdown the log is truncated at the first incomplete or damaged batch, and the
  indexes of what was checked are rebuilt: the last segment after a kill, everything that was not
  known to be on disk after a power loss. The rest is not read again.
- Where records are missing, the truncation marker is set before the log is truncated, or the log
  end mark still shows the loss: a process that is killed meanwhile does not hide it.
"""

import logging
from collections.abc import Sequence

from shoal.lite.storage.cleaning.cleaning import CLEANER_CHECKPOINT, finish_swaps
from shoal.lite.storage.files import DamagedFile, decode_checkpoint, read_offset
from shoal.lite.storage.flushing import EPOCH_CHECKPOINT
from shoal.lite.storage.header import BatchHeader
from shoal.lite.storage.recovery.last_shutdown import LastShutdown, count_trusted
from shoal.lite.storage.segment import Segment, bases_from_start, wall_ms
from shoal.lite.storage.state.epochs import EpochHistory
from shoal.lite.storage.state.log_state import LogState
from shoal.lite.storage.state.replaying import replay
from shoal.lite.storage.truncation import start_over, truncate_segments
from shoal.lite.storage.units import UNITS_MARK, half_unit_start

_logger = logging.getLogger(__name__)


def recover(log: LogState, last_shutdown: LastShutdown) -> None:
    """Open the segments of a log, and restore the state that follows from them."""
    log.folder.mkdir(parents=True, exist_ok=True)
    # Compacted segments may end before the next one begins.
    may_have_gaps = log.settings.compacts or (log.folder / CLEANER_CHECKPOINT).exists()
    finish_swaps(log.folder)
    if (written := log.start_checkpoint.read()) is not None:
        log.start_offset = written
    if not _read_epochs(log, last_shutdown):
        # Without the epochs of the records nothing can be trusted.
        last_shutdown = LastShutdown.UNKNOWN
        log.flusher.recovery_point = 0
    bases = bases_from_start(log.folder, log.start_offset) or [log.start_offset]
    if bases[0] > log.start_offset and not may_have_gaps:
        _report_missing(log, log.start_offset, bases[0])
        log.lacks_start = True
        log.start_offset = bases[0]
    trusted = count_trusted(bases, last_shutdown, log.flusher.recovery_point)
    if not _open_trusted(log, bases, trusted, may_have_gaps=may_have_gaps):
        last_shutdown = LastShutdown.UNKNOWN
    unsure = bases[len(log.segments) :]
    log.restore_producers(unsure[0] if unsure else log.end_offset)
    if unsure and last_shutdown is LastShutdown.UNKNOWN:
        # The file may be older than a truncation: read the epochs from the batches again.
        log.epochs.truncate_from_end(unsure[0])
    checks_all = last_shutdown is LastShutdown.UNKNOWN
    _open_unsure(log, unsure, checks_all=checks_all, may_have_gaps=may_have_gaps)
    _check_for_loss(log)
    _truncate_half_unit(log)
    if log.end_offset < log.start_offset:
        start_over(log)
    if log.epochs.truncate_from_end(log.end_offset):
        log.write_epochs()
    log.expire_producers(wall_ms())
    _check_for_loss(log)
    log.end_mark.set(log.end_offset)
    log.first_dirty = min(read_offset(log.folder / CLEANER_CHECKPOINT), log.end_offset)


def _read_epochs(log: LogState, last_shutdown: LastShutdown) -> bool:
    """Read the epoch checkpoint, which is not synced; False if the batches must tell it."""
    path = log.folder / EPOCH_CHECKPOINT
    if not path.exists():
        return False
    try:
        log.epochs = EpochHistory(decode_checkpoint(path.read_bytes(), source=str(path)))
    except DamagedFile:
        if last_shutdown is not LastShutdown.UNKNOWN:
            raise
        return False
    return True


def _open_trusted(log: LogState, bases: Sequence[int], count: int, *, may_have_gaps: bool) -> bool:
    """Open up to `count` segments without checking them; False if one has changed."""
    for base_offset, next_base in zip(bases[:count], [*bases[1:], None], strict=False):
        segment = Segment(log.folder, base_offset)
        if segment.size and not segment.has_indexes():
            break
        end_offset = _open_as_left(log, segment, next_base, may_have_gaps=may_have_gaps)
        if end_offset is None:
            segment.close()
            _logger.warning("%s: changed after it was closed; checking it", log.folder)
            log.truncation_marker.set()
            return False
        log.end_offset = end_offset
        log.segments.append(segment)
    return True


def _open_as_left(
    log: LogState, segment: Segment, next_base: int | None, *, may_have_gaps: bool
) -> int | None:
    """Open a segment; returns the offset after it, or None if it does not end as it was left."""
    interval_bytes = log.settings.index_interval_bytes
    if next_base is not None:
        if not segment.open_sealed(next_base, has_gaps=may_have_gaps):
            return None
        log.flusher.on_segment_sealed(segment)
        return next_base
    if segment.size == 0:
        segment.create_index(interval_bytes)
        return segment.base_offset
    return segment.resume(interval_bytes)


def _open_unsure(
    log: LogState, bases: Sequence[int], *, checks_all: bool, may_have_gaps: bool
) -> None:
    """Check segments, and truncate the log after the last valid batch."""
    for base_offset, next_base in zip(bases, [*bases[1:], None], strict=False):
        # Existing snapshots may be wrong; this one follows from checked batches.
        log.snapshots.write(base_offset, log.producers)
        segment = Segment(log.folder, base_offset)
        log.segments.append(segment)
        if segment.size == 0 and next_base is None:
            segment.create_index(log.settings.index_interval_bytes)
            log.end_offset = max(log.end_offset, base_offset)
            return
        is_whole = _check_segment(log, segment, checks_all=checks_all)
        if is_whole and next_base is not None and log.end_offset < next_base and not may_have_gaps:
            _report_missing(log, log.end_offset, next_base)
            is_whole = False
        if not is_whole:
            _drop_segments_after(log, base_offset, bases)
            return
        if next_base is not None:
            segment.seal()
            log.flusher.on_segment_sealed(segment)


def _check_segment(log: LogState, segment: Segment, *, checks_all: bool) -> bool:
    """Check a segment, and truncate it after the last valid batch; False if that was needed."""

    def visit(position: int, header: BatchHeader) -> None:
        log.epochs.assign(header.leader_epoch, header.base_offset)
        transaction = replay(log.producers, segment, (position, header))
        if transaction is not None and transaction.is_aborted:
            segment.transactions.add(transaction)

    def on_truncation() -> None:
        # If the log end is known from the log end file, `_check_for_loss` decides instead.
        if log.end_mark.known is None:
            log.truncation_marker.set()

    log.end_offset, truncated_bytes = segment.rebuild(
        log.settings.index_interval_bytes,
        visit,
        checks_all=checks_all,
        before_truncation=on_truncation,
    )
    if truncated_bytes:
        _logger.warning("%s: truncated %d bytes of a torn tail", log.folder, truncated_bytes)
    return not truncated_bytes


def _report_missing(log: LogState, offset: int, next_offset: int) -> None:
    log.truncation_marker.set()
    missing = f"{offset} to {next_offset - 1}"
    _logger.warning("%s: the records at offsets %s are missing", log.folder, missing)


def _drop_segments_after(log: LogState, base_offset: int, bases: Sequence[int]) -> None:
    for later in bases:
        if later > base_offset:
            Segment(log.folder, later).delete()
            _logger.warning("%s: deleted segment %d after a damaged one", log.folder, later)


def _check_for_loss(log: LogState) -> None:
    if log.end_offset < (log.end_mark.known or 0):
        log.truncation_marker.set()


def _truncate_half_unit(log: LogState) -> None:
    """Truncate an incomplete unit at the end: its writer was killed before acknowledging it."""
    log.has_units = (log.folder / UNITS_MARK).exists()
    if not log.has_units:
        return
    half_start = half_unit_start(log.segments[-1].batches())
    if half_start is not None:
        _logger.warning("%s: truncated half a unit at offset %d", log.folder, half_start)
        truncate_segments(log, half_start)
