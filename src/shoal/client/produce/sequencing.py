"""The batches of one partition between `send` and their outcome. Pure: responses and times are
arguments; methods return what to send next and which batches are decided.

Rules of this file:
- Outcomes are decided in the order of `add` where the broker allows it, and batches reach the log
  in that order (with sequences; without them a retry may overtake).
- A batch gets its sequence when it is first sent, and retries are identical to it. A sequence is
  reused only if its batch is certainly not in the log, and no later batch can be.
- After a failure nothing new is sent until all requests in flight are answered: the batches behind
  a refused one are answered as out of sequence, and are sent again in order.
- Until a broker has acknowledged the first batch under an identity, exactly one batch is in
  flight: a broker without state of a producer accepts any first sequence, so two batches in flight
  could leave a gap.
- A broker that restarted remembers only the last batch of a producer, and answers out of sequence
  for earlier ones. So a batch that may be in the log and gets that error is decided only when the
  batches behind it are answered: if one of them is acknowledged, all before it are in the log.
- A batch with an unknown outcome ends its identity (producer id and epoch), because the sequence
  that the broker expects is unknown too. Later batches that may be in the log are then unknown as
  well; under another identity they could be written twice.
"""

from collections import deque
from enum import Enum, auto
from typing import Final, NamedTuple

from shoal.client.codes import Code, facts_of
from shoal.client.results import ProduceResult
from shoal.client.transport.backoff import Backoff
from shoal.model.findings import Outcome
from shoal.model.topics import TopicPartition
from shoal.wire.batch import Batch, sequence_after

_OUT_OF_SEQUENCE: Final = frozenset({Code.OUT_OF_ORDER_SEQUENCE_NUMBER, Code.UNKNOWN_PRODUCER_ID})
UNSENT: Final = -1


class ProducerIdentity(NamedTuple):
    """The producer id and epoch under which batches are numbered."""

    producer_id: int
    epoch: int


class Mode(Enum):
    """What a broker does with a retried batch."""

    PLAIN = auto()  # writes it twice
    IDEMPOTENT = auto()  # detects it; a lost identity is replaced
    TRANSACTIONAL = auto()  # detects it; a lost identity fails the transaction


class PendingBatch:
    """One batch without an outcome yet. `result` is None until the outcome is decided."""

    __slots__ = (
        "base_sequence",
        "batch",
        "deadline",
        "is_in_flight",
        "last_failure",
        "may_be_written",
        "record_count",
        "result",
        "retries",
        "serial",
        "tp",
    )

    def __init__(
        self, tp: TopicPartition, batch: Batch, *, deadline: float, retries: bool = True
    ) -> None:
        """Without `retries` the first failure is final."""
        self.tp = tp
        self.batch = batch
        self.deadline = deadline
        self.retries = retries
        # The broker counts sequences by this number, which compaction does not change.
        self.record_count = batch.last_offset_delta + 1
        self.base_sequence = UNSENT
        self.serial = 0
        self.is_in_flight = False
        self.may_be_written = False
        self.last_failure: ProduceResult | None = None
        self.result: ProduceResult | None = None

    @property
    def is_in_doubt(self) -> bool:
        """Whether it may be in the log and its last error was out of sequence."""
        return (
            self.may_be_written
            and self.last_failure is not None
            and self.last_failure.error_code in _OUT_OF_SEQUENCE
        )

    def give_up(self, failure: ProduceResult) -> None:
        """Set the outcome, which depends on all attempts, not only the last."""
        outcome = Outcome.UNKNOWN if self.may_be_written else Outcome.FAILED
        self.result = failure._replace(outcome=outcome)


