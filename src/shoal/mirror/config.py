"""The configuration of a mirror: two clusters, topics, and how records are copied.

A `MirrorConfig` is always consistent in itself. Whether the clusters and topics exist is checked
at the start (`shoal.mirror.mm2.topics`). `shoal.mirror.mm2.properties` reads one or several from
a configuration file of MirrorMaker 2.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Self

from shoal.mirror.copy.delivery.names import DELIVERIES
from shoal.mirror.copy.depth import AUTO_DEPTH, DEEP, DEPTHS, RAW
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
    """Size and time limits of the copying."""

    # Of one fetch response; a single larger batch is still returned whole.
    fetch_bytes: Annotated[int, "fetch_bytes"] = 8 << 20
    # Of one partition in a fetch response. A partition with more than this queued is left out of
    # the next fetch.
    partition_bytes: Annotated[int, "partition_bytes"] = 1 << 20
    # Of all data that is fetched and not yet acknowledged; above it, nothing is fetched.
    queue_bytes: Annotated[int, "queue_bytes"] = 32 << 20
    # Of one request to the target; brokers accept 100 MiB by default.
    request_bytes: Annotated[int, "request_bytes"] = 8 << 20
    # Average bytes per second that all workers of the mirror together send to the target;
    # 0 for no limit.
    max_bytes_per_s: Annotated[int, "max_bytes_per_s"] = 0
    # The same for single topics of the source.
    topic_max_bytes_per_s: Annotated[Mapping[str, int], "topic_max_bytes_per_s"] = field(
        default_factory=dict
    )
    # How long the source may wait for `fetch_min_bytes` before it responds with less.
    fetch_wait_ms: Annotated[int, "fetch_wait_ms"] = 500
    fetch_min_bytes: Annotated[int, "fetch_min_bytes"] = 1
    # How long a stopping mirror waits for the batches in flight.
    stop_s: Annotated[float, "stop_s"] = 10.0


@dataclass(frozen=True, slots=True)
class TopicRules:
    """Which topics are copied, under which names, and what is synced besides records."""

    exclude: Annotated[tuple[str, ...], "exclude"] = TOPICS_EXCLUDE
    naming: Annotated[Naming, "naming"] = field(default_factory=Naming)
    # How often the mirror looks for new topics and partitions at the source; 0 for never.
    refresh_s: Annotated[float, "refresh_s"] = 10.0
    sync_configs: Annotated[bool, "sync_configs"] = True
    sync_configs_s: Annotated[float, "sync_configs_s"] = 60.0
    configs_exclude: Annotated[tuple[str, ...], "configs_exclude"] = CONFIGS_EXCLUDE
    # Of topics that the mirror creates at the target; -1 for the target's default.
    replication_factor: Annotated[int, "replication_factor"] = -1
    # Advance the log start of the target when the source's advances (delete records).
    follow_log_start: Annotated[bool, "follow_log_start"] = False


@dataclass(frozen=True, slots=True)
class CopyRules:
    """How batches are copied, and what happens when a batch cannot be copied."""

    # Copy batches as they are (raw), put records into new batches (deep), or what is cheaper for
    # the batches that arrive (`shoal.mirror.copy.depth`).
    depth: Annotated[str, "depth"] = AUTO_DEPTH
    # KIP-712's name: true is raw, false is deep, and None follows `depth`.
    use_raw_bytes: Annotated[bool | None, "use_raw_bytes"] = None
    # The two sides separately, with KIP-712's names; None follows the other settings.
    fetch_raw_bytes: Annotated[bool | None, "fetch_raw_bytes"] = None
    send_raw_bytes: Annotated[bool | None, "send_raw_bytes"] = None
    # Topics (names or regular expressions) that are copied deep while others are copied raw.
    deep_topics: Annotated[tuple[str, ...], "deep_topics"] = ()
    deep: Annotated[DeepRules, "deep"] = field(default_factory=DeepRules)
    # When the CRC of a source batch is wrong: park its partition, or read the batch again.
    on_bad_batch: Annotated[str, "on_bad_batch"] = "park"
    # When the source deleted records before they were copied: report the loss, or fail.
    on_loss: Annotated[str, "on_loss"] = "report"

    def __post_init__(self) -> None:
        sides = self._sides
        if False in sides and sides != (False, False):
            on, off = ("fetch", "send") if sides[1] is False else ("send", "fetch")
            raise ConfigError(
                f"{on}.raw.bytes is true and {off}.raw.bytes is false: raw batches can only be "
                "sent raw, and decoded records only as records",
                remedy="set both to the same value, or set only use.raw.bytes",
            )
        if self.depth not in (AUTO_DEPTH, self.demanded_depth):
            raise ConfigError(
                f"--depth is {self.depth}, and use.raw.bytes demands {self.demanded_depth}",
                remedy="set only one of them",
            )
        for name, value, legal in (
            ("depth", self.depth, DEPTHS),
            ("on-bad-batch", self.on_bad_batch, ON_BAD_BATCH),
            ("on-loss", self.on_loss, ON_LOSS),
            ("compression.type", self.deep.compression_type, (KEEP, *CODECS)),
        ):
            if value not in legal:
                raise ConfigError(
                    f"{value!r} is not a valid {name}",
                    remedy=f"use one of {', '.join(map(str, legal))}",
                )
        if self.deep.batch_size_bytes < 1 or self.deep.linger_ms < 0:
            raise ConfigError(
                "batch.size must be at least 1, and linger.ms at least 0",
                remedy="correct the values, or leave both out to use the defaults",
            )
        Patterns(self.deep_topics)

    @property
    def _sides(self) -> tuple[bool | None, bool | None]:
        """Whether fetching and sending are demanded to be raw; None where nothing is demanded."""
        both = self.use_raw_bytes
        fetch, send = self.fetch_raw_bytes, self.send_raw_bytes
        return (both if fetch is None else fetch, both if send is None else send)

    @property
    def demanded_depth(self) -> str:
        """The depth that KIP-712's settings demand, else `depth`."""
        if False in self._sides:
            return DEEP
        return RAW if True in self._sides else self.depth

    def depth_of(self, topic: str, *, needs_bytes: bool = False) -> str:
        """How a topic is copied; `auto` is raw where its batches must stay as they are."""
        if Patterns(self.deep_topics).match(topic):
            return DEEP
        demanded = self.demanded_depth
        return RAW if demanded == AUTO_DEPTH and needs_bytes else demanded


