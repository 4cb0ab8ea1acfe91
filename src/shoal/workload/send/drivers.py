"""The drivers that send a producer's messages: shoal's client (`raw`) or librdkafka (`confluent`).

Rules:
- A driver takes several messages of one partition at once. It returns a future with their
  outcomes, which never raises: one result for all messages, or one for each part.
- A message that is rejected before it is sent has failed; if the client does not know, its outcome
  is unknown.
- Transactions: `begin`, send, `end`. A transaction ends as committed, aborted, or open, which
  includes unknown. After that the driver can begin again, with the same transactional id.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

import numpy as np

from shoal.client.client import Client
from shoal.client.codes import facts_of
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
from shoal.workload.envelope_columns import EncodedMessages
from shoal.workload.specs import ProducerSpec


class PartResult(NamedTuple):
    """The outcome of some consecutive messages."""

    messages: int
    result: ProduceResult
    acked_us: int  # -1: not acknowledged


Answer = asyncio.Future[ProduceResult] | asyncio.Future[list[PartResult]]


class Driver(Protocol):
    """Sends the messages of one producer."""

    @property
    def max_unanswered(self) -> int:
        """How many calls of `send` for one partition may wait for their outcomes."""

    async def start(self) -> None:
        """Get ready to send; fences an older producer with the same transactional id."""

    async def send(
        self, log: TopicPartition, messages: EncodedMessages, sent_ns: int
    ) -> "asyncio.Future[ProduceResult] | asyncio.Future[list[PartResult]]":
        """Queue messages in this order; waits only for room in the queue."""

    def begin(self) -> None:
        """Begin a transaction."""

    async def end(self, *, is_commit: bool) -> int:
        """End the transaction; return its fate, an index into `ledger.FATES`."""

    async def close(self) -> None:
        """Stop; all messages without an outcome get one."""


def make_driver(spec: ProducerSpec, client: Client) -> Driver:
    """The driver that the spec names."""
    if spec.driver == "confluent":
        from shoal.workload.send.librdkafka import ConfluentDriver

        return ConfluentDriver(spec, client.config)
    return RawDriver(spec, client)


def to_parts(answer: ProduceResult | list[PartResult], count: int) -> list[PartResult]:
    """An answer that has just arrived for `count` messages, as parts."""
    if isinstance(answer, list):
        return answer
    acked_us = time.time_ns() // 1000 if answer.outcome is Outcome.OK else -1
    return [PartResult(count, answer, acked_us)]


def name_error(result: ProduceResult) -> str | None:
    """Why messages were not acknowledged: Kafka's name of the error, or what the client says.

    None if they were, or if no acknowledgement was requested.
    """
    if result.outcome is Outcome.OK:
        return None
    if result.error_code > 0:
        return facts_of(result.error_code).name
    if result.cause is not None:
        return getattr(result.cause, "name", None) or result.cause.message
    return result.error_message or (facts_of(-1).name if result.error_code < 0 else None)


class RawDriver:
    """Sends whole batches, encoded by compiled loops, with shoal's own client."""

    def __init__(self, spec: ProducerSpec, client: Client) -> None:
        self.max_unanswered = spec.max_in_flight
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
        self, log: TopicPartition, messages: EncodedMessages, sent_ns: int
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
            # The transaction had already failed: this batch was not sent.
            answer: asyncio.Future[ProduceResult] = asyncio.get_running_loop().create_future()
            code = getattr(error, "code", -1)
            answer.set_result(ProduceResult(Outcome.FAILED, code, cause=error))
            return answer

    def begin(self) -> None:
        self._transactional.begin()

    async def end(self, *, is_commit: bool) -> int:
        session = self._transactional
        if is_commit and await _succeeds(session.commit):
            return COMMITTED
        if session.phase in {Phase.OPEN, Phase.BROKEN}:
            await _succeeds(session.abort)
        if session.phase is Phase.READY:
            return ABORTED
        if not self._is_closed:
            # A new session with the same transactional id makes the coordinator abort the open one.
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


async def _succeeds(call: Callable[[], Awaitable[None]]) -> bool:
    try:
        await call()
    except ClientError:
        return False
    return True
