"""The answers to requests with an injected fault.

An error code is set in every error field of the answer: for each topic, partition or group of the
request, or at the top level. The answer is derived from the request and response classes alone: an
array of the answer corresponds to the array of the request whose items have the same field names,
or to the only array.
"""

from collections.abc import Awaitable, Iterator, Mapping
from dataclasses import Field, fields, is_dataclass
from typing import Any

from shoal.lite.base.codes import Code
from shoal.lite.base.hooks.request_faults import RequestFault
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, Api, ApiRequest, CloseConnection
from shoal.wire.api_keys import ApiKey
from shoal.wire.building import shape_of
from shoal.wire.messages import response_class

# Kafka's messages have several names for one thing.
_SYNONYMS = {
    "index": "partition_index",
    "partition": "partition_index",
    "partition_id": "partition_index",
    "topic": "name",
    "topic_name": "name",
}
# The fields that identify the subject of a request.
_IDENTITIES = {
    "name",
    "topic_id",
    "partition_index",
    "group_id",
    "key",
    "resource_type",
    "resource_name",
    "transactional_id",
    "producer_id",
}
# Arrays of plain values, and the identifying field that the values stand for.
_PLAIN_ARRAYS = {
    "topic_names": "name",
    "coordinator_keys": "key",
    "groups": "group_id",
    "groups_names": "group_id",
    "partition_indexes": "partition_index",
    "partitions": "partition_index",
    "transactional_ids": "transactional_id",
}
_EMPTY: dict[str, Any] = {
    "bool": False,
    "string": "",
    "bytes": b"",
    "records": None,
    "float64": 0.0,
}
# The top-level error code of these is about the session, not about the request.
_NESTED_ERRORS_ONLY = {ApiKey.FETCH, ApiKey.METADATA}


def inject_fault(
    fault: RequestFault, api: Api, core: BrokerCore, request: ApiRequest[Any, Any]
) -> Answer | Awaitable[Answer]:
    """Apply a fault to a request."""
    if fault.how == "hang-up":
        raise CloseConnection(f"injected fault: {api.key.name} closes the connection")
    if fault.how == "lost-answer":
        return _drop_answer(api, core, request)
    values = error_values(request, fault.error_code)
    if api.key == ApiKey.METADATA:
        # A client without any broker in its metadata could not retry.
        values["brokers"] = [
            {"node_id": broker.broker_id, "host": broker.host, "port": broker.port, "rack": None}
            for broker in core.brokers_for_clients()
        ]
    return request.answer(values)


async def _drop_answer(api: Api, core: BrokerCore, request: ApiRequest[Any, Any]) -> Answer:
    answer = api.handle(core, request)
    if isinstance(answer, Awaitable):
        await answer
    raise CloseConnection(f"injected fault: the answer to {api.key.name} is lost")


def error_values(request: ApiRequest[Any, Any], code: int) -> dict[str, Any]:
    """The fields of an answer with the same error code for every item of the request."""
    cls = response_class(request.header.api_key, request.version)
    values = _values(cls, _identities_of("", request.body()), code)
    has_nested_error = any(isinstance(value, list) and value for value in values.values())
    if request.header.api_key in _NESTED_ERRORS_ONLY and has_nested_error:
        values["error_code"] = Code.NONE
    return values


def _values(cls: type[Any], asked: Mapping[str, Any], code: int) -> dict[str, Any]:
    # Tagged fields are optional and left out.
    needed = [field for field in fields(cls) if "tag" not in field.metadata]
    return {field.name: _value(field, asked, code) for field in needed}


def _value(field: "Field[Any]", asked: Mapping[str, Any], code: int) -> Any:
    shape = shape_of(field)
    name = _SYNONYMS.get(field.name, field.name)
    if field.metadata.get("kafka_type") == "error_code":
        return code
    if name == "error_message":
        return "injected fault"
    if shape.is_array:
        if not shape.is_structure:
            return None if shape.is_nullable else []
        return [
            _values(shape.item_type, item, code) for item in _matching_items(shape.item_type, asked)
        ]
    if shape.is_structure:
        return None if shape.is_nullable else _values(shape.item_type, asked, code)
    if name in _IDENTITIES and name in asked:
        return asked[name]
    return None if shape.is_nullable else _empty(field)


def _empty(field: "Field[Any]") -> Any:
    kind = str(field.metadata.get("kafka_type"))
    if kind.startswith("timedelta"):
        return 0
    return _EMPTY.get(kind, -1)


def _matching_items(item_cls: type[Any], asked: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The items of the request to which an array of `item_cls` in the answer corresponds."""
    names = _IDENTITIES & {_SYNONYMS.get(field.name, field.name) for field in fields(item_cls)}
    arrays = list(_arrays(asked))
    # A request may group by log directory where the answer does not.
    arrays += [inner for items in arrays for item in items for inner in _arrays(item)]
    best: list[dict[str, Any]] = []
    for items in arrays:
        if len(names & items[0].keys()) > len(names & (best or [{}])[0].keys()):
            best = items
    has_error_code = any(f.metadata.get("kafka_type") == "error_code" for f in fields(item_cls))
    return arrays[0] if not best and has_error_code and arrays else best


def _arrays(asked: Mapping[str, Any]) -> Iterator[list[dict[str, Any]]]:
    for name, value in asked.items():
        if isinstance(value, tuple) and value:
            yield [_identities_of(name, item) for item in value]


def _identities_of(array: str, item: Any) -> dict[str, Any]:
    """The identifying fields of an item of a request."""
    if not is_dataclass(item):
        return {_PLAIN_ARRAYS.get(array, array): item}
    return {_SYNONYMS.get(f.name, f.name): getattr(item, f.name) for f in fields(item)}
