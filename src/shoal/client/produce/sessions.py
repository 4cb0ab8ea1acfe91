"""Produce sessions: they number batches, retry them, and report the outcome of each.

    async with IdempotentSession(client) as session:
        results = await session.produce({tp: batch})       # waits for the outcomes
        future = await session.send(tp, batch)             # waits for buffer space only

Rules of this file:
- A session takes whole batches as writable bytes: it sets producer id, epoch and sequence in their
  headers (a batch in read-only memory is copied first). The records are not changed.
- A batch that a broker would refuse or misread is refused before it is sent, with the reason:
  control batches, several batches at once, batches with gaps from compaction.
- Attributes that only a broker may set (append time, delete horizon) are cleared, and so is the
  transactional attribute of another producer.
"""

import asyncio
from collections.abc import Mapping
from typing import Self

from shoal.client.cluster.router import Core
from shoal.client.codes import COORDINATOR_RETRY, Code
from shoal.client.errors import error_for
from shoal.client.produce.raw_produce import Produced
from shoal.client.produce.sender import Result, Sender
from shoal.client.produce.sequencing import Mode, ProducerIdentity
from shoal.model.errors import UsageError
from shoal.model.topics import TopicPartition
from shoal.runtime.context_managers import FlushesOnExit
from shoal.wire.api_keys import ApiKey
from shoal.wire.batch import (
    CONTROL_BIT,
    HEADER_SIZE,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    STORED_BITS,
    TRANSACTIONAL_BIT,
    Batch,
    iter_batches,
)
from shoal.wire.framing import Part


class Session(FlushesOnExit):
    """Base class of all sessions; use one of the subclasses."""

    _mode = Mode.PLAIN

    def __init__(self, core: Core) -> None:
        self._core = core
        self._sender = self._make_sender()

    def _make_sender(self) -> Sender:
        return Sender(self._core, self._mode)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def start(self) -> None:
        """Prepare the session for sending."""

    async def send(
        self,
        tp: TopicPartition,
        batch: Part | Batch,
        *,
        timeout_s: float | None = None,
        retries: bool = True,
    ) -> Result:
        """Wait for buffer space and queue a batch; the future gets its outcome, never an error.

        The batch is retried for `timeout_s`, by default `delivery.timeout.ms`; without `retries` it
        is sent only once.
        """
        return await self._sender.enqueue(
            tp, self._prepare(tp, batch), timeout_s=timeout_s, retries=retries
        )

    async def produce(self, batches: Mapping[TopicPartition, Part | Batch]) -> Produced:
        """Send a batch to each of these partitions and wait for all outcomes."""
        prepared = {tp: self._prepare(tp, batch) for tp, batch in batches.items()}
        results = {tp: await self._sender.enqueue(tp, batch) for tp, batch in prepared.items()}
        if results:
            await asyncio.wait(results.values())
        return {tp: result.result() for tp, result in results.items()}

    async def flush(self) -> None:
        """Wait until every queued batch has an outcome."""
        await self._sender.flush()

    async def close(self) -> None:
        """Give up on batches without an outcome, and stop."""
        await self._sender.close()

    def _prepare(self, tp: TopicPartition, batch: Part | Batch) -> Batch:
        return prepare_batch(tp, batch, is_transactional=self._mode is Mode.TRANSACTIONAL)


class PlainSession(Session):
    """Batches without sequences (`enable.idempotence=false`): a retry may write a batch twice."""


class IdempotentSession(Session):
    """Batches with a producer id and sequences: a retry writes a batch once, and in order."""

    _mode = Mode.IDEMPOTENT

    def _make_sender(self) -> Sender:
        return Sender(self._core, self._mode, get_identity=self._new_identity)

    async def start(self) -> None:
        """Request a producer id from the cluster."""
        self._sender.set_identity(await self._new_identity())

    async def _new_identity(self) -> ProducerIdentity:
        return await new_identity(self._core)


async def new_identity(core: Core) -> ProducerIdentity:
    """Request a new producer id; retried, because a new cluster may not be ready."""
    values = {
        "transactional_id": None,
        # Not used without a transactional id, but brokers check that it is positive.
        "transaction_timeout": core.config.transaction_timeout_ms,
    }

    async def attempt() -> ProducerIdentity:
        response = await core.call(ApiKey.INIT_PRODUCER_ID, values)
        code = int(response.error_code)
        if code != Code.NONE:
            error = error_for(code)
            error.retriable = error.retriable or code in COORDINATOR_RETRY
            raise error
        return ProducerIdentity(int(response.producer_id), int(response.producer_epoch))

    return await core.with_retries(attempt)


def prepare_batch(tp: TopicPartition, given: Part | Batch, *, is_transactional: bool) -> Batch:
    """The one batch in `given`, with a header that a broker accepts from a producer."""
    batch = given if isinstance(given, Batch) else _only_batch(tp, given)
    if batch.attributes & CONTROL_BIT:
        raise UsageError(f"{tp}: producers may not send control batches")
    if not batch.is_dense:
        raise UsageError(
            f"{tp}: {batch!r} has offset gaps, which brokers refuse",
            remedy="re-encode its records",
        )
    if batch.view.readonly:
        batch = Batch(memoryview(bytearray(batch.view)))
    attributes = batch.attributes & ~STORED_BITS
    batch.edit(
        base_offset=0,
        attributes=attributes | TRANSACTIONAL_BIT if is_transactional else attributes,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=NO_PRODUCER_EPOCH,
        base_sequence=NO_SEQUENCE,
    )
    return batch


def _only_batch(tp: TopicPartition, given: Part) -> Batch:
    view = memoryview(given)
    batches = list(iter_batches(view))
    if len(batches) == 1 and batches[0].size == len(view):
        return batches[0]
    if len(view) < HEADER_SIZE or not batches:
        raise UsageError(f"{tp}: {len(view)} bytes are not a record batch")
    raise UsageError(
        f"{tp}: expected one batch, got {len(batches)} and "
        f"{len(view) - sum(one.size for one in batches)} more bytes",
        remedy="send each batch of a record set separately (shoal.wire.batch.iter_batches)",
    )
