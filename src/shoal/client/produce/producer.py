"""Writing: whole batches (`send.raw.bytes=true`) or records that are made into batches here.

    async with Producer(client) as producer:
        result = await (await producer.send("topic", b"value", key=b"key"))
        result.outcome, result.offset

Rules of this file:
- Which session carries the batches follows the configuration: `transactional.id`,
  `enable.idempotence`, or neither. Its promises are in `sessions` and `transactions`.
- Records of one partition keep the order in which they were sent: complete batches are handed
  over by one task, one after the other.
- `send` waits only while the session has no room (`buffer.memory`); what it returns is a
  future that gets an outcome, never an error.
"""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from shoal.client.cluster.router import Core
from shoal.client.codes import Code
from shoal.client.errors import ClientClosed, ClientError, error_for
from shoal.client.produce.partitioner import StickyChoice, partition_for_key
from shoal.client.produce.sender import Result
from shoal.client.produce.sessions import IdempotentSession, PlainSession, Session
from shoal.client.produce.transactions import TransactionalSession
from shoal.client.results import ProduceResult
from shoal.model.errors import ShoalError, UsageError
from shoal.model.findings import Outcome
from shoal.model.topics import TopicPartition
from shoal.runtime.tasks import record_failure, run_awaited
from shoal.wire.batch import Batch
from shoal.wire.framing import Part
from shoal.wire.records.compression import Codec
from shoal.wire.records.records import Header, Record, encode_batch

__all__ = [
    "IdempotentSession",
    "PlainSession",
    "Producer",
    "RawProducer",
    "Session",
    "TransactionalSession",
    "session_for",
]

# What a record costs beside key, value and headers, at most.
_RECORD_OVERHEAD_BYTES = 32


def session_for(core: Core) -> Session:
    """The session that the configuration asks for."""
    if core.config.transactional_id:
        return TransactionalSession(core)
    if core.config.enable_idempotence:
        return IdempotentSession(core)
    return PlainSession(core)


class RawProducer:
    """Passes whole batches on, whatever `send.raw.bytes` says."""

    def __init__(self, core: Core) -> None:
        self.session = session_for(core)

    async def __aenter__(self) -> Self:
        await self.session.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.session.__aexit__(kind, error, traceback)

    async def send(self, topic: str, partition: int, batch: Part | Batch) -> Result:
        """Take a batch on; the future gets its outcome."""
        return await self.session.send(TopicPartition(topic, partition), batch)

    async def flush(self) -> None:
        """Wait until everything has an outcome."""
        await self.session.flush()


class _Pile:
    """The records of one partition that are not a batch yet."""

    __slots__ = ("records", "results", "size_bytes", "timer")

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.results: list[Result] = []
        self.size_bytes = 0
        self.timer: asyncio.Handle | None = None

    def tell(self, outcome: Result) -> None:
        """Give each record its part of the batch's outcome."""
        batch_result = outcome.result()
        base = batch_result.base_offset
        for index, result in enumerate(self.results):
            if not result.done():
                offset = base + index if base >= 0 else base
                result.set_result(batch_result._replace(base_offset=offset))

    def fail(self, error: ShoalError) -> None:
        """It never left us."""
        cause = error if isinstance(error, ClientError) else ClientError(str(error))
        failure = ProduceResult(Outcome.FAILED, Code.INVALID_REQUEST, cause=cause)
        for result in self.results:
            if not result.done():
                result.set_result(failure)


