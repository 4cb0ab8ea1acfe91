"""What a coordinator decides. Requests and time in, decisions out; the same as Apache Kafka's.

Rules of this file:
- A decision changes nothing. What it wants written is *pending* until the record is committed
  and comes back by `replay`, or was certainly not written (`forget_pending`). So whatever fails,
  the state is what every later coordinator would read.
- A transactional id is *busy* while a change of it is pending and while the markers of its
  transaction are being written. Every request that would change it is answered
  CONCURRENT_TRANSACTIONS, whatever its producer id and epoch: in that moment nobody can tell a
  zombie from a producer that is ahead of us. Only EndTxn of the first protocol compares id and
  epoch first. `tests/interop/transaction_table.tsv` has Apache Kafka's answer to every case.
- Whoever asks with another producer id or another epoch than the current one is out. A producer
  that takes over (InitProducerId) raises the epoch, and first aborts what is open.
- Ending is two records: *prepare* decides, and from then on nothing changes the outcome;
  *complete* says that all markers are written.
- An open transaction is aborted when its time is over, under a higher epoch: its producer may
  still be alive.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import NamedTuple

from shoal.lite.base.codes import Code
from shoal.lite.coordinator.transactions.model import (
    AT_REST,
    COMPLETE,
    NO_TIME_MS,
    NOBODY,
    PREPARED,
    SECOND_PROTOCOL,
    Identity,
    State,
    Transaction,
    is_exhausted,
)
from shoal.model.topics import TopicPartition
from shoal.wire.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID


class Decision(NamedTuple):
    """What to answer; if there is something to write, then once that is committed."""

    code: Code = Code.NONE
    identity: Identity = NOBODY
    write: Transaction | None = None
    # Ask again with a new producer id at hand: the epochs of the old one are used up.
    needs_producer_id: bool = False


@dataclass(frozen=True, slots=True)
class MachineSettings:
    """Settings of the broker, by Apache Kafka's names, dots as underscores."""

    transaction_max_timeout_ms: int = 900_000
    transactional_id_expiration_ms: int = 604_800_000


_NEEDS_PRODUCER_ID = Decision(needs_producer_id=True)


