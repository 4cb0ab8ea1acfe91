"""The batches of one partition on their way to its leader: one queue for producer and mirror; pure.

    add ──► next_in_order ──► begin_attempt ──► on_answer ──► Decision: what its owner does
                 ▲                                               │
                 └─ another attempt, another identity, or the broker's last sequence

The owner of a queue (`shoal.client.produce.sequencing`, `shoal.mirror.copy.partition`) acts on
decisions: it reports outcomes, drops batches, splits them or stops. `SendPolicy` is what owners
differ in.

Rules of this file:
- Batches are sent in the order of `add`. After a failure nothing is sent until all requests in
  flight are answered: the batches behind a refused one are answered as out of sequence, and are
  sent again in order.
- Until a broker has acknowledged a batch of a producer, exactly one is in flight: a broker without
  state of a producer accepts any first sequence, so two batches in flight could leave a gap. The
  same holds once the broker may have forgotten the producer (`forgotten_at`).
- Out of sequence says something about the oldest batch only: the others follow a batch that failed.
  If the oldest one is, the broker's state of the producer is not the expected one, and the policy
  says what follows. Without sequences it is a refusal as any other: no broker answers so.
- A queue that is halted sends nothing until its owner knows which sequence the broker expects.
- All batches that failed in one recovery wait once.
"""

import math
from collections import deque
from enum import Enum, auto
from typing import Final, Generic, NamedTuple, TypeVar

from shoal.client.codes import Code, facts_of
from shoal.client.results import ProduceResult
from shoal.client.transport.backoff import Backoff
from shoal.model.findings import Outcome
from shoal.wire.batch import NO_SEQUENCE, SEQUENCE_MASK, Batch, sequence_after

# After such a pause a broker may have forgotten a producer: it expires producers by the timestamps
# of their last batch, which may be nearly as old as producer.id.expiration.ms (a day) allows.
REMEMBERED_S: Final = 600.0
OUT_OF_SEQUENCE: Final = frozenset({Code.OUT_OF_ORDER_SEQUENCE_NUMBER, Code.UNKNOWN_PRODUCER_ID})


class Decision(Enum):
    """What follows from the answer to one attempt."""

    ACKNOWLEDGED = auto()  # it is in the log
    RETRY = auto()  # send it again after a wait (`back_off`)
    RETRY_BEHIND = auto()  # send it again behind an earlier batch, which is the cause
    AWAIT_LATER = auto()  # the answers of batches behind it decide whether it is in the log
    CHANGE_IDENTITY = auto()  # it is not in the log: number it from 0 under another identity
    QUERY_LAST_SEQUENCE = auto()  # read from the broker which batches are in the log
    GIVE_UP = auto()  # do not send it again


class BrokerState(Enum):
    """What the broker's last sequence of a producer says about the batches of a queue."""

    FITS = auto()  # the queue continues after it
    AHEAD = auto()  # another process has sent more under this producer
    BEHIND = auto()  # acknowledged records are missing
    INSIDE = auto()  # another process has sent some of the records, in other batches


class SendPolicy(NamedTuple):
    """What the owners of queues differ in."""

    has_sequences: bool
    # The oldest batch is out of sequence: if no attempt can have written it, and if one may have.
    if_not_written: Decision = Decision.GIVE_UP
    if_maybe_written: Decision = Decision.GIVE_UP
    # Whether the producer id and epoch remain. If not, a batch that may be in the log must not be
    # sent under the next one: it could be written twice.
    keeps_identity: bool = True
    # Whether an unknown outcome is retried even if the code is not retriable.
    retries_unknown: bool = False


class QueuedBatch:
    """One batch that waits, is in flight, or is acknowledged before an earlier one."""

    __slots__ = ("base_sequence", "batch", "is_acknowledged", "is_in_flight", "may_be_written")

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.base_sequence = NO_SEQUENCE
        self.is_in_flight = False
        self.is_acknowledged = False
        self.may_be_written = False  # an attempt has an unknown outcome


BatchT = TypeVar("BatchT", bound=QueuedBatch)


