"""Produce (0), versions 3 to 12; advertised from 0.

Behaviour
- One batch of format 2 for each partition; `write_rules` says what is refused, with which code.
- acks 0, 1 and all (-1). acks=all waits until all in-sync replicas have it, at most the time
  that the client allows: REQUEST_TIMED_OUT. Below `min.insync.replicas`: NOT_ENOUGH_REPLICAS,
  nothing written, or, if members left while it waited, NOT_ENOUGH_REPLICAS_AFTER_APPEND.
- acks=0 gets no answer; if something went wrong the connection is closed, as Apache Kafka does.
- Idempotent producers: a duplicate is answered with error 0 and its old offset. What follows a
  batch that was refused for the moment is refused like it: see `refusals`.
- Transactions: before the first batch in a partition its coordinator is asked, see
  `produce_joining`, which waits a while for a transaction that is being finished. A transactional
  batch in a request without a transactional id: TRANSACTIONAL_ID_AUTHORIZATION_FAILED for all of
  it.

Versions
- 0 to 2 are advertised and not served: librdkafka before 2.11.1 stops compressing when they are
  missing (KAFKA-18659), but never sends them.
- 5 log start offset. 7 zstd (KIP-110). 8 error messages (KIP-467). 9 flexible (KIP-482).
  11 TRANSACTION_ABORTABLE is known to the client. 12 partitions join their transaction by
  being written to (both KIP-890).

Gaps
- 13 (topic ids, KIP-516).
"""

import asyncio
import time
from collections.abc import Awaitable
from functools import partial

from shoal.lite.api.produce_joining import Joining, joining_of
from shoal.lite.base.codes import Code, Refused
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, HangUp, Request, Written, register
from shoal.lite.coordinator.topics import INTERNAL_TOPICS
from shoal.lite.partitions import record_rules
from shoal.lite.partitions.partition import Partition
from shoal.lite.partitions.write_rules import apply_timestamps, check_batch, header_of_only_batch
from shoal.lite.storage.header import HEADER_SIZE, BatchHeader, unpack_header
from shoal.model.topics import TopicPartition
from shoal.wire.api_keys import ApiKey
from shoal.wire.batch import TRANSACTIONAL_BIT
from shoal.wire.produce import (
    ProduceAnswer,
    ProducedPartition,
    ProduceRequest,
    RecordError,
    decode_produce_request,
    encode_produce_response,
)

_NO_ACKS = 0
_ALL_ACKS = -1
# Who may write to internal topics, as in Apache Kafka.
_ADMIN_CLIENT_ID = "__admin_client"
# Where a batch says whether it belongs to a transaction: the lower byte of its attributes.
_FLAGS = 22


def handle(core: BrokerCore, request: Request) -> Answer | Written | Awaitable[Answer]:
    produce = decode_produce_request(request.version, request.frame, request.header.body_position)
    call = _Call(request, produce)
    try:
        _check_all(produce)
        if produce.transactional_id is not None:
            call.joining = joining_of(core, request.version, produce)
    except Refused as refusal:
        call.answers = [_refused(item, refusal) for item in produce.partitions]
        return call.encoded()
    if call.joining is not None:
        return _join_and_write(core, call, produce)
    return _write(core, call, produce)


async def _join_and_write(core: BrokerCore, call: "_Call", produce: ProduceRequest) -> Answer:
    if call.joining is not None:
        await call.joining.ask(core)
    answer = _write(core, call, produce)
    return await answer if isinstance(answer, Written) else answer


def _write(core: BrokerCore, call: "_Call", produce: ProduceRequest) -> Answer | Written:
    now_ms = time.time_ns() // 1_000_000
    for item in produce.partitions:
        call.answers.append(_answered(core, call, item, now_ms))
    if call.waits_for:
        return call.wait()
    return call.encoded()


class _Call:
    """A request, and how far it has come."""

    __slots__ = (
        "_failed",
        "_future",
        "acks",
        "answers",
        "joining",
        "request",
        "timeout_ms",
        "version",
        "waits_for",
    )

    def __init__(self, request: Request, produce: ProduceRequest) -> None:
        self.request = request
        self.version = request.version
        self.acks = produce.acks
        self.timeout_ms = max(0, produce.timeout_ms)
        self.joining: Joining | None = None
        self.answers: list[ProduceAnswer] = []
        # Partitions, by their place in the request, that in-sync replicas have not got yet.
        self.waits_for: set[int] = set()
        self._failed: dict[int, Code] = {}
        self._future: Written | None = None

    def wait(self) -> Written:
        self._future = Written(loop=asyncio.get_running_loop())
        return self._future

    def on_acked(self, place: int, code: Code) -> None:
        self.waits_for.discard(place)
        if code != Code.NONE:
            self._failed[place] = code
        future = self._future
        # The client may have gone; then the connection has cancelled the future.
        if future is not None and not self.waits_for and not future.done():
            future.set_result(self.encoded())

    def encoded(self) -> Answer:
        for place, code in self._failed.items():
            answer = self.answers[place]
            self.answers[place] = ProduceAnswer(
                answer.topic, answer.partition, error_code=code, error_message=code.name
            )
        if self.acks == _NO_ACKS:
            failed = next((answer for answer in self.answers if answer.error_code), None)
            if failed is not None:
                raise HangUp(f"acks=0, and {failed.topic}-{failed.partition} was not written")
            return None
        return [
            encode_produce_response(
                self.version,
                correlation_id=self.request.header.correlation_id,
                answers=self.answers,
            )
        ]