class TransactionMachine:
    """The transactional ids of one partition of `__transaction_state`."""

    def __init__(self, settings: MachineSettings) -> None:
        self.settings = settings
        self.transactions: dict[str, Transaction] = {}
        self._pending: dict[str, Transaction] = {}
        # When to look at an id, earliest first; at most a few entries for each.
        self._due: list[tuple[int, str]] = []
        self._next_look_ms: dict[str, int] = {}

    # Committed records

    def replay(self, transactional_id: str, transaction: Transaction | None) -> None:
        """A record of this id is committed; None forgets the id."""
        pending = self._pending.pop(transactional_id, None)
        if transaction is None:
            self.transactions.pop(transactional_id, None)
            return
        if pending is not None and replace(pending, last_epoch=NO_PRODUCER_EPOCH) == transaction:
            transaction = pending
        self.transactions[transactional_id] = transaction
        self._look_at(transactional_id, self._deadline_ms(transaction))

    def pend(self, transaction: Transaction) -> None:
        """A decision is on its way into the log."""
        self._pending[transaction.transactional_id] = transaction

    def forget_pending(self, transactional_id: str) -> None:
        """It certainly did not get there."""
        self._pending.pop(transactional_id, None)

    def is_pending(self, transactional_id: str) -> bool:
        return transactional_id in self._pending

    def is_busy(self, transactional_id: str) -> bool:
        """Whether a change is pending, or markers are being written."""
        known = self.transactions.get(transactional_id)
        return self.is_pending(transactional_id) or (known is not None and known.state in PREPARED)

    # InitProducerId

    def init(
        self,
        now_ms: int,
        transactional_id: str,
        timeout_ms: int,
        *,
        expected: Identity | None,
        protocol: int,
        new_producer_id: int | None,
    ) -> Decision:
        """Take over an id. `expected` is who the asking producer was so far, if it says so.

        `protocol` is that of the cluster: an open transaction is aborted by it.
        """
        if not 0 < timeout_ms <= self.settings.transaction_max_timeout_ms:
            return Decision(Code.INVALID_TRANSACTION_TIMEOUT)
        if self.is_busy(transactional_id):
            return Decision(Code.CONCURRENT_TRANSACTIONS)
        known = self.transactions.get(transactional_id)
        if known is None:
            if new_producer_id is None:
                return _NEEDS_PRODUCER_ID
            fresh = Transaction(
                transactional_id, new_producer_id, 0, timeout_ms, State.EMPTY, now_ms
            )
            return Decision(identity=fresh.identity, write=fresh)
        if expected is not None and not _may_continue(known, expected):
            return Decision(Code.PRODUCER_FENCED)
        if known.state is State.ONGOING:
            # The producer must come back, and gets an epoch above the one that fences.
            fence = _fenced(now_ms, known, protocol)
            return Decision(Code.CONCURRENT_TRANSACTIONS, write=fence)
        return _renewed(
            now_ms, known, timeout_ms, expected=expected, new_producer_id=new_producer_id
        )

    # Partitions

    def add_partitions(
        self,
        now_ms: int,
        transactional_id: str,
        identity: Identity,
        partitions: Iterable[TopicPartition],
        *,
        protocol: int,
    ) -> Decision:
        """Let partitions (or a group's, which stand for its offsets) join the transaction."""
        known = self.transactions.get(transactional_id)
        if known is None:
            return Decision(Code.INVALID_PRODUCER_ID_MAPPING)
        if self.is_busy(transactional_id):
            return Decision(Code.CONCURRENT_TRANSACTIONS)
        if (code := _objection(known, identity)) != Code.NONE:
            return Decision(code)
        wanted = frozenset(partitions)
        if known.state is State.ONGOING and wanted <= known.partitions:
            return Decision()
        is_new = known.state is not State.ONGOING
        joined = replace(
            known,
            state=State.ONGOING,
            partitions=wanted if is_new else known.partitions | wanted,
            started_ms=now_ms if is_new else known.started_ms,
            updated_ms=now_ms,
            protocol=protocol,
        )
        return Decision(write=joined)

    def verify(
        self, transactional_id: str, identity: Identity, partitions: Iterable[TopicPartition]
    ) -> Code | dict[TopicPartition, Code]:
        """Whether partitions are in the transaction, asked by their leaders."""
        known = self.transactions.get(transactional_id)
        if known is None:
            return Code.INVALID_PRODUCER_ID_MAPPING
        if (code := _objection(known, identity)) != Code.NONE:
            return code
        return {
            partition: Code.NONE if partition in known.partitions else Code.TRANSACTION_ABORTABLE
            for partition in partitions
        }

    # The end

    def end(
        self,
        now_ms: int,
        transactional_id: str,
        identity: Identity,
        *,
        is_commit: bool,
        protocol: int,
        new_producer_id: int | None,
    ) -> Decision:
        """Decide a transaction; once that is written, its markers are on their way."""
        known = self.transactions.get(transactional_id)
        if known is None:
            return Decision(Code.INVALID_PRODUCER_ID_MAPPING)
        is_second, is_busy = protocol == SECOND_PROTOCOL, self.is_busy(transactional_id)
        if is_second and is_busy:
            return Decision(Code.CONCURRENT_TRANSACTIONS)
        is_retry = is_second and _is_retry(known, identity)
        is_after_overflow = is_retry and identity.producer_id == known.previous_producer_id
        if identity.producer_id != known.producer_id and not is_after_overflow:
            return Decision(Code.INVALID_PRODUCER_ID_MAPPING)
        if identity.epoch != known.epoch and not is_retry:
            return Decision(Code.PRODUCER_FENCED)
        if is_busy:
            return Decision(Code.CONCURRENT_TRANSACTIONS)
        if known.state is State.ONGOING:
            return _decided(
                now_ms,
                known,
                is_commit=is_commit,
                protocol=protocol,
                new_producer_id=new_producer_id,
            )
        if not is_second or is_retry:
            ends = {State.COMPLETE_COMMIT: True, State.COMPLETE_ABORT: False}
            if ends.get(known.state) is not is_commit:
                return Decision(Code.INVALID_TXN_STATE)
            return Decision(identity=known.identity) if is_retry else Decision()
        if is_commit:
            return Decision(Code.INVALID_TXN_STATE)
        # By the second protocol a producer may abort what it has not begun.
        fresh = replace(known, partitions=frozenset(), started_ms=NO_TIME_MS)
        return _decided(
            now_ms, fresh, is_commit=False, protocol=protocol, new_producer_id=new_producer_id
        )

    def complete(self, now_ms: int, transactional_id: str) -> Transaction | None:
        """What to write once all markers are; None if there is nothing to complete."""
        known = self.transactions.get(transactional_id)
        if known is None or known.state not in PREPARED or self.is_pending(transactional_id):
            return None
        return completed(now_ms, known)

    # Time

    def tick(self, now_ms: int) -> list[Transaction | str]:
        """What time has brought: aborts to write, and ids to forget."""
        found: list[Transaction | str] = []
        while self._due and self._due[0][0] <= now_ms:
            look_ms, transactional_id = heappop(self._due)
            if self._next_look_ms.get(transactional_id) != look_ms:
                continue
            del self._next_look_ms[transactional_id]
            known = self.transactions.get(transactional_id)
            if known is None:
                continue
            deadline_ms = self._deadline_ms(known)
            if deadline_ms is None:
                continue
            if deadline_ms > now_ms or self.is_pending(transactional_id):
                self._look_at(transactional_id, max(deadline_ms, now_ms + 1))
            elif known.state is State.ONGOING:
                found.append(_fenced(now_ms, known, known.protocol))
            else:
                found.append(transactional_id)
        return found

    def next_deadline_ms(self) -> int | None:
        return self._due[0][0] if self._due else None

    def look_again(self, transactional_id: str, at_ms: int) -> None:
        """What time brought could not be written; look at it again."""
        self._look_at(transactional_id, at_ms)

    def _deadline_ms(self, transaction: Transaction) -> int | None:
        if transaction.state is State.ONGOING:
            return transaction.started_ms + transaction.timeout_ms
        if transaction.state in AT_REST:
            return transaction.updated_ms + self.settings.transactional_id_expiration_ms
        return None

    def _look_at(self, transactional_id: str, at_ms: int | None) -> None:
        if at_ms is None:
            return
        known_ms = self._next_look_ms.get(transactional_id)
        if known_ms is None or at_ms < known_ms:
            self._next_look_ms[transactional_id] = at_ms
            heappush(self._due, (at_ms, transactional_id))


