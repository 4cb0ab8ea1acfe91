"""The log of one partition: a folder of segments, and what is known about their batches.

    <topic>-<partition>/
        00000000000000000000.log .index .timeindex .txnindex    see `segment`
        00000000000000000042.snapshot                 see `snapshots`
        leader-epoch-checkpoint                       see `epochs`
        log-start-offset-checkpoint                   only after records were deleted
        recovery-point-checkpoint                     segments before it are whole on the disk
        cleaner-offset-checkpoint                     what lies before it is compacted
        was-cut                                       see `cut_mark`

Rules of this file:
- What `append` returned for is written: it is in the kernel's hands, so a killed process does
  not lose it. Only `flush.messages` forces it to the disk.
- A write that fails takes the log offline, and so does damage that a read finds. From then on it
  answers every call with `LogOffline`, until it is opened again: what is on the disk is not known
  any more. `on_offline` is called once, in whatever thread found it.
- Opening after an unclean end cuts off what is not a whole, undamaged batch, and rebuilds the
  indexes of what it checked. After a kill that is the last segment; after a power loss it is
  all that was not known to be on the disk. The rest is not read again.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from shoal.lite.base.log_settings import LogSettings
from shoal.lite.storage.cleaning.cleaning import (
    CLEANER_CHECKPOINT,
    CleanJob,
    cleaned_until,
    due_until,
    finish_swaps,
    note_cleaned,
    swapped,
)
from shoal.lite.storage.cleaning.compaction import last_batches
from shoal.lite.storage.cleaning.retention import expired_before, kept_segments
from shoal.lite.storage.fetched import checked
from shoal.lite.storage.files import DamagedFile, decode_checkpoint, encode_checkpoint, replace_file
from shoal.lite.storage.flushing import EPOCH_CHECKPOINT, Flusher, FlushJob
from shoal.lite.storage.header import BatchHeader, newest_ms, record_count, stamp
from shoal.lite.storage.offline import LogOffline, describe_failure, offline_if
from shoal.lite.storage.recovery.last_shutdown import Ended, trusted_count
from shoal.lite.storage.recovery.log_end_file import EndMark, NoMark
from shoal.lite.storage.recovery.start_offset import StartCheckpoint, StartJob
from shoal.lite.storage.recovery.truncation_marker import CutMark
from shoal.lite.storage.scan import LARGEST_RELATIVE_OFFSET
from shoal.lite.storage.segment import Segment, bases_from_start, place_of, wall_ms
from shoal.lite.storage.slices import NOTHING, LogSlice
from shoal.lite.storage.state.aborted import aborted_in
from shoal.lite.storage.state.epochs import EpochHistory
from shoal.lite.storage.state.producer_state import EndedTransaction, ProducerStates
from shoal.lite.storage.state.replaying import marker_in, record_marker, replay, restored_producers
from shoal.lite.storage.state.snapshots import Snapshots
from shoal.lite.storage.units import UNITS_MARK, half_unit_start, units_of
from shoal.wire.batch import CONTINUED_BIT, CONTROL_BIT, LENGTH_END
from shoal.wire.fetch import AbortedTransaction

_EXPIRY_CHECK_MS = 600_000
_logger = logging.getLogger(__name__)


class Appended(NamedTuple):
    """Where a batch lies. A duplicate was written before, and nothing was written now."""

    base_offset: int
    is_duplicate: bool


class PartitionLog:
    """The open log of a partition. One process has it open at a time."""

    def __init__(
        self, folder: Path, settings: LogSettings, *, ended: Ended, end_mark: EndMark | None = None
    ) -> None:
        """Open the log in `folder`, which is made if it is missing."""
        self.folder = folder
        self.settings = settings
        self.producers = ProducerStates()
        self.epochs = EpochHistory()
        self.start_offset = 0
        self.end_offset = 0
        self.offline_reason: str | None = None
        self.on_offline: Callable[[], None] = lambda: None
        # Set if there was more than could be read when it was opened, and nobody was told yet.
        self.cut_mark = CutMark(folder)
        self._end_mark = end_mark or NoMark()
        # Whether it was at its begin: until this log leads, whoever leads has what belongs there.
        self.lacks_begin = False
        self._segments: list[Segment] = []
        self._snapshots = Snapshots(folder)
        self._start = StartCheckpoint(folder)
        self._expiry_checked_ms = 0
        self._has_units = False
        # Whether segments may end before the next one begins, because they were compacted.
        self._may_have_gaps = settings.compacts or (folder / CLEANER_CHECKPOINT).exists()
        folder.mkdir(parents=True, exist_ok=True)
        self._flusher = Flusher(folder)
        self._first_dirty = 0
        self._recover(ended)
        self._look_for_loss()
        self._end_mark.set(self.end_offset)
        self._first_dirty = min(cleaned_until(folder), self.end_offset)

    # Opening

    def _recover(self, ended: Ended) -> None:
        finish_swaps(self.folder)
        if (written := self._start.read()) is not None:
            self.start_offset = written
        if not self._read_epochs(ended):
            # Nothing can be trusted without the epochs of its records.
            ended = Ended.UNKNOWN
            self._flusher.recovery_point = 0
        bases = bases_from_start(self.folder, self.start_offset) or [self.start_offset]
        if bases[0] > self.start_offset and not self._may_have_gaps:
            missing = f"{self.start_offset} to {bases[0] - 1}"
            _logger.warning("%s: the records at offsets %s are missing", self.folder, missing)
            self.cut_mark.set()
            self.lacks_begin = True
            self.start_offset = bases[0]
        trusted = trusted_count(bases, ended, self._flusher.recovery_point)
        for base_offset, next_base in zip(bases[:trusted], [*bases[1:], None], strict=False):
            segment = Segment(self.folder, base_offset)
            if segment.size and not segment.has_indexes():
                break
            if not self._open_trusted(segment, next_base):
                _logger.warning("%s: was changed since it was closed", self.folder)
                self.cut_mark.set()
                ended = Ended.UNKNOWN
                break
        unsure = bases[len(self._segments) :]
        self._restore_producers(unsure[0] if unsure else self.end_offset)
        if unsure and ended is Ended.UNKNOWN:
            # The file may be older than the cut of a log; the batches tell it anew.
            self.epochs.cut_end(unsure[0])
        self._open_unsure(unsure, checks_all=ended is Ended.UNKNOWN)
        self._look_for_loss()
        self._cut_half_unit()
        if self.end_offset < self.start_offset:
            self._start_over()
        if self.epochs.cut_end(self.end_offset):
            self._write_epochs()
        self.expire_producers(wall_ms())

    def _cut_half_unit(self) -> None:
        """Who was killed while it wrote a unit has told nobody of its first half."""
        self._has_units = (self.folder / UNITS_MARK).exists()
        if not self._has_units:
            return
        half_start = half_unit_start(self._segments[-1].batches())
        if half_start is not None:
            _logger.warning("%s: cut half a unit at %d", self.folder, half_start)
            self._cut_segments(half_start)

    def _read_epochs(self, ended: Ended) -> bool:
        """Whether they are known; they are not forced to the disk, and the batches tell them."""
        path = self.folder / EPOCH_CHECKPOINT
        if not path.exists():
            return False
        try:
            self.epochs = EpochHistory(decode_checkpoint(path.read_bytes(), source=str(path)))
        except DamagedFile:
            if ended is not Ended.UNKNOWN:
                raise
            return False
        return True

    def _open_trusted(self, segment: Segment, next_base: int | None) -> bool:
        """Take a segment as it is, if it is as it was left."""
        interval_bytes = self.settings.index_interval_bytes
        if next_base is not None:
            if not segment.open_sealed(next_base, has_gaps=self._may_have_gaps):
                segment.close()
                return False
            self._flusher.sealed(segment)
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
        """Check segments, and cut the log behind the last valid batch."""
        for base_offset, next_base in zip(bases, [*bases[1:], None], strict=False):
            # Those that were there are not known to be right; this one is.
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
        """Whether the segments behind this one can be right."""

        def visit(position: int, header: BatchHeader) -> None:
            ended = self._replay(segment, position, header)
            if ended is not None and ended.is_aborted:
                segment.transactions.add(ended)

        self.end_offset, cut_bytes = segment.rebuild(
            self.settings.index_interval_bytes,
            visit,
            checks_all=checks_all,
            before_cut=self._note_cut,
        )
        if cut_bytes:
            _logger.warning("%s: cut %d bytes of a torn tail", self.folder, cut_bytes)
            return False
        if next_base is None:
            return True
        if self.end_offset < next_base and not self._may_have_gaps:
            self.cut_mark.set()
            missing = f"{self.end_offset} to {next_base - 1}"
            _logger.warning("%s: the records at offsets %s are missing", self.folder, missing)
            return False
        segment.seal()
        self._flusher.sealed(segment)
        return True

    def _look_for_loss(self) -> None:
        if self.end_offset < (self._end_mark.known or 0):
            self.cut_mark.set()

    def _note_cut(self) -> None:
        # Where it is known how far the log was written, the end of what is left tells more.
        if self._end_mark.known is None:
            self.cut_mark.set()

    def _restore_producers(self, end_offset: int) -> None:
        """Learn what producers wrote below an offset."""
        snapshot = self._snapshots.latest(end_offset)
        self.producers = restored_producers(snapshot, self._segments, end_offset)

    def _replay(
        self, segment: Segment, position: int, header: BatchHeader
    ) -> EndedTransaction | None:
        self.epochs.assign(header.leader_epoch, header.base_offset)
        return replay(self.producers, segment, (position, header))

    def _drop_segments_after(self, base_offset: int, bases: list[int]) -> None:
        for later in bases:
            if later > base_offset:
                Segment(self.folder, later).delete()
                _logger.warning("%s: dropped segment %d behind a damaged one", self.folder, later)

    def _start_over(self) -> None:
        """A power loss took records that had been deleted already: nothing is left to read."""
        self._end_mark.set(self.start_offset)
        for segment in self._segments:
            segment.delete()
        segment = Segment(self.folder, self.start_offset)
        segment.create_index(self.settings.index_interval_bytes)
        self._segments = [segment]
        self._flusher.cut(self._segments)
        self._snapshots.drop_above(0)
        self.producers = ProducerStates()
        self.end_offset = self.start_offset

    # Writing

    def append(self, view: memoryview, header: BatchHeader, *, leader_epoch: int) -> Appended:
        """Give a checked batch the next offsets and write it. `view` is stamped in place."""
        self.require_online()
        if header.producer_id >= 0 and (duplicate := self.producers.check(header)) is not None:
            return Appended(duplicate.base_offset, is_duplicate=True)
        return self._append(view, header, leader_epoch)

    def append_as_coordinator(
        self, view: memoryview, header: BatchHeader, *, leader_epoch: int
    ) -> Appended:
        """Write what a coordinator wrote, in the name of a producer or in its own."""
        self.require_online()
        if header.producer_id >= 0:
            self.producers.check_coordinators_batch(header)
        return self._append(view, header, leader_epoch)

    def append_marker(
        self, view: memoryview, header: BatchHeader, *, leader_epoch: int, is_bumped: bool
    ) -> Appended:
        """Write the marker that ends a transaction; `Refused` if it may not end it."""
        self.require_online()
        self.producers.check_marker(
            header.producer_id,
            header.producer_epoch,
            marker_in(view).coordinator_epoch or 0,
            is_bumped=is_bumped,
        )
        return self._append(view, header, leader_epoch)

    def _append(self, view: memoryview, header: BatchHeader, leader_epoch: int) -> Appended:
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
        return Appended(base_offset, is_duplicate=False)

    def append_unit(
        self, view: memoryview, headers: Sequence[BatchHeader], *, leader_epoch: int
    ) -> None:
        """Write checked batches at their own offsets: all, or none. Stamped in place."""
        self.require_online()
        if self.start_offset == self.end_offset and self._is_too_far(headers[-1].last_offset):
            # What comes first lies so far behind that a segment cannot reach it from here.
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
        """Whether a batch may end there."""
        return self.start_offset == self.end_offset or not self._is_too_far(offset)

    def _is_too_far(self, offset: int) -> bool:
        return offset - self.end_offset > LARGEST_RELATIVE_OFFSET

    def append_fetched(self, record_set: memoryview) -> None:
        """Write what the leader sent: whole batches, with their offsets and epochs, as they are.

        `Refused` if a batch is damaged or does not follow the log; those before it are written,
        but for the others of its unit.
        """
        self.require_online()
        headers, size_bytes, objection = checked(record_set, self.end_offset)
        if headers and self._fit_together(headers, size_bytes):
            self._write_fetched(record_set[:size_bytes], headers, is_known_to_fit=True)
        else:
            position = 0
            for unit in units_of(headers):
                end = position + sum(header.size for header in unit)
                self._write_fetched(record_set[position:end], unit)
                position = end
        if objection is not None:
            raise objection

    def _fit_together(self, headers: list[BatchHeader], size_bytes: int) -> bool:
        """Whether all is of one epoch and fits in the last segment: then it is written at once.

        An empty segment takes anything, so that it cannot tell.
        """
        segment = self._segments[-1]
        return (
            headers[0].leader_epoch == headers[-1].leader_epoch
            and segment.size > 0
            and not segment.must_end(
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

    @offline_if("written")
    def _write(self, view: memoryview, header: BatchHeader) -> None:
        """Write one batch at the end of the log, whatever its header says of its offset."""
        last_offset = self.end_offset + header.last_offset_delta
        timestamp_ms = header.max_timestamp
        segment = self._segments[-1]
        if segment.must_end(
            self.settings, len(view), last_offset=last_offset, max_timestamp_ms=timestamp_ms
        ):
            segment = self._roll()
        segment.append(
            view,
            base_offset=self.end_offset,
            last_offset=last_offset,
            max_timestamp_ms=timestamp_ms,
        )
        self._flusher.wrote(header.record_count, segment, self.settings)
        self.end_offset = last_offset + 1
        self._end_mark.set(self.end_offset)

    @offline_if("written")
    def _write_together(
        self, view: memoryview, headers: Sequence[BatchHeader], *, is_known_to_fit: bool = False
    ) -> None:
        """Write batches at once, in the last segment if they fit there."""
        last_offset = headers[-1].last_offset
        self._note_units(headers)
        segment = self._segments[-1]
        if not is_known_to_fit and segment.must_end(
            self.settings,
            len(view),
            last_offset=last_offset,
            max_timestamp_ms=newest_ms(headers),
        ):
            segment = self._roll()
        segment.append_together(view, headers)
        self._flusher.wrote(record_count(headers), segment, self.settings)
        self.end_offset = last_offset + 1
        self._end_mark.set(self.end_offset)

    def _note_units(self, headers: Iterable[BatchHeader]) -> None:
        if not self._has_units and any(header.attributes & CONTINUED_BIT for header in headers):
            (self.folder / UNITS_MARK).touch()
            self._has_units = True

    @offline_if("written")
    def _record_marker(self, view: memoryview, header: BatchHeader, base_offset: int) -> None:
        ended = record_marker(self.producers, view, header, base_offset)
        if ended is not None and ended.is_aborted:
            self._segments[-1].transactions.add(ended)

    def _look_for_expired_producers(self) -> None:
        now_ms = wall_ms()
        if now_ms - self._expiry_checked_ms > _EXPIRY_CHECK_MS:
            self.expire_producers(now_ms)

    def expire_producers(self, now_ms: int) -> None:
        """Forget producers whose last batch is older than `producer.id.expiration.ms`."""
        self._expiry_checked_ms = now_ms
        self.producers.forget_older_than(now_ms - self.settings.producer_id_expiration_ms)

    @offline_if("written")
    def begin_epoch(self, epoch: int) -> None:
        """Note that `epoch` writes from the end of the log on."""
        self.require_online()
        if self.lacks_begin:
            self._start_at(self.start_offset)
        if self.epochs.assign(epoch, self.end_offset):
            self._write_epochs()

    def _write_epochs(self) -> None:
        path = self.folder / EPOCH_CHECKPOINT
        replace_file(path, encode_checkpoint(self.epochs.entries), durable=False)

    def _roll(self) -> Segment:
        sealed = self._segments[-1]
        sealed.seal()
        self._flusher.sealed(sealed)
        # Before the segment: whoever finds that, counts on finding this.
        self._snapshots.write(self.end_offset, self.producers)
        segment = Segment(self.folder, self.end_offset)
        segment.create_index(self.settings.index_interval_bytes)
        self._segments.append(segment)
        self._snapshots.keep({segment.base_offset for segment in self._segments})
        return segment

    # Forcing to the disk

    def due_flush(self, now_ms: int) -> FlushJob | None:
        """What should be forced to the disk now: sealed segments, and all after `flush.ms`.

        To be run, maybe elsewhere; then call `flushed`, or `go_offline` if it failed.
        """
        self.require_online()
        return self._flusher.due(now_ms, self._segments, self.settings)

    @offline_if("written")
    def flushed(self, job: FlushJob) -> None:
        """A job is done."""
        self._flusher.done(job)

    @offline_if("flushed")
    def flush(self) -> None:
        """Force everything to the disk."""
        self.require_online()
        job = self._flusher.begin(self._segments, with_active=True)
        job.run()
        self.flushed(job)

    # Deleting

    @offline_if("shortened")
    def delete_before(self, offset: int) -> None:
        """Make `offset` the first that can be read; whole segments below it are removed."""
        self.require_online()
        if offset < self.start_offset or (offset == self.start_offset and not self.lacks_begin):
            return
        self._start_at(offset)
        self._drop_before(offset)

    def _drop_before(self, offset: int) -> None:
        if offset == self.end_offset and self._segments[-1].size:
            self._roll()
        while len(self._segments) > 1 and self._segments[1].base_offset <= offset:
            self._segments.pop(0).delete()
        self._flusher.cut(self._segments)
        self._snapshots.keep({segment.base_offset for segment in self._segments})
        if self.epochs.cut_start(offset):
            self._write_epochs()

    def _start_at(self, offset: int) -> None:
        self._start.write(offset)
        self.start_offset = offset
        self.lacks_begin = False

    def due_expiry(self, now_ms: int, *, high_watermark: int) -> StartJob | None:
        """What retention does not keep; to be run, maybe elsewhere, and told by `expired`."""
        self.require_online()
        kept = kept_segments(self._segments, self.end_offset)
        offset = expired_before(kept, self.settings, committed=high_watermark, now_ms=now_ms)
        if offset is None or offset <= self.start_offset:
            return None
        _logger.info("%s: expired before %d", self.folder.name, offset)
        return self._start.begin(offset)

    @offline_if("shortened")
    def expired(self, job: StartJob) -> None:
        """A job is done: its records go, unless the log has changed so that it does not hold."""
        self.require_online()
        if self._start.take(job):
            self.start_offset, self.lacks_begin = job.offset, False
            self._drop_before(job.offset)

    # Compacting

    def due_cleaning(self, now_ms: int, *, stable_offset: int) -> CleanJob | None:
        """What should be compacted now; to be run, maybe elsewhere, and then told by `cleaned`."""
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

    @offline_if("compacted")
    def cleaned(self, job: CleanJob) -> None:
        """A job is done: its files take the places of the old ones, if those are still there."""
        if self.offline_reason is not None or not self._has(job.segments):
            job.forget()
            return
        for swap in job.swaps:
            start = self._segments.index(swap.old[0])
            self._segments[start : start + len(swap.old)] = swapped(
                self.folder, swap, self.settings.index_interval_bytes
            )
        self._flusher.cut(self._segments)
        self._snapshots.keep({segment.base_offset for segment in self._segments})
        self._first_dirty = job.until
        note_cleaned(self.folder, job.until)

    def _has(self, segments: Sequence[Segment]) -> bool:
        """Whether segments are still there, sealed and in this order."""
        if not segments or segments[0] not in self._segments[:-1]:
            return False
        start = self._segments.index(segments[0])
        return self._segments[start:-1][: len(segments)] == list(segments)

    # Cutting

    @offline_if("cut")
    def truncate_to(self, offset: int) -> None:
        """Cut the log behind the last batch that ends below `offset`; the same for its epochs."""
        self.require_online()
        self._start.hold(self.start_offset)
        # Before the batches go: an epoch that is only in the history would be taken for true.
        if self.epochs.cut_end(offset):
            self._write_epochs()
        if offset < self.end_offset:
            self._cut_segments(max(offset, self.start_offset))
        if self.end_offset < self.start_offset:
            # Records were deleted up to the middle of the batch that was cut.
            self.truncate_fully(self.start_offset)

    @offline_if("cut")
    def truncate_fully(self, start_offset: int) -> None:
        """Throw everything away; the log is empty now, and begins at an offset."""
        self.require_online()
        self.epochs = EpochHistory()
        self._write_epochs()
        self._start_at(start_offset)
        self._flusher.take_back(start_offset)
        self._start_over()

    def _cut_segments(self, offset: int) -> None:
        active = self._segments[self._place_of(offset)]
        # First: what is written there from now on is not on the disk.
        self._flusher.take_back(active.base_offset)
        self._end_mark.set(min(offset, active.base_offset))
        while self._segments[-1] is not active:
            self._segments.pop().delete()
        self.end_offset = active.cut(offset, self.settings.index_interval_bytes)
        self._end_mark.set(self.end_offset)
        self._first_dirty = min(self._first_dirty, self.end_offset)
        self._flusher.cut(self._segments)
        self._snapshots.drop_above(self.end_offset)
        if not self.producers.cut_end(self.end_offset):
            self._restore_producers(self.end_offset)
            self.expire_producers(wall_ms())

    def close(self) -> None:
        """Write the indexes and let go of the files. A log that is offline is left as it is."""
        self._start.forget()
        if self.offline_reason is None and self._segments:
            self._snapshots.write(self.end_offset, self.producers)
        for segment in self._segments:
            if self.offline_reason is None:
                segment.close()
            else:
                segment.abandon()
        self._segments = []

    def abandon(self) -> None:
        """Let go of the files and write nothing more: they are about to be deleted."""
        if self.offline_reason is None:
            self.offline_reason = f"{self.folder.name} is deleted"
        self._start.forget()
        # A flush that is under way must not note how far it came: see `StartCheckpoint`.
        self._flusher.cut([])
        for segment in self._segments:
            segment.abandon()
        self._segments = []

    def require_online(self) -> None:
        """`LogOffline` if it is."""
        if self.offline_reason is not None:
            raise LogOffline(self.offline_reason)

    def go_offline(self, verb: str, error: Exception) -> LogOffline:
        """Its files fail: `verb` could not be done to it. Also for jobs of other threads."""
        if self.offline_reason is None:
            self.offline_reason = describe_failure(self.folder, verb, error)
            self.on_offline()
        return LogOffline(self.offline_reason)

    # Reading

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self._segments)

    @offline_if("read")
    def read(
        self,
        offset: int,
        max_bytes: int,
        *,
        upper_offset: int,
        at_least_one: bool = True,
        keeps_units: bool = False,
    ) -> LogSlice:
        """Whole batches from the one that holds `offset`, all below `upper_offset`.

        At most `max_bytes`, but a first batch that is larger comes whole if `at_least_one`, and
        so does a unit if `keeps_units`.
        The offset must lie between `start_offset` and `end_offset`.
        """
        self.require_online()
        if offset >= upper_offset:
            return NOTHING
        keeps_units = keeps_units and self._has_units
        for place in range(self._place_of(offset), len(self._segments)):
            segment = self._segments[place]
            if not keeps_units:
                bound = None if self._end_offset_of(place) <= upper_offset else upper_offset
                known = segment.known_slice(offset, bound, max_bytes)
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

    @offline_if("read")
    def content(self, records: LogSlice) -> bytes:
        """The bytes of what was read."""
        return bytes(records)

    @offline_if("read")
    def check_batch(self, offset: int) -> None:
        """Compare the batch that holds `offset` with its checksum: `LogOffline` if it is damaged.

        For readers who ask for the same records again, as if they could not use them.
        """
        self.require_online()
        for segment in self._segments[self._place_of(offset) :]:
            if (found := segment.locate(offset)) is not None:
                segment.check_batch(found)
                return

    def _end_in(self, segment: Segment, upper_offset: int) -> int:
        """Where the batches of a segment that lie below an offset end."""
        if upper_offset < self.end_offset and (bound := segment.locate(upper_offset)) is not None:
            return bound[0]
        return segment.size

    @offline_if("read")
    def aborted_in(
        self, offset: int, records: LogSlice, upper_offset: int
    ) -> list[AbortedTransaction]:
        """The aborted transactions that touch what was read from `offset` on."""
        return aborted_in(self._segments[self._place_of(offset) :], offset, records, upper_offset)

    def batch_at(self, offset: int) -> bytes | None:
        """The whole batch that holds `offset`, or the next one; None behind the last."""
        return self.content(self.read(offset, 0, upper_offset=self.end_offset)) or None

    @offline_if("read")
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

    @offline_if("read")
    def batch_of_max_time(self) -> bytes | None:
        """The first readable batch that has the newest record."""
        self.require_online()
        newest = max(self._segments, key=lambda segment: segment.max_time[0])
        timestamp_ms, last_offset = newest.max_time
        if last_offset < self.start_offset:
            # Deleted, though its segment is still there: look through what is left.
            left = [header for header in self._headers() if header.max_timestamp >= 0]
            if not left:
                return None
            last_offset = max(left, key=lambda header: header.max_timestamp).last_offset
        elif timestamp_ms < 0:
            return None
        return self.batch_at(last_offset)

    def _headers(self) -> Iterator[BatchHeader]:
        """Every batch header from the start offset on."""
        for segment in self._segments[self._place_of(self.start_offset) :]:
            for _, header in segment.batches():
                if header.last_offset >= self.start_offset:
                    yield header

    def _place_of(self, offset: int) -> int:
        last = len(self._segments) - 1
        # Most readers are there.
        return (
            last if offset >= self._segments[last].base_offset else place_of(self._segments, offset)
        )

    def _end_offset_of(self, place: int) -> int:
        """Where the batches of a segment end, at the latest."""
        behind = self._segments[place + 1 : place + 2]
        return behind[0].base_offset if behind else self.end_offset
