"""Encoding of requests and answers for which Apache Kafka has no message: JSON.

Rules of this file:
- The bytes are an object with `version` and `value`. Nodes of a cluster run one version of shoal:
  bytes of another version raise `Malformed`, which says so.
- Values are what JSON has; everything else is an object {"$": name, "": content}. Only names of
  this file are known; unknown names and invalid content raise `Malformed`.
- Serialised names of classes are in the tables below, and names of fields beside their types
  (`shoal.model.serialised`): renaming a class or a field changes no byte.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from enum import Enum
from typing import Any
from uuid import UUID

from shoal.lite.base.codes import Code
from shoal.lite.metadata.data import requests
from shoal.model.serialised import all_arguments_of, check_version, names_of
from shoal.model.topics import TopicPartition
from shoal.wire.errors import Malformed

MARK = "$"
VERSION = 1

_ENUMS: dict[str, type[Enum]] = {"Code": Code, "Election": requests.Election}
_TUPLES: dict[str, type[tuple[Any, ...]]] = {"TopicPartition": TopicPartition}
_CLASSES: dict[str, type[Any]] = {
    "BrokersDied": requests.ReportBrokerExits,
    "Introduction": requests.ControllerIdentity,
    "Introduce": requests.ExchangeVoterIds,
    "UnregisterBroker": requests.UnregisterBroker,
    "NewTopic": requests.NewTopicSpec,
    "CreateTopic": requests.CreateTopic,
    "DeleteTopic": requests.DeleteTopic,
    "CreatePartitions": requests.CreatePartitions,
    "ConfigChange": requests.ConfigEdit,
    "AlterConfigs": requests.AlterConfigs,
    "LogEnd": requests.LogEnd,
    "ReportLogEnds": requests.ReportLogEnds,
    "ReportFailures": requests.ReportFailures,
    "ReportLosses": requests.ReportLosses,
    "PartitionAnswer": requests.PartitionResult,
    "ElectLeaders": requests.ElectLeaders,
    "MoveLeader": requests.MoveLeader,
    "ShrinkInSync": requests.ShrinkInSync,
    "Reassign": requests.Reassign,
}
_NAMES: dict[type[Any], str] = {
    cls: name for names in (_ENUMS, _TUPLES, _CLASSES) for name, cls in names.items()
}


def encode_value(value: Any) -> bytes:
    body = {"version": VERSION, "value": _pack(value)}
    return json.dumps(body, separators=(",", ":")).encode()


def decode_value(data: bytes) -> Any:
    try:
        body = json.loads(data)
        check_version(body["version"], (VERSION,))
        return _unpack(body["value"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Malformed(f"not a valid request or answer of shoal: {error}") from error


def _pack(value: Any) -> Any:
    if isinstance(value, Enum):
        return _mark(_NAMES[type(value)], value.value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, UUID):
        return _mark("uuid", value.hex)
    if isinstance(value, tuple) and type(value) in _NAMES:
        return _mark(_NAMES[type(value)], [_pack(item) for item in value])
    if is_dataclass(value):
        names = names_of(type(value))
        content = {name.serialised_name: _pack(getattr(value, name.attribute)) for name in names}
        return _mark(_NAMES[type(value)], content)
    if isinstance(value, Mapping):
        return _mark("map", [[_pack(key), _pack(item)] for key, item in value.items()])
    if isinstance(value, tuple):
        return _mark("tuple", [_pack(item) for item in value])
    if isinstance(value, Sequence):
        return [_pack(item) for item in value]
    raise TypeError(f"{type(value).__name__} cannot be serialised")


def _mark(name: str, content: Any) -> dict[str, Any]:
    return {MARK: name, "": content}


def _unpack(value: Any) -> Any:
    if isinstance(value, list):
        return [_unpack(item) for item in value]
    if not isinstance(value, dict):
        return value
    name, content = value[MARK], value[""]
    if name in _CLASSES:
        return _object(_CLASSES[name], content)
    if name in _ENUMS:
        return _ENUMS[name](content)
    if name in _TUPLES:
        return _TUPLES[name](*map(_unpack, content))
    return _PLAIN[name](content)


def _object(cls: type[Any], content: dict[str, Any]) -> Any:
    arguments = all_arguments_of(cls, content)
    return cls(**{attribute: _unpack(item) for attribute, item in arguments.items()})


_PLAIN: dict[str, Callable[[Any], Any]] = {
    "uuid": UUID,
    "tuple": lambda content: tuple(map(_unpack, content)),
    "map": lambda content: {_unpack(key): _unpack(item) for key, item in content},
}
