"""What can be asked of a controller, and what it answers. Values only.

A request says in its type what its answer is: `handle(now_ms, Heartbeat(...))` leads to a
`HeartbeatAnswer`. A request that cannot be granted as a whole raises `Refused`; where parts
can be granted by themselves, each part has a code of its own.
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

# A member of an in-sync set of whom the leader has not heard yet.
UNKNOWN_EPOCH = -1


class Request(Generic[A_co]):
    """A request whose answer is an `A_co`."""

    __slots__ = ()


# Brokers

# The epoch of a broker that is not registered.
NO_EPOCH = -1
# What a heartbeat is refused with where the controller counts on another process, or on none:
# who hears it has no place any more, and ends.
DISMISSALS = frozenset({Code.STALE_BROKER_EPOCH, Code.BROKER_ID_NOT_REGISTERED})


@dataclass(frozen=True, slots=True)
class Registered:
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class RegisterBroker(Request[Registered]):
    """A process of a broker has started. It is fenced until it has caught up with the metadata.

    It keeps its place in in-sync sets if its data is all there: it has the folder that the
    process before it had, and the machine was not started anew since, or that process wrote
    everything to the disk at its end and left its own incarnation in the folder to say so.

    Two things tell whether it is what it takes itself for, the latest process of its broker:
    a request can be on its way for longer than its process lives, and a folder can be an older
    copy of itself.
    """

    broker_id: int
    # Made up by each process for itself.
    incarnation: str
    host: str
    port: int
    boot_id: str
    # Written into the folder when it is made.
    directory_id: str
    # The processes that had that folder before it: the last one that opened its logs there, and
    # all who tried since.
    earlier: tuple[str, ...] = ()
    # The registration of this broker that it replaces.
    previous_epoch: int = NO_EPOCH
    clean_incarnation: str | None = None
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    is_caught_up: bool
    is_fenced: bool
    should_shut_down: bool


@dataclass(frozen=True, slots=True)
class Heartbeat(Request[HeartbeatAnswer]):
    """A broker lives. `applied_count` is that of its own `ClusterState`.

    With `want_shutdown` all leaderships are moved away, and when the answer leaves nobody
    counts on the broker any more.
    """

    broker_id: int
    broker_epoch: int
    applied_count: int
    want_fence: bool = False
    want_shutdown: bool = False


@dataclass(frozen=True, slots=True)
class BrokersDied(Request[None]):
    """Processes have ended, as their parent saw it; there is no need to wait for sessions.

    Incarnations by broker. Deaths that are seen together should be told together: whoever was
    in sync with the others when nobody was left to commit anything has everything.
    """

    incarnations: Annotated[Mapping[int, str], "incarnations"]


@dataclass(frozen=True, slots=True)
class UnregisterBroker(Request[None]):
    """A broker will not come back."""

    broker_id: Annotated[int, "broker_id"]


# Controllers


@dataclass(frozen=True, slots=True)
class Introduction:
    """A controller: its disk, and the voters (ids and disks) that it knows or proposes.

    Once it is a member of a quorum, `voters` are those of the quorum.
    """

    node_id: Annotated[int, "node_id"]
    directory: Annotated[UUID, "directory"]
    voters: Annotated[tuple[tuple[int, UUID], ...] | None, "voters"]
    is_member: Annotated[bool, "is_member"]


@dataclass(frozen=True, slots=True)
class Introduce(Request[Introduction]):
    """One controller tells another who it is, and hears the same; see `founding`."""

    cluster_id: Annotated[str, "cluster_id"]
    introduction: Annotated[Introduction, "introduction"]


@dataclass(frozen=True, slots=True)
class ProducerIdBlock:
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class AllocateProducerIds(Request[ProducerIdBlock]):
    """A block of ids that nobody has had."""

    broker_id: int
    broker_epoch: int


# Topics and settings


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic as asked for; -1 stands for the broker's default, which the caller fills in."""

    name: Annotated[str, "name"]
    partitions: Annotated[int, "partitions"]
    replication_factor: Annotated[int, "replication_factor"]
    assignments: Annotated[Mapping[int, Sequence[int]], "assignments"] = field(default_factory=dict)
    configs: Annotated[Mapping[str, str | None], "configs"] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CreateTopic(Request[None]):
    """`topic_id` is made up by whoever asks: chance comes from outside."""

    topic: Annotated[NewTopic, "topic"]
    topic_id: Annotated[UUID, "topic_id"]


@dataclass(frozen=True, slots=True)
class DeleteTopic(Request[None]):
    topic_id: Annotated[UUID, "topic_id"]


