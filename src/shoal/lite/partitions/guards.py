"""Which producers a partition may let begin a transaction (KIP-890, the first part). Pure.

The leader of a partition asks the coordinator before a transaction's first batch is written.
Between the answer and the writing the transaction may have ended, and its marker be written:
then the batch would begin a transaction that nobody ever ends. So a *guard* stands from the
question to the writing, and the marker of its transaction takes it away.

Rules of this file:
- A marker takes away the guards of its own transaction and of earlier ones, by their epoch. By the
  second protocol it carries the epoch that follows its transaction, which is that of the next:
  a guard of the next transaction stays.
- A producer that the log knows at a later epoch is fenced without a question. Guards of different
  epochs stand side by side: a zombie must not take away the guard of its successor.
- A transactional batch is written if its producer's transaction is open here, or under a guard.
- By the second protocol every transaction has an epoch of its own, so its first batch here has
  sequence 0; a later one that overtook it is out of order.
"""

from dataclasses import dataclass

from shoal.lite.base.codes import Code, Refused
from shoal.lite.storage.header import BatchHeader
from shoal.lite.storage.state.producer_state import ProducerStates


@dataclass(slots=True, eq=False)
class Guard:
    """What is known of the batches for which the coordinator was asked."""

    epoch: int
    lowest_sequence: int
    begins_at_zero: bool


class Guards:
    """The guards of one partition, by producer."""

    __slots__ = ("_guards",)

    def __init__(self) -> None:
        # By producer id, then epoch.
        self._guards: dict[int, dict[int, Guard]] = {}

    def stand(
        self, header: BatchHeader, producers: ProducerStates, *, begins_at_zero: bool
    ) -> Guard:
        """The coordinator is about to be asked for this batch; `Refused` if that is needless."""
        producers.check_epoch(header.producer_id, header.producer_epoch)
        guards = self._guards.setdefault(header.producer_id, {})
        guard = guards.get(header.producer_epoch)
        if guard is None:
            guard = Guard(header.producer_epoch, header.base_sequence, begins_at_zero)
            guards[guard.epoch] = guard
        guard.lowest_sequence = min(guard.lowest_sequence, header.base_sequence)
        return guard

    def check(self, header: BatchHeader, producers: ProducerStates, guard: Guard | None) -> None:
        """`Refused` unless the batch belongs to a transaction that is known to be open."""
        producer_id = header.producer_id
        if producers.has_open_transaction(producer_id, header.producer_epoch):
            return
        if producers.is_duplicate(header):
            return
        standing = self._guards.get(producer_id, {}).get(header.producer_epoch)
        if guard is None or standing is not guard:
            raise Refused(Code.INVALID_TXN_STATE, "Record was not part of an ongoing transaction")
        is_late = guard.begins_at_zero and not producers.knows_batches_of(producer_id)
        if header.base_sequence > (0 if is_late else guard.lowest_sequence):
            raise Refused(
                Code.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {producer_id}: sequence {header.base_sequence} is not the first of its "
                "transaction",
            )

    def drop(self, producer_id: int, epoch: int) -> None:
        """The transaction of this epoch is open in the log, or has ended."""
        guards = self._guards.get(producer_id)
        if guards is None:
            return
        for known in [known for known in guards if known <= epoch]:
            del guards[known]
        if not guards:
            del self._guards[producer_id]

    def clear(self) -> None:
        """This replica leads no more, or anew."""
        self._guards.clear()
