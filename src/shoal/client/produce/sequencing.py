"""The batches of one partition of a producer between `send` and their outcome. Pure: responses and
times are arguments; methods return what to send next and which batches are decided.

Order, retries and the meaning of answers are those of `shoal.client.produce.sequenced_queue`. This
file adds what a producer promises: each batch gets an outcome, in time.

Rules of this file:
- Outcomes are decided in the order of `add` where the broker allows it, and batches reach the log
  in that order (with sequences; without them a retry may overtake).
- A batch gets its sequence when it is first sent, and retries are identical to it. A sequence is
  reused only if its batch is certainly not in the log, and no later batch can be.
- A broker that restarted remembers only the last batch of a producer, and answers out of sequence
  for earlier ones. So a batch that may be in the log and gets that error is decided only when the
  batches behind it are answered: if one of them is acknowledged, all before it are in the log.
- A batch with an unknown outcome ends its identity (producer id and epoch), because the sequence
  that the broker expects is unknown too. Later batches that may be in the log are then unknown as
  well; under another identity they could be written twice.
"""

import math
from enum import Enum
from typing import Final, NamedTuple

from shoal.client.codes import Code
from shoal.client.produce.sequenced_queue import (
    OUT_OF_SEQUENCE,
    Decision,
    QueuedBatch,
    SendPolicy,
    SequencedQueue,
)
from shoal.client.results import ProduceResult
from shoal.client.transport.backoff import Backoff
from shoal.model.findings import Outcome
from shoal.model.topics import TopicPartition
from shoal.wire.batch import NO_SEQUENCE, Batch


class ProducerIdentity(NamedTuple):
    """The producer id and epoch under which batches are numbered."""

    producer_id: int
    epoch: int


class Mode(Enum):
    """What a broker does with a retried batch."""

    # It writes it twice.
    PLAIN = SendPolicy(has_sequences=False)
    # It detects it; a lost identity is replaced.
    IDEMPOTENT = SendPolicy(
        has_sequences=True,
        if_not_written=Decision.CHANGE_IDENTITY,
        if_maybe_written=Decision.AWAIT_LATER,
        keeps_identity=False,
    )
    # It detects it; a lost identity fails the transaction.
    TRANSACTIONAL = SendPolicy(
        has_sequences=True,
        if_not_written=Decision.GIVE_UP,
        if_maybe_written=Decision.AWAIT_LATER,
        keeps_identity=False,
    )


class PendingBatch(QueuedBatch):
    """One batch without an outcome yet. `result` is None until the outcome is decided."""

    __slots__ = ("deadline", "last_failure", "record_count", "result", "retries", "serial", "tp")

    def __init__(
        self, tp: TopicPartition, batch: Batch, *, deadline: float, retries: bool = True
    ) -> None:
        """Without `retries` the first failure is final."""
        super().__init__(batch)
        self.tp = tp
        self.deadline = deadline
        self.retries = retries
        # The broker counts sequences by this number, which compaction does not change.
        self.record_count = batch.last_offset_delta + 1
        self.serial = 0
        self.last_failure: ProduceResult | None = None
        self.result: ProduceResult | None = None

    @property
    def is_in_doubt(self) -> bool:
        """Whether it may be in the log and its last error was out of sequence."""
        return (
            self.may_be_written
            and self.last_failure is not None
            and self.last_failure.error_code in OUT_OF_SEQUENCE
        )

    def give_up(self, failure: ProduceResult) -> None:
        """Set the outcome, which depends on all attempts, not only the last."""
        outcome = Outcome.UNKNOWN if self.may_be_written else Outcome.FAILED
        self.result = failure._replace(outcome=outcome)


