"""Appends batches to a log: of producers, coordinators and mirrors. See `fetched` for followers.

Rules of this file:
- When an append returns, the kernel has the batch, so a killed process does not lose it. Only
  `flush.messages` syncs it to disk at once.
- The caller has decided that the batch may be written: see `admission` in `partitions`.
- A failed write takes the log offline.
- The log end, its mark and the producer state advance after the write.
"""

from collections.abc import Sequence
from typing import NamedTuple

from shoal.lite.storage.header import BatchHeader, newest_ms, record_count, stamp
from shoal.lite.storage.offline import offline_on_error
from shoal.lite.storage.scan import LARGEST_RELATIVE_OFFSET
from shoal.lite.storage.segment import wall_ms
from shoal.lite.storage.state.log_state import LogState
from shoal.lite.storage.state.replaying import record_marker
from shoal.lite.storage.truncation import truncate_fully
from shoal.lite.storage.units import UNITS_MARK
from shoal.wire.batch import CONTINUED_BIT, CONTROL_BIT

_EXPIRY_CHECK_MS = 600_000


class LogAppendInfo(NamedTuple):
    """The offset of an appended batch, or of the earlier copy of a duplicate."""

    base_offset: int
    is_duplicate: bool


def append(
    log: LogState, view: memoryview, header: BatchHeader, *, leader_epoch: int
) -> LogAppendInfo:
    """Assign the next offsets to an admitted batch and write it. `view` is changed in place."""
    log.require_online()
    base_offset = log.end_offset
    stamp(view, base_offset=base_offset, leader_epoch=leader_epoch)
    if leader_epoch > log.epochs.latest:
        begin_epoch(log, leader_epoch)
    _write(log, view, header)
    if header.producer_id >= 0:
        if header.attributes & CONTROL_BIT:
            record_written_marker(log, view, header, base_offset)
        else:
            log.producers.record(header, base_offset)
        look_for_expired_producers(log)
    return LogAppendInfo(base_offset, is_duplicate=False)


def append_unit(
    log: LogState, view: memoryview, headers: Sequence[BatchHeader], *, leader_epoch: int
) -> None:
    """Write admitted batches at their own offsets, all or none. `view` is changed in place."""
    log.require_online()
    if log.start_offset == log.end_offset and _is_too_far(log, headers[-1].last_offset):
        # An offset index cannot span the distance: begin a new segment at the first batch.
        truncate_fully(log, headers[0].base_offset)
    if leader_epoch > log.epochs.latest:
        begin_epoch(log, leader_epoch)
    position = 0
    for header in headers:
        batch = view[position : position + header.size]
        stamp(batch, base_offset=header.base_offset, leader_epoch=leader_epoch)
        position += header.size
    write_together(log, view, headers)


def can_reach(log: LogState, offset: int) -> bool:
    """Whether a batch may end at `offset`: an index holds offsets relative to its segment."""
    return log.start_offset == log.end_offset or not _is_too_far(log, offset)


def _is_too_far(log: LogState, offset: int) -> bool:
    return offset - log.end_offset > LARGEST_RELATIVE_OFFSET


@offline_on_error("written")
def begin_epoch(log: LogState, epoch: int) -> None:
    """Record that `epoch` begins at the end of the log."""
    log.require_online()
    if log.lacks_start:
        log.move_start(log.start_offset)
    if log.epochs.assign(epoch, log.end_offset):
        log.write_epochs()


@offline_on_error("written")
def _write(log: LogState, view: memoryview, header: BatchHeader) -> None:
    """Write one batch at the end of the log; the offset in `header` is ignored."""
    last_offset = log.end_offset + header.last_offset_delta
    timestamp_ms = header.max_timestamp
    segment = log.segments[-1]
    if segment.should_roll(
        log.settings, len(view), last_offset=last_offset, max_timestamp_ms=timestamp_ms
    ):
        segment = log.roll()
    segment.append(
        view,
        base_offset=log.end_offset,
        last_offset=last_offset,
        max_timestamp_ms=timestamp_ms,
    )
    log.flusher.on_append(header.record_count, segment, log.settings)
    log.end_offset = last_offset + 1
    log.end_mark.set(log.end_offset)


@offline_on_error("written")
def write_together(
    log: LogState,
    view: memoryview,
    headers: Sequence[BatchHeader],
    *,
    is_known_to_fit: bool = False,
) -> None:
    """Write batches with one write, into the active segment if they fit there."""
    last_offset = headers[-1].last_offset
    if not log.has_units and any(header.attributes & CONTINUED_BIT for header in headers):
        (log.folder / UNITS_MARK).touch()
        log.has_units = True
    segment = log.segments[-1]
    if not is_known_to_fit and segment.should_roll(
        log.settings,
        len(view),
        last_offset=last_offset,
        max_timestamp_ms=newest_ms(headers),
    ):
        segment = log.roll()
    segment.append_many(view, headers)
    log.flusher.on_append(record_count(headers), segment, log.settings)
    log.end_offset = last_offset + 1
    log.end_mark.set(log.end_offset)


@offline_on_error("written")
def record_written_marker(
    log: LogState, view: memoryview, header: BatchHeader, base_offset: int
) -> None:
    """Record a marker that was written at `base_offset`, and the transaction that it aborts."""
    transaction = record_marker(log.producers, view, header, base_offset)
    if transaction is not None and transaction.is_aborted:
        log.segments[-1].transactions.add(transaction)


def look_for_expired_producers(log: LogState) -> None:
    """Forget expired producers, if that was not done lately."""
    now_ms = wall_ms()
    if now_ms - log.expiry_checked_ms > _EXPIRY_CHECK_MS:
        log.expire_producers(now_ms)
