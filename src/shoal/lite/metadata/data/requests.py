"""The requests to a controller, and its answers. Values only.

The type of a request names the type of its answer: `handle(now_ms, Heartbeat(...))` returns a
`HeartbeatAnswer`. A request that fails as a whole raises `ApiError`; where parts can succeed
separately, each part has its own error code.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Generic, TypeVar
from uuid import UUID

from shoal.lite.base.codes import Code
from shoal.lite.metadata.data.records import PartitionRecord
from shoal.model.topics import TopicPartition

A_co = TypeVar("A_co", covariant=True)

# The epoch of an in-sync replica that has not fetched from the leader yet.
UNKNOWN_EPOCH = -1


class ControllerRequest(Generic[A_co]):
    """A request whose answer is an `A_co`."""

    __slots__ = ()


# Brokers

# The epoch of a broker that is not registered.
NO_EPOCH = -1
# Errors of a heartbeat when another process, or none, is registered for the broker: a broker that
# gets one of them shuts down.
FENCED_CODES = frozenset({Code.STALE_BROKER_EPOCH, Code.BROKER_ID_NOT_REGISTERED})


@dataclass(frozen=True, slots=True)
class RegistrationAnswer:
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class RegisterBroker(ControllerRequest[RegistrationAnswer]):
    """A process of a broker has started. It is fenced until it has caught up with the metadata.

    It stays in its in-sync sets if its data is complete: it has the folder of the process before
    it, and either the machine was not rebooted since, or that process flushed everything at its
    end and left its incarnation in the folder as proof (a clean shutdown).

    `earlier` and `previous_epoch` show whether it is the latest process of its broker: a request
    can arrive after its process has ended, and a folder can be an older copy.
    """

    broker_id: int
    # A random id of this process.
    incarnation: str
    host: str
    port: int
    boot_id: str
    # Written into the folder when it is created.
    directory_id: str
    # The processes that had that folder before: the last one that opened its logs there, and all
    # that tried since.
    earlier: tuple[str, ...] = ()
    # The epoch of the registration that it replaces.
    previous_epoch: int = NO_EPOCH
    clean_incarnation: str | None = None
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    is_caught_up: bool
    is_fenced: bool
    should_shut_down: bool


@dataclass(frozen=True, slots=True)
class Heartbeat(ControllerRequest[HeartbeatAnswer]):
    """A broker is alive. `applied_count` is that of its own `ClusterState`.

    With `want_shutdown` all leaderships are moved away; when the answer leaves, the broker is in
    no in-sync set that has another member.
    """

    broker_id: int
    broker_epoch: int
    applied_count: int
    want_fence: bool = False
    want_shutdown: bool = False


@dataclass(frozen=True, slots=True)
class ReportBrokerExits(ControllerRequest[None]):
    """Processes have ended, reported by their parent: their sessions need not time out.

    Incarnations by broker. Exits that are seen together should be reported together: replicas that
    were in sync when no leader was left to commit anything have all committed records.
    """

    incarnations: Annotated[Mapping[int, str], "incarnations"]


@dataclass(frozen=True, slots=True)
class UnregisterBroker(ControllerRequest[None]):
    """Remove a broker that will not come back."""

    broker_id: Annotated[int, "broker_id"]


# Controllers


@dataclass(frozen=True, slots=True)
class ControllerIdentity:
    """A controller: its id, its directory id, and the voters that it knows or proposes.

    Once it is a member of a quorum, `voters` are those of the quorum.
    """

    node_id: Annotated[int, "node_id"]
    directory: Annotated[UUID, "directory"]
    voters: Annotated[tuple[tuple[int, UUID], ...] | None, "voters"]
    is_member: Annotated[bool, "is_member"]


@dataclass(frozen=True, slots=True)
class ExchangeVoterIds(ControllerRequest[ControllerIdentity]):
    """Two controllers exchange their ids and known voters; see `founding`."""

    cluster_id: Annotated[str, "cluster_id"]
    identity: Annotated[ControllerIdentity, "introduction"]


@dataclass(frozen=True, slots=True)
class ProducerIdBlock:
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class AllocateProducerIds(ControllerRequest[ProducerIdBlock]):
    """Allocate a block of unused producer ids."""

    broker_id: int
    broker_epoch: int


# Topics and settings


@dataclass(frozen=True, slots=True)
class NewTopicSpec:
    """A topic to create; -1 stands for the broker's default, which the caller fills in."""

    name: Annotated[str, "name"]
    partitions: Annotated[int, "partitions"]
    replication_factor: Annotated[int, "replication_factor"]
    assignments: Annotated[Mapping[int, Sequence[int]], "assignments"] = field(default_factory=dict)
    configs: Annotated[Mapping[str, str | None], "configs"] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CreateTopic(ControllerRequest[None]):
    """The sender generates `topic_id`: the controller itself has no randomness."""

    topic: Annotated[NewTopicSpec, "topic"]
    topic_id: Annotated[UUID, "topic_id"]