class PartitionQueue:
    """The batches of one partition, oldest first."""

    def __init__(
        self, tp: TopicPartition, mode: Mode, *, max_in_flight: int, backoff: Backoff
    ) -> None:
        self.tp = tp
        self.mode = mode
        self.not_before = 0.0
        self._max_in_flight = max_in_flight
        self._backoff = backoff
        self._batches: deque[PendingBatch] = deque()
        self._serial = 0
        self._in_flight = 0
        self._identity: ProducerIdentity | None = None
        self._next_sequence = 0
        self._is_established = False
        self._is_recovering = False
        # The oldest batch with a final error. Its sequence is free once nothing is in flight;
        # until then only batches before it are sent.
        self._rejected: PendingBatch | None = None

    @property
    def is_empty(self) -> bool:
        return not self._batches

    @property
    def in_flight(self) -> int:
        return self._in_flight

    @property
    def is_recovering(self) -> bool:
        """Whether a batch has failed and has not been sent again yet."""
        return self._is_recovering

    @property
    def needs_identity(self) -> bool:
        """Whether `set_identity` must be called before anything is sent."""
        return self.mode is not Mode.PLAIN and self._identity is None

    @property
    def next_deadline(self) -> float | None:
        """The deadline of the oldest batch that is not in flight."""
        return next((p.deadline for p in self._batches if not p.is_in_flight), None)

    def add(self, pending: PendingBatch) -> None:
        self._serial += 1
        pending.serial = self._serial
        self._batches.append(pending)

    def set_identity(self, identity: ProducerIdentity) -> None:
        """Number batches from 0 under a new identity. Nothing may be in flight."""
        assert not self._in_flight, "a batch under the old identity is still in flight"  # noqa: S101
        self._identity = identity
        self._next_sequence = 0
        self._is_established = False
        self._is_recovering = False
        self._rejected = None
        for pending in self._batches:
            pending.base_sequence = UNSENT

    def next_to_send(self, now: float) -> PendingBatch | None:
        """The batch that may be sent now, or None."""
        if now < self.not_before or self.needs_identity or not self._batches:
            return None
        if self._is_recovering and self._in_flight:
            return None
        is_first_of_identity = self.mode is not Mode.PLAIN and not self._is_established
        if self._in_flight >= (1 if is_first_of_identity else self._max_in_flight):
            return None
        pending = next((pending for pending in self._batches if not pending.is_in_flight), None)
        refused = self._rejected
        if pending is not None and refused is not None and pending.serial > refused.serial:
            return None
        return pending

    def mark_sent(self, pending: PendingBatch) -> None:
        """Record that a batch is sent now; sets identity and sequence in its header."""
        self._is_recovering = False
        pending.is_in_flight = True
        self._in_flight += 1
        if self._identity is None or pending.base_sequence != UNSENT:
            return
        pending.base_sequence = self._next_sequence
        self._next_sequence = sequence_after(self._next_sequence, pending.record_count)
        pending.batch.edit(
            producer_id=self._identity.producer_id,
            producer_epoch=self._identity.epoch,
            base_sequence=pending.base_sequence,
        )

    def on_result(
        self, pending: PendingBatch, result: ProduceResult, now: float
    ) -> list[PendingBatch]:
        """Process the result of one attempt; returns the batches that it decides."""
        if pending.result is not None:
            return []  # given up while it was in flight
        pending.is_in_flight = False
        self._in_flight -= 1
        if result.outcome is Outcome.OK or result.error_code == Code.NONE:
            decided = self._on_acknowledged(pending, result)
        else:
            decided = self._on_error(pending, result, now)
        return decided + self._settle()

    def expire(self, now: float) -> list[PendingBatch]:
        """Give up on batches that are not in flight and past their deadline."""
        decided: list[PendingBatch] = []
        for pending in list(self._batches):
            if pending.result is None and not pending.is_in_flight and pending.deadline <= now:
                decided += self._give_up(pending, pending.last_failure or _NO_TIME)
        return decided + self._settle()

    def abandon(self, failure: ProduceResult) -> list[PendingBatch]:
        """Give up on all batches; later responses are ignored."""
        decided = list(self._batches)
        for pending in decided:
            pending.may_be_written |= pending.is_in_flight
            pending.give_up(failure)
        self._batches.clear()
        self._in_flight = 0
        self._end_identity()
        return decided

    def _on_acknowledged(self, pending: PendingBatch, result: ProduceResult) -> list[PendingBatch]:
        self._batches.remove(pending)
        pending.result = result
        self._is_established = True
        self._backoff.reset()
        self.not_before = 0.0
        refused = self._rejected
        if refused is not None and pending.serial > refused.serial:
            # Written after a batch that was not: the sequences do not match the broker's.
            return [pending, *self._end_identity()]
        return [*self._settle_doubted_before(pending), pending]

    def _settle_doubted_before(self, pending: PendingBatch) -> list[PendingBatch]:
        """Settle batches in doubt as ok: they are in the log, because a later one is."""
        written = [
            p
            for p in self._batches
            if p.serial < pending.serial and p.is_in_doubt and not p.is_in_flight
        ]
        for earlier in written:
            self._batches.remove(earlier)
            earlier.result = ProduceResult(Outcome.OK)
        return written

    def _on_error(
        self, pending: PendingBatch, result: ProduceResult, now: float
    ) -> list[PendingBatch]:
        pending.may_be_written |= result.outcome is Outcome.UNKNOWN
        pending.last_failure = result
        is_first_failure = not self._is_recovering
        self._is_recovering = True
        if self.needs_identity and pending.may_be_written:
            return self._give_up(pending, result)
        if self.mode is not Mode.PLAIN and result.error_code in _OUT_OF_SEQUENCE:
            return self._on_out_of_sequence(pending, result)
        may_help = pending.retries and facts_of(result.error_code).retriable
        if not may_help or pending.deadline <= now:
            return self._give_up(pending, result)
        if is_first_failure:
            self.not_before = now + self._backoff.next_wait_s()
        return []

    def _on_out_of_sequence(
        self, pending: PendingBatch, result: ProduceResult
    ) -> list[PendingBatch]:
        refused = self._rejected
        is_behind = refused is not None and pending.serial > refused.serial
        if is_behind or pending is not self._batches[0]:
            return []  # caused by an earlier batch; it is sent again after that one
        if pending.may_be_written:
            return []  # later batches decide it
        if self.mode is Mode.TRANSACTIONAL:
            return self._give_up(pending, result)
        # It is not in the log, and the broker has lost the state: number from 0 again.
        return self._end_identity()

    def _give_up(self, pending: PendingBatch, failure: ProduceResult) -> list[PendingBatch]:
        self._batches.remove(pending)
        pending.give_up(failure)
        if pending.base_sequence == UNSENT:
            return [pending]
        if not pending.may_be_written:
            refused = self._rejected
            if refused is None or pending.serial < refused.serial:
                self._rejected = pending
            return [pending]
        return [pending, *self._end_identity()]

    def _end_identity(self) -> list[PendingBatch]:
        """Drop the identity; returns the batches that must not be sent under another one."""
        self._identity = None
        self._rejected = None
        doubtful = [p for p in self._batches if p.may_be_written and not p.is_in_flight]
        for pending in doubtful:
            self._batches.remove(pending)
            pending.give_up(pending.last_failure or _NO_TIME)
        return doubtful

    def _settle(self) -> list[PendingBatch]:
        """Once nothing is in flight: give up on batches in doubt, and free sequences."""
        if self._in_flight:
            return []
        decided: list[PendingBatch] = []
        head = self._batches[0] if self._batches else None
        if head is not None and head.is_in_doubt and not self._may_learn_more():
            decided = self._give_up(head, head.last_failure or _NO_TIME)
        refused = self._rejected
        if refused is not None:
            self._free_sequences_from(refused)
        return decided

    def _may_learn_more(self) -> bool:
        """Whether another attempt may acknowledge a batch behind those in doubt."""
        return any(pending.may_be_written and not pending.is_in_doubt for pending in self._batches)

    def _free_sequences_from(self, refused: PendingBatch) -> None:
        behind = [pending for pending in self._batches if pending.serial > refused.serial]
        if not any(pending.may_be_written for pending in behind):
            self._next_sequence = refused.base_sequence
            self._rejected = None
            for pending in behind:
                pending.base_sequence = UNSENT
        elif len(behind) == len(self._batches):
            # They are not in the log, because the one before them is not; but copies may still be
            # in flight, and a broker must not expect their sequences.
            for pending in behind:
                pending.may_be_written = False
            self._end_identity()


_NO_TIME: Final = ProduceResult(Outcome.FAILED, error_code=Code.REQUEST_TIMED_OUT)
