"""The decisions of a transaction coordinator: requests and time in, decisions out. Pure.

Rules of this file:
- The decisions are Apache Kafka's.
- A decision changes no state. Its record is *pending* until it is committed and replayed, or was
  certainly not written (`forget_pending`). So after any failure, the state is what every later
  coordinator would load.
- A transactional id is *busy* while a change of it is pending and while the markers of its
  transaction are being written. Every request that would change it gets
  CONCURRENT_TRANSACTIONS, with any producer id and epoch: at that time a zombie cannot be
  distinguished from a producer that is ahead of this state. Only EndTxn of the first protocol
  compares id and epoch first. `tests/interop/transaction_table.tsv` has Apache Kafka's answer to
  every case.
- A request with a producer id or epoch that is not current is fenced. A producer that takes over
  (InitProducerId) raises the epoch; an open transaction is aborted first.
- A transaction ends with two records: *prepare* decides, and from then on nothing changes the
  outcome; *complete* says that all markers are written.
- An open transaction is aborted after its time-out, under a higher epoch: its producer may still
  be alive.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import NamedTuple

from shoal.lite.base.codes import Code
from shoal.lite.coordinator.transactions.model import (
    AT_REST,
    COMPLETE,
    NO_IDENTITY,
    NO_TIME_MS,
    PREPARED,
    SECOND_PROTOCOL,
    ProducerIdAndEpoch,
    Transaction,
    TxnState,
    is_exhausted,
)
from shoal.model.topics import TopicPartition
from shoal.wire.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID


class TransactionDecision(NamedTuple):
    """The answer to a request; if `write` is set, it is sent once that is committed."""

    code: Code = Code.NONE
    identity: ProducerIdAndEpoch = NO_IDENTITY
    write: Transaction | None = None
    # Call again with a new producer id: the epochs of the old one are exhausted.
    needs_producer_id: bool = False


@dataclass(frozen=True, slots=True)
class MachineSettings:
    """Settings of the broker, by Apache Kafka's names, dots as underscores."""

    transaction_max_timeout_ms: int = 900_000
    transactional_id_expiration_ms: int = 604_800_000


_NEEDS_PRODUCER_ID = TransactionDecision(needs_producer_id=True)


