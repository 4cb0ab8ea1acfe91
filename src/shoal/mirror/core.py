"""One partition of a mirror: what was fetched goes in, what is to be sent comes out; pure.

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
  records, in whole batches. The last of them must be the target's last.
- `done` is the source offset below which everything is at the target or was dropped on
  purpose. It is what the mirror may claim.
- What cannot go on parks the partition with an error that says why; others go on.
"""

import logging
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Final, Self

from shoal.client.backoff import Backoff
from shoal.client.codes import Code, facts_of
from shoal.client.delivery import Identity
from shoal.client.isolation import Sieve, Standing
from shoal.client.results import ProduceResult
from shoal.mirror.handlers import BatchHandler, as_batch
from shoal.mirror.offset_map import MapWriter, Span
from shoal.mirror.rewrite import dense_copy, prepare, same_records
from shoal.model.errors import ShoalError, SystemFailure, WireError
from shoal.model.findings import Outcome
from shoal.model.topics import TopicPartition
from shoal.wire.batch import SEQUENCE_MASK, Batch, iter_batches, sequence_after
from shoal.wire.errors import CorruptBatch

# What a broker remembers of a producer: older repetitions it cannot tell from new batches.
IN_FLIGHT_LIMIT: Final = 5
_log = logging.getLogger(__name__)

_OUT_OF_SEQUENCE: Final = frozenset({Code.OUT_OF_ORDER_SEQUENCE_NUMBER, Code.UNKNOWN_PRODUCER_ID})


@dataclass(slots=True)
class Counts:
    """What was done so far."""

    batches: int = 0  # at the target
    records: int = 0
    bytes: int = 0
    trimmed: int = 0  # re-encoded: the fetch began inside the batch
    closed_gaps: int = 0  # re-encoded: compaction had taken records away
    changed: int = 0  # by the handler
    dropped_by_handler: int = 0
    dropped_aborted: int = 0
    dropped_control: int = 0
    dropped_empty: int = 0  # nothing was left in them
    resent: int = 0
    already_there: int = 0  # records that the target had from an earlier start
    displaced: int = 0  # batches not at the expected offset: somebody else writes there

    def __iadd__(self, other: "Counts") -> Self:
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))
        return self


class Outgoing:
    """One batch on its way."""

    __slots__ = (
        "acknowledged",
        "base_sequence",
        "batch",
        "in_flight",
        "source_offset",
        "spans",
        "target_offset",
        "tries",
    )

    def __init__(
        self, batch: Batch, *, source_offset: int, base_sequence: int, spans: Sequence[Span] = ()
    ) -> None:
        self.batch = batch
        self.source_offset = source_offset  # of the first record that it carries, or below
        self.spans = spans  # the source offsets of its records
        self.base_sequence = base_sequence
        self.target_offset = -1  # of its first record, once the target has told
        self.in_flight = False
        self.acknowledged = False
        self.tries = 0

    @property
    def last_sequence(self) -> int:
        return self.batch.last_sequence