@dataclass(frozen=True, slots=True)
class CreatePartitions(Request[None]):
    """Grow a topic to `count` partitions; `assignments` are those of the new ones."""

    name: Annotated[str, "name"]
    count: Annotated[int, "count"]
    assignments: Annotated[Sequence[Sequence[int]] | None, "assignments"] = None


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """One change of a setting; operations are those of IncrementalAlterConfigs."""

    name: Annotated[str, "name"]
    operation: Annotated[int, "operation"]
    value: Annotated[str | None, "value"]


SET, DELETE, APPEND, SUBTRACT = range(4)


@dataclass(frozen=True, slots=True)
class AlterConfigs(Request[None]):
    """Change settings of a topic or a broker: all of them, or none."""

    owner_kind: Annotated[str, "owner_kind"]
    owner: Annotated[str, "owner"]
    changes: Annotated[Sequence[ConfigChange], "changes"]


# Partitions


@dataclass(frozen=True, slots=True)
class InSyncChange:
    """A leader's proposal: an in-sync set of broker ids and their epochs.

    It counts only if the partition still has these epochs. Members that the leader has not
    heard of since it leads may have `UNKNOWN_EPOCH`, if they are in the set already.
    """

    topic_id: UUID
    partition: int
    leader_epoch: int
    partition_epoch: int
    in_sync: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class InSyncAnswer:
    """Without an error, `partition` is what is so now; NEW_LEADER_ELECTED has it too."""

    topic_id: UUID
    index: int
    code: Code
    partition: PartitionRecord | None = None


@dataclass(frozen=True, slots=True)
class AlterPartitions(Request[list[InSyncAnswer]]):
    """A broker wants in-sync sets of partitions that it leads changed."""

    broker_id: int
    broker_epoch: int
    changes: Sequence[InSyncChange]


@dataclass(frozen=True, slots=True)
class ReportFailures(Request[None]):
    """A broker cannot write or read its logs of these partitions; by topic id and number.

    It may be asked again for them when it has been started anew.
    """

    broker_id: Annotated[int, "broker_id"]
    broker_epoch: Annotated[int, "broker_epoch"]
    partitions: Annotated[Sequence[tuple[UUID, int]], "partitions"]


@dataclass(frozen=True, slots=True)
class ReportLosses(Request[None]):
    """A broker found less in its logs of these partitions than there was; by topic id and number.

    Told before the broker is counted on: files were cut or removed while it was down.
    """

    broker_id: Annotated[int, "broker_id"]
    broker_epoch: Annotated[int, "broker_epoch"]
    partitions: Annotated[Sequence[tuple[UUID, int]], "partitions"]


@dataclass(frozen=True, slots=True)
class LogEnd:
    """How far a replica's log goes; told under the leader epoch in which there is no leader."""

    topic_id: Annotated[UUID, "topic_id"]
    partition: Annotated[int, "partition"]
    leader_epoch: Annotated[int, "leader_epoch"]
    last_epoch: Annotated[int, "last_epoch"]
    end_offset: Annotated[int, "end_offset"]


@dataclass(frozen=True, slots=True)
class ReportLogEnds(Request[None]):
    """A broker tells of its logs of partitions that are `recovering`."""

    broker_id: Annotated[int, "broker_id"]
    broker_epoch: Annotated[int, "broker_epoch"]
    ends: Annotated[Sequence[LogEnd], "ends"]


@dataclass(frozen=True, slots=True)
class PartitionAnswer:
    partition: Annotated[TopicPartition, "partition"]
    code: Annotated[Code, "code"]
    message: Annotated[str | None, "message"] = None


class Election(Enum):
    PREFERRED = 0
    UNCLEAN = 1


@dataclass(frozen=True, slots=True)
class ElectLeaders(Request[list[PartitionAnswer]]):
    """Let the first replica lead, or anyone where nobody may. None: all that need it."""

    election: Annotated[Election, "election"]
    partitions: Annotated[Sequence[TopicPartition] | None, "partitions"] = None


@dataclass(frozen=True, slots=True)
class MoveLeader(Request[None]):
    """Let another replica lead, which must be in sync."""

    partition: Annotated[TopicPartition, "partition"]
    broker_id: Annotated[int, "broker_id"]


@dataclass(frozen=True, slots=True)
class ShrinkInSync(Request[None]):
    """Take replicas out of the in-sync set; the leader takes them in again when it may."""

    partition: Annotated[TopicPartition, "partition"]
    broker_ids: Annotated[tuple[int, ...], "broker_ids"]


@dataclass(frozen=True, slots=True)
class Reassign(Request[list[PartitionAnswer]]):
    """Give partitions other replicas; None calls off what is under way."""

    targets: Annotated[Mapping[TopicPartition, Sequence[int] | None], "targets"]