class TransactionMachine:
    """The transactional ids of one partition of `__transaction_state`."""

    def __init__(self, settings: MachineSettings) -> None:
        self.settings = settings
        self.transactions: dict[str, Transaction] = {}
        self._pending: dict[str, Transaction] = {}
        # When to check an id, earliest first; at most a few entries per id.
        self._due: list[tuple[int, str]] = []
        self._next_check_ms: dict[str, int] = {}

    # Committed records

    def replay(self, transactional_id: str, transaction: Transaction | None) -> None:
        """Apply a committed record of this id; None removes the id."""
        pending = self._pending.pop(transactional_id, None)
        if transaction is None:
            self.transactions.pop(transactional_id, None)
            return
        if pending is not None and replace(pending, last_epoch=NO_PRODUCER_EPOCH) == transaction:
            transaction = pending
        self.transactions[transactional_id] = transaction
        self._schedule_check(transactional_id, self._deadline_ms(transaction))

    def set_pending(self, transaction: Transaction) -> None:
        """Mark a decision as pending: its record is being written."""
        self._pending[transaction.transactional_id] = transaction

    def forget_pending(self, transactional_id: str) -> None:
        """Remove the pending decision: its record was certainly not written."""
        self._pending.pop(transactional_id, None)

    def is_pending(self, transactional_id: str) -> bool:
        return transactional_id in self._pending

    def is_busy(self, transactional_id: str) -> bool:
        """Return whether a change is pending or markers are being written."""
        known = self.transactions.get(transactional_id)
        return self.is_pending(transactional_id) or (known is not None and known.state in PREPARED)

    # InitProducerId

    def init(
        self,
        now_ms: int,
        transactional_id: str,
        timeout_ms: int,
        *,
        expected: ProducerIdAndEpoch | None,
        protocol: int,
        new_producer_id: int | None,
    ) -> TransactionDecision:
        """Let a producer take over an id. `expected` is its current identity, if it sent one.

        `protocol` is that of the cluster; an open transaction is aborted with it.
        """
        if not 0 < timeout_ms <= self.settings.transaction_max_timeout_ms:
            return TransactionDecision(Code.INVALID_TRANSACTION_TIMEOUT)
        if self.is_busy(transactional_id):
            return TransactionDecision(Code.CONCURRENT_TRANSACTIONS)
        known = self.transactions.get(transactional_id)
        if known is None:
            if new_producer_id is None:
                return _NEEDS_PRODUCER_ID
            fresh = Transaction(
                transactional_id, new_producer_id, 0, timeout_ms, TxnState.EMPTY, now_ms
            )
            return TransactionDecision(identity=fresh.identity, write=fresh)
        if expected is not None and not _may_continue(known, expected):
            return TransactionDecision(Code.PRODUCER_FENCED)
        if known.state is TxnState.ONGOING:
            # The producer must retry; it then gets an epoch above the fencing one.
            fence = _fence_and_abort(now_ms, known, protocol)
            return TransactionDecision(Code.CONCURRENT_TRANSACTIONS, write=fence)
        return _renew_producer(
            now_ms, known, timeout_ms, expected=expected, new_producer_id=new_producer_id
        )

    # Partitions

    def add_partitions(
        self,
        now_ms: int,
        transactional_id: str,
        identity: ProducerIdAndEpoch,
        partitions: Iterable[TopicPartition],
        *,
        protocol: int,
    ) -> TransactionDecision:
        """Add partitions to the transaction; a group is added by its offsets partition."""
        known = self.transactions.get(transactional_id)
        if known is None:
            return TransactionDecision(Code.INVALID_PRODUCER_ID_MAPPING)
        if self.is_busy(transactional_id):
            return TransactionDecision(Code.CONCURRENT_TRANSACTIONS)
        if (code := _check_producer(known, identity)) != Code.NONE:
            return TransactionDecision(code)
        wanted = frozenset(partitions)
        if known.state is TxnState.ONGOING and wanted <= known.partitions:
            return TransactionDecision()
        is_new = known.state is not TxnState.ONGOING
        joined = replace(
            known,
            state=TxnState.ONGOING,
            partitions=wanted if is_new else known.partitions | wanted,
            started_ms=now_ms if is_new else known.started_ms,
            updated_ms=now_ms,
            protocol=protocol,
        )
        return TransactionDecision(write=joined)

    def verify(
        self,
        transactional_id: str,
        identity: ProducerIdAndEpoch,
        partitions: Iterable[TopicPartition],
    ) -> Code | dict[TopicPartition, Code]:
        """Return whether partitions are in the transaction; their leaders ask for it."""
        known = self.transactions.get(transactional_id)
        if known is None:
            return Code.INVALID_PRODUCER_ID_MAPPING
        if (code := _check_producer(known, identity)) != Code.NONE:
            return code
        return {
            partition: Code.NONE if partition in known.partitions else Code.TRANSACTION_ABORTABLE
            for partition in partitions
        }

    # EndTxn

    def end(
        self,
        now_ms: int,
        transactional_id: str,
        identity: ProducerIdAndEpoch,
        *,
        is_commit: bool,
        protocol: int,
        new_producer_id: int | None,
    ) -> TransactionDecision:
        """Decide the outcome of a transaction; once that is committed, its markers are sent."""
        known = self.transactions.get(transactional_id)
        if known is None:
            return TransactionDecision(Code.INVALID_PRODUCER_ID_MAPPING)
        is_second, is_busy = protocol == SECOND_PROTOCOL, self.is_busy(transactional_id)
        if is_second and is_busy:
            return TransactionDecision(Code.CONCURRENT_TRANSACTIONS)
        is_retry = is_second and _is_retry(known, identity)
        is_after_overflow = is_retry and identity.producer_id == known.previous_producer_id
        if identity.producer_id != known.producer_id and not is_after_overflow:
            return TransactionDecision(Code.INVALID_PRODUCER_ID_MAPPING)
        if identity.epoch != known.epoch and not is_retry:
            return TransactionDecision(Code.PRODUCER_FENCED)
        if is_busy:
            return TransactionDecision(Code.CONCURRENT_TRANSACTIONS)
        if known.state is TxnState.ONGOING:
            return _prepare_end(
                now_ms,
                known,
                is_commit=is_commit,
                protocol=protocol,
                new_producer_id=new_producer_id,
            )
        if not is_second or is_retry:
            ends = {TxnState.COMPLETE_COMMIT: True, TxnState.COMPLETE_ABORT: False}
            if ends.get(known.state) is not is_commit:
                return TransactionDecision(Code.INVALID_TXN_STATE)
            return (
                TransactionDecision(identity=known.identity) if is_retry else TransactionDecision()
            )
        if is_commit:
            return TransactionDecision(Code.INVALID_TXN_STATE)
        # In the second protocol a producer may abort a transaction that it has not begun.
        fresh = replace(known, partitions=frozenset(), started_ms=NO_TIME_MS)
        return _prepare_end(
            now_ms, fresh, is_commit=False, protocol=protocol, new_producer_id=new_producer_id
        )

    def complete(self, now_ms: int, transactional_id: str) -> Transaction | None:
        """Return the record to write after all markers; None if nothing is prepared."""
        known = self.transactions.get(transactional_id)
        if known is None or known.state not in PREPARED or self.is_pending(transactional_id):
            return None
        return complete_prepared(now_ms, known)

    # Time

    def tick(self, now_ms: int) -> list[Transaction | str]:
        """Return what is due: aborts to write, and ids that have expired."""
        found: list[Transaction | str] = []
        while self._due and self._due[0][0] <= now_ms:
            check_ms, transactional_id = heappop(self._due)
            if self._next_check_ms.get(transactional_id) != check_ms:
                continue
            del self._next_check_ms[transactional_id]
            known = self.transactions.get(transactional_id)
            if known is None:
                continue
            deadline_ms = self._deadline_ms(known)
            if deadline_ms is None:
                continue
            if deadline_ms > now_ms or self.is_pending(transactional_id):
                self._schedule_check(transactional_id, max(deadline_ms, now_ms + 1))
            elif known.state is TxnState.ONGOING:
                found.append(_fence_and_abort(now_ms, known, known.protocol))
            else:
                found.append(transactional_id)
        return found

    def next_deadline_ms(self) -> int | None:
        return self._due[0][0] if self._due else None

    def schedule_check(self, transactional_id: str, at_ms: int) -> None:
        """Check an id again at a time: its record could not be written."""
        self._schedule_check(transactional_id, at_ms)

    def _deadline_ms(self, transaction: Transaction) -> int | None:
        if transaction.state is TxnState.ONGOING:
            return transaction.started_ms + transaction.timeout_ms
        if transaction.state in AT_REST:
            return transaction.updated_ms + self.settings.transactional_id_expiration_ms
        return None

    def _schedule_check(self, transactional_id: str, at_ms: int | None) -> None:
        if at_ms is None:
            return
        known_ms = self._next_check_ms.get(transactional_id)
        if known_ms is None or at_ms < known_ms:
            self._next_check_ms[transactional_id] = at_ms
            heappush(self._due, (at_ms, transactional_id))


