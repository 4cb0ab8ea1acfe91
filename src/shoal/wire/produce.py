"""Produce (API key 0), both sides, versions 3 to 13.

Version 5 adds the log start offset to responses, 8 error messages, 9 is flexible, 10 adds the
current leader to responses, 12 adds partitions to transactions automatically (KIP-890), 13 names
topics by id.

A request may have several consecutive batches for one partition (only Kafka Lite accepts that),
but never the same partition twice: Apache Kafka would use the last one, drop the first, and report
success.
"""

from collections.abc import Sequence
from functools import partial
from struct import Struct
from typing import NamedTuple
from uuid import UUID

from shoal.wire.api_keys import ApiKey
from shoal.wire.errors import Unencodable
from shoal.wire.framing import Part
from shoal.wire.primitives import INT32, INT64, Cursor
from shoal.wire.record_messages import (
    NO_RECORDS,
    CurrentLeader,
    NodeEndpoint,
    Versions,
    Writer,
    current_leader_bytes,
    encoder,
    node_endpoints_bytes,
    read_current_leader,
    read_topic_id,
    read_topics,
)

PRODUCE_VERSIONS = range(3, 14)
FIRST_VERSION_WITH_TOPIC_IDS = 13
_FLEXIBLE_FROM = 9
_VERSIONS = Versions(
    ApiKey.PRODUCE,
    PRODUCE_VERSIONS,
    flexible_from=_FLEXIBLE_FROM,
    topic_ids_from=FIRST_VERSION_WITH_TOPIC_IDS,
)

NO_OFFSET = -1
NO_TIMESTAMP = -1

_ACKS_AND_TIMEOUT = Struct(">hi")

_ANSWER_FROM_3 = Struct(">ihqq")
_ANSWER_FROM_5 = Struct(">ihqqq")
# A flexible answer without record errors, error message and tagged fields.
_PLAIN_ANSWER = Struct(">ihqqqBBB")
_PLAIN_END = Struct(">BiB")
_NO_REMARKS = (None, (), None)
_NO_REMARKS_BYTES = [1, 0, 0]
_ANSWER_TAGS = {0: read_current_leader}

_PART_TYPES = (bytes, bytearray, memoryview)  # isinstance with a union takes ten times as long

Records = Part | Sequence[Part]


class ProducePartition(NamedTuple):
    """What to write to one partition; several pieces are sent one after the other."""

    topic: str
    partition: int
    records: Records
    topic_id: UUID | None = None


class ReceivedPartition(NamedTuple):
    """One partition of a request as a broker decodes it; the records are a view."""

    topic: str
    partition: int
    records: memoryview
    topic_id: UUID | None = None