@dataclass(slots=True)
class PartitionMirror:
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
    counts: Counts = field(default_factory=Counts)
    parked: ShoalError | None = None
    not_before: float = 0.0
    last_stable_offset: int = -1
    queued_bytes: int = 0
    _queue: deque[Outgoing] = field(default_factory=deque)
    _in_flight: int = 0
    _recovering: bool = False
    _out_of_sequence: bool = False

    @property
    def target(self) -> TopicPartition:
        return self.writes_to or self.partition

    @property
    def done(self) -> int:
        return self._queue[0].source_offset if self._queue else self.position

    @property
    def done_sequence(self) -> int:
        """The sequence of the first record that is not `done`."""
        return self._queue[0].base_sequence if self._queue else self.next_sequence

    @property
    def lag(self) -> int:
        """Source offsets that may be read and are not done; -1 while unknown."""
        return max(0, self.last_stable_offset - self.done) if self.last_stable_offset >= 0 else -1

    @property
    def in_flight(self) -> int:
        return self._in_flight

    @property
    def inquiring(self) -> bool:
        """Whether the target is to be asked for its last sequence, before anything is sent."""
        return self._out_of_sequence and not self._in_flight and self.parked is None

    # From the source.

    def fetched(
        self, records: memoryview, *, aborted: Iterable[tuple[int, int]], last_stable_offset: int
    ) -> None:
        """Take in one partition's part of a read-committed fetch from `position`."""
        self.last_stable_offset = last_stable_offset
        sieve = Sieve(aborted)
        try:
            for batch in iter_batches(records):
                if batch.last_offset >= self.position and self.parked is None:
                    self._take(batch, sieve.judge(batch))
        except WireError as error:
            self.park(
                f"the source's batch at offset {self.position} cannot be read: {error}",
                "look at the source with kafka-dump-log; the other partitions go on",
            )

    def _take(self, batch: Batch, standing: Standing) -> None:
        # Kept before the header is edited, which forgets it.
        base_offset, next_offset = batch.base_offset, batch.next_offset
        if standing is Standing.CONTROL:
            self.counts.dropped_control += 1
        elif standing is Standing.ABORTED:
            self.counts.dropped_aborted += 1
        else:
            complete, spans = self._complete(batch)
            ready = self._handled(complete)
            if self.parked is not None:
                return
            source_offset = max(base_offset, self.position)
            if ready is not None:
                if ready is not complete and ready.record_count != sum(s.records for s in spans):
                    spans = [Span(source_offset, next_offset - source_offset, ready.record_count)]
                if not self._accept(ready, spans, next_offset):
                    return
        self.position = next_offset

    def _complete(self, batch: Batch) -> tuple[Batch | None, list[Span]]:
        """The batch, or what must go in its place, and the source offsets of its records."""
        if batch.record_count == 0:
            self.counts.dropped_empty += 1
            return None, []
        if batch.base_offset < self.position:
            self.counts.trimmed += 1
        elif not batch.is_dense:
            self.counts.closed_gaps += 1
        else:
            return batch, [Span(batch.base_offset, batch.record_count, batch.record_count)]
        copied = dense_copy(batch, from_offset=self.position)
        if copied is None:
            self.counts.dropped_empty += 1
            return None, []
        return copied

    def _handled(self, batch: Batch | None) -> Batch | None:
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
            self.park(f"the handler failed on the batch at {self.position}: {error!r}", None)
            return None
        if not changed.is_dense or changed.is_control:
            self.park("the handler returned a batch with gaps, without records or of control", None)
            return None
        self.counts.changed += 1
        return changed

    def _accept(self, batch: Batch, spans: list[Span], next_offset: int) -> bool:
        """Number a batch, and queue it if the target does not have it; False if that fails."""
        prepare(batch, self.identity, self.next_sequence)
        if self.already_there:
            return self._pass_over(batch, spans)
        self._enqueue(
            Outgoing(
                batch,
                source_offset=spans[0].source,
                base_sequence=self.next_sequence,
                spans=spans,
            )
        )
        self.next_sequence = sequence_after(batch.last_sequence, 1)
        return True

    def _enqueue(self, outgoing: Outgoing) -> None:
        self._queue.append(outgoing)
        self.queued_bytes += outgoing.batch.size

    def _pass_over(self, batch: Batch, spans: list[Span]) -> bool:
        count = batch.record_count
        is_last = count == self.already_there
        is_other = is_last and self.tail is not None and not same_records(batch, self.tail)
        if count > self.already_there or is_other:
            self.park(
                f"the target's last {self.already_there} records are not those of the source at "
                f"{self.position}: batches there have changed since they were copied",
                "compare both with `shoal mirror verify`, and mirror into a new topic",
            )
            return False
        self.already_there -= count
        self.counts.already_there += count
        self._map(spans)
        self.target_offset += count
        self.next_sequence = sequence_after(batch.last_sequence, 1)
        if is_last:
            self.tail = None
        return True

    # To the target.

    def sendable(self, now: float) -> Outgoing | None:
        """The batch to send next, if one may be sent now."""
        if self.parked is not None or self._out_of_sequence or now < self.not_before:
            return None
        if self._recovering and self._in_flight:
            return None
        if self._in_flight >= (self.in_flight_limit if self.is_known else 1):
            return None
        return next((out for out in self._queue if not (out.in_flight or out.acknowledged)), None)

    def _oldest_open(self) -> Outgoing | None:
        return next((out for out in self._queue if not out.acknowledged), None)

    def sent(self, outgoing: Outgoing) -> None:
        self._recovering = False
        self.counts.resent += outgoing.tries > 0
        outgoing.tries += 1
        outgoing.in_flight = True
        self._in_flight += 1

    def answered(self, outgoing: Outgoing, result: ProduceResult, *, now: float) -> None:
        """What became of one try."""
        outgoing.in_flight = False
        self._in_flight -= 1
        if result.is_ok:
            self.is_known = True
            self.backoff.succeeded()
            outgoing.target_offset = result.base_offset
            self._acknowledge(outgoing)
        else:
            self._recovering = True
            self._refused(outgoing, result, now)

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
        self.park(
            "the target no longer has what it acknowledged: "
            f"it expects another sequence than {self._queue[0].base_sequence}",
            "compare both topics, and mirror into a new one if records are gone",
        )

    def _resumes_after(self, last_sequence: int) -> bool:
        ends = {sequence_after(self._queue[0].base_sequence, -1)}
        ends.update(outgoing.last_sequence for outgoing in self._queue)
        return last_sequence in ends

    def park(self, message: str, remedy: str | None) -> None:
        """Stop this partition for good."""
        if self.parked is None:
            self.parked = SystemFailure(f"{self.partition}: {message}", remedy=remedy)
            _log.error("%s is parked, others go on: %s", self.partition, message)
            self.forget_unsent()

    def forget_unsent(self) -> None:
        """Before the end: what was never sent will not be; `position` goes back before it."""
        while self._queue and not self._queue[-1].tries:
            outgoing = self._queue.pop()
            self.queued_bytes -= outgoing.batch.size
            self.position = outgoing.source_offset

    def _acknowledge(self, outgoing: Outgoing) -> None:
        outgoing.acknowledged = True
        while self._queue and self._queue[0].acknowledged:
            self._placed(self._queue[0])
            self._drop_first()

    def _drop_first(self) -> None:
        """The first batch of the queue is at the target."""
        first = self._queue.popleft()
        self.queued_bytes -= first.batch.size
        self.counts.batches += 1
        self.counts.records += first.batch.record_count
        self.counts.bytes += first.batch.size

    def _placed(self, outgoing: Outgoing) -> None:
        """Follow the target's offsets; between two of our batches is nobody else's."""
        if outgoing.target_offset not in (-1, self.target_offset):
            self._displaced(outgoing.target_offset, self.target_offset)
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
        if result.outcome is Outcome.FAILED and not facts_of(code).retriable:
            error = result.error(self.target)
            self.park(f"the target refuses the batch of {outgoing.source_offset}: {error}", None)
            return
        self.not_before = max(self.not_before, now + self.backoff.failed())

    def is_poison(self, outgoing: Outgoing) -> bool:
        try:
            outgoing.batch.check_crc()
        except CorruptBatch as error:
            self.park(
                f"the batch at source offset {outgoing.source_offset} is damaged: {error}",
                "it is damaged in the source's log; delete the records up to it, or skip it",
            )
            return True
        return False  # it was damaged on the way: another try may help


def _at_or_before(sequence: int, other: int) -> bool:
    """In the order of sequences, which wrap; the two are never far apart."""
    return ((other - sequence) & SEQUENCE_MASK) < SEQUENCE_MASK // 2