class SequencedQueue(Generic[BatchT]):
    """The batches of one partition, oldest first."""

    __slots__ = (
        "_is_backing_off",
        "backoff",
        "batches",
        "forgotten_at",
        "in_flight",
        "is_established",
        "is_halted",
        "is_recovering",
        "max_in_flight",
        "next_sequence",
        "not_before",
        "policy",
        "remembered_s",
    )

    def __init__(self, policy: SendPolicy, *, max_in_flight: int, backoff: Backoff) -> None:
        self.policy = policy
        self.max_in_flight = max_in_flight
        self.backoff = backoff
        self.batches: deque[BatchT] = deque()
        self.in_flight = 0
        self.next_sequence = 0
        self.not_before = 0.0
        # Whether a broker has had state of the producer; always, without sequences.
        self.is_established = not policy.has_sequences
        # How long it surely keeps that state after an acknowledgement.
        self.remembered_s = REMEMBERED_S if policy.has_sequences else math.inf
        self.forgotten_at = math.inf
        self.is_halted = False
        self.is_recovering = False  # a batch has failed, and none was sent since
        self._is_backing_off = False

    def add(self, queued: BatchT) -> None:
        self.batches.append(queued)

    def number(self, queued: BatchT, count: int) -> int:
        """Give a batch the next `count` sequences; returns the first."""
        sequence = queued.base_sequence = self.next_sequence
        self.next_sequence = (sequence + count) & SEQUENCE_MASK
        return sequence

    def next_in_order(self, now: float) -> BatchT | None:
        """The batch to send next, or None if nothing can be sent now."""
        if now < self.not_before or self.is_halted:
            return None
        in_flight = self.in_flight
        if in_flight and self.is_recovering:
            return None
        is_known = self.is_established and now < self.forgotten_at
        if in_flight >= (self.max_in_flight if is_known else 1):
            return None
        for queued in self.batches:
            if not (queued.is_in_flight or queued.is_acknowledged):
                return queued
        return None

    def begin_attempt(self, queued: BatchT) -> None:
        """Record that a batch is sent now."""
        self.is_recovering = self._is_backing_off = False
        queued.is_in_flight = True
        self.in_flight += 1

    def on_answer(self, queued: BatchT, result: ProduceResult, now: float) -> Decision:
        """Process the result of one attempt; the owner acts on the decision."""
        queued.is_in_flight = False
        self.in_flight -= 1
        # Without acks the outcome is unknown, and no other answer follows.
        if result.outcome is _OK or result.error_code == Code.NONE:
            queued.is_acknowledged = True
            self.is_established = True
            self.forgotten_at = now + self.remembered_s
            self.backoff.reset()
            return _ACKNOWLEDGED
        self.is_recovering = True
        queued.may_be_written |= result.outcome is Outcome.UNKNOWN
        decision = decide(
            self.policy,
            result,
            is_oldest=self.is_oldest(queued),
            is_halted=self.is_halted,
            may_be_written=queued.may_be_written,
        )
        if decision in _HALTING:
            self.is_halted = True
        return decision

    def is_oldest(self, queued: BatchT) -> bool:
        """Whether all batches before this one are acknowledged."""
        return queued is next((each for each in self.batches if not each.is_acknowledged), None)

    def back_off(self, now: float) -> None:
        """Wait before the next attempt; once for all batches that failed together."""
        if not self._is_backing_off:
            self._is_backing_off = True
            self.not_before = max(self.not_before, now + self.backoff.next_wait_s())

    @property
    def needs_broker_state(self) -> bool:
        """Whether the owner must find out which sequence the broker expects."""
        return self.is_halted and not self.in_flight

    def on_last_sequence(self, last_sequence: int | None) -> BrokerState:
        """Continue after the broker's last sequence of this producer; None if it has no state.

        The batch with that sequence is sent again: the broker detects the duplicate and
        acknowledges it, and so all batches before it, once it is replicated.
        """
        self.is_halted = False
        if not self.batches:
            return BrokerState.FITS  # they were dropped, and will be sent again
        if last_sequence is None:
            # Without state, and if nothing was acknowledged, the broker accepts the first batch.
            return BrokerState.BEHIND if self.is_established else BrokerState.FITS
        ends = {each.batch.last_sequence for each in self.batches}
        if last_sequence in ends | {sequence_after(self.batches[0].base_sequence, -1)}:
            for queued in self.batches:
                last = queued.batch.last_sequence
                queued.is_acknowledged = last != last_sequence and _is_at_or_before(
                    last, last_sequence
                )
            return BrokerState.FITS
        if _is_at_or_before(self.next_sequence, last_sequence):
            return BrokerState.AHEAD
        is_inside = _is_at_or_before(self.batches[0].base_sequence, last_sequence)
        return BrokerState.INSIDE if is_inside else BrokerState.BEHIND


def decide(
    policy: SendPolicy,
    result: ProduceResult,
    *,
    is_oldest: bool,
    is_halted: bool,
    may_be_written: bool,
) -> Decision:
    """What follows from an error, for a batch in this state (after this attempt)."""
    if is_halted and may_be_written and not policy.keeps_identity:
        return Decision.GIVE_UP
    code = result.error_code
    if policy.has_sequences and code in OUT_OF_SEQUENCE:
        if not is_oldest:
            return Decision.RETRY_BEHIND
        return policy.if_maybe_written if may_be_written else policy.if_not_written
    may_help = facts_of(code).retriable or (
        policy.retries_unknown and result.outcome is Outcome.UNKNOWN
    )
    return Decision.RETRY if may_help else Decision.GIVE_UP


def _is_at_or_before(sequence: int, other: int) -> bool:
    """Compare two sequences, which wrap around; they are never far apart."""
    return ((other - sequence) & SEQUENCE_MASK) < SEQUENCE_MASK // 2


# Looking up a member of an enum takes as long as a call, for each batch.
_OK: Final = Outcome.OK
_ACKNOWLEDGED: Final = Decision.ACKNOWLEDGED
_HALTING: Final = frozenset({Decision.CHANGE_IDENTITY, Decision.QUERY_LAST_SEQUENCE})
