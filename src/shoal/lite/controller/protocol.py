"""What brokers and controllers say to each other, as lines of JSON over TCP.

    broker      {"hello": {"token": …, "node": 2}}             the first line, by which it is known
    broker      {"call": 7, "request": …}                      a request of `requests`
    controller  {"reply": 7, "answer": …, "end": 42}           its answer, or
                {"reply": 7, "code": 36, "message": …, "end": 42}
    both        {"raft": …}                                    a message of `raft.messages`

`end` is the end of the metadata log that the answer rests on: who asked waits until it has that
much itself, and then sees what it has brought about.

Rules of this file:
- Values are what JSON has; everything else is an object {"$": name, "": content}. Only names of
  this file are known; a line with another, or with what does not fit, raises `Malformed`.
- A line has a limited length.
"""

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any
from uuid import UUID

from shoal.lite.codes import Code
from shoal.lite.controller import records, requests
from shoal.lite.raft import messages, model
from shoal.model.topics import TopicPartition
from shoal.wire.errors import Malformed

# A part of a snapshot, or the records of one fetch, in base 64, with room to spare.
LINE_LIMIT_BYTES = 16 * 1024 * 1024
MARK = "$"

_ENUMS: dict[str, type[Enum]] = {
    cls.__name__: cls for cls in (Code, requests.Election, messages.RaftCode, model.EntryKind)
}
_TUPLES: dict[str, Callable[..., Any]] = {
    "TopicPartition": TopicPartition,
    "SnapshotId": model.SnapshotId,
    "EpochEnd": model.EpochEnd,
}
_CLASSES: dict[str, type[Any]] = {
    cls.__name__: cls
    for cls in (
        requests.RegisterBroker,
        requests.Registered,
        requests.Heartbeat,
        requests.HeartbeatAnswer,
        requests.UnregisterBroker,
        requests.AllocateProducerIds,
        requests.ProducerIdBlock,
        requests.NewTopic,
        requests.CreateTopic,
        requests.DeleteTopic,
        requests.CreatePartitions,
        requests.ConfigChange,
        requests.AlterConfigs,
        requests.InSyncChange,
        requests.InSyncAnswer,
        requests.AlterPartitions,
        requests.LogEnd,
        requests.ReportLogEnds,
        requests.ReportFailures,
        requests.PartitionAnswer,
        requests.ElectLeaders,
        requests.MoveLeader,
        requests.ShrinkInSync,
        requests.Reassign,
        records.PartitionRecord,
        model.Entry,
        messages.FetchRequest,
        messages.FetchResponse,
        messages.FetchSnapshotRequest,
        messages.FetchSnapshotResponse,
    )
}


def encode_line(**values: Any) -> bytes:
    """A line, with its end."""
    packed = {name: _packed(value) for name, value in values.items()}
    return json.dumps(packed, separators=(",", ":")).encode() + b"\n"


def decode_line(line: bytes) -> dict[str, Any]:
    """What a line says."""
    try:
        content = json.loads(line)
        return {name: _unpacked(value) for name, value in content.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Malformed(f"not a line between broker and controller: {error!r}") from error


def _packed(value: Any) -> Any:
    if isinstance(value, Enum):
        return _marked(type(value).__name__, value.value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        return _marked("bytes", base64.b64encode(value).decode())
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
    "bytes": lambda content: base64.b64decode(content, validate=True),
    "uuid": UUID,
    "tuple": lambda content: tuple(map(_unpacked, content)),
    "map": lambda content: {_unpacked(key): _unpacked(item) for key, item in content},
}