class ProduceRequest(NamedTuple):
    """A request as a broker decodes it."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    partitions: list[ReceivedPartition]


class RecordError(NamedTuple):
    """The record because of which a batch was refused, and why."""

    batch_index: int
    message: str | None


class ProduceAnswer(NamedTuple):
    """The result of one partition."""

    topic: str
    partition: int
    error_code: int = 0
    base_offset: int = NO_OFFSET
    append_time_ms: int = NO_TIMESTAMP
    log_start_offset: int = NO_OFFSET
    error_message: str | None = None
    record_errors: Sequence[RecordError] = ()
    current_leader: CurrentLeader | None = None
    topic_id: UUID | None = None


@encoder
def encode_produce_request(
    version: int,
    *,
    correlation_id: int,
    client_id: str | None,
    transactional_id: str | None,
    acks: int,
    timeout_ms: int,
    partitions: Sequence[ProducePartition],
) -> list[Part]:
    """The parts of a request without its frame; record sets are included as given."""
    writer: Writer[Part] = _VERSIONS.request_writer(
        version, correlation_id=correlation_id, client_id=client_id
    )
    _check_unique_partitions(partitions, uses_ids=writer.uses_ids)
    writer.string(transactional_id)
    writer.output += _ACKS_AND_TIMEOUT.pack(acks, timeout_ms)

    def write(item: ProducePartition) -> None:
        records = item.records
        if isinstance(records, _PART_TYPES):
            writer.partition_records(item.partition, records)
            return
        writer.output += INT32.pack(item.partition)
        writer.records(*records)
        writer.no_tags()

    writer.topics(partitions, write)
    writer.no_tags()
    return writer.finish()


def decode_produce_request(version: int, frame: Part, position: int) -> ProduceRequest:
    """The request whose body begins at `position` of the frame."""
    cursor = _VERSIONS.request_cursor(version, frame, position)
    transactional_id = cursor.nullable_string("transactional id")
    acks, timeout_ms = cursor.unpack(_ACKS_AND_TIMEOUT, "acks and timeout")

    flexible, uses_ids = cursor.flexible, version >= FIRST_VERSION_WITH_TOPIC_IDS
    name, topic_id = "", None
    partitions: list[ReceivedPartition] = []
    # Not with `read_topics`: this loop is faster, and brokers run it for every few records.
    for _ in range(cursor.count("topics", least_size=3)):
        if uses_ids:
            topic_id = read_topic_id(cursor)
        else:
            name = cursor.string("topic name")
        for _ in range(cursor.count("partitions", least_size=6)):
            (partition,) = cursor.unpack(INT32, "partition")
            records = cursor.blob("records")
            if flexible:
                cursor.tags("partition")
            if records is None:
                records = NO_RECORDS
            partitions.append(ReceivedPartition(name, partition, records, topic_id))
        if flexible:
            cursor.tags("topic")
    if cursor.flexible:
        cursor.tags("Produce request")
    return ProduceRequest(transactional_id, acks, timeout_ms, partitions)


@encoder
def encode_produce_response(
    version: int,
    *,
    correlation_id: int,
    answers: Sequence[ProduceAnswer],
    throttle_ms: int = 0,
    node_endpoints: Sequence[NodeEndpoint] = (),
) -> bytes:
    """A response without its frame; fields that the version does not have are left out."""
    writer: Writer[Part] = _VERSIONS.response_writer(version, correlation_id)

    writer.topics(answers, partial(_write_answer, writer, version))
    writer.output += INT32.pack(throttle_ms)
    if version >= 10 and node_endpoints:
        writer.tags([(0, node_endpoints_bytes(node_endpoints))])
    else:
        writer.no_tags()
    return bytes(writer.output)


def decode_produce_response(version: int, frame: Part) -> list[ProduceAnswer]:
    """The answers of a response. Endpoints of new leaders are skipped: metadata has them."""
    cursor = _VERSIONS.response_cursor(version, frame)
    if _FLEXIBLE_FROM <= version < FIRST_VERSION_WITH_TOPIC_IDS:
        plain = _read_plain_answers(cursor)
        if plain is not None:
            return plain
        cursor = _VERSIONS.response_cursor(version, frame)

    answers = read_topics(
        cursor,
        partial(_read_answer, cursor, version),
        uses_ids=version >= FIRST_VERSION_WITH_TOPIC_IDS,
        least_item_size=_ANSWER_FROM_3.size,
    )
    cursor.unpack(INT32, "throttle time")
    if cursor.flexible:
        cursor.tags("Produce response")
    return answers


def _read_plain_answers(cursor: Cursor) -> list[ProduceAnswer] | None:
    """The usual response: one topic, only numbers, nothing to remark. None for any other."""
    if cursor.count("topics", least_size=3) != 1:
        return None
    topic = cursor.string("topic name")
    count = cursor.count("partitions", least_size=_ANSWER_FROM_3.size)
    position, size = cursor.position, count * _PLAIN_ANSWER.size
    # The topic's tagged fields, the throttle time and the response's tagged fields follow.
    if cursor.end - position != size + _PLAIN_END.size:
        return None
    answers: list[ProduceAnswer] = []
    for partition, code, offset, time_ms, start, *remarks in _PLAIN_ANSWER.iter_unpack(
        cursor.view[position : position + size]
    ):
        if remarks != _NO_REMARKS_BYTES:
            return None
        answers.append(ProduceAnswer(topic, partition, code, offset, time_ms, start))
    topic_tags, _, response_tags = _PLAIN_END.unpack_from(cursor.view, position + size)
    return None if topic_tags or response_tags else answers


def _check_unique_partitions(partitions: Sequence[ProducePartition], *, uses_ids: bool) -> None:
    seen = {(item.topic_id if uses_ids else item.topic, item.partition) for item in partitions}
    if len(seen) != len(partitions):
        raise Unencodable("a Produce request has the same partition twice")


def _write_answer(writer: Writer[Part], version: int, answer: ProduceAnswer) -> None:
    # The usual case: only the numbers, from `partition` to `log_start_offset`.
    if version >= _FLEXIBLE_FROM and answer[6:9] == _NO_REMARKS:
        writer.output += _PLAIN_ANSWER.pack(*answer[1:6], *_NO_REMARKS_BYTES)
        return
    writer.output += _ANSWER_FROM_3.pack(
        answer.partition, answer.error_code, answer.base_offset, answer.append_time_ms
    )
    if version >= 5:
        writer.output += INT64.pack(answer.log_start_offset)
    if version >= 8:
        writer.count(len(answer.record_errors))
        for error in answer.record_errors:
            writer.output += INT32.pack(error.batch_index)
            writer.string(error.message)
            writer.no_tags()
        writer.string(answer.error_message)
    if version >= 10 and answer.current_leader is not None:
        writer.tags([(0, current_leader_bytes(answer.current_leader))])
    else:
        writer.no_tags()


def _read_answer(cursor: Cursor, version: int, topic: str, topic_id: UUID | None) -> ProduceAnswer:
    log_start_offset = NO_OFFSET
    if version >= 5:
        *fixed, log_start_offset = cursor.unpack(_ANSWER_FROM_5, "partition's answer")
    else:
        fixed = list(cursor.unpack(_ANSWER_FROM_3, "partition's answer"))
    partition, error_code, base_offset, append_time_ms = fixed
    record_errors: tuple[RecordError, ...] = ()
    error_message = None
    if version >= 8:
        record_errors = _read_record_errors(cursor)
        error_message = cursor.nullable_string("error message")
    tagged = cursor.tags("partition's answer", _ANSWER_TAGS) if cursor.flexible else {}
    return ProduceAnswer(
        topic,
        partition,
        error_code,
        base_offset,
        append_time_ms,
        log_start_offset,
        error_message,
        record_errors,
        tagged.get(0),
        topic_id,
    )


def _read_record_errors(cursor: Cursor) -> tuple[RecordError, ...]:
    errors = []
    for _ in range(cursor.count("record errors", least_size=6)):
        (batch_index,) = cursor.unpack(INT32, "batch index")
        errors.append(RecordError(batch_index, cursor.nullable_string("record's error message")))
        if cursor.flexible:
            cursor.tags("record error")
    return tuple(errors)
