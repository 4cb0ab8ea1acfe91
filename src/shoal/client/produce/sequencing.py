"""One partition's batches between hand-over and outcome. Pure: answers and times in, and out
comes what to send next and what has been decided.

Rules of this file:
- Outcomes are decided in the order of hand-over as far as the broker lets us, and batches
  reach the log in that order (with numbering; without, a retry may overtake).
- A batch gets its sequence number when it is first sent and is repeated byte for byte. A
  number is given again only if the batch that had it is certainly not in the log, and nobody
  behind it can be.
- After any failure nothing new is sent until all that is in flight has come back: those behind
  a refused batch come back as out of sequence, and are sent again in order.
- Until a broker has acknowledged a first batch under an identity, exactly one is in flight: a
  broker that knows nothing of a producer accepts any first number, so two could leave a hole.
- A broker that restarted remembers the last batch of a producer only, and calls the ones before
  it out of sequence. So a batch that may be in the log and is called so has an outcome only
  when those behind it have come back: if one of them is acknowledged, all before it are there.
- A batch whose fate is unknown when we give up on it ends its identity (producer id and
  epoch), because what number the broker expects is unknown too. Batches behind it that may be
  in the log are then unknown as well; under another identity they could be written twice.
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


class Identity(NamedTuple):
    """Under which name batches are numbered."""

    producer_id: int
    epoch: int


class Mode(Enum):
    """What a repeated batch does at the broker."""

    PLAIN = auto()  # it is written twice
    IDEMPOTENT = auto()  # it is recognised; a lost identity is replaced
    TRANSACTIONAL = auto()  # it is recognised; a lost identity ends the transaction


class Parcel:
    """One batch on its way. `result` is None until its outcome is decided."""

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
        """Without `retries` the first failure is the last."""
        self.tp = tp
        self.batch = batch
        self.deadline = deadline
        self.retries = retries
        # What the broker counts sequences by, which compaction leaves as it was.
        self.record_count = batch.last_offset_delta + 1
        self.base_sequence = UNSENT
        self.serial = 0
        self.is_in_flight = False
        self.may_be_written = False
        self.last_failure: ProduceResult | None = None
        self.result: ProduceResult | None = None

    @property
    def is_doubted(self) -> bool:
        """Whether it may be in the log and was last called out of sequence."""
        return (
            self.may_be_written
            and self.last_failure is not None
            and self.last_failure.error_code in _OUT_OF_SEQUENCE
        )

    def give_up(self, failure: ProduceResult) -> None:
        """The outcome counts all tries, not only the last."""
        outcome = Outcome.UNKNOWN if self.may_be_written else Outcome.FAILED
        self.result = failure._replace(outcome=outcome)


class PartitionLine:
    """The batches of one partition, oldest first."""

    def __init__(
        self, tp: TopicPartition, mode: Mode, *, max_in_flight: int, backoff: Backoff
    ) -> None:
        self.tp = tp
        self.mode = mode
        self.not_before = 0.0
        self._max_in_flight = max_in_flight
        self._backoff = backoff
        self._parcels: deque[Parcel] = deque()
        self._serial = 0
        self._in_flight = 0
        self._identity: Identity | None = None
        self._next_sequence = 0
        self._is_established = False
        self._is_recovering = False
        # The oldest batch that was refused for good. Its number is free once all are back;
        # until then only what is before it is sent.
        self._refused_for_good: Parcel | None = None

    @property
    def is_empty(self) -> bool:
        return not self._parcels

    @property
    def in_flight(self) -> int:
        return self._in_flight

    @property
    def is_recovering(self) -> bool:
        """Whether the next batch to go is one that failed before, or comes after such a one."""
        return self._is_recovering

    @property
    def needs_identity(self) -> bool:
        """Whether nothing can be sent before `identify`."""
        return self.mode is not Mode.PLAIN and self._identity is None

    @property
    def next_deadline(self) -> float | None:
        """When the oldest batch that is not in flight is to be given up."""
        return next((p.deadline for p in self._parcels if not p.is_in_flight), None)

    def add(self, parcel: Parcel) -> None:
        self._serial += 1
        parcel.serial = self._serial
        self._parcels.append(parcel)

    def identify(self, identity: Identity) -> None:
        """Number batches from 0 under this identity. Nothing may be in flight."""
        assert not self._in_flight, "a batch under the old identity is still in flight"  # noqa: S101
        self._identity = identity
        self._next_sequence = 0
        self._is_established = False
        self._is_recovering = False
        self._refused_for_good = None
        for parcel in self._parcels:
            parcel.base_sequence = UNSENT

    def sendable(self, now: float) -> Parcel | None:
        """The batch that may be sent now, if there is one."""
        if now < self.not_before or self.needs_identity or not self._parcels:
            return None
        if self._is_recovering and self._in_flight:
            return None
        is_first_of_identity = self.mode is not Mode.PLAIN and not self._is_established
        if self._in_flight >= (1 if is_first_of_identity else self._max_in_flight):
            return None
        parcel = next((parcel for parcel in self._parcels if not parcel.is_in_flight), None)
        refused = self._refused_for_good
        if parcel is not None and refused is not None and parcel.serial > refused.serial:
            return None
        return parcel

    def sent(self, parcel: Parcel) -> None:
        """`parcel` leaves now; its header gets identity and number."""
        self._is_recovering = False
        parcel.is_in_flight = True
        self._in_flight += 1
        if self._identity is None or parcel.base_sequence != UNSENT:
            return
        parcel.base_sequence = self._next_sequence
        self._next_sequence = sequence_after(self._next_sequence, parcel.record_count)
        parcel.batch.edit(
            producer_id=self._identity.producer_id,
            producer_epoch=self._identity.epoch,
            base_sequence=parcel.base_sequence,
        )

    def answered(self, parcel: Parcel, result: ProduceResult, now: float) -> list[Parcel]:
        """Take in what came of one try; returns the batches that are decided by it."""
        if parcel.result is not None:
            return []  # abandoned while it was in flight
        parcel.is_in_flight = False
        self._in_flight -= 1
        if result.outcome is Outcome.OK or result.error_code == Code.NONE:
            decided = self._acknowledged(parcel, result)
        else:
            decided = self._refused(parcel, result, now)
        return decided + self._settle()

    def expire(self, now: float) -> list[Parcel]:
        """Give up on batches that are not in flight and whose time is over."""
        decided: list[Parcel] = []
        for parcel in list(self._parcels):
            if parcel.result is None and not parcel.is_in_flight and parcel.deadline <= now:
                decided += self._given_up(parcel, parcel.last_failure or _NO_TIME)
        return decided + self._settle()

    def abandon(self, failure: ProduceResult) -> list[Parcel]:
        """Give up on everything; answers that still come are ignored."""
        decided = list(self._parcels)
        for parcel in decided:
            parcel.may_be_written |= parcel.is_in_flight
            parcel.give_up(failure)
        self._parcels.clear()
        self._in_flight = 0
        self._end_identity()
        return decided

    def _acknowledged(self, parcel: Parcel, result: ProduceResult) -> list[Parcel]:
        self._parcels.remove(parcel)
        parcel.result = result
        self._is_established = True
        self._backoff.succeeded()
        self.not_before = 0.0
        refused = self._refused_for_good
        if refused is not None and parcel.serial > refused.serial:
            # Written behind one that was not: the numbers are not what we think they are.
            return [parcel, *self._end_identity()]
        return [*self._written_before(parcel), parcel]

    def _written_before(self, parcel: Parcel) -> list[Parcel]:
        """Batches that were doubted and must be in the log, since one behind them is."""
        written = [
            p
            for p in self._parcels
            if p.serial < parcel.serial and p.is_doubted and not p.is_in_flight
        ]
        for earlier in written:
            self._parcels.remove(earlier)
            earlier.result = ProduceResult(Outcome.OK)
        return written

    def _refused(self, parcel: Parcel, result: ProduceResult, now: float) -> list[Parcel]:
        parcel.may_be_written |= result.outcome is Outcome.UNKNOWN
        parcel.last_failure = result
        is_first_failure = not self._is_recovering
        self._is_recovering = True
        if self.needs_identity and parcel.may_be_written:
            return self._given_up(parcel, result)
        if self.mode is not Mode.PLAIN and result.error_code in _OUT_OF_SEQUENCE:
            return self._out_of_sequence(parcel, result)
        may_help = parcel.retries and facts_of(result.error_code).retriable
        if not may_help or parcel.deadline <= now:
            return self._given_up(parcel, result)
        if is_first_failure:
            self.not_before = now + self._backoff.failed()
        return []

    def _out_of_sequence(self, parcel: Parcel, result: ProduceResult) -> list[Parcel]:
        refused = self._refused_for_good
        is_behind = refused is not None and parcel.serial > refused.serial
        if is_behind or parcel is not self._parcels[0]:
            return []  # because of one before it; sent again in its turn
        if parcel.may_be_written:
            return []  # decided by those behind it
        if self.mode is Mode.TRANSACTIONAL:
            return self._given_up(parcel, result)
        # It is not in the log, and the broker has forgotten what was: number afresh.
        return self._end_identity()

    def _given_up(self, parcel: Parcel, failure: ProduceResult) -> list[Parcel]:
        self._parcels.remove(parcel)
        parcel.give_up(failure)
        if parcel.base_sequence == UNSENT:
            return [parcel]
        if not parcel.may_be_written:
            refused = self._refused_for_good
            if refused is None or parcel.serial < refused.serial:
                self._refused_for_good = parcel
            return [parcel]
        return [parcel, *self._end_identity()]

    def _end_identity(self) -> list[Parcel]:
        """Go on under another one; returns the batches that must not be sent under it."""
        self._identity = None
        self._refused_for_good = None
        doubtful = [p for p in self._parcels if p.may_be_written and not p.is_in_flight]
        for parcel in doubtful:
            self._parcels.remove(parcel)
            parcel.give_up(parcel.last_failure or _NO_TIME)
        return doubtful

    def _settle(self) -> list[Parcel]:
        """Once nothing is in flight: give up on what stayed in doubt, give numbers back."""
        if self._in_flight:
            return []
        decided: list[Parcel] = []
        head = self._parcels[0] if self._parcels else None
        if head is not None and head.is_doubted and not self._may_learn_more():
            decided = self._given_up(head, head.last_failure or _NO_TIME)
        refused = self._refused_for_good
        if refused is not None:
            self._free_numbers_from(refused)
        return decided

    def _may_learn_more(self) -> bool:
        """Whether another round may acknowledge one behind the doubted ones."""
        return any(parcel.may_be_written and not parcel.is_doubted for parcel in self._parcels)

    def _free_numbers_from(self, refused: Parcel) -> None:
        behind = [parcel for parcel in self._parcels if parcel.serial > refused.serial]
        if not any(parcel.may_be_written for parcel in behind):
            self._next_sequence = refused.base_sequence
            self._refused_for_good = None
            for parcel in behind:
                parcel.base_sequence = UNSENT
        elif len(behind) == len(self._parcels):
            # They are not in the log, for want of the one before them; but copies of them may
            # still be on the way, and must not find their numbers expected.
            for parcel in behind:
                parcel.may_be_written = False
            self._end_identity()


_NO_TIME: Final = ProduceResult(Outcome.FAILED, error_code=Code.REQUEST_TIMED_OUT)
