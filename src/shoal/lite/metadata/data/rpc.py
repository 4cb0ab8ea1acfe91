"""Requests to a controller as Apache Kafka's requests and responses.

    RegisterBroker         BrokerRegistration 62
    Heartbeat              BrokerHeartbeat 63
    AlterPartitions        AlterPartition 56
    AllocateProducerIds    AllocateProducerIds 67
    all others             Envelope 58, in which brokers forward requests for the controller; the
                           content is encoded by `values`

Rules of this file:
- What those messages have no field for is in a tagged field of the header, which other software
  skips: how a broker's last process ended; the end of the metadata log on which an answer is
  based, and the error message.
- Invalid content raises a `WireError`.
"""

import json
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.metadata.data.records import PartitionRecord
from shoal.lite.metadata.data.requests import (
    AllocateProducerIds,
    AlterPartitions,
    ControllerRequest,
    Heartbeat,
    HeartbeatAnswer,
    InSyncAnswer,
    InSyncChange,
    ProducerIdBlock,
    RegisterBroker,
    RegistrationAnswer,
)
from shoal.lite.metadata.data.values import decode_value, encode_value
from shoal.wire.api_keys import ApiKey
from shoal.wire.building import build
from shoal.wire.errors import Malformed
from shoal.wire.framing import Part
from shoal.wire.messages import (
    RequestFrame,
    decode_body,
    decode_response,
    encode_request,
    encode_response,
    request_class,
    request_header_tag,
    response_class,
    response_header_tag,
)
from shoal.wire.primitives import INT64

A = TypeVar("A")

VERSIONS = {
    ApiKey.BROKER_REGISTRATION: 4,
    ApiKey.BROKER_HEARTBEAT: 1,
    ApiKey.ALTER_PARTITION: 3,
    ApiKey.ALLOCATE_PRODUCER_IDS: 0,
    ApiKey.ENVELOPE: 0,
}
_KEYS: dict[type[Any], ApiKey] = {
    RegisterBroker: ApiKey.BROKER_REGISTRATION,
    Heartbeat: ApiKey.BROKER_HEARTBEAT,
    AlterPartitions: ApiKey.ALTER_PARTITION,
    AllocateProducerIds: ApiKey.ALLOCATE_PRODUCER_IDS,
}
# Our own tag, far above those of Apache Kafka.
_HEADER_TAG = 10_000
_PLAINTEXT = 0
_CODES_WITH_PARTITION = {Code.NONE, Code.NEW_LEADER_ELECTED}


class Reply(NamedTuple):
    """An answer or an error, and the end of the metadata log on which it is based."""

    answer: Any
    refused: ApiError | None
    end_offset: int


def api_key_of(request: ControllerRequest[Any]) -> ApiKey:
    return _KEYS.get(type(request), ApiKey.ENVELOPE)


# Requests


def encode_call(
    request: ControllerRequest[Any], cluster_id: str, correlation_id: int
) -> list[Part]:
    """The parts of a request, to be framed."""
    api_key = api_key_of(request)
    values = _REQUEST_VALUES[api_key](request) | {"cluster_id": cluster_id}
    message = build(request_class(api_key, VERSIONS[api_key]), values)
    tags = []
    if isinstance(request, RegisterBroker):
        last_process = [request.boot_id, request.clean_incarnation, request.earlier]
        tags.append((_HEADER_TAG, json.dumps(last_process).encode()))
    return [encode_request(message, correlation_id=correlation_id, client_id=None, tags=tags)]


def _registration_values(request: RegisterBroker) -> dict[str, Any]:
    listener = {
        "name": "PLAINTEXT",
        "host": request.host,
        "port": request.port,
        "security_protocol": _PLAINTEXT,
    }
    return {
        "broker_id": request.broker_id,
        "incarnation_id": UUID(request.incarnation),
        "listeners": [listener],
        "features": [],
        "rack": request.rack,
        "log_dirs": [UUID(request.directory_id)],
        "previous_broker_epoch": request.previous_epoch,
    }


def _heartbeat_values(request: Heartbeat) -> dict[str, Any]:
    return {
        "broker_id": request.broker_id,
        "broker_epoch": request.broker_epoch,
        "current_metadata_offset": request.applied_count,
        "want_fence": request.want_fence,
        "want_shut_down": request.want_shutdown,
    }