class PartitionQueue(SequencedQueue[PendingBatch]):
    """The batches of one partition, oldest first."""

    def __init__(
        self, tp: TopicPartition, mode: Mode, *, max_in_flight: int, backoff: Backoff
    ) -> None:
        super().__init__(mode.value, max_in_flight=max_in_flight, backoff=backoff)
        self.tp = tp
        self.is_halted = self.policy.has_sequences
        self._serial = 0
        self._identity: ProducerIdentity | None = None
        # The oldest batch with a final error. Its sequence is free once nothing is in flight;
        # until then only batches before it are sent.
        self._rejected: PendingBatch | None = None

    @property
    def is_empty(self) -> bool:
        return not self.batches

    @property
    def next_deadline(self) -> float | None:
        """The deadline of the oldest batch that is not in flight."""
        return next((p.deadline for p in self.batches if not p.is_in_flight), None)

    def add(self, pending: PendingBatch) -> None:
        self._serial += 1
        pending.serial = self._serial
        self.batches.append(pending)

    def set_identity(self, identity: ProducerIdentity) -> None:
        """Number batches from 0 under a new identity. Nothing may be in flight."""
        assert not self.in_flight, "a batch under the old identity is still in flight"  # noqa: S101
        self._identity = identity
        self.next_sequence = 0
        self.is_halted = False
        self.is_established = False
        self.is_recovering = False
        self._rejected = None
        for pending in self.batches:
            pending.base_sequence = NO_SEQUENCE

    def next_to_send(self, now: float) -> PendingBatch | None:
        """The batch that may be sent now, or None."""
        pending = self.next_in_order(now)
        return None if pending is None or self._is_behind_rejected(pending) else pending

    def mark_sent(self, pending: PendingBatch) -> None:
        """Record that a batch is sent now; sets identity and sequence in its header."""
        self.begin_attempt(pending)
        if self._identity is None or pending.base_sequence != NO_SEQUENCE:
            return
        pending.batch.edit(
            producer_id=self._identity.producer_id,
            producer_epoch=self._identity.epoch,
            base_sequence=self.number(pending, pending.record_count),
        )

    def on_result(
        self, pending: PendingBatch, result: ProduceResult, now: float
    ) -> list[PendingBatch]:
        """Process the result of one attempt; returns the batches that it decides."""
        if pending.result is not None:
            return []  # given up while it was in flight
        decision = self.on_answer(pending, result, now)
        if pending.is_acknowledged:
            decided = self._on_acknowledged(pending, result)
        else:
            decided = self._on_error(pending, result, decision, now)
        return decided if self.in_flight else decided + self._settle()

    def expire(self, now: float) -> list[PendingBatch]:
        """Give up on batches that are not in flight and past their deadline."""
        decided: list[PendingBatch] = []
        for pending in list(self.batches):
            if pending.result is None and not pending.is_in_flight and pending.deadline <= now:
                decided += self._give_up(pending, pending.last_failure or _NO_TIME)
        return decided if self.in_flight else decided + self._settle()

    def abandon(self, failure: ProduceResult) -> list[PendingBatch]:
        """Give up on all batches; later responses are ignored."""
        decided = list(self.batches)
        for pending in decided:
            pending.may_be_written |= pending.is_in_flight
            pending.give_up(failure)
        self.batches.clear()
        self.in_flight = 0
        self._end_identity()
        return decided

    def _on_acknowledged(self, pending: PendingBatch, result: ProduceResult) -> list[PendingBatch]:
        self.batches.remove(pending)
        pending.result = result
        self.not_before = 0.0
        if self._is_behind_rejected(pending):
            # Written after a batch that was not: the sequences do not match the broker's.
            return [pending, *self._end_identity()]
        return [*self._settle_doubted_before(pending), pending]

    def _settle_doubted_before(self, pending: PendingBatch) -> list[PendingBatch]:
        """Settle batches in doubt as ok: they are in the log, because a later one is."""
        written = [
            p
            for p in self.batches
            if p.serial < pending.serial and p.is_in_doubt and not p.is_in_flight
        ]
        for earlier in written:
            self.batches.remove(earlier)
            earlier.result = ProduceResult(Outcome.OK)
        return written

    def _on_error(
        self, pending: PendingBatch, result: ProduceResult, decision: Decision, now: float
    ) -> list[PendingBatch]:
        pending.last_failure = result
        if decision is Decision.RETRY:
            if pending.retries and pending.deadline > now:
                self.back_off(now)
                return []
            decision = Decision.GIVE_UP
        if decision is Decision.GIVE_UP:
            return self._give_up(pending, result)
        if decision is Decision.AWAIT_LATER:
            self.forgotten_at = math.inf  # it has state, and those behind must be sent too
        return self._end_identity() if decision is Decision.CHANGE_IDENTITY else []

    def is_oldest(self, pending: PendingBatch) -> bool:
        return pending is self.batches[0] and not self._is_behind_rejected(pending)

    def _is_behind_rejected(self, pending: PendingBatch) -> bool:
        return self._rejected is not None and pending.serial > self._rejected.serial

    def _give_up(self, pending: PendingBatch, failure: ProduceResult) -> list[PendingBatch]:
        self.batches.remove(pending)
        pending.give_up(failure)
        if pending.base_sequence == NO_SEQUENCE:
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
        self.is_halted = self.policy.has_sequences
        self._rejected = None
        doubtful = [p for p in self.batches if p.may_be_written and not p.is_in_flight]
        for pending in doubtful:
            self.batches.remove(pending)
            pending.give_up(pending.last_failure or _NO_TIME)
        return doubtful

    def _settle(self) -> list[PendingBatch]:
        """Once nothing is in flight: give up on batches in doubt, and free sequences."""
        decided: list[PendingBatch] = []
        head = self.batches[0] if self.batches else None
        if head is not None and head.is_in_doubt and not self._may_learn_more():
            decided = self._give_up(head, head.last_failure or _NO_TIME)
        refused = self._rejected
        if refused is not None:
            self._free_sequences_from(refused)
        return decided

    def _may_learn_more(self) -> bool:
        """Whether another attempt may acknowledge a batch behind those in doubt."""
        return any(pending.may_be_written and not pending.is_in_doubt for pending in self.batches)

    def _free_sequences_from(self, refused: PendingBatch) -> None:
        behind = [pending for pending in self.batches if pending.serial > refused.serial]
        if not any(pending.may_be_written for pending in behind):
            self.next_sequence = refused.base_sequence
            self._rejected = None
            for pending in behind:
                pending.base_sequence = NO_SEQUENCE
        elif len(behind) == len(self.batches):
            # They are not in the log, because the one before them is not; but copies may still be
            # in flight, and a broker must not expect their sequences.
            for pending in behind:
                pending.may_be_written = False
            self._end_identity()


_NO_TIME: Final = ProduceResult(Outcome.FAILED, error_code=Code.REQUEST_TIMED_OUT)
