"""The records of the metadata log, and their bytes.

Rules of this file:
- A record says what is so from now on, never what to do.
- The bytes are JSON objects with the record's type and version. A new field comes with a
  default, so that old logs can be read; a change of meaning is a new version or a new type.
- The records of one command share a batch: they are all there after a crash, or none.
"""

import json
from dataclasses import dataclass, fields
from typing import Any, ClassVar
from uuid import UUID

from shoal.model.errors import ShoalError

VERSION = 1

NO_LEADER = -1


class UnknownRecord(ShoalError):
    """The metadata log holds something that this version of shoal cannot read."""


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    """The first record: which cluster this is."""

    type: ClassVar[str] = "cluster"
    cluster_id: str


@dataclass(frozen=True, slots=True)
class BrokerRecord:
    """A broker, whole: one incarnation of its process, at this address. A change replaces it."""

    type: ClassVar[str] = "broker"
    broker_id: int
    incarnation: str
    host: str
    port: int
    # Higher for every registration in the cluster: an older one is of a process that is gone.
    epoch: int = 0
    rack: str | None = None
    # On which boot of its machine it runs, and which folder has its data.
    boot_id: str = ""
    directory_id: str = ""
    # Fenced: it leads nothing and is in sync with nobody, because it has not caught up with the
    # metadata, or is not heard of. Shutting down: for good, the process ends or has ended.
    fenced: bool = False
    shutting_down: bool = False


@dataclass(frozen=True, slots=True)
class BrokerRemovedRecord:
    """A broker does not belong to the cluster any more."""

    type: ClassVar[str] = "broker-removed"
    broker_id: int


@dataclass(frozen=True, slots=True)
class TopicRecord:
    type: ClassVar[str] = "topic"
    topic_id: UUID
    name: str


@dataclass(frozen=True, slots=True)
class PartitionRecord:
    """A partition, whole: a change replaces it, and has a higher partition epoch."""

    type: ClassVar[str] = "partition"
    topic_id: UUID
    partition: int
    # All who have a copy or are to get one; the first is preferred as leader.
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int
    # Not in sync, but with everything that is committed, because nothing has been committed
    # since they left (KIP-966).
    eligible: tuple[int, ...] = ()
    # While replicas are reassigned: who of them is new, and who is to go.
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    # Whose log cannot be written or read, until its broker starts anew.
    failed: tuple[int, ...] = ()
    # Who was in sync or eligible and came back without its unflushed data.
    lost: tuple[int, ...] = ()
    # An unclean election is under way: replicas tell the controller how far their logs go.
    recovering: bool = False

    @property
    def key(self) -> tuple[UUID, int]:
        return self.topic_id, self.partition

    @property
    def target_replicas(self) -> tuple[int, ...]:
        """The replicas when the reassignment is done."""
        return tuple(broker for broker in self.replicas if broker not in self.removing)


@dataclass(frozen=True, slots=True)
class TopicRemovedRecord:
    """A topic is gone, with its partitions and settings."""

    type: ClassVar[str] = "topic-removed"
    topic_id: UUID


@dataclass(frozen=True, slots=True)
class ConfigRecord:
    """A setting of a topic, a broker or the cluster; without a value it has its default again.

    `owner` is a topic's name, a broker's id, or empty for all brokers and for the cluster.
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


@dataclass(frozen=True, slots=True)
class SnapshotEndRecord:
    """The last record of a snapshot: how many records of the log it stands for."""

    type: ClassVar[str] = "snapshot-end"
    applied_count: int


Record = (
    ClusterRecord
    | BrokerRecord
    | BrokerRemovedRecord
    | TopicRecord
    | PartitionRecord
    | TopicRemovedRecord
    | ConfigRecord
    | ProducerIdsRecord
    | SnapshotEndRecord
)

_CLASSES: dict[str, type[Record]] = {
    cls.type: cls
    for cls in (
        ClusterRecord,
        BrokerRecord,
        BrokerRemovedRecord,
        TopicRecord,
        PartitionRecord,
        TopicRemovedRecord,
        ConfigRecord,
        ProducerIdsRecord,
        SnapshotEndRecord,
    )
}


_ENCODER = json.JSONEncoder(default=str, separators=(",", ":"), check_circular=False)
_FIELDS = {cls: tuple(field.name for field in fields(cls)) for cls in _CLASSES.values()}
_TYPES = {cls: {field.name: field.type for field in fields(cls)} for cls in _CLASSES.values()}


def encode_record(record: Record) -> bytes:
    body: dict[str, Any] = {"type": record.type, "version": VERSION}
    for name in _FIELDS[type(record)]:
        body[name] = getattr(record, name)
    return _ENCODER.encode(body).encode()


def decode_record(data: bytes) -> Record:
    """The record; `UnknownRecord` if the bytes are none that we know."""
    try:
        body: dict[str, Any] = json.loads(data)
        cls = _CLASSES[body.pop("type")]
        if body.pop("version") != VERSION:
            raise UnknownRecord(f"a {cls.type!r} record of a newer version of shoal")
        types = _TYPES[cls]
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
