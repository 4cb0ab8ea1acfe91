"""What a mirror is told: two clusters, topics, and what happens on the way.

A `MirrorConfig` that exists makes sense by itself; whether the clusters and topics are there is
found out at the start (`shoal.mirror.mm2.topics`). `shoal.mirror.mm2.properties` makes one, or
several,
of a file that MirrorMaker 2 reads.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Self

from shoal.mirror.copy.delivery.names import DELIVERIES
from shoal.mirror.copy.rebatch import CODECS, KEEP, DeepRules
from shoal.mirror.mm2.naming import Naming
from shoal.mirror.mm2.patterns import (
    CONFIGS_EXCLUDE,
    GROUPS_EXCLUDE,
    TOPICS_EXCLUDE,
    Patterns,
    Selection,
)
from shoal.mirror.offsets.checkpoints import check_name
from shoal.mirror.run.start_position import start_timestamp
from shoal.model.errors import ConfigError
from shoal.model.serialised import FormatMismatch, from_plain, to_plain

ON_BAD_BATCH: Final = ("park", "retry")
ON_LOSS: Final = ("report", "fail")
BOOTSTRAP: Final = "bootstrap.servers"


@dataclass(frozen=True, slots=True)
class MirrorLimits:
    """Sizes and times of the copying itself."""

    # One answer to a fetch; a larger batch still comes whole.
    fetch_bytes: Annotated[int, "fetch_bytes"] = 8 << 20
    # One partition's part of it, and the most that a partition keeps waiting before it is
    # left out of the next fetch.
    partition_bytes: Annotated[int, "partition_bytes"] = 1 << 20
    # All that was fetched and is not yet acknowledged; nothing is fetched above it.
    queue_bytes: Annotated[int, "queue_bytes"] = 32 << 20
    # One request to the target; brokers accept 100 MiB by default.
    request_bytes: Annotated[int, "request_bytes"] = 8 << 20
    # What the whole mirror, all its workers together, sends to the target in a second, on
    # average; 0 for no limit.
    max_bytes_per_s: Annotated[int, "max_bytes_per_s"] = 0
    # How long the source may wait for this much data before it answers with less.
    fetch_wait_ms: Annotated[int, "fetch_wait_ms"] = 500
    fetch_min_bytes: Annotated[int, "fetch_min_bytes"] = 1
    # After the order to stop: how long to wait for what is in flight.
    stop_s: Annotated[float, "stop_s"] = 10.0


@dataclass(frozen=True, slots=True)
class TopicRules:
    """Which topics, under which names, and what besides records is kept the same."""

    exclude: Annotated[tuple[str, ...], "exclude"] = TOPICS_EXCLUDE
    naming: Annotated[Naming, "naming"] = field(default_factory=Naming)
    # How often the source is looked through for new topics and partitions; 0 for never.
    refresh_s: Annotated[float, "refresh_s"] = 10.0
    sync_configs: Annotated[bool, "sync_configs"] = True
    sync_configs_s: Annotated[float, "sync_configs_s"] = 60.0
    configs_exclude: Annotated[tuple[str, ...], "configs_exclude"] = CONFIGS_EXCLUDE
    # Of topics that are made at the target; -1 for the target's default.
    replication_factor: Annotated[int, "replication_factor"] = -1
    # Delete at the target what the source has deleted at its log start.
    follow_log_start: Annotated[bool, "follow_log_start"] = False


@dataclass(frozen=True, slots=True)
class CopyRules:
    """How batches are copied, and what happens when one cannot be."""

    # Pass batches on unopened; where not, records are taken apart (`shoal.mirror.copy.rebatch`).
    use_raw_bytes: Annotated[bool, "use_raw_bytes"] = True
    # The two sides of it by themselves, as KIP-712 names them; None follows `use_raw_bytes`.
    fetch_raw_bytes: Annotated[bool | None, "fetch_raw_bytes"] = None
    send_raw_bytes: Annotated[bool | None, "send_raw_bytes"] = None
    # Topics (names or expressions) that are copied deep although others are not.
    deep_topics: Annotated[tuple[str, ...], "deep_topics"] = ()
    deep: Annotated[DeepRules, "deep"] = field(default_factory=DeepRules)
    # A batch of the source whose checksum is wrong: park its partition, or retry reading it.
    on_bad_batch: Annotated[str, "on_bad_batch"] = "park"
    # Records that were deleted at the source before they were copied: report, or fail.
    on_loss: Annotated[str, "on_loss"] = "report"

    def __post_init__(self) -> None:
        sides = (self.is_fetching_raw, self.is_sending_raw)
        if sides[0] != sides[1]:
            on, off = ("fetch", "send") if sides[0] else ("send", "fetch")
            raise ConfigError(
                f"{on}.raw.bytes is on and {off}.raw.bytes is off: a batch that is fetched "
                "unopened can only be sent unopened, and records only as records",
                remedy="set both to the same, or use.raw.bytes alone",
            )
        for name, value, legal in (
            ("on-bad-batch", self.on_bad_batch, ON_BAD_BATCH),
            ("on-loss", self.on_loss, ON_LOSS),
            ("compression.type", self.deep.compression_type, (KEEP, *CODECS)),
        ):
            if value not in legal:
                raise ConfigError(
                    f"{value!r} is no {name}", remedy=f"one of {', '.join(map(str, legal))}"
                )
        if self.deep.batch_size_bytes < 1 or self.deep.linger_ms < 0:
            raise ConfigError(
                "batch.size must be 1 at least, and linger.ms 0", remedy="leave them out"
            )
        Patterns(self.deep_topics)

    @property
    def is_fetching_raw(self) -> bool:
        return self.use_raw_bytes if self.fetch_raw_bytes is None else self.fetch_raw_bytes

    @property
    def is_sending_raw(self) -> bool:
        return self.use_raw_bytes if self.send_raw_bytes is None else self.send_raw_bytes

    def is_deep(self, topic: str) -> bool:
        """Whether records of a topic are taken apart."""
        return not self.is_fetching_raw or Patterns(self.deep_topics).match(topic)


@dataclass(frozen=True, slots=True)
class GroupRules:
    """Which consumer groups' positions are brought to the target."""

    sync: Annotated[bool, "sync"] = False
    include: Annotated[tuple[str, ...], "include"] = (".*",)
    exclude: Annotated[tuple[str, ...], "exclude"] = GROUPS_EXCLUDE
    sync_s: Annotated[float, "sync_s"] = 60.0


