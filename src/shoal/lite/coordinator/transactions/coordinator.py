"""The coordinator of the transactional ids of one partition of `__transaction_state`.

The thin shell around `TransactionMachine`: writes what it decides, answers when that is
committed, and ends what is decided.

Rules of this file:
- Whatever is written is a `Shard`'s record: the machine learns of it by `replay` only.
- Once a decision is committed, a task brings its markers to all partitions and then writes that
  it is complete; after a change of the coordinator the new one does the same, from the record.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, Protocol

from shoal.lite.base.codes import Code, Refused
from shoal.lite.coordinator.loaded_shard import NewRecord, NotWritten, Seat
from shoal.lite.coordinator.transactions.machine import (
    Decision,
    MachineSettings,
    TransactionMachine,
)
from shoal.lite.coordinator.transactions.markers import Marker
from shoal.lite.coordinator.transactions.model import PREPARED, Identity, State, Transaction
from shoal.lite.coordinator.transactions.records import (
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from shoal.lite.storage.header import BatchHeader
from shoal.model.topics import TopicPartition
from shoal.runtime.tasks import keep_running
from shoal.wire.errors import WireError
from shoal.wire.records.records import Record

_WRITE_TIMEOUT_MS = 30_000
_RETRY_S = 0.1
_LONGEST_SLEEP_S = 3600.0
_logger = logging.getLogger(__name__)


class Surroundings(Protocol):
    """What a coordinator needs of its broker."""

    @property
    def transaction_version(self) -> int: ...
    async def new_producer_id(self) -> int: ...
    async def deliver(self, marker: Marker, partitions: Iterable[TopicPartition]) -> None: ...


class TransactionCoordinator:
    """A shard, see `shoal.lite.coordinator.loaded_shard`."""

    def __init__(
        self,
        seat: "Seat[TransactionCoordinator]",
        surroundings: Surroundings,
        settings: MachineSettings,
    ) -> None:
        self.machine = TransactionMachine(settings)
        self._seat = seat
        self._surroundings = surroundings
        self._is_active = False
        self._tasks: set[asyncio.Future[None]] = set()
        self._timer: asyncio.TimerHandle | None = None

    # Shard

    def replay(self, header: BatchHeader, records: Sequence[Record]) -> None:
        if header.is_control:
            return
        for record in records:
            try:
                self._replay(record)
            except (WireError, ValueError):
                _logger.exception("the record at %d cannot be read", record.offset)

    def _replay(self, record: Record) -> None:
        transactional_id = None if record.key is None else decode_key(record.key)
        if transactional_id is None:
            return
        value = record.value
        transaction = None if value is None else decode_value(transactional_id, value)
        self.machine.replay(transactional_id, transaction)
        if self._is_active:
            self._settle(transactional_id)
            self._arm()

    def start(self) -> None:
        self._is_active = True
        for transactional_id in list(self.machine.transactions):
            self._settle(transactional_id)
        self._arm()

    def stop(self) -> None:
        self._is_active = False
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()

    # Requests; `Refused` where the decision could not be written

    async def init(
        self, transactional_id: str, timeout_ms: int, expected: Identity | None
    ) -> Decision:
        """InitProducerId."""

        def decide(new_producer_id: int | None) -> Decision:
            return self.machine.init(
                wall_ms(),
                transactional_id,
                timeout_ms,
                expected=expected,
                protocol=self._surroundings.transaction_version,
                new_producer_id=new_producer_id,
            )

        return await self._decided(decide)

    async def add_partitions(
        self,
        transactional_id: str,
        identity: Identity,
        partitions: Iterable[TopicPartition],
        protocol: int,
    ) -> Code:
        """AddPartitionsToTxn and AddOffsetsToTxn."""
        decision = self.machine.add_partitions(
            wall_ms(), transactional_id, identity, partitions, protocol=protocol
        )
        if decision.write is not None:
            await self._write(decision.write)
        return decision.code

    async def end(
        self, transactional_id: str, identity: Identity, *, is_commit: bool, protocol: int
    ) -> Decision:
        """EndTxn: decided when this returns; the markers follow."""

        def decide(new_producer_id: int | None) -> Decision:
            return self.machine.end(
                wall_ms(),
                transactional_id,
                identity,
                is_commit=is_commit,
                protocol=protocol,
                new_producer_id=new_producer_id,
            )

        return await self._decided(decide)

    async def _decided(self, decide: Callable[[int | None], Decision]) -> Decision:
        decision = decide(None)
        if decision.needs_producer_id:
            # Others may ask meanwhile, so it is decided anew.
            decision = decide(await self._surroundings.new_producer_id())
        if decision.write is not None:
            await self._write(decision.write)
        return decision

    async def _write(self, transaction: Transaction) -> None:
        version = 0 if self._surroundings.transaction_version == 0 else 1
        record = NewRecord(
            encode_key(transaction.transactional_id), encode_value(transaction, version)
        )
        self.machine.pend(transaction)
        try:
            await self._seat.append([record], timeout_ms=_WRITE_TIMEOUT_MS)
        except NotWritten:
            self.machine.forget_pending(transaction.transactional_id)
            raise

    # What follows from a decision

    def _settle(self, transactional_id: str) -> None:
        """See to it that a decided transaction is ended."""
        transaction = self.machine.transactions.get(transactional_id)
        if transaction is not None and transaction.state in PREPARED:
            self._spawn(lambda: self._finish(transaction))

    def _spawn(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run work that ends; after an unexpected error again, or a transaction would hang."""
        task = keep_running("end of a transaction", work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _finish(self, transaction: Transaction) -> None:
        marker = Marker(
            transaction.producer_id,
            transaction.epoch,
            transaction.state is State.PREPARE_COMMIT,
            self._seat.epoch,
            transaction.protocol,
        )
        try:
            await self._surroundings.deliver(marker, transaction.partitions)
        except Refused as refused:
            _logger.warning("%s is left to another: %s", transaction.transactional_id, refused)
            return
        while self._is_active:
            complete = self.machine.complete(wall_ms(), transaction.transactional_id)
            if complete is None:
                return
            try:
                await self._write(complete)
            except Refused as refused:
                _logger.info("%s cannot be completed yet: %s", marker, refused)
                await asyncio.sleep(_RETRY_S)

    # Time

    def _arm(self) -> None:
        """One timer, for the earliest time-out."""
        deadline_ms = self.machine.next_deadline_ms()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if deadline_ms is not None:
            # Wall clocks may be set; a look too early costs nothing.
            delay_s = min(max(0.001, (deadline_ms - wall_ms()) / 1000), _LONGEST_SLEEP_S)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        for due in self.machine.tick(wall_ms()):
            # From now on, not from when the task gets its turn: nothing may come between.
            if isinstance(due, str):
                self.machine.pend(self.machine.transactions[due])
                self._spawn(partial(self._forget, due))
            else:
                _logger.info("%s is aborted, its time is over", due.transactional_id)
                self.machine.pend(due)
                self._spawn(partial(self._abort, due))
        self._arm()

    async def _abort(self, transaction: Transaction) -> None:
        try:
            await self._write(transaction)
        except NotWritten:
            self._look_again(transaction.transactional_id)
        except Refused as refused:
            _logger.warning("%s: %s", transaction.transactional_id, refused)

    async def _forget(self, transactional_id: str) -> None:
        record = NewRecord(encode_key(transactional_id), None)
        try:
            await self._seat.append([record], timeout_ms=_WRITE_TIMEOUT_MS)
        except NotWritten:
            self.machine.forget_pending(transactional_id)
            self._look_again(transactional_id)
        except Refused as refused:
            _logger.warning("%s: %s", transactional_id, refused)

    def _look_again(self, transactional_id: str) -> None:
        self.machine.look_again(transactional_id, wall_ms() + int(_RETRY_S * 1000))
        self._arm()


def wall_ms() -> int:
    """The clock of all times in records."""
    return time.time_ns() // 1_000_000
