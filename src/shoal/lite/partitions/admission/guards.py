"""Transaction verification of a partition (KIP-890, part 1): which batches may open one. Pure.

The leader of a partition asks the coordinator before it writes the first batch of a transaction.
Between the answer and the append the transaction may end and its marker be written: then the batch
would open a transaction that is never ended (a hanging transaction). So a *verification guard*
exists from the request to the append, and the marker of its transaction removes it.

Rules of this file:
- A marker removes the guards of its own transaction and of earlier ones, by their epoch. In the
  second protocol a marker carries the epoch of the producer's next transaction; the guard of that
  next transaction stays.
- A producer with an older epoch than the log knows is fenced without asking the coordinator.
  Guards of different epochs coexist: a zombie must not remove the guard of its successor.
- A transactional batch is written if its producer's transaction is open here, or under a guard.
- In the second protocol every transaction has its own producer epoch, so its first batch in a
  partition has sequence 0; a later batch that arrives first is out of order.
"""

from dataclasses import dataclass

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.partitions.admission.producer_rules import check_epoch
from shoal.lite.storage.header import BatchHeader
from shoal.lite.storage.state.producer_state import ProducerStates


@dataclass(slots=True, eq=False)
class VerificationGuard:
    """The batches of one producer epoch for which the coordinator was asked."""

    epoch: int
    lowest_sequence: int
    begins_at_zero: bool


class VerificationGuards:
    """The guards of one partition, by producer."""

    __slots__ = ("_guards",)

    def __init__(self) -> None:
        # By producer id, then epoch.
        self._guards: dict[int, dict[int, VerificationGuard]] = {}

    def begin_verification(
        self, header: BatchHeader, producers: ProducerStates, *, begins_at_zero: bool
    ) -> VerificationGuard:
        """Return the guard for a batch before the coordinator is asked.

        Raise `ApiError` if the producer is fenced: then the coordinator need not be asked.
        """
        check_epoch(header, producers)
        guards = self._guards.setdefault(header.producer_id, {})
        guard = guards.get(header.producer_epoch)
        if guard is None:
            guard = VerificationGuard(header.producer_epoch, header.base_sequence, begins_at_zero)
            guards[guard.epoch] = guard
        guard.lowest_sequence = min(guard.lowest_sequence, header.base_sequence)
        return guard

    def check(
        self, header: BatchHeader, producers: ProducerStates, guard: VerificationGuard | None
    ) -> None:
        """Raise `ApiError` unless the batch belongs to an open or a verified transaction."""
        producer_id = header.producer_id
        if producers.has_open_transaction(producer_id, header.producer_epoch):
            return
        if producers.is_duplicate(header):
            return
        standing = self._guards.get(producer_id, {}).get(header.producer_epoch)
        if guard is None or standing is not guard:
            raise ApiError(Code.INVALID_TXN_STATE, "Record was not part of an ongoing transaction")
        is_late = guard.begins_at_zero and not producers.knows_batches_of(producer_id)
        if header.base_sequence > (0 if is_late else guard.lowest_sequence):
            raise ApiError(
                Code.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {producer_id}: sequence {header.base_sequence} is not the first of its "
                "transaction",
            )

    def drop(self, producer_id: int, epoch: int) -> None:
        """Remove the guards up to an epoch: its transaction is open in the log, or has ended."""
        guards = self._guards.get(producer_id)
        if guards is None:
            return
        for known in [known for known in guards if known <= epoch]:
            del guards[known]
        if not guards:
            del self._guards[producer_id]

    def clear(self) -> None:
        """Remove all guards: the leader epoch of this replica has ended."""
        self._guards.clear()