@dataclass(frozen=True, slots=True)
class HeartbeatRules:
    """Records at the target that tell of a living mirror, in MirrorMaker 2's format."""

    emit: Annotated[bool, "emit"] = False
    every_s: Annotated[float, "every_s"] = 1.0


@dataclass(frozen=True, slots=True)
class MirrorConfig:
    """One mirror. `source` and `target` are clients' properties, by Kafka's names."""

    source: Annotated[Mapping[str, Any], "source"] = field(repr=False)
    target: Annotated[Mapping[str, Any], "target"] = field(repr=False)
    topics: Annotated[tuple[str, ...], "topics"]  # names or regular expressions
    # Under which a mirror finds its own work again on the target.
    name: Annotated[str, "name"] = "default"
    # One of `DELIVERIES`: see `shoal.mirror.copy.delivery.choice`.
    delivery: Annotated[str, "delivery"] = "idempotent"
    # Where partitions begin that this mirror has not copied before: see
    # `shoal.mirror.run.start_position`.
    start: Annotated[str, "start"] = "earliest"
    handler: Annotated[str | None, "handler"] = None
    # Where to write down, now and then and at the end, how far it came.
    positions: Annotated[Path | None, "positions"] = None
    # Where to note which batches of the target were packed anew.
    re_encoded: Annotated[Path | None, "re_encoded"] = None
    # Which of the processes of one mirror this is.
    worker: Annotated[int, "worker"] = 0
    # End when the process that started this one ends.
    stop_with_parent: Annotated[bool, "stop_with_parent"] = False
    limits: Annotated[MirrorLimits, "limits"] = field(default_factory=MirrorLimits)
    copy: Annotated[CopyRules, "copy"] = field(default_factory=CopyRules)
    rules: Annotated[TopicRules, "rules"] = field(default_factory=TopicRules)
    groups: Annotated[GroupRules, "groups"] = field(default_factory=GroupRules)
    heartbeats: Annotated[HeartbeatRules, "heartbeats"] = field(default_factory=HeartbeatRules)

    def __post_init__(self) -> None:
        for name, properties in (("source", self.source), ("target", self.target)):
            if not properties.get(BOOTSTRAP):
                raise ConfigError(
                    f"the {name} cluster has no {BOOTSTRAP}",
                    remedy=f"give --{name}-bootstrap-server host:port",
                )
        check_name(self.name)
        if self.delivery not in DELIVERIES:
            raise ConfigError(
                f"{self.delivery!r} is no delivery", remedy=f"one of {', '.join(DELIVERIES)}"
            )
        start_timestamp(self.start)
        if not self.topics or not all(self.topics):
            raise ConfigError("a mirror needs topics", remedy="give --topics a,b")
        if len(set(self.topics)) != len(self.topics):
            raise ConfigError("a topic is named twice", remedy="name each topic once")
        if (
            self.source.get(BOOTSTRAP) == self.target.get(BOOTSTRAP)
            and self.rules.naming.keeps_names
        ):
            raise ConfigError(
                "source and target are the same cluster, and topics keep their names",
                remedy="mirror into another cluster, or rename the topics",
            )
        # Expressions that cannot be read must show now.
        self.selection()
        self.group_selection()
        self.excluded_configs()

    def selection(self) -> Selection:
        return Selection(self.topics, self.rules.exclude)

    def group_selection(self) -> Selection:
        return Selection(self.groups.include, self.groups.exclude)

    def excluded_configs(self) -> Patterns:
        return Patterns(self.rules.configs_exclude)

    def to_json(self) -> dict[str, Any]:
        body: dict[str, Any] = to_plain(self)
        return body

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        try:
            return from_plain(cls, body)
        except FormatMismatch as error:
            raise ConfigError(
                f"a mirror's configuration {error}",
                remedy="install the same version of shoal where workers run",
            ) from error
