"""Who carries a producer's messages: our own client (`raw`), or librdkafka (`confluent`).

Rules:
- A driver takes the messages of one partition at once and answers with what became of them, as
  a future that never fails: one result for all of them, or parts.
- What is refused before it leaves has failed; what the client cannot tell is unknown.
- Transactions: `begin`, send, `end`. The end is committed, aborted, or open, which also means
  that nobody knows; after that the driver can begin again, under the same transactional id.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

import numpy as np

from shoal.client.client import Client
from shoal.client.errors import ClientError
from shoal.client.produce.producer import IdempotentSession, PlainSession, Session
from shoal.client.produce.transaction_state import Phase
from shoal.client.produce.transactions import TransactionalSession
from shoal.client.results import ProduceResult
from shoal.model.findings import Outcome
from shoal.model.ledger import ABORTED, COMMITTED, OPEN
from shoal.model.topics import TopicPartition
from shoal.wire.batch import Batch
from shoal.wire.records.columns import encode_columns
from shoal.wire.records.compression import Codec
from shoal.workload.envelope_columns import WrittenMessages
from shoal.workload.specs import ProducerSpec


class Part(NamedTuple):
    """What became of some messages in a row."""

    messages: int
    result: ProduceResult
    acked_us: int  # -1: not acknowledged


Answer = asyncio.Future[ProduceResult] | asyncio.Future[list[Part]]


class Driver(Protocol):
    """Carries the messages of one producer."""

    @property
    def most_unanswered(self) -> int:
        """How many shares of one partition may wait for an answer at a time."""

    async def start(self) -> None:
        """Be ready to send; fences an older producer of the same transactional id."""

    async def send(
        self, log: TopicPartition, messages: WrittenMessages, sent_ns: int
    ) -> "asyncio.Future[ProduceResult] | asyncio.Future[list[Part]]":
        """Take messages on, in this order; waits for room only."""

    def begin(self) -> None:
        """Begin a transaction."""

    async def end(self, *, is_commit: bool) -> int:
        """End the transaction; its fate, as an index into `ledger.FATES`."""

    async def close(self) -> None:
        """Stop: everything without an answer gets one."""


def make_driver(spec: ProducerSpec, client: Client) -> Driver:
    """The driver that the spec asks for."""
    if spec.driver == "confluent":
        from shoal.workload.send.librdkafka import ConfluentDriver

        return ConfluentDriver(spec, client.config)
    return RawDriver(spec, client)


def parts_of(answer: ProduceResult | list[Part], count: int) -> list[Part]:
    """The answer to so many messages, part by part; it has just come."""
    if isinstance(answer, list):
        return answer
    acked_us = time.time_ns() // 1000 if answer.outcome is Outcome.OK else -1
    return [Part(count, answer, acked_us)]


class RawDriver:
    """Whole batches, made by compiled loops."""

    def __init__(self, spec: ProducerSpec, client: Client) -> None:
        self.most_unanswered = spec.max_in_flight
        self._spec = spec
        self._client = client
        self._codec = Codec[spec.codec.upper()]
        self._session = self._make_session()
        self._is_closed = False

    def _make_session(self) -> Session:
        if self._spec.is_transactional:
            return TransactionalSession(self._client, self._spec.transactional_id)
        return (
            IdempotentSession(self._client) if self._spec.idempotent else PlainSession(self._client)
        )

    async def start(self) -> None:
        await self._session.start()

    async def send(
        self, log: TopicPartition, messages: WrittenMessages, sent_ns: int
    ) -> "asyncio.Future[ProduceResult]":
        batch = encode_columns(
            values=messages.values,
            keys=messages.keys,
            headers=messages.headers,
            timestamps=np.full(len(messages.values.start), sent_ns // 1_000_000, np.int64),
            codec=self._codec,
        )
        try:
            return await self._session.send(log, Batch(memoryview(batch)))
        except ClientError as error:
            if not self._spec.is_transactional:
                raise
            # The transaction broke before: this never left.
            answer: asyncio.Future[ProduceResult] = asyncio.get_running_loop().create_future()
            code = getattr(error, "code", -1)
            answer.set_result(ProduceResult(Outcome.FAILED, code, cause=error))
            return answer

    def begin(self) -> None:
        self._transactional.begin()

    async def end(self, *, is_commit: bool) -> int:
        session = self._transactional
        if is_commit and await _works(session.commit):
            return COMMITTED
        if session.phase in {Phase.OPEN, Phase.BROKEN}:
            await _works(session.abort)
        if session.phase is Phase.READY:
            return ABORTED
        if not self._is_closed:
            # A session of the same name makes the coordinator finish what is left.
            await session.close()
            self._session = self._make_session()
            await self._session.start()
        return OPEN

    @property
    def _transactional(self) -> TransactionalSession:
        assert isinstance(self._session, TransactionalSession)  # noqa: S101
        return self._session

    async def close(self) -> None:
        self._is_closed = True
        await self._session.close()


async def _works(call: Callable[[], Awaitable[None]]) -> bool:
    try:
        await call()
    except ClientError:
        return False
    return True
