"""Requests and answers of ours as bytes, for what Apache Kafka has no message for: JSON.

Rules of this file:
- Values are what JSON has; everything else is an object {"$": name, "": content}. Only names of
  this file are known; bytes with another, or with what does not fit, raise `Malformed`.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any
from uuid import UUID

from shoal.lite.codes import Code
from shoal.lite.controller import requests
from shoal.model.topics import TopicPartition
from shoal.wire.errors import Malformed

MARK = "$"

_ENUMS: dict[str, type[Enum]] = {cls.__name__: cls for cls in (Code, requests.Election)}
_TUPLES: dict[str, Callable[..., Any]] = {
    "TopicPartition": TopicPartition,
}
_CLASSES: dict[str, type[Any]] = {
    cls.__name__: cls
    for cls in (
        requests.BrokersDied,
        requests.Introduction,
        requests.Introduce,
        requests.UnregisterBroker,
        requests.NewTopic,
        requests.CreateTopic,
        requests.DeleteTopic,
        requests.CreatePartitions,
        requests.ConfigChange,
        requests.AlterConfigs,
        requests.LogEnd,
        requests.ReportLogEnds,
        requests.ReportFailures,
        requests.ReportLosses,
        requests.PartitionAnswer,
        requests.ElectLeaders,
        requests.MoveLeader,
        requests.ShrinkInSync,
        requests.Reassign,
    )
}


def encode_value(value: Any) -> bytes:
    return json.dumps(_packed(value), separators=(",", ":")).encode()


def decode_value(data: bytes) -> Any:
    try:
        return _unpacked(json.loads(data))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Malformed(f"neither a request nor an answer of ours: {error!r}") from error


def _packed(value: Any) -> Any:
    if isinstance(value, Enum):
        return _marked(type(value).__name__, value.value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, UUID):
        return _marked("uuid", value.hex)
    if isinstance(value, tuple) and type(value).__name__ in _TUPLES:
        return _marked(type(value).__name__, [_packed(item) for item in value])
    if is_dataclass(value):
        content = {field.name: _packed(getattr(value, field.name)) for field in fields(value)}
        return _marked(type(value).__name__, content)
    if isinstance(value, Mapping):
        return _marked("map", [[_packed(key), _packed(item)] for key, item in value.items()])
    if isinstance(value, tuple):
        return _marked("tuple", [_packed(item) for item in value])
    if isinstance(value, Sequence):
        return [_packed(item) for item in value]
    raise TypeError(f"{type(value).__name__} does not travel")


def _marked(name: str, content: Any) -> dict[str, Any]:
    return {MARK: name, "": content}


def _unpacked(value: Any) -> Any:
    if isinstance(value, list):
        return [_unpacked(item) for item in value]
    if not isinstance(value, dict):
        return value
    name, content = value[MARK], value[""]
    if name in _CLASSES:
        return _CLASSES[name](**{key: _unpacked(item) for key, item in content.items()})
    if name in _ENUMS:
        return _ENUMS[name](content)
    if name in _TUPLES:
        return _TUPLES[name](*map(_unpacked, content))
    return _PLAIN[name](content)


_PLAIN: dict[str, Callable[[Any], Any]] = {
    "uuid": UUID,
    "tuple": lambda content: tuple(map(_unpacked, content)),
    "map": lambda content: {_unpacked(key): _unpacked(item) for key, item in content},
}