def _alter_values(request: AlterPartitions) -> dict[str, Any]:
    topics = []
    for topic_id, changes in _by_topic(request.changes):
        partitions = [
            {
                "partition_index": change.partition,
                "leader_epoch": change.leader_epoch,
                "partition_epoch": change.partition_epoch,
                "new_isr_with_epochs": [
                    {"broker_id": broker_id, "broker_epoch": epoch}
                    for broker_id, epoch in change.in_sync
                ],
            }
            for change in changes
        ]
        topics.append({"topic_id": topic_id, "partitions": partitions})
    return {
        "broker_id": request.broker_id,
        "broker_epoch": request.broker_epoch,
        "topics": topics,
    }


def _by_topic(items: Sequence[Any]) -> Any:
    """Items in their order; adjacent items of one topic are grouped."""
    return groupby(items, key=lambda item: item.topic_id)


def _allocation_values(request: AllocateProducerIds) -> dict[str, Any]:
    return {"broker_id": request.broker_id, "broker_epoch": request.broker_epoch}


def _envelope_values(request: ControllerRequest[Any]) -> dict[str, Any]:
    return {
        "request_data": encode_value(request),
        "request_principal": b"",
        "client_host_address": b"",
    }


_REQUEST_VALUES: dict[ApiKey, Callable[[Any], dict[str, Any]]] = {
    ApiKey.BROKER_REGISTRATION: _registration_values,
    ApiKey.BROKER_HEARTBEAT: _heartbeat_values,
    ApiKey.ALTER_PARTITION: _alter_values,
    ApiKey.ALLOCATE_PRODUCER_IDS: _allocation_values,
    ApiKey.ENVELOPE: _envelope_values,
}


def decode_call(header: RequestFrame, frame: Part, cluster_id: str) -> ControllerRequest[Any]:
    """Decode a request of a broker; `ApiError` if it is of another cluster."""
    cls = request_class(header.api_key, header.api_version)
    body: Any = decode_body(frame, cls, header.body_position)
    match header.api_key:
        case ApiKey.BROKER_REGISTRATION:
            if body.cluster_id != cluster_id:
                message = f"this is cluster {cluster_id}, not {body.cluster_id}"
                raise ApiError(Code.INCONSISTENT_CLUSTER_ID, message)
            return _registration(body, request_header_tag(frame, _HEADER_TAG))
        case ApiKey.BROKER_HEARTBEAT:
            return Heartbeat(
                int(body.broker_id),
                body.broker_epoch,
                body.current_metadata_offset,
                body.want_fence,
                body.want_shut_down,
            )
        case ApiKey.ALTER_PARTITION:
            return AlterPartitions(int(body.broker_id), body.broker_epoch, _changes(body))
        case ApiKey.ALLOCATE_PRODUCER_IDS:
            return AllocateProducerIds(int(body.broker_id), body.broker_epoch)
        case _:
            request = decode_value(body.request_data)
            if not isinstance(request, ControllerRequest):
                raise Malformed(f"{type(request).__name__} is not a request to a controller")
            return request


def _registration(body: Any, tag: bytes | None) -> RegisterBroker:
    if len(body.listeners) != 1 or len(body.log_dirs) != 1 or body.incarnation_id is None:
        raise Malformed(
            "a registration must name one listener, one log directory and an incarnation"
        )
    try:
        boot_id, clean_incarnation, names = ("", None, ()) if tag is None else json.loads(tag)
        # Brokers of an earlier version send something else here.
        earlier = tuple(map(str, names)) if isinstance(names, list) else ()
    except (ValueError, TypeError) as error:
        raise Malformed(
            f"a registration has an invalid tag about the previous process: {error}"
        ) from error
    [listener], [directory] = body.listeners, body.log_dirs
    return RegisterBroker(
        int(body.broker_id),
        body.incarnation_id.hex,
        listener.host,
        listener.port,
        boot_id=str(boot_id),
        directory_id=(directory or UUID(int=0)).hex,
        earlier=earlier,
        previous_epoch=body.previous_broker_epoch,
        clean_incarnation=None if clean_incarnation is None else str(clean_incarnation),
        rack=body.rack,
    )


def _changes(body: Any) -> list[InSyncChange]:
    return [
        InSyncChange(
            topic.topic_id or UUID(int=0),
            partition.partition_index,
            partition.leader_epoch,
            partition.partition_epoch,
            tuple((int(m.broker_id), m.broker_epoch) for m in partition.new_isr_with_epochs),
        )
        for topic in body.topics
        for partition in topic.partitions
    ]


# Replies


