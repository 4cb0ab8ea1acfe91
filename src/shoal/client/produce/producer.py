"""Producers of whole batches (`send.raw.bytes=true`) or of records, which they batch.

    async with Producer(client) as producer:
        result = await (await producer.send("topic", b"value", key=b"key"))
        result.outcome, result.offset

Rules of this file:
- The configuration selects the session: `transactional.id`, `enable.idempotence`, or neither. Its
  guarantees are in `sessions` and `transactions`.
- Records of one partition keep the order of their `send` calls: one task passes complete batches to
  the session, one after the other.
- `send` waits only while the session has no buffer space (`buffer.memory`); it returns a future
  that gets an outcome, never an error.
"""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from typing import Self

from shoal.client.cluster.router import Core
from shoal.client.codes import Code
from shoal.client.errors import ClientClosed, ClientError, error_for
from shoal.client.produce.partitioner import StickyPartitioner, partition_for_key
from shoal.client.produce.sender import Result
from shoal.client.produce.sessions import IdempotentSession, PlainSession, Session
from shoal.client.produce.transactions import TransactionalSession
from shoal.client.results import ProduceResult
from shoal.model.errors import ShoalError, UsageError
from shoal.model.findings import Outcome
from shoal.model.topics import TopicPartition
from shoal.runtime.context_managers import FlushesOnExit
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

# The most bytes of a record besides key, value and headers.
_RECORD_OVERHEAD_BYTES = 32


def session_for(core: Core) -> Session:
    """The session that the configuration selects."""
    if core.config.transactional_id:
        return TransactionalSession(core)
    if core.config.enable_idempotence:
        return IdempotentSession(core)
    return PlainSession(core)


class RawProducer(FlushesOnExit):
    """Sends whole batches, independent of `send.raw.bytes`."""

    def __init__(self, core: Core) -> None:
        self.session = session_for(core)

    async def __aenter__(self) -> Self:
        await self.session.start()
        return self

    async def send(self, topic: str, partition: int, batch: Part | Batch) -> Result:
        """Queue a batch; the future gets its outcome."""
        return await self.session.send(TopicPartition(topic, partition), batch)

    async def flush(self) -> None:
        """Wait until every batch has an outcome."""
        await self.session.flush()

    async def close(self) -> None:
        await self.session.close()


class _OpenBatch:
    """The records of one partition that are collected for the next batch."""

    __slots__ = ("records", "results", "size_bytes", "timer")

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.results: list[Result] = []
        self.size_bytes = 0
        self.timer: asyncio.Handle | None = None

    def set_results(self, outcome: Result) -> None:
        """Set the result of each record from the outcome of the batch."""
        batch_result = outcome.result()
        base = batch_result.base_offset
        for index, result in enumerate(self.results):
            if not result.done():
                offset = base + index if base >= 0 else base
                result.set_result(batch_result._replace(base_offset=offset))

    def fail(self, error: ShoalError) -> None:
        """Fail all records: they were not sent."""
        cause = error if isinstance(error, ClientError) else ClientError(str(error))
        failure = ProduceResult(Outcome.FAILED, Code.INVALID_REQUEST, cause=cause)
        for result in self.results:
            if not result.done():
                result.set_result(failure)


class Producer(FlushesOnExit):
    """Sends whole batches or records, depending on `send.raw.bytes`."""

    def __init__(self, core: Core) -> None:
        config = core.config
        self.session = session_for(core)
        self._core = core
        self._is_raw = config.send_raw_bytes
        self._codec = Codec[config.compression_type.upper()]
        self._linger_s = config.linger_ms / 1000
        self._batch_size = config.batch_size
        self._sticky = StickyPartitioner()
        self._open_batches: dict[TopicPartition, _OpenBatch] = {}
        self._complete: deque[tuple[TopicPartition, _OpenBatch]] = deque()
        self._submitting: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.session.start()
        return self

    async def send_batch(self, topic: str, partition: int, batch: Part | Batch) -> Result:
        """Queue a whole batch; needs `send.raw.bytes=true`."""
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
        """Queue a record; needs `send.raw.bytes=false`, which is the default."""
        if self._is_raw:
            raise UsageError(
                "send() takes records, but send.raw.bytes is true",
                remedy="set send.raw.bytes=false, or send whole batches with send_batch()",
            )
        if partition is None:
            partition = await self._choose_partition(topic, key)
        tp = TopicPartition(topic, partition)
        open_batch = self._open_batches.setdefault(tp, _OpenBatch())
        stamp = time.time_ns() // 1_000_000 if timestamp_ms is None else timestamp_ms
        record = Record(len(open_batch.records), stamp, key, value, tuple(headers))
        result: Result = asyncio.get_running_loop().create_future()
        open_batch.records.append(record)
        open_batch.results.append(result)
        open_batch.size_bytes += _size_bytes(record)
        if open_batch.size_bytes >= self._batch_size:
            self._seal(tp)
            await self._wait_for_room()
        elif open_batch.timer is None:
            loop = asyncio.get_running_loop()
            open_batch.timer = loop.call_later(self._linger_s, self._seal, tp)
        return result

    async def flush(self) -> None:
        """Wait until every record and batch sent so far has an outcome."""
        for tp in list(self._open_batches):
            self._seal(tp)
        while self._submitting is not None:
            await asyncio.shield(self._submitting)
        await self.session.flush()

    async def close(self) -> None:
        """Stop; records without an outcome fail."""
        for open_batch in self._open_batches.values():
            if open_batch.timer is not None:
                open_batch.timer.cancel()
        if self._submitting is not None:
            self._submitting.cancel()
            await asyncio.gather(self._submitting, return_exceptions=True)
        await self.session.close()
        for open_batch in (
            *self._open_batches.values(),
            *(open_batch for _, open_batch in self._complete),
        ):
            open_batch.fail(ClientClosed("the producer was closed before the record was sent"))

    async def _choose_partition(self, topic: str, key: bytes | None) -> int:
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
        """Complete the batch of a partition and queue it for the session."""
        open_batch = self._open_batches.pop(tp)
        if open_batch.timer is not None:
            open_batch.timer.cancel()
        self._sticky.on_batch_complete(tp.topic, tp.partition)
        self._complete.append((tp, open_batch))
        if self._submitting is None:
            self._submitting = run_awaited("batch submission", self._submit_complete())

    async def _wait_for_room(self) -> None:
        while self._complete and self._submitting is not None:
            await asyncio.shield(self._submitting)

    async def _submit_complete(self) -> None:
        try:
            while self._complete:
                tp, open_batch = self._complete[0]
                try:
                    batch = encode_batch(open_batch.records, codec=self._codec)
                    outcome = await self.session.send(tp, batch)
                except ShoalError as error:
                    open_batch.fail(error)
                except Exception as error:  # noqa: BLE001 - waiting callers must get the error
                    record_failure("batch submission", error, f"a batch for {tp} fails")
                    open_batch.fail(ClientError(f"internal error: {error!r}"))
                else:
                    outcome.add_done_callback(open_batch.set_results)
                self._complete.popleft()
        finally:
            self._submitting = None


def _size_bytes(record: Record) -> int:
    size = _RECORD_OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"")
    for name, value in record.headers:
        size += len(name) + len(value or b"") + 8
    return size
