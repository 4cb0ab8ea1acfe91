"""The source side of one mirrored partition: decides which batches are sent; pure.

Rules:
- A batch is copied unchanged if possible. It is re-encoded where the copy starts inside the batch,
  where compaction has left gaps, where the source's broker has set the append time, and always in
  deep mode (`shoal.mirror.copy.rebatch`).
- An unpatched target discards the source's timestamp type. The append time becomes the create
  time of the records, regardless of the target topic's current timestamp type: that may change at
  any time, and old create times would let retention delete records right after they are copied.
- Messages of the formats 0 and 1 are converted to batches (`shoal.wire.records.message_sets`).
- Aborted and control batches are dropped by their headers.
- A batch that cannot be read parks the partition, or is read again later, as configured
  (`on_bad_batch`).
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Annotated, Final, Self

from shoal.client.consume.isolation import AbortedFilter, BatchKind
from shoal.mirror.copy.rebatch import BatchGroup, Rebatcher
from shoal.mirror.copy.rewrite import dense_copy, records_from
from shoal.mirror.handlers import BatchHandler, RecordColumns, as_batch, as_columns
from shoal.mirror.offsets.offset_map import OffsetSpan
from shoal.mirror.watch.divergence import ReadEpochs
from shoal.model.errors import ShoalError, WireError
from shoal.model.topics import TopicPartition
from shoal.wire.batch import LOG_APPEND_TIME, Batch, sequence_after
from shoal.wire.records.message_sets import OLD_FORMATS, read_batches
from shoal.wire.records.re_encode import with_append_time

_log = logging.getLogger(__name__)

_MEND: Final = "fix the handler and restart the mirror; other partitions continue"


@dataclass(slots=True)
class Counts:
    """Counters of a partition or of a whole mirror."""

    batches: Annotated[int, "batches"] = 0  # acknowledged by the target
    records: Annotated[int, "records"] = 0
    bytes: Annotated[int, "bytes"] = 0
    trimmed: Annotated[int, "trimmed"] = 0  # re-encoded: the copy started inside the batch
    closed_gaps: Annotated[int, "closed_gaps"] = 0  # re-encoded: compaction had removed records
    # Re-encoded: the source's append time became the create time.
    restamped: Annotated[int, "restamped"] = 0
    # Re-encoded: the source stores them in message format 0 or 1.
    converted: Annotated[int, "converted"] = 0
    # Re-encoded: additional pieces of batches that were too large for the target.
    split: Annotated[int, "split"] = 0
    changed: Annotated[int, "changed"] = 0  # by the handler
    dropped_by_handler: Annotated[int, "dropped_by_handler"] = 0
    dropped_aborted: Annotated[int, "dropped_aborted"] = 0
    dropped_control: Annotated[int, "dropped_control"] = 0
    dropped_empty: Annotated[int, "dropped_empty"] = 0  # no records were left in the batch
    resent: Annotated[int, "resent"] = 0
    # Records that the target already had from an earlier start.
    already_there: Annotated[int, "already_there"] = 0
    # Batches that are not at the expected offset: another producer writes to the target.
    displaced: Annotated[int, "displaced"] = 0
    # Source batches with a wrong CRC; counted each time they are read.
    damaged: Annotated[int, "damaged"] = 0
    # Batches so old that the target does not remember their producer.
    unshielded: Annotated[int, "unshielded"] = 0
    lost: Annotated[int, "lost"] = 0  # source offsets deleted before they were copied
    # Records at the target that the source lost after they were copied, over all starts.
    truncated: Annotated[int, "truncated"] = 0

    def __iadd__(self, other: "Counts") -> Self:
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))
        return self


class Intake:
    """The part of `PartitionMirror` that processes fetched batches."""

    partition: TopicPartition
    position: int
    handler: BatchHandler | None
    rebatcher: Rebatcher | None
    counts: Counts
    parked: ShoalError | None
    last_stable_offset: int
    retries_bad: bool
    epochs: ReadEpochs
    already_there: int
    target_offset: int
    next_sequence: int
    producer_expiration_ms: int
    announced: set[str]
    _damaged_at: int
    _old_before_ms: int

    def on_fetched(
        self,
        records: memoryview,
        *,
        aborted: Iterable[tuple[int, int]],
        last_stable_offset: int,
        now_ms: int = 0,
    ) -> bool:
        """Process one partition of a read-committed fetch response from `position`.

        Returns False if a batch must be read again later.
        """
        self.last_stable_offset = last_stable_offset
        if self.producer_expiration_ms:
            self._old_before_ms = now_ms - self.producer_expiration_ms
        aborted_filter = AbortedFilter(aborted)
        try:
            for batch, stored_format in read_batches(records):
                if batch.last_offset >= self.position and self.parked is None:
                    is_converted = stored_format in OLD_FORMATS
                    if is_converted:
                        self._count_conversion(stored_format)
                    self._take(batch, aborted_filter.classify(batch), is_converted=is_converted)
        except WireError as error:
            self._on_damaged_batch(self.position, error)
            return False
        return True

    @property
    def queued_until(self) -> int:
        """The source offset below which everything is or was queued."""
        if self.rebatcher is not None and self.rebatcher.is_filled:
            return self.rebatcher.source_offset
        return self.position

    def count_lost_below(self, first: int) -> int:
        """Count the offsets that are lost if the source's log now starts at `first`.

        Records that the target already has from an earlier start (`already_there`) are not lost.
        """
        return max(0, first - self.position - self.already_there)

    def skip_deleted(self, first: int) -> None:
        """Continue at the source's new log start; the records below it are deleted."""
        self.flush()
        self.counts.lost += self.count_lost_below(first)
        there = min(first - self.position, self.already_there)
        self.already_there -= there
        self.target_offset += there
        self.next_sequence = sequence_after(self.next_sequence, there)
        self.position = first
        self.counts.already_there += there

    def _on_damaged_batch(self, offset: int, error: WireError) -> None:
        self.counts.damaged += 1
        if not self.retries_bad:
            self.park(
                f"the batch at source offset {offset} is damaged: {error}",
                "inspect the source log with kafka-dump-log; other partitions continue",
            )
        elif self._damaged_at != offset:
            self._damaged_at = offset
            text = "%s: the source batch at offset %d is damaged; reading it again: %s"
            _log.error(text, self.partition, offset, error)

    def _take(self, batch: Batch, standing: BatchKind, *, is_converted: bool = False) -> None:
        # Read now: editing the header overwrites the offsets.
        base_offset, next_offset = batch.base_offset, batch.next_offset
        self.epochs.note(batch.leader_epoch, base_offset)
        if standing is BatchKind.CONTROL:
            self.counts.dropped_control += 1
        elif standing is BatchKind.ABORTED:
            self.counts.dropped_aborted += 1
        elif self.rebatcher is not None:
            if not self._take_apart(self.rebatcher, batch):
                return
        else:
            source_offset = max(base_offset, self.position)
            complete, spans = self._make_sendable(batch)
            ready = self._apply_handler(complete)
            if self.parked is not None:
                return
            if ready is not None:
                if ready is not complete and ready.record_count != sum(s.records for s in spans):
                    spans = [
                        OffsetSpan(source_offset, next_offset - source_offset, ready.record_count)
                    ]
                is_new = ready is complete and (is_converted or complete is not batch)
                if not self._accept(BatchGroup([ready], spans, source_offset, next_offset, is_new)):
                    return
        self.position = next_offset

    def _make_sendable(self, batch: Batch) -> tuple[Batch | None, list[OffsetSpan]]:
        """Return the batch to send for a source batch, and the source offsets of its records."""
        if batch.record_count == 0:
            self.counts.dropped_empty += 1
            return None, []
        is_stamped = batch.timestamp_type == LOG_APPEND_TIME
        if is_stamped:
            self._warn_append_times()
            self.counts.restamped += 1
        if batch.base_offset < self.position:
            self.counts.trimmed += 1
        elif not batch.is_dense:
            self.counts.closed_gaps += 1
        else:
            spans = [OffsetSpan(batch.base_offset, batch.record_count, batch.record_count)]
            return with_append_time(batch) if is_stamped else batch, spans
        copied = dense_copy(batch, from_offset=self.position)
        if copied is None:
            self.counts.dropped_empty += 1
            return None, []
        return copied

    def _warn_append_times(self) -> None:
        self._warn_once(
            f"topic {self.partition.topic} has message.timestamp.type LogAppendTime: its batches "
            "are re-encoded, with the source's append times as create times at the target"
        )

    def _count_conversion(self, stored_format: int) -> None:
        self.counts.converted += 1
        self._warn_once(
            f"topic {self.partition.topic} has messages of format {stored_format}, from before "
            "Kafka 0.11: they are re-encoded as record batches of format 2"
        )

    def _warn_once(self, text: str) -> None:
        """Log a warning once for all partitions of a topic."""
        if text not in self.announced:
            self.announced.add(text)
            _log.warning("%s", text)

    def _apply_handler(self, batch: Batch | None) -> Batch | None:
        if batch is None or self.handler is None:
            return batch
        try:
            handled = self.handler(self.partition, batch)
            if handled is batch:
                return batch
            if handled is None:
                self.counts.dropped_by_handler += 1
                return None
            changed = as_batch(handled)
        except Exception as error:  # noqa: BLE001 - the user's code may raise anything
            self.park(
                f"the handler failed on the batch at offset {self.position}: {error!r}", _MEND
            )
            return None
        if not changed.is_dense or changed.is_control:
            wrong = "the handler returned a control batch, or a batch with gaps or without records"
            self.park(wrong, _MEND)
            return None
        self.counts.changed += 1
        return changed

    # Deep mode.

    def _take_apart(self, rebatcher: Rebatcher, batch: Batch) -> bool:
        source_offset, next_offset = max(batch.base_offset, self.position), batch.next_offset
        if not batch.record_count:
            self.counts.dropped_empty += 1
            return True
        columns = RecordColumns.of(records_from(batch, self.position))
        handled = self._apply_handler_to_columns(columns)
        if self.parked is not None:
            return False
        if handled is not None and len(handled):
            rebatcher.add(handled.records(), batch.codec, (source_offset, next_offset))
        return not rebatcher.is_full or self.flush()

    def _apply_handler_to_columns(self, columns: RecordColumns) -> RecordColumns | None:
        if self.handler is None:
            return columns
        try:
            handled = self.handler(self.partition, columns)
            if handled is None:
                self.counts.dropped_by_handler += 1
                return None
            changed = as_columns(handled)
        except Exception as error:  # noqa: BLE001 - the user's code may raise anything
            self.park(
                f"the handler failed on the records at offset {self.position}: {error!r}", _MEND
            )
            return None
        self.counts.changed += changed is not columns
        return changed

    def flush(self) -> bool:
        """In deep mode: queue the gathered records as one or more batches; False if that fails."""
        if self.rebatcher is None or not self.rebatcher.is_filled:
            return True
        return self._accept(self.rebatcher.take())

    # Implemented by `PartitionMirror`.

    def park(self, message: str, remedy: str) -> None:
        raise NotImplementedError

    def _accept(self, group: BatchGroup) -> bool:
        raise NotImplementedError
