"""Sends a producer's messages in transactions, some of which are aborted on purpose.

Rules:
- The number of a message determines its transaction. The ledger has the transaction, as open,
  before the message is sent: so after a kill it is known which messages were in a transaction that
  did not commit.
- The outcome of a message follows from its transaction: committed, its own outcome; aborted,
  failed; without a response, unknown. So it is recorded when the transaction has ended.
- Of every `abort_every` transactions the last is aborted. A transaction with an error is aborted
  too.
- Transactions are numbered within one lease of one producer; the numbers of other leases and
  producers differ.
"""

import hashlib
import time

import numpy as np

from shoal.model.findings import Outcome
from shoal.model.ledger import ABORTED, COMMITTED, FATES, OPEN
from shoal.workload.record.recorder import Recorder
from shoal.workload.send.drivers import Driver, PartResult
from shoal.workload.send.outbox import TopicOutbox
from shoal.workload.send.outcomes import AnsweredBatch
from shoal.workload.specs import ProducerSpec

_INDEX_BITS = 32


class ProducerTransactions:
    """The successive transactions of one producer under one lease."""

    def __init__(
        self,
        spec: ProducerSpec,
        driver: Driver,
        recorder: Recorder,
        outboxes: dict[str, TopicOutbox],
    ) -> None:
        self._spec = spec
        self._driver = driver
        self._recorder = recorder
        self._outboxes = outboxes
        self._first = {topic: outbox.first_number for topic, outbox in outboxes.items()}
        self._base = _first_transaction_number(spec, recorder.epoch)
        self._index = -1
        self._is_open = False
        self._held: list[AnsweredBatch] = []
        self.counts = dict.fromkeys(range(len(FATES)), 0)

    def begin_next(self) -> None:
        """Begin the next transaction, and let its messages be sent."""
        self._index += 1
        self._driver.begin()
        self._is_open = True
        end = (self._index + 1) * self._spec.transaction_messages
        for topic, outbox in self._outboxes.items():
            outbox.open_until = self._first[topic] + end

    @property
    def is_full(self) -> bool:
        """Whether all messages of the open transaction are taken."""
        return all(outbox.is_taken_below(outbox.open_until) for outbox in self._outboxes.values())

    def plan(self, topic: str, first_row: int, end_row: int) -> None:
        """Record the transaction of each message in these rows, before it is sent."""
        lanes = self._outboxes[topic].lanes
        numbers = np.arange(first_row * lanes, end_row * lanes, dtype=np.int64)
        places = (numbers - self._first[topic]) // self._spec.transaction_messages
        self._recorder.append(
            "transactions",
            producer=self._spec.producer,
            incarnation=self._spec.incarnation,
            topic=topic,
            lane=numbers % lanes,
            sequence=numbers // lanes,
            transaction=self._base + places,
            fate=OPEN,
            requested_us=-1,
        )

    def hold(self, answered: AnsweredBatch) -> None:
        """Keep the outcomes of a batch until the transaction has ended."""
        self._held.append(answered)

    async def end(self, *, may_commit: bool = True) -> list[AnsweredBatch]:
        """End the open transaction; return its messages with their final outcomes."""
        if not self._is_open:
            return []
        every = self._spec.abort_every
        is_planned = may_commit and not (every and (self._index + 1) % every == 0)
        is_commit = is_planned and all(
            part.result.outcome is Outcome.OK for held in self._held for part in held.parts
        )
        requested_us = time.time_ns() // 1000 if is_commit else -1
        fate = await self._driver.end(is_commit=is_commit)
        self._is_open = False
        self.counts[fate] += 1
        held, self._held = self._held, []
        for answered in held:
            self._record(answered, fate, requested_us)
        return [_apply_fate(answered, fate) for answered in held]

    def _record(self, answered: AnsweredBatch, fate: int, requested_us: int) -> None:
        self._recorder.append(
            "transactions",
            producer=self._spec.producer,
            incarnation=self._spec.incarnation,
            topic=answered.topic,
            lane=answered.planned.lanes,
            sequence=answered.planned.sequences,
            transaction=self._base + self._index,
            fate=fate,
            requested_us=requested_us,
        )


def _apply_fate(answered: AnsweredBatch, fate: int) -> AnsweredBatch:
    if fate == COMMITTED:
        return answered
    outcome = Outcome.FAILED if fate == ABORTED else Outcome.UNKNOWN
    parts = [PartResult(p.messages, p.result._replace(outcome=outcome), -1) for p in answered.parts]
    return answered._replace(parts=parts)


def _first_transaction_number(spec: ProducerSpec, epoch: int) -> int:
    """The number of the lease's first transaction: positive in 64 bits, with room for all."""
    name = f"{epoch}/{spec.incarnation}/{spec.producer}"
    digest = hashlib.blake2b(name.encode(), digest_size=4).digest()
    return (int.from_bytes(digest) >> 1) << _INDEX_BITS
