"""Values that leaders, followers, the controller and the shell exchange."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from shoal.lite.base.codes import Code
from shoal.lite.storage.state.epochs import EpochHistory

NO_LEADER = -1

# The epochs of the brokers that are registered, not fenced and not shutting down.
LiveEpochs = Mapping[int, int]


class ReplicatedLog(Protocol):
    """The part of a replica's log that the state machines use.

    They read it. The only thing they write is the start of a leader's epoch, because the leader
    may not answer a fetch earlier: an epoch that is not in its history cannot be compared.
    """

    @property
    def start_offset(self) -> int: ...
    @property
    def end_offset(self) -> int: ...
    @property
    def lacks_start(self) -> bool: ...
    @property
    def epochs(self) -> EpochHistory: ...
    def begin_epoch(self, epoch: int) -> None:
        """Record that `epoch` starts at the log end offset."""


@dataclass(frozen=True, slots=True)
class ReplicationSettings:
    """Settings of a topic and its broker, by Apache Kafka's names, dots as underscores."""

    min_insync_replicas: int = 1
    # A follower that has not reached the leader's log end offset for this long leaves the ISR.
    replica_lag_time_max_ms: int = 30_000
    # How long to wait for the answer to a proposal before sending it again.
    controller_request_timeout_ms: int = 2_000
    # The pause before a rejected or failed proposal is sent again.
    controller_retry_backoff_ms: int = 50
    # The pause of a follower after a failed fetch. Short: a new leader may learn of its election
    # later than its followers do, and writes wait for them.
    replica_fetch_backoff_ms: int = 100


@dataclass(frozen=True, slots=True)
class PartitionState:
    """A partition in the metadata. Every change has a higher partition epoch."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int
    # Replicas whose log failed: they fetch nothing until their broker restarts.
    failed: tuple[int, ...] = ()


class EpochEndOffset(NamedTuple):
    """A leader epoch and the offset after its last record."""

    epoch: int
    end_offset: int


class ReplicaFetch(NamedTuple):
    """The position that a follower sends to its leader for one partition."""

    offset: int
    leader_epoch: int
    last_fetched_epoch: int
    log_start_offset: int


class FetchVerdict(NamedTuple):
    """A leader's answer to a follower's fetch, apart from the records.

    Without an error and without a diverging epoch the follower gets the records from its offset to
    the log end offset. Errors carry the log start offset too: a follower that is out of range
    restarts its log there.
    """

    high_watermark: int
    log_start_offset: int
    code: Code = Code.NONE
    diverging: EpochEndOffset | None = None


class FetchAnswer(NamedTuple):
    """The answer that a follower received. `first_offset` is that of the first batch, if any."""

    high_watermark: int
    log_start_offset: int
    code: Code = Code.NONE
    diverging: EpochEndOffset | None = None
    first_offset: int | None = None


@dataclass(frozen=True, slots=True)
class TruncateTo:
    """Truncate the log and its epoch history to an offset, even if no record is above it."""

    offset: int


@dataclass(frozen=True, slots=True)
class TruncateFully:
    """Delete the log and its epoch history; the empty log starts at an offset."""

    start_offset: int


@dataclass(frozen=True, slots=True)
class AppendFetched:
    """Append the batches of the answer unchanged, with their offsets and leader epochs."""


@dataclass(frozen=True, slots=True)
class AdvanceStart:
    """Advance the log start offset, as the leader did."""

    offset: int


# Changes to a follower's log, to be applied in order before its next fetch.
FollowerAction = TruncateTo | TruncateFully | AppendFetched | AdvanceStart


@dataclass(frozen=True, slots=True)
class AlterIsr:
    """A leader's proposal to the controller: pairs of broker id and broker epoch.

    The controller accepts it only if the partition still has this leader epoch and this partition
    epoch. Accepting it raises the partition epoch, even if the set is unchanged. A broker epoch of
    -1 stands for a member that has not fetched from this leader. The number distinguishes this
    leader's proposals; it is not sent.
    """

    number: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[int, int], ...]

    @property
    def members(self) -> frozenset[int]:
        return frozenset(broker_id for broker_id, _ in self.isr)


@dataclass(frozen=True, slots=True)
class IsrAnswer:
    """The controller's answer; without an error it holds the current ISR and epochs."""

    code: Code = Code.NONE
    leader_epoch: int = -1
    partition_epoch: int = -1
    isr: tuple[int, ...] = ()


class AckResult(NamedTuple):
    """The end of a producer's wait: acknowledged, or failed with a code."""

    token: Any
    code: Code
