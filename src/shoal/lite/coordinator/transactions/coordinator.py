"""The coordinator of the transactional ids of one partition of `__transaction_state`.

The thin shell around `TransactionMachine`: it writes the machine's decisions, answers when they
are committed, and ends prepared transactions.

Rules of this file:
- Every record is written through the shard's log: the machine changes by `replay` only.
- Once a prepare record is committed, a task sends the markers to all partitions and then writes
  the complete record. After a change of the coordinator, the new one continues from the record.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, Protocol

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.coordinator.loaded_shard import LoadedShard, NewRecord, NotWritten
from shoal.lite.coordinator.transactions.machine import (
    MachineSettings,
    TransactionDecision,
    TransactionMachine,
)
from shoal.lite.coordinator.transactions.markers import Marker
from shoal.lite.coordinator.transactions.model import (
    PREPARED,
    ProducerIdAndEpoch,
    Transaction,
    TxnState,
)
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


class CoordinatorServices(Protocol):
    """The part of a broker that a transaction coordinator uses."""

    @property
    def transaction_version(self) -> int: ...
    async def new_producer_id(self) -> int: ...
    async def deliver(self, marker: Marker, partitions: Iterable[TopicPartition]) -> None: ...


class TransactionCoordinator:
    """The shard of one partition; see `shoal.lite.coordinator.loaded_shard`."""

    def __init__(
        self,
        loaded: "LoadedShard[TransactionCoordinator]",
        services: CoordinatorServices,
        settings: MachineSettings,
    ) -> None:
        self.machine = TransactionMachine(settings)
        self._loaded = loaded
        self._services = services
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
                _logger.exception("cannot decode the record at offset %d", record.offset)

    def _replay(self, record: Record) -> None:
        transactional_id = None if record.key is None else decode_key(record.key)
        if transactional_id is None:
            return
        value = record.value
        transaction = None if value is None else decode_value(transactional_id, value)
        self.machine.replay(transactional_id, transaction)
        if self._is_active:
            self._finish_if_prepared(transactional_id)
            self._arm_timer()

    def start(self) -> None:
        self._is_active = True
        for transactional_id in list(self.machine.transactions):
            self._finish_if_prepared(transactional_id)
        self._arm_timer()

    def stop(self) -> None:
        self._is_active = False
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()

    # Requests; `ApiError` if the decision cannot be written

    async def init(
        self, transactional_id: str, timeout_ms: int, expected: ProducerIdAndEpoch | None
    ) -> TransactionDecision:
        """InitProducerId."""

        def decide(new_producer_id: int | None) -> TransactionDecision:
            return self.machine.init(
                wall_ms(),
                transactional_id,
                timeout_ms,
                expected=expected,
                protocol=self._services.transaction_version,
                new_producer_id=new_producer_id,
            )

        return await self._decide_and_write(decide)

    async def add_partitions(
        self,
        transactional_id: str,
        identity: ProducerIdAndEpoch,
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
        self, transactional_id: str, identity: ProducerIdAndEpoch, *, is_commit: bool, protocol: int
    ) -> TransactionDecision:
        """EndTxn: the outcome is decided when this returns; the markers are sent later."""

        def decide(new_producer_id: int | None) -> TransactionDecision:
            return self.machine.end(
                wall_ms(),
                transactional_id,
                identity,
                is_commit=is_commit,
                protocol=protocol,
                new_producer_id=new_producer_id,
            )

        return await self._decide_and_write(decide)

    async def _decide_and_write(
        self, decide: Callable[[int | None], TransactionDecision]
    ) -> TransactionDecision:
        decision = decide(None)
        if decision.needs_producer_id:
            # Other requests may change the state meanwhile, so decide again.
            decision = decide(await self._services.new_producer_id())
        if decision.write is not None:
            await self._write(decision.write)
        return decision

    async def _write(self, transaction: Transaction) -> None:
        version = 0 if self._services.transaction_version == 0 else 1
        record = NewRecord(
            encode_key(transaction.transactional_id), encode_value(transaction, version)
        )
        self.machine.set_pending(transaction)
        try:
            await self._loaded.append([record], timeout_ms=_WRITE_TIMEOUT_MS)
        except NotWritten:
            self.machine.forget_pending(transaction.transactional_id)
            raise

    # Ending transactions

    def _finish_if_prepared(self, transactional_id: str) -> None:
        """Start to end a transaction that is prepared."""
        transaction = self.machine.transactions.get(transactional_id)
        if transaction is not None and transaction.state in PREPARED:
            self._spawn(lambda: self._finish(transaction))

    def _spawn(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a task; restart it after an unexpected error, or a transaction would hang."""
        task = keep_running("end of a transaction", work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _finish(self, transaction: Transaction) -> None:
        marker = Marker(
            transaction.producer_id,
            transaction.epoch,
            transaction.state is TxnState.PREPARE_COMMIT,
            self._loaded.epoch,
            transaction.protocol,
        )
        try:
            await self._services.deliver(marker, transaction.partitions)
        except ApiError as error:
            _logger.warning(
                "transaction of %s is left to another coordinator: %s",
                transaction.transactional_id,
                error,
            )
            return
        while self._is_active:
            complete = self.machine.complete(wall_ms(), transaction.transactional_id)
            if complete is None:
                return
            try:
                await self._write(complete)
            except ApiError as error:
                _logger.info("%s: cannot write the complete record yet: %s", marker, error)
                await asyncio.sleep(_RETRY_S)

    # Time

    def _arm_timer(self) -> None:
        """Start the timer for the earliest deadline."""
        deadline_ms = self.machine.next_deadline_ms()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if deadline_ms is not None:
            # The wall clock may be adjusted; a check that is too early costs nothing.
            delay_s = min(max(0.001, (deadline_ms - wall_ms()) / 1000), _LONGEST_SLEEP_S)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        for due in self.machine.tick(wall_ms()):
            # Set it pending now, not when the task starts: no request may come between.
            if isinstance(due, str):
                self.machine.set_pending(self.machine.transactions[due])
                self._spawn(partial(self._forget, due))
            else:
                _logger.info(
                    "aborting the transaction of %s: its time-out has passed", due.transactional_id
                )
                self.machine.set_pending(due)
                self._spawn(partial(self._abort, due))
        self._arm_timer()

    async def _abort(self, transaction: Transaction) -> None:
        try:
            await self._write(transaction)
        except NotWritten:
            self._retry_later(transaction.transactional_id)
        except ApiError as error:
            _logger.warning("%s: %s", transaction.transactional_id, error)

    async def _forget(self, transactional_id: str) -> None:
        record = NewRecord(encode_key(transactional_id), None)
        try:
            await self._loaded.append([record], timeout_ms=_WRITE_TIMEOUT_MS)
        except NotWritten:
            self.machine.forget_pending(transactional_id)
            self._retry_later(transactional_id)
        except ApiError as error:
            _logger.warning("%s: %s", transactional_id, error)

    def _retry_later(self, transactional_id: str) -> None:
        self.machine.schedule_check(transactional_id, wall_ms() + int(_RETRY_S * 1000))
        self._arm_timer()


def wall_ms() -> int:
    """Return the wall clock time in milliseconds; all times in records use it."""
    return time.time_ns() // 1_000_000
