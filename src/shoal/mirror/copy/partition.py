"""One mirrored partition: which batches to send to the target, and their results; pure.

Fetched batches arrive through `shoal.mirror.copy.intake`.

Rules:
- Batches are sent in source order, each with its sequence, and retries are byte-identical. The
  producer id never changes: the sequence is what prevents duplicate batches.
- Until the target has acknowledged a first batch, exactly one is in flight, because a broker that
  does not know a producer accepts any first sequence.
- After a failure nothing is sent until all requests in flight are answered. Batches behind a
  failed batch return as out of sequence and are sent again in order.
- If the *oldest* batch is out of sequence, it is not just sent again: the mirror first queries the
  last sequence that the target has (`needs_last_sequence`, `on_last_sequence`).
- A mirror that resumes skips the records that the target already has, by their count. The last of
  them must equal the target's last record.
- A batch so old that the target does not remember its producer is sent alone: without producer
  state any sequence is accepted, and a lost batch would leave a gap.
- A batch that is too large for the target is split and re-encoded. Resume points are only at the
  boundaries of source batches.
- `done` is the source offset below which everything is at the target or was dropped on purpose.
  The mirror reports no more than that.
- A re-encoded batch is declared before it is sent (`shoal.mirror.offsets.re_encoded`).
- A partition that cannot continue is parked with an error that says why; others continue.
- Signs that the target has lost records only raise a suspicion at first (`suspect_target`): nothing
  is sent until the target's topic id is compared. A recreated topic is filled again; if it is the
  same topic, the partition is parked.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Final, NamedTuple

from shoal.client.codes import Code, facts_of
from shoal.client.produce.sequencing import ProducerIdentity
from shoal.client.results import ProduceResult
from shoal.client.transport.backoff import Backoff
from shoal.mirror.copy.intake import Counts, Intake
from shoal.mirror.copy.rebatch import BatchGroup, Rebatcher
from shoal.mirror.copy.rewrite import (
    drop_first_records,
    has_same_ending,
    prepare,
    split_in_half,
    split_to_limit,
)
from shoal.mirror.handlers import BatchHandler
from shoal.mirror.offsets.offset_map import MapWriter, OffsetSpan, split_spans
from shoal.mirror.run.remedies import LIMIT_REMEDY, remedy_for
from shoal.mirror.watch.divergence import ReadEpochs
from shoal.mirror.watch.generations import Lineage
from shoal.model.errors import ShoalError, SystemFailure
from shoal.model.findings import Outcome
from shoal.model.topics import TopicPartition
from shoal.wire.batch import LOG_APPEND_TIME, NO_SEQUENCE, SEQUENCE_MASK, Batch, sequence_after
from shoal.wire.errors import CorruptBatch

# A broker keeps the last five batches of a producer; it cannot detect older duplicates.
IN_FLIGHT_LIMIT: Final = 5
_log = logging.getLogger(__name__)

_OUT_OF_SEQUENCE: Final = frozenset({Code.OUT_OF_ORDER_SEQUENCE_NUMBER, Code.UNKNOWN_PRODUCER_ID})
_NEVER_MS: Final = -(1 << 62)
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


class Outgoing:
    """One batch that is queued or in flight."""

    __slots__ = (
        "acknowledged",
        "base_sequence",
        "batch",
        "has_unknown_outcome",
        "in_flight",
        "is_later_piece",
        "is_old",
        "is_re_encoded",
        "source_offset",
        "spans",
        "target_offset",
        "tries",
    )

    def __init__(
        self,
        batch: Batch,
        *,
        source_offset: int,
        base_sequence: int,
        is_later_piece: bool = False,
        is_re_encoded: bool = False,
        spans: Sequence[OffsetSpan] = (),
    ) -> None:
        self.batch = batch
        self.source_offset = source_offset  # at or below its first record
        self.spans = spans  # the source offsets of its records
        # Not the first piece of a split source batch: no resume point here.
        self.is_later_piece = is_later_piece
        self.is_re_encoded = is_re_encoded  # not the bytes of the source
        self.is_old = False  # the target may expire its producer at any time
        self.base_sequence = base_sequence
        self.target_offset = -1  # of its first record, once it is acknowledged
        self.in_flight = False
        self.has_unknown_outcome = False  # it may have been written although no response arrived
        self.acknowledged = False
        self.tries = 0

    @property
    def last_sequence(self) -> int:
        return self.batch.last_sequence

    @property
    def may_be_written(self) -> bool:
        return self.in_flight or self.has_unknown_outcome or self.acknowledged


@dataclass(slots=True)
class PartitionMirror(Intake):
    """The state of one mirrored partition (idempotent delivery)."""

    partition: TopicPartition  # of the source
    identity: ProducerIdentity
    position: int  # the source offset to fetch next
    backoff: Backoff
    handler: BatchHandler | None = None
    next_sequence: int = 0
    target_offset: int = 0  # expected target offset of the next acknowledged batch
    already_there: int = 0  # records that are still to be skipped: the target has them
    is_producer_known: bool = (
        False  # whether the target's leader has state of the mirror's producer
    )
    tail: Batch | None = None  # the target's last existing batch, as stored
    writes_to: TopicPartition | None = None  # the target partition, if its topic name differs
    in_flight_limit: int = IN_FLIGHT_LIMIT
    offsets: MapWriter | None = None  # maps source offsets to target offsets
    declare: Declare | None = None
    # Warnings logged so far about re-encoded topics; shared by all partitions.
    announced: set[str] = field(default_factory=set)
    # The target is known to refuse batches larger than this; 0 if no limit is known.
    limit_bytes: int = 0
    retries_bad: bool = False  # read a damaged batch again instead of parking the partition
    rebatcher: Rebatcher | None = None  # set in deep mode
    producer_expiration_ms: int = 0  # of the target; 0 if unknown
    lineage: Lineage = field(default_factory=Lineage)
    is_held: bool = False  # send nothing: the target topic is missing or was recreated
    # Why the first record waits until the target topic accepts it; retried at `not_before`.
    waiting: ShoalError | None = None
    is_waiting: bool = False
    suspicion: tuple[str, str] | None = None  # message and remedy for parking
    # The target lost records below an acknowledged batch: recorded in the checkpoint.
    has_lost_target: bool = False
    epochs: ReadEpochs = field(
        default_factory=ReadEpochs
    )  # leader epochs of the batches read so far
    checked_epoch: int = -1  # leader epoch of the last divergence check
    counts: Counts = field(default_factory=Counts)
    parked: ShoalError | None = None
    not_before: float = 0.0
    last_stable_offset: int = -1
    high_watermark: int = -1
    queued_bytes: int = 0
    _queue: deque[Outgoing] = field(default_factory=deque)
    _in_flight: int = 0
    _recovering: bool = False
    _out_of_sequence: bool = False
    _last_resume_point: ResumePoint = NO_RESUME_POINT  # start of the source batch being sent
    _damaged: Outgoing | None = None  # read again once nothing is in flight
    _damaged_at: int = -1
    _regressed_to: int = -1  # offset of a batch below acknowledged offsets; -1 if none
    _old_before_ms: int = _NEVER_MS
    _last_timestamp_ms: int = -1

    @property
    def target(self) -> TopicPartition:
        return self.writes_to or self.partition

    @property
    def resume_point(self) -> ResumePoint:
        """Where a later start can resume: a boundary of source batches with all below copied."""
        if not self._queue:
            return ResumePoint(self.queued_until, self.next_sequence, self.reached_target_offset)
        first = self._queue[0]
        if first.is_later_piece:
            return self._last_resume_point
        return ResumePoint(first.source_offset, first.base_sequence, self.target_offset)

    @property
    def reached_target_offset(self) -> int:
        """The target offset below which everything was copied by this mirror, as far as known."""
        return self.target_offset

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
        return _oldest_ms(self._queue[0].batch) if self._queue else self._last_timestamp_ms

    @property
    def in_flight(self) -> int:
        return self._in_flight

    @property
    def needs_last_sequence(self) -> bool:
        """Whether the target's last sequence must be queried before anything is sent."""
        return self._out_of_sequence and not self._in_flight and self.can_send

    @property
    def can_send(self) -> bool:
        is_blocked = self.is_held or self.is_waiting or self.suspicion is not None
        return self.parked is None and not is_blocked

    @property
    def own_end(self) -> int | None:
        """End of this mirror's records in a target topic that was recreated while copying."""
        return self.target_offset if self._regressed_to == 0 else None

    # Called by `Intake`.

    def _accept(self, group: BatchGroup) -> bool:
        """Queue the records of a group that the target does not have; False if that fails.

        Batches may be split into pieces here.
        """
        spans = group.spans
        for number, batch in enumerate(group.batches):
            if self.already_there:
                if not number:
                    start = group.source_offset
                    self._last_resume_point = ResumePoint(
                        start, self.next_sequence, self.target_offset
                    )
                count = batch.record_count
                passed, spans = split_spans(spans, count)
                if not self._skip_existing(batch, passed, group.source_offset):
                    return False
                continue
            pieces = list(split_to_limit(batch, self.limit_bytes)) if self.limit_bytes else [batch]
            self.counts.split += len(pieces) - 1
            for part, piece in enumerate(pieces):
                some, spans = split_spans(spans, piece.record_count)
                out = Outgoing(
                    piece,
                    source_offset=group.source_offset,
                    base_sequence=self.next_sequence,
                    is_later_piece=number + part > 0,
                    is_re_encoded=group.is_re_encoded or len(pieces) > 1,
                    spans=some,
                )
                self._number(out)
        return True

    def _number(self, outgoing: Outgoing) -> None:
        """Assign the next sequences to a batch and queue it."""
        prepare(outgoing.batch, self.identity, self.next_sequence)
        if outgoing.batch.max_timestamp < self._old_before_ms:
            outgoing.is_old = True
            self._count_unshielded()
        self._enqueue(outgoing)
        self.next_sequence = sequence_after(outgoing.batch.last_sequence, 1)

    def _count_unshielded(self) -> None:
        if not self.counts.unshielded:
            _log.warning(
                "%s: the records are older than producer.id.expiration.ms of the target: they are "
                "sent one batch at a time, and a second mirror with this name would not be "
                "detected",
                self.target,
            )
        self.counts.unshielded += 1

    def _enqueue(self, outgoing: Outgoing) -> None:
        self._queue.append(outgoing)
        self.queued_bytes += outgoing.batch.size

    def _skip_existing(self, batch: Batch, spans: list[OffsetSpan], source_offset: int) -> bool:
        """Skip the records of a batch that the target has: all of them, or the first ones."""
        count = min(batch.record_count, self.already_there)
        is_last = count == self.already_there
        if is_last and self.tail is not None and not has_same_ending(batch, count, self.tail):
            self.park(
                f"the target's last {self.already_there} records differ from the source's at "
                f"offset {self.position}: the source has changed since they were copied",
                "compare both topics with `shoal mirror verify`, and mirror into a new topic",
            )
            return False
        there, left = split_spans(spans, count)
        self.already_there -= count
        self.counts.already_there += count
        self._map(there)
        self.target_offset += count
        self.next_sequence = sequence_after(self.next_sequence, count)
        if is_last:
            self.tail = None
        if count < batch.record_count:
            self.counts.split += 1
            rest = Outgoing(
                drop_first_records(batch, count),
                source_offset=source_offset,
                base_sequence=self.next_sequence,
                is_later_piece=True,
                is_re_encoded=True,
                spans=left,
            )
            self._number(rest)
        return True

    # Sending to the target.

    def next_batch(self, now: float) -> Outgoing | None:
        """Return the batch to send next, or None if nothing can be sent now."""
        if not self.can_send or self._out_of_sequence or now < self.not_before:
            return None
        if (self._recovering or self._damaged is not None) and self._in_flight:
            return None
        if self._in_flight >= (self.in_flight_limit if self.is_producer_known else 1):
            return None
        due = next((out for out in self._queue if not (out.in_flight or out.acknowledged)), None)
        is_alone = due is not None and (due.is_old or self._queue[0].is_old)
        return None if is_alone and self._in_flight else due

    def _oldest_open(self) -> Outgoing | None:
        return next((out for out in self._queue if not out.acknowledged), None)

    def mark_sent(self, outgoing: Outgoing) -> None:
        if outgoing.is_re_encoded:
            self._declare(self._due_offset(outgoing))
        self._recovering = False
        self.counts.resent += outgoing.tries > 0
        outgoing.tries += 1
        outgoing.in_flight = True
        self._in_flight += 1

    def _due_offset(self, outgoing: Outgoing) -> int:
        """The expected target offset of a queued batch, if this mirror is the only writer."""
        before = takewhile(lambda each: each is not outgoing, self._queue)
        return self.target_offset + sum(each.batch.record_count for each in before)

    def _declare(self, offset: int) -> None:
        if self.declare is not None and offset >= 0:
            self.declare(self.target, offset)

    def on_produce_result(self, outgoing: Outgoing, result: ProduceResult, *, now: float) -> None:
        """Process the result of one attempt to produce a batch."""
        outgoing.in_flight = False
        self._in_flight -= 1
        if result.is_ok:
            self.is_producer_known = True
            self.backoff.reset()
            outgoing.target_offset = result.base_offset
            if outgoing.is_re_encoded and result.base_offset != self._due_offset(outgoing):
                self._declare(result.base_offset)
            self._acknowledge(outgoing)
        else:
            self._recovering = True
            outgoing.has_unknown_outcome |= result.outcome is Outcome.UNKNOWN
            self._on_produce_error(outgoing, result, now)
        if self._damaged is not None and not self._in_flight:
            self._refetch_damaged(self._damaged)

    def on_last_sequence(self, last_sequence: int | None, *, now: float) -> None:
        """Continue after the last sequence that the target has of the mirror's producer.

        The batch with that sequence is sent again: the target detects the duplicate and
        acknowledges it, and so all batches before it, once it is replicated.
        """
        self._out_of_sequence = False
        self.not_before = now + self.backoff.next_wait_s()
        if last_sequence is None:
            if not self.is_producer_known:
                return  # the target has no producer state, and nothing was acknowledged: start over
        elif self._resumes_after(last_sequence):
            for outgoing in self._queue:
                written = _at_or_before(outgoing.last_sequence, last_sequence)
                outgoing.acknowledged = written and outgoing.last_sequence != last_sequence
            return
        if last_sequence is not None and _at_or_before(self.next_sequence, last_sequence):
            self.park(
                "another mirror with the same name is ahead of this one",
                "run only one mirror with this name",
            )
            return
        self.suspect_target(
            "the target no longer has records that it acknowledged: "
            f"it expects another sequence than {self._queue[0].base_sequence}",
            "compare both topics with `shoal mirror verify`; if records are lost, mirror into a "
            "new topic",
        )

    def _resumes_after(self, last_sequence: int) -> bool:
        ends = {sequence_after(self._queue[0].base_sequence, -1)}
        ends.update(outgoing.last_sequence for outgoing in self._queue)
        return last_sequence in ends

    def park(self, message: str, remedy: str) -> None:
        """Stop copying this partition until the mirror is restarted."""
        if self.parked is None:
            self.parked = SystemFailure(f"{self.partition}: {message}", remedy=remedy)
            _log.error(
                "%s is parked, other partitions continue: %s (%s)", self.partition, message, remedy
            )
            self.forget_unsent()

    def suspect_target(self, message: str, remedy: str) -> None:
        """Send nothing until the target's topic id is compared; park if it is unchanged."""
        self.suspicion = self.suspicion or (message, remedy)

    def on_target_unchanged(self) -> None:
        """The target topic was not recreated, so it lost records: park."""
        if self.suspicion is not None:
            self.has_lost_target = self._regressed_to >= 0
            self.park(*self.suspicion)
            self.suspicion = None

    def _suspect_loss(self, offset: int) -> None:
        """A batch was acknowledged at an offset below the known end of the target."""
        self._regressed_to = offset
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
        if self.rebatcher is not None:
            self.position = self.rebatcher.forget(self.position)
        unsent = 0
        for number, outgoing in enumerate(reversed(self._queue), start=1):
            if outgoing.may_be_written:
                break
            if not outgoing.is_later_piece:
                unsent = number  # whole source batches only, never single pieces
        if unsent:
            self._drop_queue_from(self._queue[-unsent])
        self._out_of_sequence &= bool(self._queue)

    def _drop_queue_from(self, first: Outgoing) -> None:
        """Drop a batch and all behind it from the queue; they are fetched again."""
        while self._queue:
            outgoing = self._queue.pop()
            self.queued_bytes -= outgoing.batch.size
            if outgoing is first:
                break
        self.position = first.source_offset
        self.next_sequence = max(0, first.base_sequence)
        if self.rebatcher is not None:
            self.rebatcher.forget(self.position)

    def _refetch_damaged(self, damaged: Outgoing) -> None:
        self._damaged = None
        if any(outgoing is damaged for outgoing in self._queue):
            self._drop_queue_from(damaged)

    def _acknowledge(self, outgoing: Outgoing) -> None:
        outgoing.acknowledged = True
        while self._queue and self._queue[0].acknowledged:
            first = self._queue[0]
            if not first.is_later_piece:
                self._last_resume_point = ResumePoint(
                    first.source_offset, first.base_sequence, self.target_offset
                )
            self._advance_target_offset(first)
            self._drop_first()

    def _drop_first(self) -> None:
        """Remove the first batch from the queue: it is at the target."""
        first = self._queue.popleft()
        if self.waiting is not None:
            _log.info(
                "%s resumes: the target accepts the record that it refused before", self.partition
            )
            self.waiting = None
        if first.batch.size > self.limit_bytes:
            self.limit_bytes = 0  # the limit of the target was raised
        self._last_timestamp_ms = first.batch.max_timestamp
        self.queued_bytes -= first.batch.size
        self.counts.batches += 1
        self.counts.records += first.batch.record_count
        self.counts.bytes += first.batch.size

    def _advance_target_offset(self, outgoing: Outgoing) -> None:
        """Advance `target_offset` past a batch; a gap means that another producer writes there."""
        if outgoing.target_offset not in (-1, self.target_offset):
            if outgoing.target_offset < self.target_offset:
                self._suspect_loss(outgoing.target_offset)
            else:
                self._count_displaced(outgoing.target_offset, self.target_offset)
                self._regressed_to = -1
            self.target_offset = outgoing.target_offset
        self._map(outgoing.spans)
        self.target_offset += outgoing.batch.record_count

    def _count_displaced(self, offset: int, expected: int) -> None:
        if not self.counts.displaced:
            text = "%s: another producer writes to the target: a batch is at offset %d, not %d"
            _log.error(text, self.target, offset, expected)
        self.counts.displaced += 1

    def _map(self, spans: Sequence[OffsetSpan]) -> None:
        if self.offsets is not None:
            self.offsets.add(spans, self.target_offset)

    def _on_produce_error(self, outgoing: Outgoing, result: ProduceResult, now: float) -> None:
        code = result.error_code
        if code in _OUT_OF_SEQUENCE:
            # Only for the oldest batch: others fail because one before them failed, and are
            # sent again.
            self._out_of_sequence |= outgoing is self._oldest_open()
            return
        if code == Code.CORRUPT_MESSAGE and self.detect_damage(outgoing):
            return
        if code in TOO_LARGE:
            if outgoing.batch.record_count > 1:
                self._split(outgoing)
            else:
                self.wait_for_limit(outgoing, result.error(self.target), now)
            return
        if result.outcome is Outcome.FAILED and not facts_of(code).retriable:
            error = result.error(self.target)
            message = (
                f"the target refuses the batch at source offset {outgoing.source_offset}: {error}"
            )
            self.park(message, remedy_for(code))
            return
        self.not_before = max(self.not_before, now + self.backoff.next_wait_s())

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
        self.not_before = now + TRY_LIMIT_EVERY_S

    def try_again(self, now: float) -> bool:
        """Stop waiting if the time for a retry has come; returns whether it has."""
        if not self.is_waiting or now < self.not_before:
            return False
        self.is_waiting = False
        return True

    def _split(self, outgoing: Outgoing) -> None:
        """Replace a batch that is too large for the target by two halves."""
        self.learn_limit(outgoing.batch)
        first, second = split_in_half(outgoing.batch)
        position = self._queue.index(outgoing)
        del self._queue[position]
        sequence, spans = outgoing.base_sequence, list(outgoing.spans)
        for number, piece in enumerate((first, second)):
            some, spans = split_spans(spans, piece.record_count)
            new = Outgoing(
                piece,
                source_offset=outgoing.source_offset,
                base_sequence=sequence,
                is_later_piece=outgoing.is_later_piece or number > 0,
                is_re_encoded=True,
                spans=some,
            )
            new.tries, new.has_unknown_outcome = outgoing.tries, outgoing.has_unknown_outcome
            prepare(piece, self.identity, sequence)
            self._queue.insert(position + number, new)
            if sequence != NO_SEQUENCE:
                sequence = sequence_after(piece.last_sequence, 1)
        self.queued_bytes += first.size + second.size - outgoing.batch.size
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
            if self.parked is None and self._damaged is None:
                self._damaged = outgoing
            return True
        return False  # it was damaged in transit: a retry may succeed


def _oldest_ms(batch: Batch) -> int:
    """The timestamp of the first record; with LogAppendTime all have the maximum timestamp."""
    is_stamped = batch.timestamp_type == LOG_APPEND_TIME
    return batch.max_timestamp if is_stamped else batch.base_timestamp


def _at_or_before(sequence: int, other: int) -> bool:
    """Compare two sequences, which wrap around; they are never far apart."""
    return ((other - sequence) & SEQUENCE_MASK) < SEQUENCE_MASK // 2