def _objection(known: Transaction, identity: Identity) -> Code:
    """Why a producer may not go on with its transaction."""
    if identity.producer_id != known.producer_id:
        return Code.INVALID_PRODUCER_ID_MAPPING
    if identity.epoch != known.epoch:
        return Code.PRODUCER_FENCED
    if known.state in PREPARED:
        return Code.CONCURRENT_TRANSACTIONS
    return Code.NONE


def _may_continue(known: Transaction, expected: Identity) -> bool:
    """Whether a producer that says who it was may still be the one; its epoch is looked at later.

    Its id may be the one before, if its epochs were used up and it did not hear of the new one.
    """
    return expected.producer_id == known.producer_id or (
        expected.producer_id == known.previous_producer_id and is_exhausted(expected.epoch)
    )


def _renewed(
    now_ms: int,
    known: Transaction,
    timeout_ms: int,
    *,
    expected: Identity | None,
    new_producer_id: int | None,
) -> Decision:
    """The next epoch, or the next producer id, for a producer without an open transaction."""
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
            # The answer to the same question was lost.
            epoch, last_epoch = known.epoch, known.last_epoch
        else:
            return Decision(Code.PRODUCER_FENCED)
    renewed = replace(
        known,
        producer_id=producer_id,
        epoch=epoch,
        timeout_ms=timeout_ms,
        state=State.EMPTY,
        updated_ms=now_ms,
        started_ms=NO_TIME_MS,
        partitions=frozenset(),
        previous_producer_id=previous_id,
        last_epoch=last_epoch,
    )
    return Decision(identity=renewed.identity, write=renewed)


def _fenced(now_ms: int, known: Transaction, protocol: int) -> Transaction:
    """The abort of an open transaction whose producer is not asked."""
    return replace(
        known,
        epoch=known.epoch + 1,
        # Until another producer takes over, it may go on by InitProducerId (KIP-588).
        last_epoch=known.epoch,
        state=State.PREPARE_ABORT,
        updated_ms=now_ms,
        protocol=protocol,
    )


def _decided(
    now_ms: int,
    known: Transaction,
    *,
    is_commit: bool,
    protocol: int,
    new_producer_id: int | None,
) -> Decision:
    prepared = replace(
        known,
        state=State.PREPARE_COMMIT if is_commit else State.PREPARE_ABORT,
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
    return Decision(identity=completed(now_ms, prepared).identity, write=prepared)


def completed(now_ms: int, prepared: Transaction) -> Transaction:
    """A decided transaction, when all markers are written."""
    is_commit = prepared.state is State.PREPARE_COMMIT
    done = replace(
        prepared,
        state=State.COMPLETE_COMMIT if is_commit else State.COMPLETE_ABORT,
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


def _is_retry(known: Transaction, identity: Identity) -> bool:
    """Whether a producer ends what is ended already, because it did not hear of it."""
    if known.state not in COMPLETE:
        return False
    if identity.producer_id == known.producer_id:
        return identity.epoch + 1 == known.epoch
    return (
        identity.producer_id == known.previous_producer_id
        and is_exhausted(identity.epoch)
        and known.epoch == 0
    )