class Producer:
    """Takes what `send.raw.bytes` asks for: whole batches, or records."""

    def __init__(self, core: Core) -> None:
        config = core.config
        self.session = session_for(core)
        self._core = core
        self._is_raw = config.send_raw_bytes
        self._codec = Codec[config.compression_type.upper()]
        self._linger_s = config.linger_ms / 1000
        self._batch_size = config.batch_size
        self._sticky = StickyChoice()
        self._piles: dict[TopicPartition, _Pile] = {}
        self._complete: deque[tuple[TopicPartition, _Pile]] = deque()
        self._handing_over: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.session.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                await self.flush()
        finally:
            await self.close()

    async def send_batch(self, topic: str, partition: int, batch: Part | Batch) -> Result:
        """Take a whole batch on; needs `send.raw.bytes=true`."""
        if not self._is_raw:
            raise UsageError(
                "send_batch() takes whole batches, but send.raw.bytes is false",
                remedy="set send.raw.bytes=true, or send records with send()",
            )
        return await self.session.send(TopicPartition(topic, partition), batch)

    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[Header] = (),
    ) -> Result:
        """Take a record on; needs `send.raw.bytes=false`, which is the default."""
        if self._is_raw:
            raise UsageError(
                "send() takes records, but send.raw.bytes is true",
                remedy="set send.raw.bytes=false, or send whole batches with send_batch()",
            )
        if partition is None:
            partition = await self._choose(topic, key)
        tp = TopicPartition(topic, partition)
        pile = self._piles.setdefault(tp, _Pile())
        stamp = time.time_ns() // 1_000_000 if timestamp_ms is None else timestamp_ms
        record = Record(len(pile.records), stamp, key, value, tuple(headers))
        result: Result = asyncio.get_running_loop().create_future()
        pile.records.append(record)
        pile.results.append(result)
        pile.size_bytes += _size_bytes(record)
        if pile.size_bytes >= self._batch_size:
            self._seal(tp)
            await self._room()
        elif pile.timer is None:
            loop = asyncio.get_running_loop()
            pile.timer = loop.call_later(self._linger_s, self._seal, tp)
        return result

    async def flush(self) -> None:
        """Wait until everything sent so far has an outcome."""
        for tp in list(self._piles):
            self._seal(tp)
        while self._handing_over is not None:
            await asyncio.shield(self._handing_over)
        await self.session.flush()

    async def close(self) -> None:
        """Stop; what has no outcome is given up."""
        for pile in self._piles.values():
            if pile.timer is not None:
                pile.timer.cancel()
        if self._handing_over is not None:
            self._handing_over.cancel()
            await asyncio.gather(self._handing_over, return_exceptions=True)
        await self.session.close()
        for pile in (*self._piles.values(), *(pile for _, pile in self._complete)):
            pile.fail(ClientClosed("the producer was closed before the record was sent"))

    async def _choose(self, topic: str, key: bytes | None) -> int:
        cluster = await self._core.metadata([topic])
        known = cluster.topics.get(topic)
        if known is None or not known.partitions:
            await self._core.leader(TopicPartition(topic, 0))
            known = self._core.cluster.topics.get(topic)
            if known is None or not known.partitions:
                raise error_for(Code.UNKNOWN_TOPIC_OR_PARTITION, topic=topic)
        count = len(known.partitions)
        if key is not None:
            return partition_for_key(key, count)
        return self._sticky.partition(topic, count)

    def _seal(self, tp: TopicPartition) -> None:
        """Make a batch of what has piled up; from here on it is sent in its turn."""
        pile = self._piles.pop(tp)
        if pile.timer is not None:
            pile.timer.cancel()
        self._sticky.sealed(tp.topic, tp.partition)
        self._complete.append((tp, pile))
        if self._handing_over is None:
            self._handing_over = run_awaited("batch hand-over", self._hand_over())

    async def _room(self) -> None:
        while self._complete and self._handing_over is not None:
            await asyncio.shield(self._handing_over)

    async def _hand_over(self) -> None:
        try:
            while self._complete:
                tp, pile = self._complete[0]
                try:
                    batch = encode_batch(pile.records, codec=self._codec)
                    outcome = await self.session.send(tp, batch)
                except ShoalError as error:
                    pile.fail(error)
                except Exception as error:  # noqa: BLE001 - those who wait must hear of it
                    record_failure("batch hand-over", error, f"a batch for {tp} fails")
                    pile.fail(ClientError(f"internal error: {error!r}"))
                else:
                    outcome.add_done_callback(pile.tell)
                self._complete.popleft()
        finally:
            self._handing_over = None


def _size_bytes(record: Record) -> int:
    size = _RECORD_OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"")
    for name, value in record.headers:
        size += len(name) + len(value or b"") + 8
    return size
