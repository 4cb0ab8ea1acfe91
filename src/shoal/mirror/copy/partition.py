"""One mirrored partition: which batches to send to the target, and their results; pure.

    fetched batches ──► Intake ──► Delivery.accept ──► queue ──► Delivery: acknowledged, refused
     on_fetched         what is     what the target    next_batch,       where it is at the
                        sent        lacks, numbered    mark_sent         target, what follows

`PartitionCopier` owns what all deliveries have in common: position, queue, counts, parking, damage
and leader epochs. `Intake` (`shoal.mirror.copy.intake`) is the source side. A `Delivery` is what
the promises differ in, one module each in `shoal.mirror.copy.delivery`.

Rules:
- Batches are sent in source order, and retries are byte-identical. Order and retries are those of
  `shoal.client.produce.sequenced_queue`; a delivery chooses the policy.
- A batch that is too large for the target is split and re-encoded. Resume points are only at the
  boundaries of source batches.
- `done` is the source offset below which everything is at the target or was dropped on purpose.
  The mirror reports no more than that.
- A re-encoded batch is declared before it is sent (`shoal.mirror.offsets.re_encoded`).
- A source batch that cannot be read parks the partition, or is read again later, as configured
  (`on_bad_batch`).
- A partition that cannot continue is parked with an error that says why; others continue.
- Signs that the target has lost records only raise a suspicion at first (`suspect_target`): nothing
  is sent until the target's topic id is compared. A recreated topic is filled again; if it is the
  same topic, the partition is parked.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import ClassVar, Final, Generic, NamedTuple, TypeAlias, TypeVar

from shoal.client.codes import Code
from shoal.client.consume.isolation import AbortedFilter
from shoal.client.produce.sequenced_queue import (
    Decision,
    QueuedBatch,
    SendPolicy,
    SequencedQueue,
)
from shoal.client.results import ProduceResult
from shoal.client.transport.backoff import Backoff
from shoal.mirror.copy.intake import Counts, HandlerFailed, Intake
from shoal.mirror.copy.rebatch import BatchGroup
from shoal.mirror.copy.rewrite import split_in_half, split_to_limit
from shoal.mirror.copy.throttle import Throttle
from shoal.mirror.offsets.offset_map import MapWriter, OffsetSpan, split_spans
from shoal.mirror.run.remedies import LIMIT_REMEDY, remedy_for
from shoal.mirror.watch.divergence import ReadEpochs
from shoal.mirror.watch.generations import Lineage
from shoal.model.errors import ShoalError, SystemFailure, WireError
from shoal.model.topics import TopicPartition
from shoal.wire.batch import LOG_APPEND_TIME, Batch
from shoal.wire.errors import CorruptBatch
from shoal.wire.plain_batches import NumberedBatch, Numbering, number_plain
from shoal.wire.records.message_sets import read_batches

# A broker keeps the last five batches of a producer; it cannot detect older duplicates.
IN_FLIGHT_LIMIT: Final = 5
_log = logging.getLogger(__name__)

_FIX_HANDLER: Final = "fix the handler and restart the mirror; other partitions continue"
# How often a record is retried that is larger than the target topic allows.
TRY_LIMIT_EVERY_S: Final = 2.0
TOO_LARGE: Final = frozenset({Code.MESSAGE_TOO_LARGE, Code.RECORD_LIST_TOO_LARGE})


# Called with the target partition and the offset of a re-encoded batch.
Declare = Callable[[TopicPartition, int], None]


class ResumePoint(NamedTuple):
    """A point from which a later start can resume: everything below `source_offset` is copied."""

    source_offset: int
    sequence: int
    target_offset: int


NO_RESUME_POINT: Final = ResumePoint(-1, 0, -1)


_new = object.__new__


class Outgoing(QueuedBatch):
    """One batch that is queued or in flight."""

    __slots__ = (
        "given_spans",
        "is_later_piece",
        "is_old",
        "is_re_encoded",
        "record_count",
        "size",
        "source_offset",
        "target_offset",
        "tries",
    )

    def __init__(
        self,
        batch: Batch,
        *,
        source_offset: int,
        is_later_piece: bool = False,
        is_re_encoded: bool = False,
        spans: Sequence[OffsetSpan] | None = (),
    ) -> None:
        """`spans` of None: a record for each offset from `source_offset` on."""
        QueuedBatch.__init__(self, batch)  # faster than super(), for each batch
        self.size = batch.size
        self.record_count = batch.record_count
        self.source_offset = source_offset  # at or below its first record
        self.given_spans = spans
        # Not the first piece of a split source batch: no resume point here.
        self.is_later_piece = is_later_piece
        self.is_re_encoded = is_re_encoded  # not the bytes of the source
        self.is_old = False  # the target may expire its producer at any time
        self.target_offset = -1  # of its first record, once it is acknowledged
        self.tries = 0

    @classmethod
    def of_plain(cls, numbered: NumberedBatch) -> "Outgoing":
        """As the constructor, faster: for nearly all batches."""
        out = _new(cls)
        batch, out.source_offset, _, out.record_count, out.base_sequence = numbered
        out.batch = batch
        out.size = len(batch.view)
        out.given_spans = None
        out.is_in_flight = out.is_acknowledged = out.may_be_written = False
        out.is_later_piece = out.is_re_encoded = out.is_old = False
        out.target_offset = -1
        out.tries = 0
        return out

    @property
    def spans(self) -> Sequence[OffsetSpan]:
        """The source offsets of its records."""
        if self.given_spans is None:
            return [OffsetSpan(self.source_offset, self.record_count, self.record_count)]
        return self.given_spans

    @property
    def is_plain(self) -> bool:
        """Whether its records have all source offsets from `source_offset` on."""
        return self.given_spans is None

    @property
    def may_be_at_target(self) -> bool:
        return self.is_in_flight or self.may_be_written or self.is_acknowledged

    def halve(self) -> list["Outgoing"]:
        """Split it into two batches, whose headers are not written yet."""
        pieces: list[Outgoing] = []
        spans: Sequence[OffsetSpan] = self.spans
        for batch in split_in_half(self.batch):
            some, spans = split_spans(spans, batch.record_count)
            piece = Outgoing(
                batch,
                source_offset=self.source_offset,
                is_later_piece=self.is_later_piece or bool(pieces),
                is_re_encoded=True,
                spans=some,
            )
            piece.tries, piece.may_be_written = self.tries, self.may_be_written
            piece.is_old = self.is_old
            pieces.append(piece)
        return pieces


class Delivery:
    """How the batches of one partition are written to the target.

    The defaults are for batches without sequences in a log that this mirror does not address by
    offset.
    """

    __slots__ = ("mirror",)

    name: ClassVar[str] = ""
    keeps_offsets: ClassVar[bool] = False  # batches are stored at their source offsets
    # Of batches that `PartitionCopier.next_batch` sends. What may be at the target is retried
    # until it certainly is: a mirror leaves nothing out.
    policy: ClassVar[SendPolicy] = SendPolicy(has_sequences=False, retries_unknown=True)
    max_in_flight: ClassVar[int] = 0
    mirror: "PartitionMirror"  # set by the partition

    def set_start(self) -> None:
        """Set the state of the queue in which the partition starts."""

    # Which batches are queued, and with which header.

    def pass_on(self, records: memoryview) -> int:
        """Queue the plain batches at the front of a record set; returns their size in bytes.

        The others are for `accept`.
        """
        return 0

    def accept(self, group: BatchGroup) -> bool:
        """Queue the records of a group that the target does not have; False if that fails."""
        spans = group.spans
        for number, batch in enumerate(group.batches):
            spans = self.mirror.queue_pieces(batch, group, number, spans)
        return True

    def prepare(self, outgoing: Outgoing) -> None:
        """Write the header of a batch before it is queued."""

    def halve(self, outgoing: Outgoing) -> list[Outgoing]:
        """Split a batch that is too large for the target."""
        pieces = outgoing.halve()
        for piece in pieces:
            self.prepare(piece)
        return pieces

    # Where batches are at the target.

    def due_offset(self, outgoing: Outgoing) -> int:
        """The expected target offset of a queued batch, if this mirror is the only writer.

        -1 while it is unknown.
        """
        before = takewhile(lambda each: each is not outgoing, self.mirror.queue.batches)
        return self.mirror.target_offset + sum(each.record_count for each in before)

    # What a result of `PartitionCopier.next_batch` means.

    def on_acknowledged(self, outgoing: Outgoing) -> None:
        """Advance the target offset past the first batch of the queue, which is at the target."""

    @property
    def taken_bytes(self) -> int:
        """The queued bytes that are in an open transaction."""
        return 0

    # Restarts.

    @property
    def idle_resume_point(self) -> ResumePoint:
        """Where a later start can resume while nothing is queued."""
        return ResumePoint(self.mirror.queued_until, 0, self.mirror.target_offset)

    def on_dropped(self, first: Outgoing | None) -> None:
        """`first` and all behind it left the queue, to be fetched again; None if none did."""

    def on_fetch_end(self) -> None:
        """All batches of a fetch response are accepted or gathered."""

    def count_lost_below(self, first: int) -> int:
        """Count the offsets that are lost if the source's log now starts at `first`."""
        return max(0, first - self.mirror.position)

    def on_deleted_below(self, first: int) -> None:
        """The source deleted all records below `first`, some of which the target may have."""


