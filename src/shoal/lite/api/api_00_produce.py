"""Produce (0), versions 3 to 12; advertised from 0.

Behaviour
- One batch of format 2 per partition; `admission.decisions` lists what is refused, in which order
  and with which code.
- acks 0, 1 and all (-1). acks=all waits until all in-sync replicas have the batch, at most the
  request's timeout: REQUEST_TIMED_OUT. Below `min.insync.replicas`: NOT_ENOUGH_REPLICAS and nothing
  is written, or NOT_ENOUGH_REPLICAS_AFTER_APPEND if replicas left the ISR while it waited.
- acks=0 gets no response; on an error the connection is closed, as in Apache Kafka.
- Idempotent producers: a duplicate is answered with error 0 and its original offset. A batch that
  follows one refused with a retriable error is refused with the same error: see `refusals`.
- Transactions: the coordinator is asked before the first batch in a partition, see
  `transaction_verification`, which waits a while for a transaction that is being finished. A
  transactional batch in a request without a transactional id:
  TRANSACTIONAL_ID_AUTHORIZATION_FAILED for the whole request.

Versions
- 0 to 2 are advertised and not served: librdkafka before 2.11.1 stops compressing when they are
  missing (KAFKA-18659), but never sends them.
- 5 log start offset. 7 zstd (KIP-110). 8 error messages (KIP-467). 9 flexible (KIP-482).
  11 the client knows TRANSACTION_ABORTABLE. 12 a write adds the partition to the transaction
  (both KIP-890).

Gaps
- 13 (topic ids, KIP-516).
"""

import asyncio
import time
from collections.abc import Awaitable
from functools import partial

from shoal.lite.api.transaction_verification import TransactionVerification, verification_for
from shoal.lite.base.codes import ApiError, Code
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, CloseConnection, PendingAck, RawRequest, register
from shoal.lite.coordinator.topics import INTERNAL_TOPICS
from shoal.lite.partitions.admission.decisions import (
    InvalidRecords,
    admit_produced,
    check_internal_topic,
    check_request,
    explain_sequence_error,
    follow_refusal,
)
from shoal.lite.replication.leader import ALL_ACKS
from shoal.lite.storage.header import HEADER_SIZE, unpack_header
from shoal.model.topics import TopicPartition
from shoal.wire.api_keys import ApiKey
from shoal.wire.produce import (
    ProduceAnswer,
    ProduceRequest,
    ReceivedPartition,
    RecordError,
    decode_produce_request,
    encode_produce_response,
)

_NO_ACKS = 0


def handle(core: BrokerCore, request: RawRequest) -> Answer | PendingAck | Awaitable[Answer]:
    produce = decode_produce_request(request.version, request.frame, request.header.body_position)
    call = _PendingProduce(request, produce)
    try:
        check_request(produce)
        if produce.transactional_id is not None:
            call.verification = verification_for(core, request.version, produce)
    except ApiError as error:
        call.answers = [_error_answer(item, error) for item in produce.partitions]
        return call.encode()
    if call.verification is not None:
        return _verify_and_write(core, call, produce)
    return _write(core, call, produce)


async def _verify_and_write(
    core: BrokerCore, call: "_PendingProduce", produce: ProduceRequest
) -> Answer:
    if call.verification is not None:
        await call.verification.verify_or_add(core)
    answer = _write(core, call, produce)
    return await answer if isinstance(answer, PendingAck) else answer


def _write(
    core: BrokerCore, call: "_PendingProduce", produce: ProduceRequest
) -> Answer | PendingAck:
    now_ms = time.time_ns() // 1_000_000
    for item in produce.partitions:
        call.answers.append(_write_partition(core, call, item, now_ms))
    if call.unacknowledged:
        return call.wait()
    return call.encode()