def _check_producer(known: Transaction, identity: ProducerIdAndEpoch) -> Code:
    """Return the error for a producer that may not continue its transaction, or NONE."""
    if identity.producer_id != known.producer_id:
        return Code.INVALID_PRODUCER_ID_MAPPING
    if identity.epoch != known.epoch:
        return Code.PRODUCER_FENCED
    if known.state in PREPARED:
        return Code.CONCURRENT_TRANSACTIONS
    return Code.NONE


def _may_continue(known: Transaction, expected: ProducerIdAndEpoch) -> bool:
    """Return whether a producer's id may be current; its epoch is checked later.

    It may be the previous id, if its epochs are exhausted and the producer did not receive the
    new id.
    """
    return expected.producer_id == known.producer_id or (
        expected.producer_id == known.previous_producer_id and is_exhausted(expected.epoch)
    )


def _renew_producer(
    now_ms: int,
    known: Transaction,
    timeout_ms: int,
    *,
    expected: ProducerIdAndEpoch | None,
    new_producer_id: int | None,
) -> TransactionDecision:
    """Give a producer without an open transaction its next epoch or producer id."""
    epoch, last_epoch = known.epoch + 1, NO_PRODUCER_EPOCH
    producer_id, previous_id = known.producer_id, known.previous_producer_id
    if known.is_exhausted and (expected is None or expected.epoch == known.epoch):
        if new_producer_id is None:
            return _NEEDS_PRODUCER_ID
        producer_id, previous_id, epoch = new_producer_id, known.producer_id, 0
        last_epoch = NO_PRODUCER_EPOCH if expected is None else known.epoch
    elif expected is not None:
        if expected.epoch == known.epoch:
            last_epoch = known.epoch
        elif expected.epoch == known.last_epoch:
            # A retry: the answer to the same request was lost.
            epoch, last_epoch = known.epoch, known.last_epoch
        else:
            return TransactionDecision(Code.PRODUCER_FENCED)
    renewed = replace(
        known,
        producer_id=producer_id,
        epoch=epoch,
        timeout_ms=timeout_ms,
        state=TxnState.EMPTY,
        updated_ms=now_ms,
        started_ms=NO_TIME_MS,
        partitions=frozenset(),
        previous_producer_id=previous_id,
        last_epoch=last_epoch,
    )
    return TransactionDecision(identity=renewed.identity, write=renewed)