DeliveryT_co = TypeVar("DeliveryT_co", bound=Delivery, covariant=True)


@dataclass(slots=True)
class PartitionCopier(Generic[DeliveryT_co]):
    """The state of one mirrored partition."""

    intake: Intake
    delivery: DeliveryT_co
    position: int  # the source offset to fetch next
    backoff: Backoff
    target_offset: int = 0  # expected target offset of the next acknowledged batch
    writes_to: TopicPartition | None = None  # the target partition, if its topic name differs
    offsets: MapWriter | None = None  # maps source offsets to target offsets
    declare: Declare | None = None
    # Of its topic, shared by all partitions.
    throttle: Throttle = field(default_factory=Throttle)
    # The target is known to refuse batches larger than this; 0 if no limit is known.
    limit_bytes: int = 0
    retries_bad: bool = False  # read a damaged batch again instead of parking the partition
    lineage: Lineage = field(default_factory=Lineage)
    is_held: bool = False  # send nothing: the target topic is missing or was recreated
    # Why the first record waits until the target topic accepts it; retried at `not_before`.
    waiting: ShoalError | None = None
    is_waiting: bool = False
    suspicion: tuple[str, str] | None = None  # message and remedy for parking
    # Why this partition must be released and resume from the state of the target; "" if it need
    # not. Nothing is sent until then.
    resume_reason: str = ""
    # Another process with this mirror's name has written more: resume when it writes no longer.
    is_overtaken: bool = False
    # The target lost records below an acknowledged batch: recorded in the checkpoint.
    has_lost_target: bool = False
    epochs: ReadEpochs = field(
        default_factory=ReadEpochs
    )  # leader epochs of the batches read so far
    checked_epoch: int = -1  # leader epoch of the last divergence check
    parked: ShoalError | None = None
    last_stable_offset: int = -1
    high_watermark: int = -1
    fetched_end: int = -1  # the last stable offset with the last fetch
    queue: SequencedQueue[Outgoing] = field(init=False)
    queued_bytes: int = 0
    fetched_ms: int = 0  # when the last fetch response arrived
    partition: TopicPartition = field(init=False)  # of the source
    counts: Counts = field(init=False)
    # Start of the source batch being sent.
    last_resume_point: ResumePoint = NO_RESUME_POINT
    damaged: Outgoing | None = None  # read again once nothing is in flight
    regressed_to: int = -1  # offset of a batch below acknowledged offsets; -1 if none
    # Called with the newest timestamp of each batch that is at the target.
    on_copied: Callable[[TopicPartition, int], None] | None = None
    # Called with the source's log start and the number of offsets below it that are lost; it may
    # raise.
    on_lost: Callable[[TopicPartition, int, int], None] | None = None
    # Called once with a partition that got a `resume_reason`.
    on_resume_needed: Callable[["PartitionMirror"], None] | None = None
    _damaged_at: int = -1
    _last_timestamp_ms: int = -1

    def __post_init__(self) -> None:
        self.partition = self.intake.partition
        self.counts = self.intake.counts
        self.queue = SequencedQueue(
            self.delivery.policy, max_in_flight=self.delivery.max_in_flight, backoff=self.backoff
        )
        self.delivery.mirror = self
        self.delivery.set_start()

    @property
    def target(self) -> TopicPartition:
        return self.writes_to or self.partition

    @property
    def resume_point(self) -> ResumePoint:
        """Where a later start can resume: a boundary of source batches with all below copied."""
        if not self.queue.batches:
            return self.delivery.idle_resume_point
        first = self.queue.batches[0]
        if first.is_later_piece:
            return self.last_resume_point
        return ResumePoint(first.source_offset, first.base_sequence, self.target_offset)

    @property
    def queued_until(self) -> int:
        """The source offset below which everything is or was queued."""
        return self.intake.find_queue_end(self.position)

    @property
    def waiting_bytes(self) -> int:
        """The queued bytes that are in no open transaction."""
        return self.queued_bytes - self.delivery.taken_bytes

    @property
    def done(self) -> int:
        return self.resume_point.source_offset

    @property
    def lag(self) -> int:
        """Source offsets that can be read and are not copied; -1 while unknown."""
        return max(0, self.last_stable_offset - self.done) if self.last_stable_offset >= 0 else -1

    @property
    def oldest_timestamp_ms(self) -> int:
        """Of the first batch that is not copied, else of the last copied one; -1 before any."""
        batches = self.queue.batches
        return _oldest_ms(batches[0].batch) if batches else self._last_timestamp_ms

    @property
    def can_send(self) -> bool:
        is_blocked = self.is_held or self.is_waiting or self.suspicion is not None
        is_blocked = is_blocked or bool(self.resume_reason)
        return self.parked is None and not is_blocked

    @property
    def own_end(self) -> int | None:
        """End of this mirror's records in a target topic that was recreated while copying."""
        return self.target_offset if self.regressed_to == 0 else None

    # Fetching from the source.

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
        self.last_stable_offset = self.fetched_end = last_stable_offset
        self.fetched_ms = now_ms
        take, before = self.intake.take, self.position
        aborted = list(aborted)
        size_bytes, batches = self._take_front(records, has_aborted=bool(aborted))
        classify = AbortedFilter(aborted).classify
        try:
            for batch, stored_format in read_batches(records[size_bytes:]):
                # Read now: editing the header overwrites the offsets.
                next_offset = batch.next_offset
                if next_offset > self.position and self.parked is None:
                    self.epochs.note(batch.leader_epoch, batch.base_offset)
                    batches += 1
                    size_bytes += batch.size
                    try:
                        groups = take(batch, classify(batch), self.position, stored_format)
                    except HandlerFailed as error:
                        self.park(str(error), _FIX_HANDLER)
                    else:
                        if not groups or self._accept_all(groups):
                            self.position = next_offset
        except WireError as error:
            self._on_damaged_batch(self.position, error)
            return False
        self.intake.measure(batches, size_bytes, self.position - before)
        if not self.intake.lingers:
            self.flush()
        self.delivery.on_fetch_end()
        return True

    def _take_front(self, records: memoryview, *, has_aborted: bool) -> tuple[int, int]:
        """Process the usual batches at the front of a record set; returns their bytes and number.

        Nearly all batches are large and passed on, or small and joined, in one pass.
        """
        if self.parked is not None:
            return 0, 0
        if self.intake.passes_on(records):
            before = len(self.queue.batches)
            size_bytes = self.delivery.pass_on(records)
            return size_bytes, len(self.queue.batches) - before
        if not self.intake.joins(records):
            return 0, 0
        joined = self.intake.join(records, self.position, has_aborted=has_aborted)
        for epoch, offset in joined.epochs:
            self.epochs.note(epoch, offset)
        if self._accept_all(joined.groups):
            self.position = joined.next_offset
        return joined.size_bytes, joined.batches

    def _accept_all(self, groups: Iterable[BatchGroup]) -> bool:
        """Queue groups; False if one cannot be: the partition is parked in front of it."""
        for group in groups:
            if not self.delivery.accept(group):
                # What was gathered behind it is dropped, and does not count as copied.
                self.position = min(self.position, group.source_offset)
                return False
        return True

    def flush(self) -> bool:
        """In deep mode: queue the gathered records as one or more batches; False if that fails."""
        group = self.intake.flush()
        return group is None or self._accept_all((group,))

    def queue_pieces(
        self, batch: Batch, group: BatchGroup, number: int, spans: list[OffsetSpan]
    ) -> list[OffsetSpan]:
        """Queue a batch of a group, in pieces if it is too large; returns the spans behind it."""
        pieces = list(split_to_limit(batch, self.limit_bytes)) if self.limit_bytes else [batch]
        self.counts.split += len(pieces) - 1
        for part, piece in enumerate(pieces):
            some, spans = split_spans(spans, piece.record_count)
            out = Outgoing(
                piece,
                source_offset=group.source_offset,
                is_later_piece=number + part > 0,
                is_re_encoded=group.is_re_encoded or len(pieces) > 1,
                spans=some,
            )
            self.delivery.prepare(out)
            self.enqueue(out)
        return spans

    def queue_plain(self, records: memoryview, numbering: Numbering) -> int:
        """Queue the plain batches at the front of a record set; returns their size in bytes."""
        add, epochs, epoch, size_bytes = self.queue.add, self.epochs, -1, 0
        for each in number_plain(records, self.position, numbering):
            if each[2] != epoch:
                epoch = each[2]
                epochs.note(epoch, each[1])
            outgoing = Outgoing.of_plain(each)
            add(outgoing)
            size_bytes += outgoing.size
        if size_bytes:
            last = self.queue.batches[-1]
            self.position = last.source_offset + last.record_count
            self.queued_bytes += size_bytes
        return size_bytes

    def enqueue(self, outgoing: Outgoing) -> None:
        self.queue.add(outgoing)
        self.queued_bytes += outgoing.size

    def count_lost_below(self, first: int) -> int:
        """Count the offsets that are lost if the source's log now starts at `first`.

        Records that the target already has from an earlier start are not lost.
        """
        return self.delivery.count_lost_below(first)

    def skip_deleted(self, first: int) -> None:
        """Continue at the source's new log start; the records below it are deleted."""
        self.flush()
        self.counts.lost += self.count_lost_below(first)
        self.delivery.on_deleted_below(first)
        self.position = first

    def report_lost(self, first: int, count: int) -> None:
        """Count and report that the last `count` offsets below `first` are lost, if any are."""
        if count > 0:
            if self.on_lost is not None:
                self.on_lost(self.partition, first, count)
            self.counts.lost += count

    def on_source_deleted(self) -> None:
        """The source topic is gone: what it had, as far as known, and is not copied is lost."""
        # Without an id the last fetch may have read a new topic of the same name.
        if self.lineage.source_topic_id is not None:
            self.report_lost(self.fetched_end, self.fetched_end - self.done)

    def read_again(self, offset: int) -> None:
        """Fetch again from an offset; nothing is queued."""
        self.position = self.intake.forget(offset)

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

    # Sending to the target.

    def next_batch(self, now: float) -> Outgoing | None:
        """Return the batch to send next, or None if nothing can be sent now."""
        queue = self.queue
        due = queue.next_in_order(now) if self.can_send else None
        if due is None or not queue.in_flight:
            return due
        is_alone = due.is_old or queue.batches[0].is_old
        return None if is_alone or self.damaged is not None else due

    def mark_sent(self, outgoing: Outgoing) -> None:
        """Count an attempt that is about to be sent; a re-encoded batch is declared before it."""
        if outgoing.is_re_encoded and self.declare is not None:
            self.declare_at(self.delivery.due_offset(outgoing))
        self.counts.resent += outgoing.tries > 0
        outgoing.tries += 1
        self.queue.begin_attempt(outgoing)

    def declare_at(self, offset: int) -> None:
        if self.declare is not None and offset >= 0:
            self.declare(self.target, offset)

    def on_produce_result(self, outgoing: Outgoing, result: ProduceResult, *, now: float) -> None:
        """Process the result of one attempt to produce a batch."""
        decision = self.queue.on_answer(outgoing, result, now)
        if outgoing.is_acknowledged:
            outgoing.target_offset = result.base_offset
            if outgoing.is_re_encoded and result.base_offset != self.delivery.due_offset(outgoing):
                self.declare_at(result.base_offset)
            self._drop_acknowledged()
        elif decision is Decision.RETRY or decision is Decision.GIVE_UP:
            self._on_produce_error(outgoing, result, decision, now)
        if self.damaged is not None and not self.queue.in_flight:
            self.refetch_damaged()

    def park(self, message: str, remedy: str) -> None:
        """Stop copying this partition until the mirror is restarted."""
        if self.parked is None:
            self.parked = SystemFailure(f"{self.partition}: {message}", remedy=remedy)
            _log.error(
                "%s is parked, other partitions continue: %s (%s)", self.partition, message, remedy
            )
            self.forget_unsent()

    def request_resume(self, reason: str) -> None:
        """Send nothing more until this partition is released and started again."""
        self.resume_reason = reason
        if self.on_resume_needed is not None:
            self.on_resume_needed(self)

    def suspect_target(self, message: str, remedy: str) -> None:
        """Send nothing until the target's topic id is compared; park if it is unchanged."""
        self.suspicion = self.suspicion or (message, remedy)

    def on_target_unchanged(self) -> None:
        """The target topic was not recreated, so it lost records: park."""
        if self.suspicion is not None:
            self.has_lost_target = self.regressed_to >= 0
            self.park(*self.suspicion)
            self.suspicion = None

    def suspect_loss(self, offset: int) -> None:
        """A batch was acknowledged at an offset below the known end of the target."""
        self.regressed_to = offset
        self.suspect_target(
            f"the target has lost records that it acknowledged: a new batch is at offset {offset}, "
            f"below {self.target_offset}",
            "compare both topics with `shoal mirror verify`; delete the target topic to have it "
            "filled again",
        )

    def forget_unsent(self) -> None:
        """Drop queued batches that were never sent, and move `position` back before them.

        Batches that may be at the target stay queued until their result is known.
        """
        self.position = self.intake.forget(self.position)
        unsent = 0
        for number, outgoing in enumerate(reversed(self.queue.batches), start=1):
            if outgoing.may_be_at_target:
                break
            if not outgoing.is_later_piece:
                unsent = number  # whole source batches only, never single pieces
        if unsent:
            self._drop_queue_from(self.queue.batches[-unsent])
        self.delivery.on_dropped(None)

    def _drop_queue_from(self, first: Outgoing) -> None:
        """Drop a batch and all behind it from the queue; they are fetched again."""
        while self.queue.batches:
            outgoing = self.queue.batches.pop()
            self.queued_bytes -= outgoing.size
            if outgoing is first:
                break
        self.position = first.source_offset
        self.intake.forget(self.position)
        self.delivery.on_dropped(first)

    def drop_queue(self, point: ResumePoint) -> None:
        """Drop all batches, of which none is in flight, and return to a resume point."""
        self.queue.batches.clear()
        self.queued_bytes = 0
        self.intake.forget(point.source_offset)
        self.position, self.target_offset = point.source_offset, point.target_offset
        self.queue.next_sequence = point.sequence

    def refetch_damaged(self) -> None:
        """Drop a damaged batch and all behind it, if there is one; nothing may be in flight."""
        damaged, self.damaged = self.damaged, None
        if damaged is not None and any(out is damaged for out in self.queue.batches):
            self._drop_queue_from(damaged)

    def _drop_acknowledged(self) -> None:
        batches = self.queue.batches
        while batches and batches[0].is_acknowledged:
            first = batches[0]
            # Only the later pieces of this batch, which are in the queue with it, need the point.
            if len(batches) > 1 and batches[1].is_later_piece and not first.is_later_piece:
                self.last_resume_point = ResumePoint(
                    first.source_offset, first.base_sequence, self.target_offset
                )
            self.delivery.on_acknowledged(first)
            self.drop_first()

    def drop_first(self) -> None:
        """Remove the first batch from the queue: it is at the target."""
        first = self.queue.batches.popleft()
        if self.waiting is not None:
            _log.info(
                "%s resumes: the target accepts the record that it refused before", self.partition
            )
            self.waiting = None
        size = first.size
        if size > self.limit_bytes:
            self.limit_bytes = 0  # the limit of the target was raised
        self._last_timestamp_ms = newest_ms = first.batch.max_timestamp
        if self.on_copied is not None:
            self.on_copied(self.partition, newest_ms)
        self.queued_bytes -= size
        counts = self.counts
        counts.batches += 1
        counts.records += first.record_count
        counts.bytes += size

    def count_displaced(self, offset: int, expected: int) -> None:
        if not self.counts.displaced:
            text = "%s: another producer writes to the target: a batch is at offset %d, not %d"
            _log.error(text, self.target, offset, expected)
        self.counts.displaced += 1

    def map_spans(self, spans: Sequence[OffsetSpan]) -> None:
        if self.offsets is not None:
            self.offsets.add(spans, self.target_offset)

    def _on_produce_error(
        self, outgoing: Outgoing, result: ProduceResult, decision: Decision, now: float
    ) -> None:
        code = result.error_code
        if code == Code.CORRUPT_MESSAGE and self.detect_damage(outgoing):
            return
        if code in TOO_LARGE:
            if outgoing.record_count > 1:
                self.split(outgoing)
            else:
                self.wait_for_limit(outgoing, result.error(self.target), now)
            return
        if decision is Decision.RETRY:
            self.queue.back_off(now)
            return
        error = result.error(self.target)
        self.park(
            f"the target refuses the batch at source offset {outgoing.source_offset}: {error}",
            remedy_for(code),
        )

    def wait_for_limit(self, outgoing: Outgoing, error: ShoalError, now: float) -> None:
        """Retry a record later that is larger than the target topic allows.

        If max.message.bytes was raised at the source, the next config sync raises it at the target,
        and the partition resumes.
        """
        if self.waiting is None:
            message = (
                f"the target refuses the record at source offset {outgoing.source_offset}: {error}"
            )
            self.waiting = SystemFailure(f"{self.partition}: {message}", remedy=LIMIT_REMEDY)
            _log.error(
                "%s waits, other partitions continue: %s (%s)",
                self.partition,
                message,
                LIMIT_REMEDY,
            )
        self.is_waiting = True
        self.queue.not_before = now + TRY_LIMIT_EVERY_S

    def try_again(self, now: float) -> bool:
        """Stop waiting if the time for a retry has come; returns whether it has."""
        if not self.is_waiting or now < self.queue.not_before:
            return False
        self.is_waiting = False
        return True

    def split(self, outgoing: Outgoing) -> None:
        """Replace a batch that is too large for the target by two halves."""
        self.learn_limit(outgoing.batch)
        pieces = self.delivery.halve(outgoing)
        batches = self.queue.batches
        position = batches.index(outgoing)
        del batches[position]
        for number, piece in enumerate(pieces):
            batches.insert(position + number, piece)
            self.queued_bytes += piece.size
        self.queued_bytes -= outgoing.size
        self.counts.split += 1

    def learn_limit(self, batch: Batch) -> None:
        """Remember that the target refuses batches of this size."""
        if not self.limit_bytes or batch.size <= self.limit_bytes:
            self.limit_bytes = batch.size - 1
            text = "%s: the target refuses batches of %d bytes: they are split and re-encoded"
            _log.warning(text, self.target, batch.size)

    def detect_damage(self, outgoing: Outgoing) -> bool:
        """Check the CRC of a batch; if it is wrong, park the partition or read the batch again."""
        try:
            outgoing.batch.check_crc()
        except CorruptBatch as error:
            self._on_damaged_batch(outgoing.source_offset, error)
            if self.parked is None and self.damaged is None:
                self.damaged = outgoing
            return True
        return False  # it was damaged in transit: a retry may succeed


def _oldest_ms(batch: Batch) -> int:
    """The timestamp of the first record; with LogAppendTime all have the maximum timestamp."""
    is_stamped = batch.timestamp_type == LOG_APPEND_TIME
    return batch.max_timestamp if is_stamped else batch.base_timestamp


# A partition with any delivery.
PartitionMirror: TypeAlias = PartitionCopier[Delivery]
