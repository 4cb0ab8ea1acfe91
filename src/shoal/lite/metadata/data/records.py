"""The records of the metadata log, and their bytes.

Rules of this file:
- A record states what holds from now on, never what to do.
- The bytes are JSON objects with the record's type and version, and the fields under the names
  that are declared beside their types (`shoal.model.serialised`), all of them. A new field or
  another meaning is a new version: a record with other fields than its version is rejected.
- The records of one request share a batch: after a crash all of them exist, or none.
"""

import json
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar
from uuid import UUID

from shoal.model.errors import ShoalError
from shoal.model.serialised import FormatMismatch, check_version, from_plain, to_plain

VERSION = 1

NO_LEADER = -1

_REMEDY = "open the folder with the version of shoal that wrote it"


class UnknownRecord(ShoalError):
    """The metadata log contains a record that this version of shoal cannot read."""


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    """The first record: the id of the cluster."""

    type: ClassVar[str] = "cluster"
    cluster_id: Annotated[str, "cluster_id"]


@dataclass(frozen=True, slots=True)
class BrokerRecord:
    """A complete broker: one incarnation of its process, at this address. A change replaces it."""

    type: ClassVar[str] = "broker"
    broker_id: Annotated[int, "broker_id"]
    incarnation: Annotated[str, "incarnation"]
    host: Annotated[str, "host"]
    port: Annotated[int, "port"]
    # Increases with every registration in the cluster: an older epoch is of a former process.
    epoch: Annotated[int, "epoch"] = 0
    rack: Annotated[str | None, "rack"] = None
    # The boot of the machine on which it runs, and the id of its data folder.
    boot_id: Annotated[str, "boot_id"] = ""
    directory_id: Annotated[str, "directory_id"] = ""
    # Fenced: it leads nothing and is in no in-sync set, because it has not caught up with the
    # metadata, or its session expired. Shutting down is final: the process is ending or has ended.
    fenced: Annotated[bool, "fenced"] = False
    shutting_down: Annotated[bool, "shutting_down"] = False


@dataclass(frozen=True, slots=True)
class BrokerRemovedRecord:
    """A broker was unregistered."""

    type: ClassVar[str] = "broker-removed"
    broker_id: Annotated[int, "broker_id"]


@dataclass(frozen=True, slots=True)
class TopicRecord:
    type: ClassVar[str] = "topic"
    topic_id: Annotated[UUID, "topic_id"]
    name: Annotated[str, "name"]


@dataclass(frozen=True, slots=True)
class PartitionRecord:
    """A complete partition: a change replaces it, and has a higher partition epoch."""

    type: ClassVar[str] = "partition"
    topic_id: Annotated[UUID, "topic_id"]
    partition: Annotated[int, "partition"]
    # All brokers that have a replica or are to get one; the first is the preferred leader.
    replicas: Annotated[tuple[int, ...], "replicas"]
    in_sync: Annotated[tuple[int, ...], "in_sync"]
    leader: Annotated[int, "leader"]
    leader_epoch: Annotated[int, "leader_epoch"]
    partition_epoch: Annotated[int, "partition_epoch"]
    # Eligible leader replicas (KIP-966): not in sync, but with everything that is committed,
    # because nothing has been committed since they left.
    eligible: Annotated[tuple[int, ...], "eligible"] = ()
    # During a reassignment: the replicas that are added, and those that are removed.
    adding: Annotated[tuple[int, ...], "adding"] = ()
    removing: Annotated[tuple[int, ...], "removing"] = ()
    # Replicas whose log cannot be written or read, until their broker restarts.
    failed: Annotated[tuple[int, ...], "failed"] = ()
    # Replicas that were in sync or eligible and came back without their unflushed data.
    lost: Annotated[tuple[int, ...], "lost"] = ()
    # An unclean election is under way: replicas report the ends of their logs.
    recovering: Annotated[bool, "recovering"] = False

    @property
    def key(self) -> tuple[UUID, int]:
        return self.topic_id, self.partition

    @property
    def target_replicas(self) -> tuple[int, ...]:
        """The replicas after the reassignment."""
        return tuple(broker for broker in self.replicas if broker not in self.removing)


@dataclass(frozen=True, slots=True)
class TopicRemovedRecord:
    """A topic is deleted, with its partitions and settings."""

    type: ClassVar[str] = "topic-removed"
    topic_id: Annotated[UUID, "topic_id"]


@dataclass(frozen=True, slots=True)
class ConfigRecord:
    """A setting of a topic, a broker or the cluster; without a value it is reset to its default.

    `owner` is a topic's name, a broker's id, or empty for all brokers and for the cluster.
    """

    type: ClassVar[str] = "config"
    owner_kind: Annotated[str, "owner_kind"]
    owner: Annotated[str, "owner"]
    name: Annotated[str, "name"]
    value: Annotated[str | None, "value"]


@dataclass(frozen=True, slots=True)
class ProducerIdsRecord:
    """All producer ids below this one are allocated."""

    type: ClassVar[str] = "producer-ids"
    next_producer_id: Annotated[int, "next_producer_id"]


@dataclass(frozen=True, slots=True)
class SnapshotEndRecord:
    """The last record of a snapshot: how many records of the log it replaces."""

    type: ClassVar[str] = "snapshot-end"
    applied_count: Annotated[int, "applied_count"]


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


_ENCODER = json.JSONEncoder(separators=(",", ":"), check_circular=False)


def encode_record(record: Record) -> bytes:
    body = {"type": record.type, "version": VERSION, **to_plain(record)}
    return _ENCODER.encode(body).encode()


def decode_record(data: bytes) -> Record:
    """Decode a record; `UnknownRecord` if the bytes are not a known one."""
    try:
        body: dict[str, Any] = json.loads(data)
        cls = _CLASSES[body.pop("type")]
        check_version(body.pop("version"), (VERSION,))
        return from_plain(cls, body)
    except FormatMismatch as error:
        shown = data[:80].decode(errors="replace")
        raise UnknownRecord(
            f"a {cls.type!r} record of the metadata log {error}: {shown}", remedy=_REMEDY
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        shown = data[:80].decode(errors="replace")
        raise UnknownRecord(f"not a metadata record: {shown}", remedy=_REMEDY) from error