def _fence_and_abort(now_ms: int, known: Transaction, protocol: int) -> Transaction:
    """Return the abort of an open transaction under the next epoch, which fences its producer."""
    return replace(
        known,
        epoch=known.epoch + 1,
        # Until another producer takes over, it may continue with InitProducerId (KIP-588).
        last_epoch=known.epoch,
        state=TxnState.PREPARE_ABORT,
        updated_ms=now_ms,
        protocol=protocol,
    )


def _prepare_end(
    now_ms: int,
    known: Transaction,
    *,
    is_commit: bool,
    protocol: int,
    new_producer_id: int | None,
) -> TransactionDecision:
    prepared = replace(
        known,
        state=TxnState.PREPARE_COMMIT if is_commit else TxnState.PREPARE_ABORT,
        updated_ms=now_ms,
        started_ms=now_ms if known.started_ms == NO_TIME_MS else known.started_ms,
        protocol=protocol,
    )
    if protocol == SECOND_PROTOCOL:
        next_producer_id = NO_PRODUCER_ID
        if known.is_exhausted:
            if new_producer_id is None:
                return _NEEDS_PRODUCER_ID
            next_producer_id = new_producer_id
        prepared = replace(
            prepared,
            epoch=known.epoch + 1,
            last_epoch=known.epoch,
            next_producer_id=next_producer_id,
        )
    return TransactionDecision(
        identity=complete_prepared(now_ms, prepared).identity, write=prepared
    )


def complete_prepared(now_ms: int, prepared: Transaction) -> Transaction:
    """Return a prepared transaction as complete: all its markers are written."""
    is_commit = prepared.state is TxnState.PREPARE_COMMIT
    done = replace(
        prepared,
        state=TxnState.COMPLETE_COMMIT if is_commit else TxnState.COMPLETE_ABORT,
        partitions=frozenset(),
        updated_ms=now_ms,
    )
    if prepared.next_producer_id == NO_PRODUCER_ID:
        return done
    return replace(
        done,
        producer_id=prepared.next_producer_id,
        epoch=0,
        previous_producer_id=prepared.producer_id,
        next_producer_id=NO_PRODUCER_ID,
    )


def _is_retry(known: Transaction, identity: ProducerIdAndEpoch) -> bool:
    """Return whether a producer retries an EndTxn whose answer it did not receive."""
    if known.state not in COMPLETE:
        return False
    if identity.producer_id == known.producer_id:
        return identity.epoch + 1 == known.epoch
    return (
        identity.producer_id == known.previous_producer_id
        and is_exhausted(identity.epoch)
        and known.epoch == 0
    )
