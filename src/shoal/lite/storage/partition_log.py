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
- When `append` returns, the kernel has the batch, so a killed process does not lose it. Only
  `flush.messages` syncs it to disk at once.
- A failed write, or damage that a read finds, takes the log offline: the content of the disk is
  unknown. Every call then raises `LogOffline` until the log is opened again. `on_offline` is called
  once, in the thread that found the error.
- Opening after an unclean shutdown truncates the log at the first incomplete or damaged batch, and
  rebuilds the indexes of what it checked: the last segment after a kill, everything that was not
  known to be on disk after a power loss. The rest is not read again.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from shoal.lite.base.log_settings import LogSettings
from shoal.lite.storage.cleaning.cleaning import (
    CLEANER_CHECKPOINT,
    CleanJob,
    due_until,
    finish_swaps,
    read_cleaner_checkpoint,
    swap_in,
    write_cleaner_checkpoint,
)
from shoal.lite.storage.cleaning.compaction import last_batches
from shoal.lite.storage.cleaning.retention import find_expired_offset, retention_segments
from shoal.lite.storage.fetched import validate_fetched
from shoal.lite.storage.files import DamagedFile, decode_checkpoint, encode_checkpoint, replace_file
from shoal.lite.storage.flushing import EPOCH_CHECKPOINT, Flusher, FlushJob
from shoal.lite.storage.header import BatchHeader, newest_ms, record_count, stamp
from shoal.lite.storage.offline import LogOffline, describe_failure, offline_on_error
from shoal.lite.storage.recovery.last_shutdown import LastShutdown, count_trusted
from shoal.lite.storage.recovery.log_end_file import LogEndMark, NoLogEndMark
from shoal.lite.storage.recovery.start_offset import StartOffsetCheckpoint, StartOffsetJob
from shoal.lite.storage.recovery.truncation_marker import TruncationMarker
from shoal.lite.storage.scan import LARGEST_RELATIVE_OFFSET
from shoal.lite.storage.segment import Segment, bases_from_start, segment_index_of, wall_ms
from shoal.lite.storage.slices import NOTHING, LogSlice
from shoal.lite.storage.state.aborted import find_aborted
from shoal.lite.storage.state.epochs import EpochHistory
from shoal.lite.storage.state.producer_state import EndedTransaction, ProducerStates
from shoal.lite.storage.state.replaying import marker_in, record_marker, replay, restore_producers
from shoal.lite.storage.state.snapshots import Snapshots
from shoal.lite.storage.units import UNITS_MARK, half_unit_start, units_of
from shoal.wire.batch import CONTINUED_BIT, CONTROL_BIT, LENGTH_END
from shoal.wire.fetch import AbortedTransaction

_EXPIRY_CHECK_MS = 600_000
_logger = logging.getLogger(__name__)


class LogAppendInfo(NamedTuple):
    """The offset of an appended batch, or of the earlier copy of a duplicate."""

    base_offset: int
    is_duplicate: bool