@dataclass(frozen=True, slots=True)
class GroupRules:
    """Which consumer groups' committed offsets are translated and committed at the target."""

    sync: Annotated[bool, "sync"] = False
    include: Annotated[tuple[str, ...], "include"] = (".*",)
    exclude: Annotated[tuple[str, ...], "exclude"] = GROUPS_EXCLUDE
    sync_s: Annotated[float, "sync_s"] = 60.0


@dataclass(frozen=True, slots=True)
class HeartbeatRules:
    """Heartbeat records at the target, in MirrorMaker 2's format: they show that a mirror runs."""

    emit: Annotated[bool, "emit"] = False
    every_s: Annotated[float, "every_s"] = 1.0


@dataclass(frozen=True, slots=True)
class MirrorConfig:
    """One mirror. `source` and `target` are client properties with Kafka's names."""

    source: Annotated[Mapping[str, Any], "source"] = field(repr=False)
    target: Annotated[Mapping[str, Any], "target"] = field(repr=False)
    topics: Annotated[tuple[str, ...], "topics"]  # names or regular expressions
    # Identifies the mirror's checkpoints on the target.
    name: Annotated[str, "name"] = "default"
    # One of `DELIVERIES`: see `shoal.mirror.copy.delivery.choice`.
    delivery: Annotated[str, "delivery"] = "idempotent"
    # Where partitions start that this mirror has not copied before: see
    # `shoal.mirror.run.start_position`.
    start: Annotated[str, "start"] = "earliest"
    handler: Annotated[str | None, "handler"] = None
    # File for the positions, written periodically and at the end.
    positions: Annotated[Path | None, "positions"] = None
    # File that lists the target batches that were re-encoded.
    re_encoded: Annotated[Path | None, "re_encoded"] = None
    # The number of this process among the workers of the mirror.
    worker: Annotated[int, "worker"] = 0
    # Stop when the parent process ends.
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
                f"{self.delivery!r} is not a valid delivery",
                remedy=f"use one of {', '.join(DELIVERIES)}",
            )
        start_timestamp(self.start)
        if not self.topics or not all(self.topics):
            raise ConfigError("no topics to mirror are given", remedy="give --topics a,b")
        if len(set(self.topics)) != len(self.topics):
            raise ConfigError("a topic is listed twice in --topics", remedy="list each topic once")
        if (
            self.source.get(BOOTSTRAP) == self.target.get(BOOTSTRAP)
            and self.rules.naming.keeps_names
        ):
            raise ConfigError(
                "source and target are the same cluster, and topics keep their names",
                remedy="mirror into another cluster, or rename the topics",
            )
        # Invalid regular expressions must be reported now, not after the start.
        self.selection()
        self.group_selection()
        self.config_exclusions()

    def selection(self) -> Selection:
        return Selection(self.topics, self.rules.exclude)

    def group_selection(self) -> Selection:
        return Selection(self.groups.include, self.groups.exclude)

    def config_exclusions(self) -> Patterns:
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
                f"the configuration of a mirror {error}",
                remedy="install the same version of shoal where workers run",
            ) from error
