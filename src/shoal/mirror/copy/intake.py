"""The source side of one mirrored partition: turns fetched batches into batches to send; pure.

Rules:
- A batch is copied unchanged if possible. It is re-encoded where the copy starts inside the batch,
  where compaction has left gaps, where the source's broker has set the append time, and in deep
  mode (`shoal.mirror.copy.rebatch`): always, or while the gauge of the partition says that batches
  are tiny (`shoal.mirror.copy.depth`).
- An unpatched target discards the source's timestamp type. The append time becomes the create
  time of the records, regardless of the target topic's current timestamp type: that may change at
  any time, and old create times would let retention delete records right after they are copied.
- Messages of the formats 0 and 1 are converted to batches (`shoal.wire.records.message_sets`).
- Aborted and control batches are dropped by their headers.
- A batch that cannot be read raises `WireError`, and a handler that fails raises `HandlerFailed`.
  The partition decides what follows (`shoal.mirror.copy.partition`).
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Self

from shoal.client.consume.isolation import BatchKind
from shoal.mirror.copy.depth import DEEP, RAW, RAW_ABOVE_BYTES, DepthGauge
from shoal.mirror.copy.rebatch import BatchGroup, JoinedFront, Rebatcher
from shoal.mirror.copy.rewrite import dense_copy, records_from
from shoal.mirror.handlers import BatchHandler, RecordColumns, as_batch, as_columns
from shoal.mirror.offsets.offset_map import OffsetSpan
from shoal.model.topics import TopicPartition
from shoal.wire.batch import LOG_APPEND_TIME, Batch
from shoal.wire.plain_batches import first_plain, first_size
from shoal.wire.records.joining import SourceBatch, part_of, read_source
from shoal.wire.records.message_sets import OLD_FORMATS
from shoal.wire.records.re_encode import trim, with_append_time

_log = logging.getLogger(__name__)


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
    # Source batches whose records were put into new batches, in deep mode.
    rebatched: Annotated[int, "rebatched"] = 0
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


class HandlerFailed(Exception):
    """A handler raised an error or returned something that cannot be sent."""


@dataclass(slots=True)
class Intake:
    """Turns the batches of one source partition into groups of batches to send.

    `position` is the source offset below which nothing is taken: the copy may start inside a batch.
    """

    partition: TopicPartition  # of the source
    handler: BatchHandler | None = None
    rebatcher: Rebatcher | None = None  # None in raw mode
    gauge: DepthGauge | None = None  # with `auto`: decides whether the rebatcher is used
    keeps_offsets: bool = False  # the target stores batches at their source offsets
    # Warnings logged so far about re-encoded topics; shared by all partitions.
    announced: set[str] = field(default_factory=set)
    counts: Counts = field(default_factory=Counts)

    @property
    def depth(self) -> str:
        """How batches are copied now: raw or deep."""
        is_deep = self.rebatcher is not None and (self.gauge is None or self.gauge.is_deep)
        return DEEP if is_deep else RAW

    @property
    def lingers(self) -> bool:
        """Whether gathered records may wait for those of the next fetch."""
        return self.rebatcher is not None and self.rebatcher.rules.linger_ms > 0

    def measure(self, batches: int, size_bytes: int, records: int) -> None:
        """With `auto`: take the size of fetched batches into account."""
        if self.gauge is not None:
            self.gauge.note(batches, size_bytes, records)

    def passes_on(self, records: memoryview) -> bool:
        """Whether plain batches at the front of a record set are sent as they are."""
        rebatcher, gauge = self.rebatcher, self.gauge
        if self.handler is not None:
            return False
        if rebatcher is None:
            return True
        if gauge is None or rebatcher.is_filled:
            return False
        if not gauge.has_begun:
            first = first_plain(records)
            if first is None:
                return False
            gauge.note(1, *first)
        return not gauge.is_deep

    def joins(self, records: memoryview) -> bool:
        """Whether small batches at the front of a record set are joined."""
        rebatcher, gauge = self.rebatcher, self.gauge
        if rebatcher is None or rebatcher.keeps_offsets or self.handler is not None:
            return False
        # One batch alone may stay as it is.
        has_more = len(records) > first_size(records)
        return has_more and (gauge is None or (gauge.has_begun and gauge.is_deep))

    def join(self, records: memoryview, position: int, *, has_aborted: bool) -> JoinedFront:
        """Gather the small batches at the front of a record set; see `joins`."""
        assert self.rebatcher is not None  # noqa: S101 - for the type checker
        joined = self.rebatcher.join_front(records, position, has_aborted=has_aborted)
        self.counts.dropped_control += joined.controls
        for group in joined.groups:
            self._count(group)
        return joined

    def take(
        self, batch: Batch, kind: BatchKind, position: int, stored_format: int
    ) -> Sequence[BatchGroup]:
        """Return what is to be sent for a source batch, and for those gathered before it."""
        is_converted = stored_format in OLD_FORMATS
        if is_converted:
            self._count_conversion(stored_format)
        if kind is BatchKind.CONTROL:
            self.counts.dropped_control += 1
            return ()
        if kind is BatchKind.ABORTED:
            self.counts.dropped_aborted += 1
            return ()
        rebatcher, gauge = self.rebatcher, self.gauge
        if rebatcher is not None:
            if gauge is None:
                return self._gather(rebatcher, batch, position, is_converted=is_converted)
            if not gauge.has_begun:
                gauge.note(1, batch.size, batch.record_count)
            # What is large is passed on even if most batches are tiny.
            if gauge.is_deep and batch.size < RAW_ABOVE_BYTES:
                return self._gather(rebatcher, batch, position, is_converted=is_converted)
        group = self._pass(batch, position, is_converted=is_converted)
        gathered = self.flush()
        return [each for each in (gathered, group) if each is not None]

    def _pass(self, batch: Batch, position: int, *, is_converted: bool) -> BatchGroup | None:
        """In raw mode: return the batch itself, or what must be sent in its place."""
        # Read now: editing the header overwrites the offsets.
        source_offset, next_offset = max(batch.base_offset, position), batch.next_offset
        complete, spans = self._make_sendable(batch, position)
        if complete is None:
            return None
        handler = self.handler
        ready = complete if handler is None else self._apply_handler(handler, complete, position)
        if ready is None:
            return None
        if ready is not complete and ready.record_count != sum(s.records for s in spans):
            spans = [OffsetSpan(source_offset, next_offset - source_offset, ready.record_count)]
        is_new = ready is complete and (is_converted or complete is not batch)
        return BatchGroup([ready], spans, source_offset, next_offset, is_new)

    def flush(self) -> BatchGroup | None:
        """In deep mode: return the gathered records as one or more batches."""
        if self.rebatcher is None or not self.rebatcher.is_filled:
            return None
        return self._count(self.rebatcher.take())

    def _count(self, group: BatchGroup) -> BatchGroup:
        if group.is_re_encoded:
            self.counts.rebatched += group.source_batches
        return group

    def forget(self, position: int) -> int:
        """Drop gathered records; returns the source offset of the first, or `position`."""
        return position if self.rebatcher is None else self.rebatcher.forget(position)

    def find_queue_end(self, position: int) -> int:
        """The source offset below which no gathered records wait; `position` if there are none."""
        if self.rebatcher is not None and self.rebatcher.is_filled:
            return self.rebatcher.source_offset
        return position

    def _make_sendable(self, batch: Batch, position: int) -> tuple[Batch | None, list[OffsetSpan]]:
        """Return the batch to send for a source batch, and the source offsets of its records."""
        if batch.record_count == 0:
            self.counts.dropped_empty += 1
            return None, []
        if self.keeps_offsets:
            return self._trim_start(batch, position), []  # no offset map is needed
        is_stamped = batch.timestamp_type == LOG_APPEND_TIME
        if is_stamped:
            self._warn_append_times()
            self.counts.restamped += 1
        if batch.base_offset < position:
            self.counts.trimmed += 1
        elif not batch.is_dense:
            self.counts.closed_gaps += 1
        else:
            spans = [OffsetSpan(batch.base_offset, batch.record_count, batch.record_count)]
            return with_append_time(batch) if is_stamped else batch, spans
        copied = dense_copy(batch, from_offset=position)
        if copied is None:
            self.counts.dropped_empty += 1
            return None, []
        return copied

    def _trim_start(self, batch: Batch, position: int) -> Batch | None:
        if batch.base_offset >= position:
            return batch
        self.counts.trimmed += 1
        copy = trim(batch, from_offset=position)
        if copy is None:
            self.counts.dropped_empty += 1
        return copy

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

    def _apply_handler(self, handler: BatchHandler, batch: Batch, position: int) -> Batch | None:
        try:
            handled = handler(self.partition, batch)
            if handled is batch:
                return batch
            if handled is None:
                self.counts.dropped_by_handler += 1
                return None
            changed = as_batch(handled)
        except Exception as error:  # the user's code may raise anything
            failure = f"the handler failed on the batch at offset {position}: {error!r}"
            raise HandlerFailed(failure) from error
        if not changed.is_dense or changed.is_control:
            raise HandlerFailed(
                "the handler returned a control batch, or a batch with gaps or without records"
            )
        self.counts.changed += 1
        return changed

    # Deep mode.

    def _gather(
        self, rebatcher: Rebatcher, batch: Batch, position: int, *, is_converted: bool
    ) -> Sequence[BatchGroup]:
        if not batch.record_count:
            self.counts.dropped_empty += 1
            return ()
        if self.handler is None:
            source = read_source(batch, position)
        else:
            source = self._apply_handler_to_columns(self.handler, batch, position)
        if not source.parts:
            return ()
        whole = batch if source.is_plain and not is_converted else None
        groups = rebatcher.add(source, whole)
        for group in groups:
            self._count(group)
        return groups

    def _apply_handler_to_columns(
        self, handler: BatchHandler, batch: Batch, position: int
    ) -> SourceBatch:
        columns = RecordColumns.of(records_from(batch, position))
        source_offset, next_offset = max(batch.base_offset, position), batch.next_offset
        try:
            handled = handler(self.partition, columns)
            if handled is None:
                self.counts.dropped_by_handler += 1
                return SourceBatch([], source_offset, next_offset)
            changed = as_columns(handled)
        except Exception as error:  # the user's code may raise anything
            failure = f"the handler failed on the records at offset {position}: {error!r}"
            raise HandlerFailed(failure) from error
        self.counts.changed += changed is not columns
        parts = [part_of(record) for record in changed.records()]
        size = sum(len(part.body) for part in parts)
        return SourceBatch(parts, source_offset, next_offset, batch.codec, size=size)
