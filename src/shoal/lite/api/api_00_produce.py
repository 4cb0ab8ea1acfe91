"""Produce (0), versions 3 to 11; advertised from 0.

Behaviour
- One batch of format 2 for each partition; `write_rules` says what is refused, with which code.
- acks 0, 1 and all (-1). With one replica, all that is written is on all in-sync replicas, so
  nothing waits. acks=all below `min.insync.replicas`: NOT_ENOUGH_REPLICAS, nothing written.
- acks=0 gets no answer; if something went wrong the connection is closed, as Apache Kafka does.
- Idempotent producers: a duplicate is answered with error 0 and its old offset.

Versions
- 0 to 2 are advertised and not served: librdkafka before 2.11.1 stops compressing when they are
  missing (KAFKA-18659), but never sends them.
- 5 log start offset. 7 zstd (KIP-110). 8 error messages (KIP-467). 9 flexible (KIP-482).

Gaps
- No transactions: a transactional batch is refused with TRANSACTIONAL_ID_AUTHORIZATION_FAILED
  without a transactional id, as in Apache Kafka, and with INVALID_TXN_STATE with one.
- 12 (KIP-890) and 13 (topic ids, KIP-516).
"""

import time

from shoal.lite.api.registry import Answer, HangUp, Request, register
from shoal.lite.codes import Code, Refused
from shoal.lite.core import BrokerCore
from shoal.lite.log.header import HEADER_SIZE, unpack_header
from shoal.lite.write_rules import apply_timestamps, check_batch, header_of_only_batch
from shoal.wire.api_keys import ApiKey
from shoal.wire.produce import (
    ProduceAnswer,
    ProducedPartition,
    ProduceRequest,
    decode_produce_request,
    encode_produce_response,
)

_NO_ACKS = 0
_ALL_ACKS = -1


def handle(core: BrokerCore, request: Request) -> Answer:
    produce = decode_produce_request(request.version, request.frame, request.header.body_position)
    refusal = _refusal_of_all(produce)
    if refusal is not None:
        answers = [_refused(item, refusal) for item in produce.partitions]
    else:
        now_ms = time.time_ns() // 1_000_000
        answers = [
            _answered(core, request.version, item, acks=produce.acks, now_ms=now_ms)
            for item in produce.partitions
        ]
    if produce.acks == _NO_ACKS:
        failed = next((answer for answer in answers if answer.error_code), None)
        if failed is not None:
            raise HangUp(f"acks=0, and {failed.topic}-{failed.partition} was not written")
        return None
    return [
        encode_produce_response(
            request.version, correlation_id=request.header.correlation_id, answers=answers
        )
    ]


def _refusal_of_all(produce: ProduceRequest) -> Refused | None:
    """What is wrong with the request as a whole."""
    if produce.acks not in {_ALL_ACKS, _NO_ACKS, 1}:
        return Refused(Code.INVALID_REQUIRED_ACKS, f"acks={produce.acks}")
    if produce.transactional_id is None:
        for item in produce.partitions:
            if len(item.records) >= HEADER_SIZE and unpack_header(item.records).is_transactional:
                return Refused(
                    Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                    "a transactional batch in a request without a transactional id",
                )
    return None


def _answered(
    core: BrokerCore, version: int, item: ProducedPartition, *, acks: int, now_ms: int
) -> ProduceAnswer:
    try:
        return _written(core, version, item, acks=acks, now_ms=now_ms)
    except Refused as refused:
        return _refused(item, refused)


def _written(
    core: BrokerCore, version: int, item: ProducedPartition, *, acks: int, now_ms: int
) -> ProduceAnswer:
    partition = core.partition(item.topic, item.partition)
    rules = partition.rules
    records = item.records
    header = header_of_only_batch(records, version)
    if header.is_transactional:
        raise Refused(Code.INVALID_TXN_STATE, "this broker has no transactions")
    in_sync = len(partition.record.in_sync)
    if acks == _ALL_ACKS and in_sync < rules.min_insync_replicas:
        raise Refused(
            Code.NOT_ENOUGH_REPLICAS,
            f"{in_sync} replica(s) in sync, min.insync.replicas is {rules.min_insync_replicas}",
        )
    check_batch(records, header, rules)
    header = apply_timestamps(records, header, rules, now_ms)
    appended = partition.append(records, header)
    return ProduceAnswer(
        item.topic,
        item.partition,
        base_offset=appended.base_offset,
        append_time_ms=now_ms if rules.uses_append_time else -1,
        log_start_offset=partition.log.start_offset,
    )


def _refused(item: ProducedPartition, refused: Refused) -> ProduceAnswer:
    return ProduceAnswer(
        item.topic, item.partition, error_code=refused.code, error_message=str(refused)
    )


API = register(ApiKey.PRODUCE, 3, 11, handle, advertised_from=0)