class _PendingProduce:
    """A Produce request and the state of its partitions until it is answered."""

    __slots__ = (
        "_failed_codes",
        "_future",
        "acks",
        "answers",
        "request",
        "timeout_ms",
        "unacknowledged",
        "verification",
        "version",
    )

    def __init__(self, request: RawRequest, produce: ProduceRequest) -> None:
        self.request = request
        self.version = request.version
        self.acks = produce.acks
        self.timeout_ms = max(0, produce.timeout_ms)
        self.verification: TransactionVerification | None = None
        self.answers: list[ProduceAnswer] = []
        # Partitions, by index in the request, that not all in-sync replicas have yet.
        self.unacknowledged: set[int] = set()
        self._failed_codes: dict[int, Code] = {}
        self._future: PendingAck | None = None

    def wait(self) -> PendingAck:
        self._future = PendingAck(loop=asyncio.get_running_loop())
        return self._future

    def on_acked(self, index: int, code: Code) -> None:
        self.unacknowledged.discard(index)
        if code != Code.NONE:
            self._failed_codes[index] = code
        future = self._future
        # If the client disconnected, the connection has cancelled the future.
        if future is not None and not self.unacknowledged and not future.done():
            future.set_result(self.encode())

    def encode(self) -> Answer:
        for index, code in self._failed_codes.items():
            answer = self.answers[index]
            self.answers[index] = ProduceAnswer(
                answer.topic, answer.partition, error_code=code, error_message=code.name
            )
        if self.acks == _NO_ACKS:
            failed = next((answer for answer in self.answers if answer.error_code), None)
            if failed is not None:
                raise CloseConnection(
                    f"append to {failed.topic}-{failed.partition} failed; acks=0 has no response"
                )
            return None
        return [
            encode_produce_response(
                self.version,
                correlation_id=self.request.header.correlation_id,
                answers=self.answers,
            )
        ]


def _write_partition(
    core: BrokerCore, call: _PendingProduce, item: ReceivedPartition, now_ms: int
) -> ProduceAnswer:
    try:
        return _append_batch(core, call, item, now_ms)
    except ApiError as error:
        call.unacknowledged.discard(len(call.answers))
        core.traffic.count_refused_produce(_label_topic(core, item.topic))
        if len(item.records) >= HEADER_SIZE:
            core.refusals.add(_key(item), unpack_header(item.records), error, now_ms)
        return _error_answer(item, error)


def _label_topic(core: BrokerCore, topic: str) -> str:
    """The topic; empty for names that do not exist, so that clients cannot add counters."""
    return topic if topic in core.state.topics else ""


def _key(item: ReceivedPartition) -> TopicPartition:
    return TopicPartition(item.topic, item.partition)


def _append_batch(
    core: BrokerCore, call: _PendingProduce, item: ReceivedPartition, now_ms: int
) -> ProduceAnswer:
    if item.topic in INTERNAL_TOPICS:
        check_internal_topic(item.topic, call.request.header.client_id)
    partition = core.partition(item.topic, item.partition)
    guard = refused = earlier = None
    if call.verification is not None:
        guard = call.verification.guards.get(_key(item))
        refused = call.verification.error_of(_key(item))
    records, header = admit_produced(
        item.records,
        partition,
        version=call.version,
        acks=call.acks,
        now_ms=now_ms,
        refused=refused,
    )
    if core.refusals:
        earlier = follow_refusal(header, partition, core.refusals, key=_key(item), now_ms=now_ms)
    index = len(call.answers)
    if call.acks == ALL_ACKS:
        call.unacknowledged.add(index)
    try:
        appended = partition.append(
            records,
            header,
            acks=call.acks,
            timeout_ms=call.timeout_ms,
            on_acked=partial(call.on_acked, index),
            guard=guard,
        )
    except ApiError as error:
        raise explain_sequence_error(error, header, partition, earlier) from error
    if core.refusals:
        core.refusals.on_batch_written(_key(item), header)
    if not appended.is_duplicate:
        core.traffic.count_produced(item.topic, header.size, header.record_count)
    return ProduceAnswer(
        item.topic,
        item.partition,
        base_offset=appended.base_offset,
        append_time_ms=now_ms if partition.rules.uses_append_time else -1,
        log_start_offset=partition.log.start_offset,
    )


def _error_answer(item: ReceivedPartition, error: ApiError) -> ProduceAnswer:
    errors = error.errors if isinstance(error, InvalidRecords) else ()
    return ProduceAnswer(
        item.topic,
        item.partition,
        error_code=error.code,
        error_message=str(error),
        record_errors=[RecordError(*one) for one in errors],
    )


API = register(ApiKey.PRODUCE, 3, 12, handle, advertised_from=0)