class PartitionLog:
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
        self.folder = folder
        self.settings = settings
        self.producers = ProducerStates()
        self.epochs = EpochHistory()
        self.start_offset = 0
        self.end_offset = 0
        self.offline_reason: str | None = None
        self.on_offline: Callable[[], None] = lambda: None
        # Set if records were missing when the log was opened, until the controller knows it.
        self.truncation_marker = TruncationMarker(folder)
        self._end_mark = end_mark or NoLogEndMark()
        # Whether they were missing at its start: until this log leads, the leader has them.
        self.lacks_start = False
        self._segments: list[Segment] = []
        self._snapshots = Snapshots(folder)
        self._start = StartOffsetCheckpoint(folder)
        self._expiry_checked_ms = 0
        self._has_units = False
        # Compacted segments may end before the next one begins.
        self._may_have_gaps = settings.compacts or (folder / CLEANER_CHECKPOINT).exists()
        folder.mkdir(parents=True, exist_ok=True)
        self._flusher = Flusher(folder)
        self._first_dirty = 0
        self._recover(last_shutdown)
        self._check_for_loss()
        self._end_mark.set(self.end_offset)
        self._first_dirty = min(read_cleaner_checkpoint(folder), self.end_offset)

    # Opening

    def _recover(self, last_shutdown: LastShutdown) -> None:
        finish_swaps(self.folder)
        if (written := self._start.read()) is not None:
            self.start_offset = written
        if not self._read_epochs(last_shutdown):
            # Without the epochs of the records nothing can be trusted.
            last_shutdown = LastShutdown.UNKNOWN
            self._flusher.recovery_point = 0
        bases = bases_from_start(self.folder, self.start_offset) or [self.start_offset]
        if bases[0] > self.start_offset and not self._may_have_gaps:
            missing = f"{self.start_offset} to {bases[0] - 1}"
            _logger.warning("%s: the records at offsets %s are missing", self.folder, missing)
            self.truncation_marker.set()
            self.lacks_start = True
            self.start_offset = bases[0]
        trusted = count_trusted(bases, last_shutdown, self._flusher.recovery_point)
        for base_offset, next_base in zip(bases[:trusted], [*bases[1:], None], strict=False):
            segment = Segment(self.folder, base_offset)
            if segment.size and not segment.has_indexes():
                break
            if not self._open_trusted(segment, next_base):
                _logger.warning("%s: changed after it was closed; checking it", self.folder)
                self.truncation_marker.set()
                last_shutdown = LastShutdown.UNKNOWN
                break
        unsure = bases[len(self._segments) :]
        self._restore_producers(unsure[0] if unsure else self.end_offset)
        if unsure and last_shutdown is LastShutdown.UNKNOWN:
            # The file may be older than a truncation: read the epochs from the batches again.
            self.epochs.truncate_from_end(unsure[0])
        self._open_unsure(unsure, checks_all=last_shutdown is LastShutdown.UNKNOWN)
        self._check_for_loss()
        self._truncate_half_unit()
        if self.end_offset < self.start_offset:
            self._start_over()
        if self.epochs.truncate_from_end(self.end_offset):
            self._write_epochs()
        self.expire_producers(wall_ms())

    def _truncate_half_unit(self) -> None:
        """Truncate an incomplete unit at the end: its writer was killed before acknowledging it."""
        self._has_units = (self.folder / UNITS_MARK).exists()
        if not self._has_units:
            return
        half_start = half_unit_start(self._segments[-1].batches())
        if half_start is not None:
            _logger.warning("%s: truncated half a unit at offset %d", self.folder, half_start)
            self._truncate_segments(half_start)

    def _read_epochs(self, last_shutdown: LastShutdown) -> bool:
        """Read the epoch checkpoint, which is not synced; False if the batches must tell it."""
        path = self.folder / EPOCH_CHECKPOINT
        if not path.exists():
            return False
        try:
            self.epochs = EpochHistory(decode_checkpoint(path.read_bytes(), source=str(path)))
        except DamagedFile:
            if last_shutdown is not LastShutdown.UNKNOWN:
                raise
            return False
        return True

    def _open_trusted(self, segment: Segment, next_base: int | None) -> bool:
        """Open a segment without checking it, if it ends as it was left."""
        interval_bytes = self.settings.index_interval_bytes
        if next_base is not None:
            if not segment.open_sealed(next_base, has_gaps=self._may_have_gaps):
                segment.close()
                return False
            self._flusher.on_segment_sealed(segment)
            self.end_offset = next_base
        elif segment.size == 0:
            segment.create_index(interval_bytes)
            self.end_offset = segment.base_offset
        else:
            end_offset = segment.resume(interval_bytes)
            if end_offset is None:
                segment.close()
                return False
            self.end_offset = end_offset
        self._segments.append(segment)
        return True

    def _open_unsure(self, bases: list[int], *, checks_all: bool) -> None:
        """Check segments, and truncate the log after the last valid batch."""
        for base_offset, next_base in zip(bases, [*bases[1:], None], strict=False):
            # Existing snapshots may be wrong; this one follows from checked batches.
            self._snapshots.write(base_offset, self.producers)
            segment = Segment(self.folder, base_offset)
            self._segments.append(segment)
            if segment.size == 0 and next_base is None:
                segment.create_index(self.settings.index_interval_bytes)
                self.end_offset = max(self.end_offset, base_offset)
            elif not self._check_segment(segment, next_base, checks_all=checks_all):
                self._drop_segments_after(base_offset, bases)
                break

    def _check_segment(self, segment: Segment, next_base: int | None, *, checks_all: bool) -> bool:
        """Check a segment; returns whether the segments after it can be valid."""

        def visit(position: int, header: BatchHeader) -> None:
            transaction = self._replay(segment, position, header)
            if transaction is not None and transaction.is_aborted:
                segment.transactions.add(transaction)

        self.end_offset, truncated_bytes = segment.rebuild(
            self.settings.index_interval_bytes,
            visit,
            checks_all=checks_all,
            before_truncation=self._on_truncation,
        )
        if truncated_bytes:
            _logger.warning("%s: truncated %d bytes of a torn tail", self.folder, truncated_bytes)
            return False
        if next_base is None:
            return True
        if self.end_offset < next_base and not self._may_have_gaps:
            self.truncation_marker.set()
            missing = f"{self.end_offset} to {next_base - 1}"
            _logger.warning("%s: the records at offsets %s are missing", self.folder, missing)
            return False
        segment.seal()
        self._flusher.on_segment_sealed(segment)
        return True

    def _check_for_loss(self) -> None:
        if self.end_offset < (self._end_mark.known or 0):
            self.truncation_marker.set()

    def _on_truncation(self) -> None:
        # If the log end is known from the log end file, `_check_for_loss` decides instead.
        if self._end_mark.known is None:
            self.truncation_marker.set()

    def _restore_producers(self, end_offset: int) -> None:
        """Restore the producer state at an offset."""
        snapshot = self._snapshots.latest(end_offset)
        self.producers = restore_producers(snapshot, self._segments, end_offset)

    def _replay(
        self, segment: Segment, position: int, header: BatchHeader
    ) -> EndedTransaction | None:
        self.epochs.assign(header.leader_epoch, header.base_offset)
        return replay(self.producers, segment, (position, header))

    def _drop_segments_after(self, base_offset: int, bases: list[int]) -> None:
        for later in bases:
            if later > base_offset:
                Segment(self.folder, later).delete()
                _logger.warning("%s: deleted segment %d after a damaged one", self.folder, later)

    def _start_over(self) -> None:
        """Begin an empty log at the start offset: all records left are below it."""
        self._end_mark.set(self.start_offset)
        for segment in self._segments:
            segment.delete()
        segment = Segment(self.folder, self.start_offset)
        segment.create_index(self.settings.index_interval_bytes)
        self._segments = [segment]
        self._flusher.on_truncated(self._segments)
        self._snapshots.drop_above(0)
        self.producers = ProducerStates()
        self.end_offset = self.start_offset

    # Writing

    def append(self, view: memoryview, header: BatchHeader, *, leader_epoch: int) -> LogAppendInfo:
        """Assign the next offsets to a checked batch and write it. `view` is changed in place."""
        self.require_online()
        if header.producer_id >= 0 and (duplicate := self.producers.check(header)) is not None:
            return LogAppendInfo(duplicate.base_offset, is_duplicate=True)
        return self._append(view, header, leader_epoch)

    def append_as_coordinator(
        self, view: memoryview, header: BatchHeader, *, leader_epoch: int
    ) -> LogAppendInfo:
        """Append a batch of a coordinator, written for a producer or for itself."""
        self.require_online()
        if header.producer_id >= 0:
            self.producers.check_coordinator_batch(header)
        return self._append(view, header, leader_epoch)

    def append_marker(
        self, view: memoryview, header: BatchHeader, *, leader_epoch: int, is_bumped: bool
    ) -> LogAppendInfo:
        """Append a transaction marker; `ApiError` if it may not end the transaction."""
        self.require_online()
        self.producers.check_marker(
            header.producer_id,
            header.producer_epoch,
            marker_in(view).coordinator_epoch or 0,
            is_bumped=is_bumped,
        )
        return self._append(view, header, leader_epoch)

    def _append(self, view: memoryview, header: BatchHeader, leader_epoch: int) -> LogAppendInfo:
        base_offset = self.end_offset
        stamp(view, base_offset=base_offset, leader_epoch=leader_epoch)
        if leader_epoch > self.epochs.latest:
            self.begin_epoch(leader_epoch)
        self._write(view, header)
        if header.producer_id >= 0:
            if header.attributes & CONTROL_BIT:
                self._record_marker(view, header, base_offset)
            else:
                self.producers.record(header, base_offset)
            self._look_for_expired_producers()
        return LogAppendInfo(base_offset, is_duplicate=False)

    def append_unit(
        self, view: memoryview, headers: Sequence[BatchHeader], *, leader_epoch: int
    ) -> None:
        """Write checked batches at their own offsets, all or none. `view` is changed in place."""
        self.require_online()
        if self.start_offset == self.end_offset and self._is_too_far(headers[-1].last_offset):
            # An offset index cannot span the distance: begin a new segment at the first batch.
            self.truncate_fully(headers[0].base_offset)
        if leader_epoch > self.epochs.latest:
            self.begin_epoch(leader_epoch)
        position = 0
        for header in headers:
            batch = view[position : position + header.size]
            stamp(batch, base_offset=header.base_offset, leader_epoch=leader_epoch)
            position += header.size
        self._write_together(view, headers)

    def can_reach(self, offset: int) -> bool:
        """Whether a batch may end at `offset`."""
        return self.start_offset == self.end_offset or not self._is_too_far(offset)

    def _is_too_far(self, offset: int) -> bool:
        return offset - self.end_offset > LARGEST_RELATIVE_OFFSET

    def append_fetched(self, record_set: memoryview) -> None:
        """Append batches that the leader sent, unchanged, at their own offsets and epochs.

        `ApiError` if a batch is damaged or does not follow the log; those before it are written,
        except for the others of its unit.
        """
        self.require_online()
        headers, size_bytes, error = validate_fetched(record_set, self.end_offset)
        if headers and self._can_write_together(headers, size_bytes):
            self._write_fetched(record_set[:size_bytes], headers, is_known_to_fit=True)
        else:
            position = 0
            for unit in units_of(headers):
                end = position + sum(header.size for header in unit)
                self._write_fetched(record_set[position:end], unit)
                position = end
        if error is not None:
            raise error

    def _can_write_together(self, headers: list[BatchHeader], size_bytes: int) -> bool:
        """Whether all batches have one epoch and fit in the active segment: one write is enough.

        An empty segment accepts any batch, so its limits are not checked that way.
        """
        segment = self._segments[-1]
        return (
            headers[0].leader_epoch == headers[-1].leader_epoch
            and segment.size > 0
            and not segment.should_roll(
                self.settings,
                size_bytes,
                last_offset=headers[-1].last_offset,
                max_timestamp_ms=newest_ms(headers),
            )
        )

    def _write_fetched(
        self, view: memoryview, headers: Sequence[BatchHeader], *, is_known_to_fit: bool = False
    ) -> None:
        if headers[0].leader_epoch > self.epochs.latest:
            self.begin_epoch(headers[0].leader_epoch)
        self._write_together(view, headers, is_known_to_fit=is_known_to_fit)
        position = 0
        for header in headers:
            end = position + header.batch_length + LENGTH_END
            if header.attributes & CONTROL_BIT and header.producer_id >= 0:
                self._record_marker(view[position:end], header, header.base_offset)
            else:
                self.producers.record(header, header.base_offset)
            position = end
        self._look_for_expired_producers()

    @offline_on_error("written")
    def _write(self, view: memoryview, header: BatchHeader) -> None:
        """Write one batch at the end of the log; the offset in `header` is ignored."""
        last_offset = self.end_offset + header.last_offset_delta
        timestamp_ms = header.max_timestamp
        segment = self._segments[-1]
        if segment.should_roll(
            self.settings, len(view), last_offset=last_offset, max_timestamp_ms=timestamp_ms
        ):
            segment = self._roll()
        segment.append(
            view,
            base_offset=self.end_offset,
            last_offset=last_offset,
            max_timestamp_ms=timestamp_ms,
        )
        self._flusher.on_append(header.record_count, segment, self.settings)
        self.end_offset = last_offset + 1
        self._end_mark.set(self.end_offset)

    @offline_on_error("written")
    def _write_together(
        self, view: memoryview, headers: Sequence[BatchHeader], *, is_known_to_fit: bool = False
    ) -> None:
        """Write batches with one write, into the active segment if they fit there."""
        last_offset = headers[-1].last_offset
        self._note_units(headers)
        segment = self._segments[-1]
        if not is_known_to_fit and segment.should_roll(
            self.settings,
            len(view),
            last_offset=last_offset,
            max_timestamp_ms=newest_ms(headers),
        ):
            segment = self._roll()
        segment.append_many(view, headers)
        self._flusher.on_append(record_count(headers), segment, self.settings)
        self.end_offset = last_offset + 1
        self._end_mark.set(self.end_offset)

    def _note_units(self, headers: Iterable[BatchHeader]) -> None:
        if not self._has_units and any(header.attributes & CONTINUED_BIT for header in headers):
            (self.folder / UNITS_MARK).touch()
            self._has_units = True

    @offline_on_error("written")
    def _record_marker(self, view: memoryview, header: BatchHeader, base_offset: int) -> None:
        transaction = record_marker(self.producers, view, header, base_offset)
        if transaction is not None and transaction.is_aborted:
            self._segments[-1].transactions.add(transaction)

    def _look_for_expired_producers(self) -> None:
        now_ms = wall_ms()
        if now_ms - self._expiry_checked_ms > _EXPIRY_CHECK_MS:
            self.expire_producers(now_ms)

    def expire_producers(self, now_ms: int) -> None:
        """Forget producers whose last batch is older than `producer.id.expiration.ms`."""
        self._expiry_checked_ms = now_ms
        self.producers.forget_older_than(now_ms - self.settings.producer_id_expiration_ms)

    @offline_on_error("written")
    def begin_epoch(self, epoch: int) -> None:
        """Record that `epoch` begins at the end of the log."""
        self.require_online()
        if self.lacks_start:
            self._start_at(self.start_offset)
        if self.epochs.assign(epoch, self.end_offset):
            self._write_epochs()

    def _write_epochs(self) -> None:
        path = self.folder / EPOCH_CHECKPOINT
        replace_file(path, encode_checkpoint(self.epochs.entries), durable=False)

    def _roll(self) -> Segment:
        sealed = self._segments[-1]
        sealed.seal()
        self._flusher.on_segment_sealed(sealed)
        # Before the segment: recovery relies on a snapshot at the base offset of a segment.
        self._snapshots.write(self.end_offset, self.producers)
        segment = Segment(self.folder, self.end_offset)
        segment.create_index(self.settings.index_interval_bytes)
        self._segments.append(segment)
        self._snapshots.keep({segment.base_offset for segment in self._segments})
        return segment

    # Flushing

    def due_flush(self, now_ms: int) -> FlushJob | None:
        """A job that syncs sealed segments, and everything after `flush.ms`; None if not due.

        Run it, in any thread; then call `on_flushed`, or `go_offline` if it failed.
        """
        self.require_online()
        return self._flusher.next_job(now_ms, self._segments, self.settings)

    @offline_on_error("written")
    def on_flushed(self, job: FlushJob) -> None:
        """A flush job is done."""
        self._flusher.on_job_done(job)

    @offline_on_error("flushed")
    def flush(self) -> None:
        """Sync everything to disk."""
        self.require_online()
        job = self._flusher.begin_job(self._segments, with_active=True)
        job.run()
        self.on_flushed(job)

    # Deleting

    @offline_on_error("shortened")
    def delete_before(self, offset: int) -> None:
        """Move the log start offset to `offset`; segments completely below it are removed."""
        self.require_online()
        if offset < self.start_offset or (offset == self.start_offset and not self.lacks_start):
            return
        self._start_at(offset)
        self._drop_before(offset)

    def _drop_before(self, offset: int) -> None:
        if offset == self.end_offset and self._segments[-1].size:
            self._roll()
        while len(self._segments) > 1 and self._segments[1].base_offset <= offset:
            self._segments.pop(0).delete()
        self._flusher.on_truncated(self._segments)
        self._snapshots.keep({segment.base_offset for segment in self._segments})
        if self.epochs.truncate_from_start(offset):
            self._write_epochs()

    def _start_at(self, offset: int) -> None:
        self._start.write(offset)
        self.start_offset = offset
        self.lacks_start = False

    def due_expiry(self, now_ms: int, *, high_watermark: int) -> StartOffsetJob | None:
        """A job that deletes what retention does not keep. Run it, then call `on_expired`."""
        self.require_online()
        kept = retention_segments(self._segments, self.end_offset)
        offset = find_expired_offset(kept, self.settings, committed=high_watermark, now_ms=now_ms)
        if offset is None or offset <= self.start_offset:
            return None
        _logger.info("%s: retention deletes records below offset %d", self.folder.name, offset)
        return self._start.begin(offset)

    @offline_on_error("shortened")
    def on_expired(self, job: StartOffsetJob) -> None:
        """A job is done: delete the records, unless the log has changed and the job is void."""
        self.require_online()
        if self._start.complete(job):
            self.start_offset, self.lacks_start = job.offset, False
            self._drop_before(job.offset)

    # Compaction

    def due_cleaning(self, now_ms: int, *, stable_offset: int) -> CleanJob | None:
        """A compaction job, or None if not due. Run it in any thread, then call `on_cleaned`."""
        self.require_online()
        sealed, active = self._segments[:-1], self._segments[-1]
        first_dirty = max(self._first_dirty, sealed[0].base_offset if sealed else 0)
        until = due_until(
            sealed,
            active.base_offset,
            self.settings,
            first_dirty=first_dirty,
            stable_offset=stable_offset,
            now_ms=now_ms,
        )
        if until is None:
            return None
        chosen = [segment for segment in sealed if segment.base_offset < until]
        last = last_batches(self.producers)
        return CleanJob(
            self.folder, chosen, self.settings, first_dirty, until, last=last, now_ms=now_ms
        )

    @offline_on_error("compacted")
    def on_cleaned(self, job: CleanJob) -> None:
        """A job is done: its files replace the old segments, if those still exist."""
        if self.offline_reason is not None or not self._has(job.segments):
            job.discard()
            return
        for swap in job.swaps:
            start = self._segments.index(swap.old[0])
            self._segments[start : start + len(swap.old)] = swap_in(
                self.folder, swap, self.settings.index_interval_bytes
            )
        self._flusher.on_truncated(self._segments)
        self._snapshots.keep({segment.base_offset for segment in self._segments})
        self._first_dirty = job.until
        write_cleaner_checkpoint(self.folder, job.until)

    def _has(self, segments: Sequence[Segment]) -> bool:
        """Whether segments still exist, sealed and in this order."""
        if not segments or segments[0] not in self._segments[:-1]:
            return False
        start = self._segments.index(segments[0])
        return self._segments[start:-1][: len(segments)] == list(segments)

    # Truncating

    @offline_on_error("cut")
    def truncate_to(self, offset: int) -> None:
        """Truncate the log, and its epochs, to the batches that end below `offset`."""
        self.require_online()
        self._start.keep_start(self.start_offset)
        # Before the batches: an epoch without batches must not survive a crash in between.
        if self.epochs.truncate_from_end(offset):
            self._write_epochs()
        if offset < self.end_offset:
            self._truncate_segments(max(offset, self.start_offset))
        if self.end_offset < self.start_offset:
            # The log start offset lies inside the truncated batch.
            self.truncate_fully(self.start_offset)

    @offline_on_error("cut")
    def truncate_fully(self, start_offset: int) -> None:
        """Delete all records; the empty log begins at `start_offset`."""
        self.require_online()
        self.epochs = EpochHistory()
        self._write_epochs()
        self._start_at(start_offset)
        self._flusher.lower_recovery_point(start_offset)
        self._start_over()

    def _truncate_segments(self, offset: int) -> None:
        active = self._segments[self._segment_index_of(offset)]
        # First: this segment becomes active, and what it gets from now on is not synced.
        self._flusher.lower_recovery_point(active.base_offset)
        self._end_mark.set(min(offset, active.base_offset))
        while self._segments[-1] is not active:
            self._segments.pop().delete()
        self.end_offset = active.truncate(offset, self.settings.index_interval_bytes)
        self._end_mark.set(self.end_offset)
        self._first_dirty = min(self._first_dirty, self.end_offset)
        self._flusher.on_truncated(self._segments)
        self._snapshots.drop_above(self.end_offset)
        if not self.producers.truncate_from_end(self.end_offset):
            self._restore_producers(self.end_offset)
            self.expire_producers(wall_ms())

    def close(self) -> None:
        """Write the indexes and close the files. A log that is offline is left as it is."""
        self._start.cancel_jobs()
        if self.offline_reason is None and self._segments:
            self._snapshots.write(self.end_offset, self.producers)
        for segment in self._segments:
            if self.offline_reason is None:
                segment.close()
            else:
                segment.abandon()
        self._segments = []

    def abandon(self) -> None:
        """Close the files and write nothing more: they are about to be deleted."""
        if self.offline_reason is None:
            self.offline_reason = f"{self.folder.name} was deleted"
        self._start.cancel_jobs()
        # A running flush must not write its checkpoint: the folder may belong to another log.
        self._flusher.on_truncated([])
        for segment in self._segments:
            segment.abandon()
        self._segments = []

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

    # Reading

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self._segments)

    @offline_on_error("read")
    def read(
        self,
        offset: int,
        max_bytes: int,
        *,
        upper_offset: int,
        at_least_one: bool = True,
        keeps_units: bool = False,
    ) -> LogSlice:
        """Complete batches from the one that contains `offset`, all below `upper_offset`.

        At most `max_bytes`, but the first batch is returned whole if `at_least_one`, and the
        first unit if `keeps_units`.
        The offset must lie between `start_offset` and `end_offset`.
        """
        self.require_online()
        if offset >= upper_offset:
            return NOTHING
        keeps_units = keeps_units and self._has_units
        for index in range(self._segment_index_of(offset), len(self._segments)):
            segment = self._segments[index]
            if not keeps_units:
                bound = None if self._end_offset_of(index) <= upper_offset else upper_offset
                known = segment.find_known_slice(offset, bound, max_bytes)
                if known is not None:
                    return known
            first = segment.locate(offset)
            if first is None:
                continue
            if first[1].base_offset >= upper_offset:
                return NOTHING
            if first[1].size > max_bytes and not at_least_one:
                return NOTHING
            end = self._end_in(segment, upper_offset)
            return segment.slice(first, end, max_bytes, keeps_units=keeps_units)
        return NOTHING

    @offline_on_error("read")
    def content(self, records: LogSlice) -> bytes:
        """The bytes of what was read."""
        return bytes(records)

    @offline_on_error("read")
    def check_batch(self, offset: int) -> None:
        """Check the checksum of the batch that contains `offset`: `LogOffline` if it is damaged.

        For readers that fetch the same records again, as if they could not decode them.
        """
        self.require_online()
        for segment in self._segments[self._segment_index_of(offset) :]:
            if (found := segment.locate(offset)) is not None:
                segment.check_batch(found)
                return

    def _end_in(self, segment: Segment, upper_offset: int) -> int:
        """The position where the batches below `upper_offset` end."""
        if upper_offset < self.end_offset and (bound := segment.locate(upper_offset)) is not None:
            return bound[0]
        return segment.size

    @offline_on_error("read")
    def find_aborted(
        self, offset: int, records: LogSlice, upper_offset: int
    ) -> list[AbortedTransaction]:
        """The aborted transactions that overlap with what was read from `offset` on."""
        segments = self._segments[self._segment_index_of(offset) :]
        return find_aborted(segments, offset, records, upper_offset)

    def batch_at(self, offset: int) -> bytes | None:
        """The complete batch that contains `offset`, or the next one; None after the last."""
        return self.content(self.read(offset, 0, upper_offset=self.end_offset)) or None

    @offline_on_error("read")
    def batch_of_time(self, timestamp_ms: int) -> bytes | None:
        """The first readable batch that has a record at least as new as `timestamp_ms`."""
        self.require_online()
        for segment in self._segments:
            if segment.max_time[0] < timestamp_ms:
                continue
            found = segment.locate_time(timestamp_ms, self.start_offset)
            if found is not None:
                return segment.read_at(found[0], found[1].size)
        return None

    @offline_on_error("read")
    def batch_of_max_time(self) -> bytes | None:
        """The first readable batch that has the newest record."""
        self.require_online()
        newest = max(self._segments, key=lambda segment: segment.max_time[0])
        timestamp_ms, last_offset = newest.max_time
        if last_offset < self.start_offset:
            # Below the log start offset, although its segment still exists: search the rest.
            left = [header for header in self._headers() if header.max_timestamp >= 0]
            if not left:
                return None
            last_offset = max(left, key=lambda header: header.max_timestamp).last_offset
        elif timestamp_ms < 0:
            return None
        return self.batch_at(last_offset)

    def _headers(self) -> Iterator[BatchHeader]:
        """Every batch header from the start offset on."""
        for segment in self._segments[self._segment_index_of(self.start_offset) :]:
            for _, header in segment.batches():
                if header.last_offset >= self.start_offset:
                    yield header

    def _segment_index_of(self, offset: int) -> int:
        last = len(self._segments) - 1
        # Most readers read from the active segment.
        if offset >= self._segments[last].base_offset:
            return last
        return segment_index_of(self._segments, offset)

    def _end_offset_of(self, index: int) -> int:
        """An upper bound of the offsets in a segment."""
        following = self._segments[index + 1 : index + 2]
        return following[0].base_offset if following else self.end_offset
