"""What goes between leaders, followers, the controller and the shell. Values only."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from shoal.lite.base.codes import Code
from shoal.lite.storage.state.epochs import EpochHistory

NO_LEADER = -1

# The epochs of the brokers that are registered, not fenced and not shutting down.
LiveEpochs = Mapping[int, int]


class Log(Protocol):
    """What the state machines see of a replica's log.

    They read it. The one thing they write is the begin of a leader's epoch, because nothing
    may be answered before: an epoch that is not in the leader's history cannot be compared.
    """

    @property
    def start_offset(self) -> int: ...
    @property
    def end_offset(self) -> int: ...
    @property
    def lacks_begin(self) -> bool: ...
    @property
    def epochs(self) -> EpochHistory: ...
    def begin_epoch(self, epoch: int) -> None:
        """Note that `epoch` writes from the end of the log on."""


@dataclass(frozen=True, slots=True)
class ReplicationSettings:
    """Settings of a topic and its broker, by Apache Kafka's names, dots as underscores."""

    min_insync_replicas: int = 1
    # A follower that was not at the leader's end for this long is no longer in sync.
    replica_lag_time_max_ms: int = 30_000
    # How long an unanswered proposal may still be on its way; then it is sent again.
    controller_request_timeout_ms: int = 2_000
    # The pause before a refused or failed proposal is made again.
    controller_retry_backoff_ms: int = 50
    # The pause of a follower after a fetch that failed. Short: a new leader may hear of itself
    # later than its followers do, and writes wait for them.
    replica_fetch_backoff_ms: int = 100


@dataclass(frozen=True, slots=True)
class Assignment:
    """A partition as the metadata has it. Every change has a higher partition epoch."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int


class EpochEnd(NamedTuple):
    """A leader epoch and the offset behind its last record."""

    epoch: int
    end_offset: int


class ReplicaFetch(NamedTuple):
    """What a follower asks of its leader, for one partition."""

    offset: int
    leader_epoch: int
    last_fetched_epoch: int
    log_start_offset: int


class FetchVerdict(NamedTuple):
    """What a leader says to a follower's fetch, apart from the records.

    Without an error and without a diverging epoch the follower gets records from its offset to
    the end of the log. The log start is told with errors too: a follower that is out of range
    begins again there.
    """

    high_watermark: int
    log_start_offset: int
    code: Code = Code.NONE
    diverging: EpochEnd | None = None


class FetchAnswer(NamedTuple):
    """What came back to a follower. `first_offset` is that of its first batch, if it has any."""

    high_watermark: int
    log_start_offset: int
    code: Code = Code.NONE
    diverging: EpochEnd | None = None
    first_offset: int | None = None


@dataclass(frozen=True, slots=True)
class TruncateTo:
    """Cut the log at an offset, and its epoch history too, even if no record is behind it."""

    offset: int


@dataclass(frozen=True, slots=True)
class TruncateFully:
    """Throw the log and its epoch history away; it is empty now, and begins at an offset."""

    start_offset: int


@dataclass(frozen=True, slots=True)
class AppendFetched:
    """Append the batches of the answer as they are, with their offsets and leader epochs."""


@dataclass(frozen=True, slots=True)
class AdvanceStart:
    """Make an offset the first that can be read, as the leader did."""

    offset: int


# What a follower wants done to its log, in this order, before it is asked again.
FollowerAction = TruncateTo | TruncateFully | AppendFetched | AdvanceStart


@dataclass(frozen=True, slots=True)
class AlterIsr:
    """A leader's proposal to the controller: pairs of broker id and broker epoch.

    It counts only if the partition still has this leader epoch and this partition epoch; if it
    is granted, the partition epoch grows, even if the set is as it was. A broker epoch of -1
    stands for a member that the leader has not heard of since it leads. The number tells this
    leader's proposals apart; it stays here.
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
    """The controller's answer; without an error it says what is so now."""

    code: Code = Code.NONE
    leader_epoch: int = -1
    partition_epoch: int = -1
    isr: tuple[int, ...] = ()


class Completed(NamedTuple):
    """A producer's wait is over: acknowledged, or failed with a code."""

    token: Any
    code: Code
