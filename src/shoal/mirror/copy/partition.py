"""One partition of a mirror: what is to be sent to the target, and what became of it; pure.

What was fetched comes in by `shoal.mirror.copy.intake`.

Rules:
- Batches leave in the order of the source, each with its sequence, and are repeated byte for
  byte. The producer id never changes: the shared sequence is what keeps a batch from being
  written twice.
- Until the target has acknowledged a first batch, exactly one is in flight, because a broker
  that does not know a producer accepts any first sequence.
- After a failure nothing is sent until all that is in flight has come back. What stood behind
  a refused batch comes back as out of sequence, and is sent again in order.
- A *first* batch that is out of sequence is not sent again blindly: the target is asked for
  the last sequence that it has (`inquiring`, `told_last_sequence`).
- A mirror that goes on where another ended passes over what the target already has: so many
  records. The last of them must be the target's last.
- A batch that is so old that the target does not remember its producer is alone in flight: where
  nothing is remembered any sequence is accepted, and a lost batch would leave a hole.
- A batch that the target calls too large goes in pieces, packed anew. Marks for those who go on
  later stand only where a batch of the source begins.
- `done` is the source offset below which everything is at the target or was dropped on
  purpose. It is what the mirror may claim.
- A batch that was packed anew is declared before it is sent (`shoal.mirror.offsets.re_encoded`).
- What cannot go on parks the partition with an error that says why; others go on.
- What looks as if the target had lost records is a suspicion first (`suspect_target`): nothing is
  sent until the target's topic id was compared. Another topic is filled again; the same one parks.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Final, NamedTuple

from shoal.client.codes import Code, facts_of
from shoal.client.produce.sequencing import Identity
from shoal.client.results import ProduceResult
from shoal.client.transport.backoff import Backoff
from shoal.mirror.copy.intake import Counts, Intake
from shoal.mirror.copy.rebatch import Group, Rebatcher
from shoal.mirror.copy.rewrite import ends_like, halves, prepare, rest_of, within_limit
from shoal.mirror.handlers import BatchHandler
from shoal.mirror.offsets.offset_map import MapWriter, Span, cut_spans
from shoal.mirror.run.remedies import LIMIT_REMEDY, remedy_for
from shoal.mirror.watch.divergence import ReadEpochs
from shoal.mirror.watch.generations import Lineage
from shoal.model.errors import ShoalError, SystemFailure
from shoal.model.findings import Outcome
from shoal.model.topics import TopicPartition
from shoal.wire.batch import LOG_APPEND_TIME, NO_SEQUENCE, SEQUENCE_MASK, Batch, sequence_after
from shoal.wire.errors import CorruptBatch

# What a broker remembers of a producer: older repetitions it cannot tell from new batches.
IN_FLIGHT_LIMIT: Final = 5
_log = logging.getLogger(__name__)

_OUT_OF_SEQUENCE: Final = frozenset({Code.OUT_OF_ORDER_SEQUENCE_NUMBER, Code.UNKNOWN_PRODUCER_ID})
_NEVER_MS: Final = -(1 << 62)
# How often a record is tried that is larger than the target's topic allows.
TRY_LIMIT_EVERY_S: Final = 2.0
TOO_LARGE: Final = frozenset({Code.MESSAGE_TOO_LARGE, Code.RECORD_LIST_TOO_LARGE})


# Told of a target partition, and an offset at which a batch is that was packed anew.
Declare = Callable[[TopicPartition, int], None]


class Mark(NamedTuple):
    """Below the source offset everything is at the target, which has it below its offset."""

    source_offset: int
    sequence: int
    target_offset: int


NOWHERE: Final = Mark(-1, 0, -1)


class Outgoing:
    """One batch on its way."""

    __slots__ = (
        "acknowledged",
        "base_sequence",
        "batch",
        "in_flight",
        "is_inner",
        "is_old",
        "is_re_encoded",
        "is_unsure",
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
        is_inner: bool = False,
        is_re_encoded: bool = False,
        spans: Sequence[Span] = (),
    ) -> None:
        self.batch = batch
        self.source_offset = source_offset  # of the first record that it carries, or below
        self.spans = spans  # the source offsets of its records
        # A later piece of what was one batch: no mirror goes on here.
        self.is_inner = is_inner
        self.is_re_encoded = is_re_encoded  # not the bytes of the source
        self.is_old = False  # the target may forget its producer at any time
        self.base_sequence = base_sequence
        self.target_offset = -1  # of its first record, once the target has told
        self.in_flight = False
        self.is_unsure = False  # of one try nobody knows whether it was written
        self.acknowledged = False
        self.tries = 0

    @property
    def last_sequence(self) -> int:
        return self.batch.last_sequence

    @property
    def may_be_written(self) -> bool:
        return self.in_flight or self.is_unsure or self.acknowledged


@dataclass(slots=True)
class PartitionMirror(Intake):
    """The state of one partition."""

    partition: TopicPartition  # of the source
    identity: Identity
    position: int  # the source offset to fetch next
    backoff: Backoff
    handler: BatchHandler | None = None
    next_sequence: int = 0
    target_offset: int = 0  # where the next batch to be acknowledged should be at the target
    already_there: int = 0  # records still to be passed over: the target has them
    is_known: bool = False  # whether the target's leader remembers our producer
    tail: Batch | None = None  # the last of what is already there, as the target stores it
    writes_to: TopicPartition | None = None  # the target's, where it has another name
    in_flight_limit: int = IN_FLIGHT_LIMIT
    offsets: MapWriter | None = None  # where each source offset went
    declare: Declare | None = None
    # What the log says already about topics whose batches are re-encoded; shared.
    announced: set[str] = field(default_factory=set)
    # Batches above it are known to be refused by the target; 0 for none.
    limit_bytes: int = 0
    retries_bad: bool = False  # read a damaged batch again, rather than park the partition
    rebatcher: Rebatcher | None = None  # takes records apart and together again
    forgets_after_ms: int = 0  # the target its producers, by timestamps; 0 if that is not known
    lineage: Lineage = field(default_factory=Lineage)
    is_held: bool = False  # send nothing: the target's topic is missing or another one
    # Why the first record waits until the target's topic takes it; tried again at `not_before`.
    waiting: ShoalError | None = None
    is_waiting: bool = False
    suspicion: tuple[str, str] | None = None  # reason to park, and its remedy
    # A batch of ours stands behind a hole at the target: the checkpoint must say so.
    has_lost_target: bool = False
    epochs: ReadEpochs = field(
        default_factory=ReadEpochs
    )  # of the leaders that wrote what was read
    looked_epoch: int = -1  # of the leader that was last asked whether it has all of that
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
    _held: Mark = NOWHERE  # of the batch of which the first of the queue is a piece
    _damaged: Outgoing | None = None  # to be read again once nothing is in flight
    _damaged_at: int = -1
    _fell_back_to: int = -1  # the offset of the first batch below what was acknowledged
    _old_before_ms: int = _NEVER_MS
    _last_timestamp_ms: int = -1

    @property
    def target(self) -> TopicPartition:
        return self.writes_to or self.partition

    @property
    def mark(self) -> Mark:
        """One moment at which all below was at the target, at the border of a source's batch."""
        if not self._queue:
            return Mark(self.taken_from, self.next_sequence, self.reached_target_offset)
        first = self._queue[0]
        if first.is_inner:
            return self._held
        return Mark(first.source_offset, first.base_sequence, self.target_offset)

    @property
    def reached_target_offset(self) -> int:
        """Below it the target has nothing but what was copied, as far as that is known."""
        return self.target_offset

    @property
    def done(self) -> int:
        return self.mark.source_offset

    @property
    def lag(self) -> int:
        """Source offsets that may be read and are not done; -1 while unknown."""
        return max(0, self.last_stable_offset - self.done) if self.last_stable_offset >= 0 else -1

    @property
    def oldest_timestamp_ms(self) -> int:
        """Of the first batch that is not done, or of the last one that is; -1 before any."""
        return _oldest_ms(self._queue[0].batch) if self._queue else self._last_timestamp_ms

    @property
    def in_flight(self) -> int:
        return self._in_flight

    @property
    def inquiring(self) -> bool:
        """Whether the target is to be asked for its last sequence, before anything is sent."""
        return self._out_of_sequence and not self._in_flight and self.may_send

    @property
    def may_send(self) -> bool:
        is_blocked = self.is_held or self.is_waiting or self.suspicion is not None
        return self.parked is None and not is_blocked

    @property
    def own_end(self) -> int | None:
        """Below it everything in a target topic is ours that was created again under our hands."""
        return self.target_offset if self._fell_back_to == 0 else None

    # From `Intake`.

    def _accept(self, group: Group) -> bool:
        """Queue what the target does not have of some batches of the source; False if that fails.

        They have become other batches, perhaps, and may go in pieces.
        """
        spans = group.spans
        for number, batch in enumerate(group.batches):
            if self.already_there:
                if not number:
                    start = group.source_offset
                    self._held = Mark(start, self.next_sequence, self.target_offset)
                count = batch.record_count
                passed, spans = cut_spans(spans, count)
                if not self._pass_over(batch, passed, group.source_offset):
                    return False
                continue
            pieces = list(within_limit(batch, self.limit_bytes)) if self.limit_bytes else [batch]
            self.counts.split += len(pieces) - 1
            for part, piece in enumerate(pieces):
                some, spans = cut_spans(spans, piece.record_count)
                out = Outgoing(
                    piece,
                    source_offset=group.source_offset,
                    base_sequence=self.next_sequence,
                    is_inner=number + part > 0,
                    is_re_encoded=group.is_re_encoded or len(pieces) > 1,
                    spans=some,
                )
                self._number(out)
        return True

    def _number(self, outgoing: Outgoing) -> None:
        """Queue a batch under the next sequences."""
        prepare(outgoing.batch, self.identity, self.next_sequence)
        if outgoing.batch.max_timestamp < self._old_before_ms:
            outgoing.is_old = True
            self._tell_of_old()
        self._enqueue(outgoing)
        self.next_sequence = sequence_after(outgoing.batch.last_sequence, 1)

    def _tell_of_old(self) -> None:
        if not self.counts.unshielded:
            _log.warning(
                "%s: its records are so old that the target does not remember who wrote them: "
                "they go one batch at a time, and a second mirror of this name would not be "
                "noticed",
                self.target,
            )
        self.counts.unshielded += 1

    def _enqueue(self, outgoing: Outgoing) -> None:
        self._queue.append(outgoing)
        self.queued_bytes += outgoing.batch.size

    def _pass_over(self, batch: Batch, spans: list[Span], source_offset: int) -> bool:
        """Leave out what the target has of a batch: all of it, or, at the last, its head."""
        count = min(batch.record_count, self.already_there)
        is_last = count == self.already_there
        if is_last and self.tail is not None and not ends_like(batch, count, self.tail):
            self.park(
                f"the target's last {self.already_there} records are not those of the source at "
                f"{self.position}: batches there have changed since they were copied",
                "compare both with `shoal mirror verify`, and mirror into a new topic",
            )
            return False
        there, left = cut_spans(spans, count)
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
                rest_of(batch, count),
                source_offset=source_offset,
                base_sequence=self.next_sequence,
                is_inner=True,
                is_re_encoded=True,
                spans=left,
            )
            self._number(rest)
        return True

    # To the target.

    def sendable(self, now: float) -> Outgoing | None:
        """The batch to send next, if one may be sent now."""
        if not self.may_send or self._out_of_sequence or now < self.not_before:
            return None
        if (self._recovering or self._damaged is not None) and self._in_flight:
            return None
        if self._in_flight >= (self.in_flight_limit if self.is_known else 1):
            return None
        due = next((out for out in self._queue if not (out.in_flight or out.acknowledged)), None)
        is_alone = due is not None and (due.is_old or self._queue[0].is_old)
        return None if is_alone and self._in_flight else due

    def _oldest_open(self) -> Outgoing | None:
        return next((out for out in self._queue if not out.acknowledged), None)

    def sent(self, outgoing: Outgoing) -> None:
        if outgoing.is_re_encoded:
            self._declare(self._due_offset(outgoing))
        self._recovering = False
        self.counts.resent += outgoing.tries > 0
        outgoing.tries += 1
        outgoing.in_flight = True
        self._in_flight += 1

    def _due_offset(self, outgoing: Outgoing) -> int:
        """Where a batch of the queue will be at the target, if nobody else writes there."""
        before = takewhile(lambda each: each is not outgoing, self._queue)
        return self.target_offset + sum(each.batch.record_count for each in before)

    def _declare(self, offset: int) -> None:
        if self.declare is not None and offset >= 0:
            self.declare(self.target, offset)

    def answered(self, outgoing: Outgoing, result: ProduceResult, *, now: float) -> None:
        """What became of one try."""
        outgoing.in_flight = False
        self._in_flight -= 1
        if result.is_ok:
            self.is_known = True
            self.backoff.succeeded()
            outgoing.target_offset = result.base_offset
            if outgoing.is_re_encoded and result.base_offset != self._due_offset(outgoing):
                self._declare(result.base_offset)
            self._acknowledge(outgoing)
        else:
            self._recovering = True
            outgoing.is_unsure |= result.outcome is Outcome.UNKNOWN
            self._refused(outgoing, result, now)
        if self._damaged is not None and not self._in_flight:
            self._read_again(self._damaged)

    def told_last_sequence(self, last_sequence: int | None, *, now: float) -> None:
        """The answer to an inquiry: the last sequence that the target has of our producer.

        The batch of that sequence is sent once more: the target knows it as a repetition, and
        acknowledges it, and thereby all before it, when it is safely replicated.
        """
        self._out_of_sequence = False
        self.not_before = now + self.backoff.failed()
        if last_sequence is None:
            if not self.is_known:
                return  # it knows nothing of us, and nothing was ever acknowledged: begin again
        elif self._resumes_after(last_sequence):
            for outgoing in self._queue:
                written = _at_or_before(outgoing.last_sequence, last_sequence)
                outgoing.acknowledged = written and outgoing.last_sequence != last_sequence
            return
        if last_sequence is not None and _at_or_before(self.next_sequence, last_sequence):
            self.park("another mirror of this name is ahead", "let only one run")
            return
        self.suspect_target(
            "the target no longer has what it acknowledged: "
            f"it expects another sequence than {self._queue[0].base_sequence}",
            "compare both topics, and mirror into a new one if records are gone",
        )

    def _resumes_after(self, last_sequence: int) -> bool:
        ends = {sequence_after(self._queue[0].base_sequence, -1)}
        ends.update(outgoing.last_sequence for outgoing in self._queue)
        return last_sequence in ends

    def park(self, message: str, remedy: str) -> None:
        """Stop this partition for good."""
        if self.parked is None:
            self.parked = SystemFailure(f"{self.partition}: {message}", remedy=remedy)
            _log.error("%s is parked, others go on: %s (%s)", self.partition, message, remedy)
            self.forget_unsent()

    def suspect_target(self, message: str, remedy: str) -> None:
        """Send nothing until the target's topic id was compared; park if it is the same."""
        self.suspicion = self.suspicion or (message, remedy)

    def clear_suspicion(self) -> None:
        """The target's topic is the one that it was."""
        if self.suspicion is not None:
            self.has_lost_target = self._fell_back_to >= 0
            self.park(*self.suspicion)
            self.suspicion = None

    def _fall_back(self, offset: int) -> None:
        """A batch is at an offset below the end that the target has told of."""
        self._fell_back_to = offset
        self.suspect_target(
            f"the target has lost records that it acknowledged: a batch is at offset {offset}, "
            f"below {self.target_offset}",
            "compare both with `shoal mirror verify`; delete the target's topic to have it filled "
            "again",
        )

    def forget_unsent(self) -> None:
        """What cannot be at the target will not be sent; `position` goes back before it.

        What may be there stays until its result is known.
        """
        if self.rebatcher is not None:
            self.position = self.rebatcher.forget(self.position)
        unsent = 0
        for number, outgoing in enumerate(reversed(self._queue), start=1):
            if outgoing.may_be_written:
                break
            if not outgoing.is_inner:
                unsent = number  # the whole of a source's batch, never some pieces of it
        if unsent:
            self._cut_off(self._queue[-unsent])
        self._out_of_sequence &= bool(self._queue)

    def _cut_off(self, first: Outgoing) -> None:
        """Forget a batch and all behind it; they are read from the source again."""
        while self._queue:
            outgoing = self._queue.pop()
            self.queued_bytes -= outgoing.batch.size
            if outgoing is first:
                break
        self.position = first.source_offset
        self.next_sequence = max(0, first.base_sequence)
        if self.rebatcher is not None:
            self.rebatcher.forget(self.position)

    def _read_again(self, damaged: Outgoing) -> None:
        self._damaged = None
        if any(outgoing is damaged for outgoing in self._queue):
            self._cut_off(damaged)

    def _acknowledge(self, outgoing: Outgoing) -> None:
        outgoing.acknowledged = True
        while self._queue and self._queue[0].acknowledged:
            first = self._queue[0]
            if not first.is_inner:
                self._held = Mark(first.source_offset, first.base_sequence, self.target_offset)
            self._placed(first)
            self._drop_first()

    def _drop_first(self) -> None:
        """The first batch of the queue is at the target."""
        first = self._queue.popleft()
        if self.waiting is not None:
            _log.info("%s resumes: the target takes what it refused", self.partition)
            self.waiting = None
        if first.batch.size > self.limit_bytes:
            self.limit_bytes = 0  # it has been raised
        self._last_timestamp_ms = first.batch.max_timestamp
        self.queued_bytes -= first.batch.size
        self.counts.batches += 1
        self.counts.records += first.batch.record_count
        self.counts.bytes += first.batch.size

    def _placed(self, outgoing: Outgoing) -> None:
        """Follow the target's offsets; between two of our batches is nobody else's."""
        if outgoing.target_offset not in (-1, self.target_offset):
            if outgoing.target_offset < self.target_offset:
                self._fall_back(outgoing.target_offset)
            else:
                self._displaced(outgoing.target_offset, self.target_offset)
                self._fell_back_to = -1
            self.target_offset = outgoing.target_offset
        self._map(outgoing.spans)
        self.target_offset += outgoing.batch.record_count

    def _displaced(self, offset: int, expected: int) -> None:
        if not self.counts.displaced:
            text = "%s: somebody else writes to the target: a batch is at offset %d, not %d"
            _log.error(text, self.target, offset, expected)
        self.counts.displaced += 1

    def _map(self, spans: Sequence[Span]) -> None:
        if self.offsets is not None:
            self.offsets.add(spans, self.target_offset)

    def _refused(self, outgoing: Outgoing, result: ProduceResult, now: float) -> None:
        code = result.error_code
        if code in _OUT_OF_SEQUENCE:
            # Otherwise it stood behind one that was refused, and goes again in its turn.
            self._out_of_sequence |= outgoing is self._oldest_open()
            return
        if code == Code.CORRUPT_MESSAGE and self.is_poison(outgoing):
            return
        if code in TOO_LARGE:
            if outgoing.batch.record_count > 1:
                self._split(outgoing)
            else:
                self.wait_for_limit(outgoing, result.error(self.target), now)
            return
        if result.outcome is Outcome.FAILED and not facts_of(code).retriable:
            error = result.error(self.target)
            message = f"the target refuses the batch of {outgoing.source_offset}: {error}"
            self.park(message, remedy_for(code))
            return
        self.not_before = max(self.not_before, now + self.backoff.failed())

    def wait_for_limit(self, outgoing: Outgoing, error: ShoalError, now: float) -> None:
        """Try a record again later that is larger than the target's topic allows.

        The source's limit may have been raised: the target's follows with the next look at
        settings, and the partition resumes.
        """
        if self.waiting is None:
            message = f"the target refuses the record at {outgoing.source_offset}: {error}"
            self.waiting = SystemFailure(f"{self.partition}: {message}", remedy=LIMIT_REMEDY)
            _log.error("%s waits, others go on: %s (%s)", self.partition, message, LIMIT_REMEDY)
        self.is_waiting = True
        self.not_before = now + TRY_LIMIT_EVERY_S

    def try_again(self, now: float) -> bool:
        """Whether a record that waits may be tried again now."""
        if not self.is_waiting or now < self.not_before:
            return False
        self.is_waiting = False
        return True

    def _split(self, outgoing: Outgoing) -> None:
        """Put two batches in the place of one that the target calls too large."""
        self.learn_limit(outgoing.batch)
        first, second = halves(outgoing.batch)
        position = self._queue.index(outgoing)
        del self._queue[position]
        sequence, spans = outgoing.base_sequence, list(outgoing.spans)
        for number, piece in enumerate((first, second)):
            some, spans = cut_spans(spans, piece.record_count)
            new = Outgoing(
                piece,
                source_offset=outgoing.source_offset,
                base_sequence=sequence,
                is_inner=outgoing.is_inner or number > 0,
                is_re_encoded=True,
                spans=some,
            )
            new.tries, new.is_unsure = outgoing.tries, outgoing.is_unsure
            prepare(piece, self.identity, sequence)
            self._queue.insert(position + number, new)
            if sequence != NO_SEQUENCE:
                sequence = sequence_after(piece.last_sequence, 1)
        self.queued_bytes += first.size + second.size - outgoing.batch.size
        self.counts.split += 1

    def learn_limit(self, batch: Batch) -> None:
        """The target calls a batch of this size too large."""
        if not self.limit_bytes or batch.size <= self.limit_bytes:
            self.limit_bytes = batch.size - 1
            text = "%s: the target refuses batches of %d bytes: they are split and packed anew"
            _log.warning(text, self.target, batch.size)

    def is_poison(self, outgoing: Outgoing) -> bool:
        """Whether a batch is damaged; then the partition is parked, or it is read again."""
        try:
            outgoing.batch.check_crc()
        except CorruptBatch as error:
            self._found_damage(outgoing.source_offset, error)
            if self.parked is None and self._damaged is None:
                self._damaged = outgoing
            return True
        return False  # it was damaged on the way: another try may help


def _oldest_ms(batch: Batch) -> int:
    """The time of the first record; with LogAppendTime the maximum is the time of all."""
    is_stamped = batch.timestamp_type == LOG_APPEND_TIME
    return batch.max_timestamp if is_stamped else batch.base_timestamp


def _at_or_before(sequence: int, other: int) -> bool:
    """In the order of sequences, which wrap; the two are never far apart."""
    return ((other - sequence) & SEQUENCE_MASK) < SEQUENCE_MASK // 2
