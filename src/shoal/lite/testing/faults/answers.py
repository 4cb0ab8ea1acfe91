"""What a client gets for a request that goes wrong on purpose.

An error code stands where the answer of each API has room for one: next to each topic, partition
or group that was asked about, or at the top. The answer is made from the two classes alone: an
array of the answer is that array of the request which has the same names in its items, or the
only one there is.
"""

from collections.abc import Awaitable, Iterator, Mapping
from dataclasses import Field, fields, is_dataclass
from typing import Any

from shoal.lite.base.codes import Code
from shoal.lite.base.hooks.request_faults import RequestFault
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, Api, HangUp, Request
from shoal.wire.api_keys import ApiKey
from shoal.wire.building import shape_of
from shoal.wire.messages import response_class

# One thing has several names in Kafka's messages.
_SYNONYMS = {
    "index": "partition_index",
    "partition": "partition_index",
    "partition_id": "partition_index",
    "topic": "name",
    "topic_name": "name",
}
# What is asked about is known by these.
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
# Arrays of plain values, and what these are.
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
# Above what it was asked about, the code of these is about the connection's session.
_ONLY_BELOW = {ApiKey.FETCH, ApiKey.METADATA}


def gone_wrong(
    fault: RequestFault, api: Api, core: BrokerCore, request: Request
) -> Answer | Awaitable[Answer]:
    """Do to a request what a fault says."""
    if fault.how == "hang-up":
        raise HangUp(f"{api.key.name} fails on purpose")
    if fault.how == "lost-answer":
        return _without_answer(api, core, request)
    values = error_values(request, fault.error_code)
    if api.key == ApiKey.METADATA:
        # A client that hears of no brokers at all would not know whom to ask again.
        values["brokers"] = [
            {"node_id": broker.broker_id, "host": broker.host, "port": broker.port, "rack": None}
            for broker in core.listed_brokers()
        ]
    return request.answer(**values)


async def _without_answer(api: Api, core: BrokerCore, request: Request) -> Answer:
    answer = api.handle(core, request)
    if isinstance(answer, Awaitable):
        await answer
    raise HangUp(f"the answer to {api.key.name} is lost on purpose")


def error_values(request: Request, code: int) -> dict[str, Any]:
    """The fields of an answer that says the same code about everything that was asked."""
    cls = response_class(request.header.api_key, request.version)
    values = _values(cls, _named("", request.body()), code)
    is_told_below = any(isinstance(value, list) and value for value in values.values())
    if request.header.api_key in _ONLY_BELOW and is_told_below:
        values["error_code"] = Code.NONE
    return values


def _values(cls: type[Any], asked: Mapping[str, Any], code: int) -> dict[str, Any]:
    # What is optional is left out.
    needed = [field for field in fields(cls) if "tag" not in field.metadata]
    return {field.name: _value(field, asked, code) for field in needed}


def _value(field: "Field[Any]", asked: Mapping[str, Any], code: int) -> Any:
    shape = shape_of(field)
    name = _SYNONYMS.get(field.name, field.name)
    if field.metadata.get("kafka_type") == "error_code":
        return code
    if name == "error_message":
        return "on purpose"
    if shape.is_array:
        if not shape.is_structure:
            return None if shape.is_nullable else []
        return [_values(shape.item_type, item, code) for item in _twin(shape.item_type, asked)]
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


def _twin(item_cls: type[Any], asked: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The items of a request that the answer's array of these items is about."""
    names = _IDENTITIES & {_SYNONYMS.get(field.name, field.name) for field in fields(item_cls)}
    arrays = list(_arrays(asked))
    # What is sorted by folder in a request may not be so in the answer.
    arrays += [inner for items in arrays for item in items for inner in _arrays(item)]
    best: list[dict[str, Any]] = []
    for items in arrays:
        if len(names & items[0].keys()) > len(names & (best or [{}])[0].keys()):
            best = items
    is_told_each = any(f.metadata.get("kafka_type") == "error_code" for f in fields(item_cls))
    return arrays[0] if not best and is_told_each and arrays else best


def _arrays(asked: Mapping[str, Any]) -> Iterator[list[dict[str, Any]]]:
    for name, value in asked.items():
        if isinstance(value, tuple) and value:
            yield [_named(name, item) for item in value]


def _named(array: str, item: Any) -> dict[str, Any]:
    """A thing that is asked about, with what it is known by."""
    if not is_dataclass(item):
        return {_PLAIN_ARRAYS.get(array, array): item}
    return {_SYNONYMS.get(f.name, f.name): getattr(item, f.name) for f in fields(item)}