@dataclass(frozen=True, slots=True)
class DeleteTopic(ControllerRequest[None]):
    topic_id: Annotated[UUID, "topic_id"]


@dataclass(frozen=True, slots=True)
class CreatePartitions(ControllerRequest[None]):
    """Grow a topic to `count` partitions; `assignments` are those of the new ones."""

    name: Annotated[str, "name"]
    count: Annotated[int, "count"]
    assignments: Annotated[Sequence[Sequence[int]] | None, "assignments"] = None


@dataclass(frozen=True, slots=True)
class ConfigEdit:
    """One change of a setting; operations are those of IncrementalAlterConfigs."""

    name: Annotated[str, "name"]
    operation: Annotated[int, "operation"]
    value: Annotated[str | None, "value"]


SET, DELETE, APPEND, SUBTRACT = range(4)


@dataclass(frozen=True, slots=True)
class AlterConfigs(ControllerRequest[None]):
    """Change settings of a topic or a broker: all of them, or none."""

    owner_kind: Annotated[str, "owner_kind"]
    owner: Annotated[str, "owner"]
    changes: Annotated[Sequence[ConfigEdit], "changes"]


# Partitions


@dataclass(frozen=True, slots=True)
class InSyncChange:
    """A leader's proposal: an in-sync set of broker ids and their epochs.

    It is applied only if the partition still has these epochs. Replicas that have not fetched
    from this leader may have `UNKNOWN_EPOCH`, if they are in the set already.
    """

    topic_id: UUID
    partition: int
    leader_epoch: int
    partition_epoch: int
    in_sync: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class InSyncAnswer:
    """Without an error, `partition` is the new state; NEW_LEADER_ELECTED has it too."""

    topic_id: UUID
    index: int
    code: Code
    partition: PartitionRecord | None = None


@dataclass(frozen=True, slots=True)
class AlterPartitions(ControllerRequest[list[InSyncAnswer]]):
    """A broker proposes in-sync sets of partitions that it leads."""

    broker_id: int
    broker_epoch: int
    changes: Sequence[InSyncChange]


@dataclass(frozen=True, slots=True)
class ReportFailures(ControllerRequest[None]):
    """A broker cannot write or read its logs of these partitions; by topic id and number.

    Its replicas of them are used again after a restart of the broker.
    """

    broker_id: Annotated[int, "broker_id"]
    broker_epoch: Annotated[int, "broker_epoch"]
    partitions: Annotated[Sequence[tuple[UUID, int]], "partitions"]


@dataclass(frozen=True, slots=True)
class ReportLosses(ControllerRequest[None]):
    """A broker's logs of these partitions lost records; by topic id and number.

    Reported before the broker is unfenced: files were truncated or removed while it was down.
    """

    broker_id: Annotated[int, "broker_id"]
    broker_epoch: Annotated[int, "broker_epoch"]
    partitions: Annotated[Sequence[tuple[UUID, int]], "partitions"]


@dataclass(frozen=True, slots=True)
class LogEnd:
    """The end of a replica's log, reported under the leader epoch that has no leader."""

    topic_id: Annotated[UUID, "topic_id"]
    partition: Annotated[int, "partition"]
    leader_epoch: Annotated[int, "leader_epoch"]
    last_epoch: Annotated[int, "last_epoch"]
    end_offset: Annotated[int, "end_offset"]


@dataclass(frozen=True, slots=True)
class ReportLogEnds(ControllerRequest[None]):
    """A broker reports the ends of its logs of partitions that are `recovering`."""

    broker_id: Annotated[int, "broker_id"]
    broker_epoch: Annotated[int, "broker_epoch"]
    ends: Annotated[Sequence[LogEnd], "ends"]


@dataclass(frozen=True, slots=True)
class PartitionResult:
    partition: Annotated[TopicPartition, "partition"]
    code: Annotated[Code, "code"]
    message: Annotated[str | None, "message"] = None


class Election(Enum):
    PREFERRED = 0
    UNCLEAN = 1


@dataclass(frozen=True, slots=True)
class ElectLeaders(ControllerRequest[list[PartitionResult]]):
    """Elect the preferred leader, or any replica where none may lead. None: all that need it."""

    election: Annotated[Election, "election"]
    partitions: Annotated[Sequence[TopicPartition] | None, "partitions"] = None


@dataclass(frozen=True, slots=True)
class MoveLeader(ControllerRequest[None]):
    """Make another in-sync replica the leader."""

    partition: Annotated[TopicPartition, "partition"]
    broker_id: Annotated[int, "broker_id"]


@dataclass(frozen=True, slots=True)
class ShrinkInSync(ControllerRequest[None]):
    """Remove replicas from the in-sync set; the leader adds them again when they are in sync."""

    partition: Annotated[TopicPartition, "partition"]
    broker_ids: Annotated[tuple[int, ...], "broker_ids"]


@dataclass(frozen=True, slots=True)
class Reassign(ControllerRequest[list[PartitionResult]]):
    """Move partitions to other replicas; None cancels a reassignment."""

    targets: Annotated[Mapping[TopicPartition, Sequence[int] | None], "targets"]