def encode_reply(header: RequestFrame, reply: Reply) -> list[Part]:
    """The parts of the response to the request with this header."""
    code, message = Code.NONE, ""
    values: dict[str, Any] = {"topics": [], "producer_id_start": -1, "producer_id_len": 0}
    values |= {"should_shut_down": False, "response_data": None}
    if reply.refused is not None:
        code, message = reply.refused.code, str(reply.refused)
    else:
        values |= _ANSWER_VALUES[header.api_key](reply.answer)
    values |= {"error_code": code, "throttle_time": 0}
    response = build(response_class(header.api_key, header.api_version), values)
    tags = [(_HEADER_TAG, INT64.pack(reply.end_offset) + message.encode())]
    return [encode_response(response, correlation_id=header.correlation_id, tags=tags)]


def _in_sync_values(answers: list[InSyncAnswer]) -> dict[str, Any]:
    topics = []
    for topic_id, of_topic in _by_topic(answers):
        partitions = []
        for answer in of_topic:
            record = answer.partition
            partitions.append(
                {
                    "partition_index": answer.index,
                    "error_code": answer.code,
                    "leader_id": -1 if record is None else record.leader,
                    "leader_epoch": -1 if record is None else record.leader_epoch,
                    "partition_epoch": -1 if record is None else record.partition_epoch,
                    "isr": () if record is None else record.in_sync,
                }
            )
        topics.append({"topic_id": topic_id, "partitions": partitions})
    return {"topics": topics}


_ANSWER_VALUES: dict[ApiKey, Callable[[Any], dict[str, Any]]] = {
    ApiKey.BROKER_REGISTRATION: lambda answer: {"broker_epoch": answer.broker_epoch},
    ApiKey.BROKER_HEARTBEAT: lambda answer: {
        "is_caught_up": answer.is_caught_up,
        "is_fenced": answer.is_fenced,
        "should_shut_down": answer.should_shut_down,
    },
    ApiKey.ALTER_PARTITION: _in_sync_values,
    ApiKey.ALLOCATE_PRODUCER_IDS: lambda answer: {
        "producer_id_start": answer.first,
        "producer_id_len": answer.count,
    },
    ApiKey.ENVELOPE: lambda answer: {"response_data": encode_value(answer)},
}


def decode_reply(request: ControllerRequest[Any], frame: Part) -> Reply:
    """Decode the reply to `request`."""
    api_key = api_key_of(request)
    body: Any
    _, body = decode_response(frame, response_class(api_key, VERSIONS[api_key]))
    tag = response_header_tag(frame, _HEADER_TAG) or INT64.pack(0)
    if len(tag) < INT64.size:
        raise Malformed("a reply lacks the end of the metadata log in its header")
    end_offset: int = INT64.unpack_from(tag)[0]
    code = _code(body.error_code)
    if code != Code.NONE:
        reason = tag[INT64.size :].decode(errors="replace") or code.name
        return Reply(None, ApiError(code, reason), end_offset)
    return Reply(_answer(api_key, body), None, end_offset)


def _answer(api_key: ApiKey, body: Any) -> Any:
    match api_key:
        case ApiKey.BROKER_REGISTRATION:
            return RegistrationAnswer(body.broker_epoch)
        case ApiKey.BROKER_HEARTBEAT:
            return HeartbeatAnswer(body.is_caught_up, body.is_fenced, body.should_shut_down)
        case ApiKey.ALTER_PARTITION:
            return [
                _in_sync_answer(topic.topic_id or UUID(int=0), partition)
                for topic in body.topics
                for partition in topic.partitions
            ]
        case ApiKey.ALLOCATE_PRODUCER_IDS:
            return ProducerIdBlock(int(body.producer_id_start), body.producer_id_len)
        case _:
            return decode_value(body.response_data or b"")


def _in_sync_answer(topic_id: UUID, answer: Any) -> InSyncAnswer:
    code = _code(answer.error_code)
    key = (topic_id, answer.partition_index)
    if code not in _CODES_WITH_PARTITION:
        return InSyncAnswer(*key, code)
    record = PartitionRecord(
        *key,
        replicas=(),
        in_sync=tuple(map(int, answer.isr)),
        leader=int(answer.leader_id),
        leader_epoch=answer.leader_epoch,
        partition_epoch=answer.partition_epoch,
    )
    return InSyncAnswer(*key, code, record)


def _code(number: int) -> Code:
    try:
        return Code(int(number))
    except ValueError:
        return Code.UNKNOWN_SERVER_ERROR
