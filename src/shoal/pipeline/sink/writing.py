"""Writes the rows of one task, by Shoal's client.

Rules:
- Rows are read in a thread, so that batches on their way are answered while the JVM computes.
- A task ends when every batch is acknowledged. The first batch that is not fails the task; Spark
  runs it again, and batches of the failed attempt that were written stay: at least once.
- A task of an atomic write leaves its transaction open. An attempt that fails aborts its own.
"""

import asyncio
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

from shoal.audit.memory import keep_freed_memory
from shoal.client.client import Client
from shoal.client.codes import Code
from shoal.client.errors import error_for
from shoal.client.produce.producer import session_for
from shoal.client.produce.sender import Result
from shoal.client.produce.sequencing import ProducerIdentity
from shoal.client.produce.sessions import Session
from shoal.client.produce.transactions import TransactionalSession
from shoal.model.errors import SystemFailure
from shoal.model.topics import TopicPartition
from shoal.pipeline.sink.options import WriteQuery
from shoal.pipeline.sink.rows import Counts, SinkRows, StickyRows
from shoal.wire.records.compression import Codec


def write_rows(query: WriteQuery, batches: Iterator[Any]) -> int:
    """Write all rows; returns their number when they are acknowledged."""
    keep_freed_memory()
    return asyncio.run(_write(query, batches))


def write_in_transaction(
    query: WriteQuery, batches: Iterator[Any], transactional_id: str
) -> tuple[int, ProducerIdentity | None]:
    """Write all rows in a transaction that stays open; returns its producer, if any."""
    keep_freed_memory()
    return asyncio.run(_write_in_transaction(query, batches, transactional_id))


async def _write(query: WriteQuery, batches: Iterator[Any]) -> int:
    async with Client(dict(query.properties)) as client, session_for(client) as session:
        task = _TaskWriter(query, client, session)
        await task.write(batches)
        return task.written


async def _write_in_transaction(
    query: WriteQuery, batches: Iterator[Any], transactional_id: str
) -> tuple[int, ProducerIdentity | None]:
    async with (
        Client(dict(query.properties)) as client,
        TransactionalSession(client, transactional_id) as session,
    ):
        session.begin()
        task = _TaskWriter(query, client, session)
        await task.write(batches)
        # The coordinator does not know a transaction without batches.
        identity = await session.leave_open() if task.written else None
        return task.written, identity


class _TaskWriter:
    """The batches of one task, and which of them have no outcome yet."""

    def __init__(self, query: WriteQuery, client: Client, session: Session) -> None:
        self._query = query
        self._client = client
        self._session = session
        self._batch_bytes = max(client.config.batch_size, 1)
        self._codec = Codec[client.config.compression_type.upper()]
        self._sticky = StickyRows()
        self._pending: deque[tuple[TopicPartition, Result]] = deque()
        self.written = 0

    async def write(self, batches: Iterator[Any]) -> None:
        while (rows := await asyncio.to_thread(next, batches, None)) is not None:
            if rows.num_rows:
                await self._write_batch(SinkRows(rows, self._query.topic))
        await self._session.flush()
        self._check_outcomes()

    async def _write_batch(self, rows: SinkRows) -> None:
        counts = await self._count_partitions(rows.topics)
        partitions = rows.choose_partitions(counts, self._sticky, self._batch_bytes)
        for batch in rows.encode(
            partitions,
            codec=self._codec,
            batch_bytes=self._batch_bytes,
            now_ms=time.time_ns() // 1_000_000,
        ):
            self._pending.append((batch.log, await self._session.send(batch.log, batch.content)))
            self.written += batch.records
            # Let requests leave and answers arrive between two batches.
            await asyncio.sleep(0)
            self._check_outcomes()

    async def _count_partitions(self, topics: list[str]) -> Counts:
        counts = {}
        for topic in topics:
            cluster = await self._client.metadata([topic])
            found = len(cluster.partitions_of(topic))
            if not found:
                # Waits for topics that brokers create when they are first written.
                await self._client.leader(TopicPartition(topic, 0))
                found = len((await self._client.metadata([topic])).partitions_of(topic))
            if not found:
                raise error_for(Code.UNKNOWN_TOPIC_OR_PARTITION, topic=topic)
            counts[topic] = found
        return counts

    def _check_outcomes(self) -> None:
        """Raise for the first batch that was not written."""
        while self._pending and self._pending[0][1].done():
            log, future = self._pending.popleft()
            result = future.result()
            if result.is_ok:
                continue
            if result.error_code == Code.MESSAGE_TOO_LARGE:
                raise SystemFailure(
                    f"{log} refused a batch as too large: {result.error(log)}",
                    remedy="set kafka.batch.size below max.message.bytes of the topic; a row that"
                    " is larger cannot be written",
                )
            raise result.error(log)
