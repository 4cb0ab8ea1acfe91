"""What a mirror is told: two clusters, topics, and what happens on the way.

A `MirrorConfig` that exists makes sense by itself; whether the clusters and topics are there is
found out at the start (`shoal.mirror.topics`). `shoal.mirror.properties` makes one, or several,
of a file that MirrorMaker 2 reads.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from shoal.mirror.beginning import start_timestamp
from shoal.mirror.checkpoints import check_name
from shoal.mirror.modes import DELIVERIES
from shoal.mirror.naming import Naming
from shoal.mirror.patterns import (
    CONFIGS_EXCLUDE,
    GROUPS_EXCLUDE,
    TOPICS_EXCLUDE,
    Patterns,
    Selection,
)
from shoal.model.errors import ConfigError

BOOTSTRAP: Final = "bootstrap.servers"


@dataclass(frozen=True, slots=True)
class MirrorLimits:
    """Sizes and times of the copying itself."""

    # One answer to a fetch; a larger batch still comes whole.
    fetch_bytes: int = 8 << 20
    # One partition's part of it, and the most that a partition keeps waiting before it is
    # left out of the next fetch.
    partition_bytes: int = 1 << 20
    # All that was fetched and is not yet acknowledged; nothing is fetched above it.
    queue_bytes: int = 32 << 20
    # One request to the target; brokers accept 100 MiB by default.
    request_bytes: int = 8 << 20
    # What is sent to the target in a second, on average; 0 for no limit.
    max_bytes_per_s: int = 0
    # How long the source may wait for data before it answers with nothing.
    fetch_wait_ms: int = 500
    # After the order to stop: how long to wait for what is in flight.
    stop_s: float = 10.0

    @property
    def append_room_bytes(self) -> int:
        """One compare-and-append request; less under a throttle, which must not come in jolts."""
        if not self.max_bytes_per_s:
            return self.request_bytes
        return min(self.request_bytes, max(1, self.max_bytes_per_s // 8))


@dataclass(frozen=True, slots=True)
class TopicRules:
    """Which topics, under which names, and what besides records is kept the same."""

    exclude: tuple[str, ...] = TOPICS_EXCLUDE
    naming: Naming = field(default_factory=Naming)
    # How often the source is looked through for new topics and partitions; 0 for never.
    refresh_s: float = 10.0
    sync_configs: bool = True
    sync_configs_s: float = 60.0
    configs_exclude: tuple[str, ...] = CONFIGS_EXCLUDE
    # Of topics that are made at the target; -1 for the target's default.
    replication_factor: int = -1
    # Delete at the target what the source has deleted at its log start.
    follow_log_start: bool = False


@dataclass(frozen=True, slots=True)
class GroupRules:
    """Which consumer groups' positions are brought to the target."""

    sync: bool = False
    include: tuple[str, ...] = (".*",)
    exclude: tuple[str, ...] = GROUPS_EXCLUDE
    sync_s: float = 60.0


@dataclass(frozen=True, slots=True)
class HeartbeatRules:
    """Records at the target that tell of a living mirror, in MirrorMaker 2's format."""

    emit: bool = False
    every_s: float = 1.0


@dataclass(frozen=True, slots=True)
class MirrorConfig:
    """One mirror. `source` and `target` are clients' properties, by Kafka's names."""

    source: Mapping[str, Any] = field(repr=False)
    target: Mapping[str, Any] = field(repr=False)
    topics: tuple[str, ...]  # names or regular expressions
    # Under which a mirror finds its own work again on the target.
    name: str = "default"
    delivery: str = "idempotent"  # one of `DELIVERIES`: see `shoal.mirror.delivery`
    # Where partitions begin that this mirror has not copied before: see `shoal.mirror.beginning`.
    start: str = "earliest"
    handler: str | None = None
    # Where to write down, now and then and at the end, how far it came.
    positions: Path | None = None
    # End when the process that started this one ends.
    stop_with_parent: bool = False
    limits: MirrorLimits = field(default_factory=MirrorLimits)
    rules: TopicRules = field(default_factory=TopicRules)
    groups: GroupRules = field(default_factory=GroupRules)
    heartbeats: HeartbeatRules = field(default_factory=HeartbeatRules)

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
        body = asdict(self)
        body["positions"] = None if self.positions is None else str(self.positions)
        return body

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        try:
            rules = dict(body.get("rules", {}))
            rules["naming"] = Naming(**rules.get("naming", {}))
            return cls(
                **{
                    **body,
                    "topics": tuple(body["topics"]),
                    "positions": Path(body["positions"]) if body.get("positions") else None,
                    "limits": MirrorLimits(**body.get("limits", {})),
                    "rules": TopicRules(**_with_tuples(rules)),
                    "groups": GroupRules(**_with_tuples(body.get("groups", {}))),
                    "heartbeats": HeartbeatRules(**body.get("heartbeats", {})),
                }
            )
        except (KeyError, TypeError) as error:
            raise ConfigError(f"this is no mirror's configuration: {error}") from error


def _with_tuples(body: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in body.items()}
