"""The driver `confluent`: messages through librdkafka, as most users send them.

Rules:
- librdkafka makes batches and retries them. A thread polls it for delivery reports. Every message
  has an outcome of its own, with its own offset.
- librdkafka does not report whether a message that it gave up may be in the log. So a message has
  failed only if it was never queued, or the broker rejected it for its content; all others are
  unknown. Without acknowledgements (acks 0) every outcome is unknown.
- A full queue is waited for; the schedule still has the intended time of each message.
- A producer that cannot continue (fenced, or a commit without a response) is replaced by a new one.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from shoal.client.config import ClientConfig
from shoal.client.results import ProduceResult
from shoal.client.transport.security import credentials_of
from shoal.model.errors import SystemFailure
from shoal.model.findings import Outcome
from shoal.model.ledger import ABORTED, COMMITTED, OPEN
from shoal.model.topics import TopicPartition
from shoal.runtime.tasks import log_only, record_failure, start_thread
from shoal.wire.records.records import Header, decode_headers
from shoal.workload.envelope_columns import EncodedMessages
from shoal.workload.send.drivers import PartResult
from shoal.workload.specs import ProducerSpec

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

_log = logging.getLogger(__name__)

# Calls of `send` for one partition; librdkafka's own queue is the real limit.
_MAX_UNANSWERED = 1000
_QUEUE_MESSAGES = 500_000
_QUEUE_KBYTES = 256 * 1024
_POLL_S = 0.1
_QUEUE_FULL_WAIT_S = 0.005
_CALL_S = 30.0
# Errors of the message itself: it is too large, or the topic does not accept it.
_REJECTED_CODES = frozenset({10, 18, 32, 87})
# Room for the overhead of a batch and its records.
_OVERHEAD_BYTES = 64 * 1024


def librdkafka_properties(spec: ProducerSpec, config: ClientConfig) -> dict[str, Any]:
    """The spec and the client's configuration as librdkafka's properties."""
    properties: dict[str, Any] = {
        "bootstrap.servers": ",".join(config.bootstrap_servers),
        "client.id": config.client_id,
        "acks": spec.acks,
        "enable.idempotence": spec.idempotent,
        "compression.type": spec.codec,
        "linger.ms": spec.linger_us / 1000,
        "batch.size": spec.max_batch_bytes,
        "message.max.bytes": spec.max_batch_bytes + spec.size_bytes + _OVERHEAD_BYTES,
        "delivery.timeout.ms": spec.delivery_timeout_ms,
        "request.timeout.ms": spec.request_timeout_ms,
        "max.in.flight.requests.per.connection": spec.max_in_flight,
        "queue.buffering.max.messages": _QUEUE_MESSAGES,
        "queue.buffering.max.kbytes": _QUEUE_KBYTES,
        **_security(config),
    }
    if spec.is_transactional:
        properties["transactional.id"] = spec.transactional_id
        properties["transaction.timeout.ms"] = spec.transaction_timeout_ms
    return properties


def _security(config: ClientConfig) -> dict[str, Any]:
    found: dict[str, Any] = {"security.protocol": config.security_protocol}
    if config.uses_sasl:
        credentials = credentials_of(config)
        found["sasl.mechanism"] = config.sasl_mechanism
        found["sasl.username"] = credentials.username
        found["sasl.password"] = credentials.password
    if config.uses_tls:
        found["ssl.endpoint.identification.algorithm"] = (
            config.ssl_endpoint_identification.lower() or "none"
        )
        named = {
            "ssl.ca.location": config.ssl_truststore_location,
            "ssl.ca.pem": config.ssl_truststore_certificates,
            "ssl.certificate.location": config.ssl_keystore_location,
            "ssl.key.location": config.ssl_key_location or config.ssl_keystore_location,
            "ssl.certificate.pem": config.ssl_keystore_certificate_chain,
            "ssl.key.pem": config.ssl_keystore_key,
            "ssl.key.password": config.ssl_key_password,
        }
        found |= {name: value for name, value in named.items() if value}
    return found


class _PendingDeliveries:
    """Messages that were sent together, until each has its outcome."""

    def __init__(self, count: int, *, is_acknowledged: bool) -> None:
        self.loop = asyncio.get_running_loop()
        self.answer: asyncio.Future[list[PartResult]] = self.loop.create_future()
        self._is_acknowledged = is_acknowledged
        self._results: list[tuple[ProduceResult, int] | None] = [None] * count
        self._left = count

    def on_delivery(self, place: int, error: "KafkaError | None", message: "Message") -> None:
        """The delivery report of one message; called by the polling thread."""
        now_us = time.time_ns() // 1000
        if error is not None:
            self.settle(place, _failure_result(error), -1)
        elif not self._is_acknowledged:
            self.settle(place, ProduceResult(Outcome.UNKNOWN), -1)
        else:
            offset = message.offset()
            self.settle(
                place, ProduceResult(Outcome.OK, 0, -1 if offset is None else offset), now_us
            )

    def settle(self, place: int, result: ProduceResult, acked_us: int) -> None:
        self._results[place] = (result, acked_us)
        self._left -= 1
        if not self._left:
            self.loop.call_soon_threadsafe(self._set_answer)

    def _set_answer(self) -> None:
        if not self.answer.done():
            self.answer.set_result(
                [PartResult(1, *settled) for settled in self._results if settled is not None]
            )


def _failure_result(error: "KafkaError") -> ProduceResult:
    code = error.code()
    outcome = Outcome.FAILED if code in _REJECTED_CODES else Outcome.UNKNOWN
    # librdkafka's own error codes are negative, and not Kafka's.
    return ProduceResult(outcome, code if code > 0 else -1, error_message=error.str())


class ConfluentDriver:
    """One librdkafka producer, and the thread that polls its delivery reports."""

    def __init__(self, spec: ProducerSpec, config: ClientConfig) -> None:
        self.max_unanswered = _MAX_UNANSWERED
        self._spec = spec
        self._properties = librdkafka_properties(spec, config)
        self._producer = self._make()
        self._ending = threading.Event()
        self._poll_thread: threading.Thread | None = None

    def _make(self) -> "Producer":
        try:
            from confluent_kafka import Producer
        except ImportError as error:
            raise SystemFailure(
                "the driver confluent needs the package confluent-kafka",
                remedy="pip install 'shoal[confluent]', or use the driver raw",
            ) from error
        return Producer(self._properties, logger=_log)

    def _poll_deliveries(self) -> None:
        while not self._ending.is_set():
            try:
                self._producer.poll(_POLL_S)
            except Exception as error:  # noqa: BLE001 - other messages wait for their outcomes
                record_failure("librdkafka listener", error, "it continues")

    async def start(self) -> None:
        # If the thread fails, messages have no outcome until `close` purges them.
        self._poll_thread = start_thread("librdkafka", self._poll_deliveries, on_failure=log_only)
        if self._spec.is_transactional:
            await self._call(partial(self._producer.init_transactions, _CALL_S))

    async def send(
        self, log: TopicPartition, messages: EncodedMessages, sent_ns: int
    ) -> "asyncio.Future[list[PartResult]]":
        values, keys = messages.values, messages.keys
        pending = _PendingDeliveries(len(values.start), is_acknowledged=self._spec.acks != 0)
        for place in range(len(values.start)):
            fields: dict[str, Any] = {
                "key": keys.at(place),
                "partition": log.partition,
                "timestamp": sent_ns // 1_000_000,
                "on_delivery": partial(pending.on_delivery, place),
            }
            if self._spec.use_headers:
                fields["headers"] = list(_headers(messages, place))
            await self._produce_with_retry(
                pending,
                place,
                partial(self._producer.produce, log.topic, values.at(place), **fields),
            )
        return pending.answer

    async def _produce_with_retry(
        self, pending: _PendingDeliveries, place: int, produce: Callable[[], None]
    ) -> None:
        from confluent_kafka import KafkaException

        while True:
            try:
                produce()
            except BufferError:
                await asyncio.sleep(_QUEUE_FULL_WAIT_S)
                continue
            except KafkaException as error:
                refused = _failure_result(error.args[0])
                pending.settle(place, refused._replace(outcome=Outcome.FAILED), -1)
            return

    def begin(self) -> None:
        self._producer.begin_transaction()

    async def end(self, *, is_commit: bool) -> int:
        from confluent_kafka import KafkaException

        call = self._producer.commit_transaction if is_commit else self._producer.abort_transaction
        try:
            await self._call(partial(call, _CALL_S))
        except KafkaException as error:
            if is_commit and error.args[0].txn_requires_abort():
                return await self.end(is_commit=False)
            _log.warning("cannot end a transaction, it is left open: %s", error)
            if not self._ending.is_set():
                await self._replace_producer()
            return OPEN
        return COMMITTED if is_commit else ABORTED

    async def _replace_producer(self) -> None:
        """Purge the old producer first, so that all its messages get an outcome."""
        old = self._producer
        await asyncio.to_thread(_purge, old)
        self._producer = self._make()
        await self._call(partial(self._producer.init_transactions, _CALL_S))

    async def _call(self, call: Callable[[], Any]) -> None:
        """Retry a call while its errors are retriable, up to a deadline."""
        from confluent_kafka import KafkaException

        deadline_s = time.monotonic() + 2 * _CALL_S
        while True:
            try:
                await asyncio.to_thread(call)
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline_s:
                    raise
                await asyncio.sleep(_POLL_S)
            else:
                return

    async def close(self) -> None:
        await asyncio.to_thread(_purge, self._producer)
        self._ending.set()
        if self._poll_thread is not None:
            await asyncio.to_thread(self._poll_thread.join)


def _purge(producer: "Producer") -> None:
    """Give every message without an outcome one now."""
    if len(producer):
        producer.purge()
        producer.flush(_CALL_S)


def _headers(messages: EncodedMessages, place: int) -> tuple[Header, ...]:
    return decode_headers(messages.headers.at(place) or b"")
