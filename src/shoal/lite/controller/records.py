"""The records of the metadata log, and their bytes.

Rules of this file:
- A record says what is so from now on, never what to do.
- The bytes are JSON objects with the record's type and version. A new field comes with a
  default, so that old logs can be read; a change of meaning is a new version or a new type.
- The records of one command share a batch: they are all there after a crash, or none.
"""

import json
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar
from uuid import UUID

from shoal.model.errors import ShoalError

VERSION = 1


class UnknownRecord(ShoalError):
    """The metadata log holds something that this version of shoal cannot read."""


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    """The first record: which cluster this is."""

    type: ClassVar[str] = "cluster"
    cluster_id: str


@dataclass(frozen=True, slots=True)
class BrokerRecord:
    """A broker lives, as this incarnation of its process, at this address."""

    type: ClassVar[str] = "broker"
    broker_id: int
    incarnation: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class TopicRecord:
    type: ClassVar[str] = "topic"
    topic_id: UUID
    name: str


@dataclass(frozen=True, slots=True)
class PartitionRecord:
    """A partition, whole: a change replaces it."""

    type: ClassVar[str] = "partition"
    topic_id: UUID
    partition: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int


@dataclass(frozen=True, slots=True)
class TopicRemovedRecord:
    """A topic is gone, with its partitions and settings."""

    type: ClassVar[str] = "topic-removed"
    topic_id: UUID


@dataclass(frozen=True, slots=True)
class ConfigRecord:
    """A setting of a topic or a broker; without a value it has its default again.

    `owner` is a topic's name, a broker's id, or empty for all brokers.
    """

    type: ClassVar[str] = "config"
    owner_kind: str
    owner: str
    name: str
    value: str | None


@dataclass(frozen=True, slots=True)
class ProducerIdsRecord:
    """All producer ids below this one have been given out."""

    type: ClassVar[str] = "producer-ids"
    next_producer_id: int


Record = (
    ClusterRecord
    | BrokerRecord
    | TopicRecord
    | PartitionRecord
    | TopicRemovedRecord
    | ConfigRecord
    | ProducerIdsRecord
)

_CLASSES: dict[str, type[Record]] = {
    cls.type: cls
    for cls in (
        ClusterRecord,
        BrokerRecord,
        TopicRecord,
        PartitionRecord,
        TopicRemovedRecord,
        ConfigRecord,
        ProducerIdsRecord,
    )
}


def encode_record(record: Record) -> bytes:
    body = {"type": record.type, "version": VERSION, **asdict(record)}
    return json.dumps(body, default=str, separators=(",", ":")).encode()


def decode_record(data: bytes) -> Record:
    """The record; `UnknownRecord` if the bytes are none that we know."""
    try:
        body: dict[str, Any] = json.loads(data)
        cls = _CLASSES[body.pop("type")]
        if body.pop("version") != VERSION:
            raise UnknownRecord(f"a {cls.type!r} record of a newer version of shoal")
        types = {field.name: field.type for field in fields(cls)}
        known = body.keys() & types.keys()
        return cls(**{name: _restored(types[name], body[name]) for name in known})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        shown = data[:80].decode(errors="replace")
        raise UnknownRecord(f"not a metadata record: {shown}") from error


def _restored(annotation: Any, value: Any) -> Any:
    """JSON has no ids and no tuples."""
    if annotation is UUID:
        return UUID(value)
    return tuple(value) if isinstance(value, list) else value