def _check_all(produce: ProduceRequest) -> None:
    """`Refused` if something is wrong with the request as a whole."""
    if produce.acks not in {_ALL_ACKS, _NO_ACKS, 1}:
        raise Refused(Code.INVALID_REQUIRED_ACKS, f"acks={produce.acks}")
    if produce.transactional_id is None:
        for item in produce.partitions:
            if len(item.records) >= HEADER_SIZE and item.records[_FLAGS] & TRANSACTIONAL_BIT:
                raise Refused(
                    Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                    "a transactional batch in a request without a transactional id",
                )


def _answered(core: BrokerCore, call: _Call, item: ProducedPartition, now_ms: int) -> ProduceAnswer:
    try:
        return _written(core, call, item, now_ms)
    except Refused as refused:
        call.waits_for.discard(len(call.answers))
        if len(item.records) >= HEADER_SIZE:
            core.refusals.note(_key(item), unpack_header(item.records), refused, now_ms)
        return _refused(item, refused)


def _key(item: ProducedPartition) -> TopicPartition:
    return TopicPartition(item.topic, item.partition)


def _written(core: BrokerCore, call: _Call, item: ProducedPartition, now_ms: int) -> ProduceAnswer:
    if item.topic in INTERNAL_TOPICS and call.request.header.client_id != _ADMIN_CLIENT_ID:
        raise Refused(Code.INVALID_TOPIC_EXCEPTION, f"Cannot append to internal topic {item.topic}")
    partition = core.partition(item.topic, item.partition)
    rules = partition.rules
    records = item.records
    header = header_of_only_batch(records, call.version)
    guard = None
    if call.joining is not None:
        guard = call.joining.guard_of(_key(item))
    partition.leader.check_acks(call.acks)
    check_batch(records, header, rules)
    header = apply_timestamps(records, header, rules, now_ms)
    if record_rules.are_demanded(header, rules):
        records, header = record_rules.checked_and_packed(records, header, rules, now_ms)
    place = len(call.answers)
    if call.acks == _ALL_ACKS:
        call.waits_for.add(place)
    early = None
    if core.refusals:
        early = core.refusals.before(_key(item), header, now_ms)
    if early is not None and not partition.log.producers.knows_batches_of(header.producer_id):
        raise early
    try:
        appended = partition.append(
            records,
            header,
            acks=call.acks,
            timeout_ms=call.timeout_ms,
            on_acked=partial(call.on_acked, place),
            guard=guard,
        )
    except Refused as refused:
        raise _in_turn(partition, header, refused, early) from refused
    if core.refusals:
        core.refusals.written(_key(item), header)
    return ProduceAnswer(
        item.topic,
        item.partition,
        base_offset=appended.base_offset,
        append_time_ms=now_ms if rules.uses_append_time else -1,
        log_start_offset=partition.log.start_offset,
    )


def _in_turn(
    partition: Partition, header: BatchHeader, refused: Refused, early: Refused | None
) -> Refused:
    """What to say to a batch that was not written: what lies before it may be on its way."""
    if refused.code != Code.OUT_OF_ORDER_SEQUENCE_NUMBER:
        return refused
    if early is None and partition.has_new_leader() and partition.log.producers.is_ahead(header):
        # The leader before this one has refused what is missing, and it will come.
        return Refused(Code.NOT_LEADER_OR_FOLLOWER, f"{refused}; its leader is new")
    return early or refused


def _refused(item: ProducedPartition, refused: Refused) -> ProduceAnswer:
    errors = refused.errors if isinstance(refused, record_rules.RecordsRefused) else ()
    return ProduceAnswer(
        item.topic,
        item.partition,
        error_code=refused.code,
        error_message=str(refused),
        record_errors=[RecordError(*error) for error in errors],
    )


API = register(ApiKey.PRODUCE, 3, 12, handle, advertised_from=0)
