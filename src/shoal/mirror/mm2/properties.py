"""Reads a configuration file of MirrorMaker 2: clusters, flows between them, and settings.

    clusters = A, B
    A.bootstrap.servers = a:9092
    B.bootstrap.servers = b:9092
    A->B.enabled = true
    A->B.topics = orders, pay.*

Rules, as in MirrorMaker 2:
- A setting of a flow has the prefix `A->B.`, or no prefix for all flows; the first wins. A setting
  of a cluster has the prefix `A.`, and a setting of its clients `A.consumer.`, `A.producer.` or
  `A.admin.`. Client settings without an alias apply to all clusters (`consumer.`), and those with
  the prefix `A->B.consumer.` to one flow.
- Connection settings are passed to the client of the cluster. Consumer and producer settings become
  the mirror's own: `auto.offset.reset` is where new topics start, `fetch.*` and
  `max.partition.fetch.bytes` limit fetches, `max.request.size` and `buffer.memory` limit sends,
  and `compression.type`, `batch.size` and `linger.ms` apply where records are put into new batches.
- Flows are off unless `A->B.enabled` is true. Topics get the source's alias as prefix unless the
  policy is the identity.
- Settings that only this mirror has start with `shoal.` (`shoal.name`, `shoal.delivery`,
  `shoal.start`, `shoal.max.bytes.per.s`, `shoal.depth`, `shoal.deep.topics`,
  `shoal.on.bad.batch`, `shoal.on.loss`); those of KIP-712 keep their names.
- Keys without effect are reported, so that nobody relies on them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Final

from shoal.client.config import ClientConfig
from shoal.client.properties import load_properties, properties_of
from shoal.mirror.config import (
    BOOTSTRAP,
    CopyRules,
    GroupRules,
    HeartbeatRules,
    MirrorConfig,
    MirrorLimits,
    TopicRules,
)
from shoal.mirror.copy.depth import AUTO_DEPTH, RAW
from shoal.mirror.copy.rebatch import KEEP, DeepRules
from shoal.mirror.mm2.naming import IDENTITY, PREFIX, Naming
from shoal.mirror.mm2.patterns import CONFIGS_EXCLUDE, GROUPS_EXCLUDE, TOPICS_EXCLUDE, parse_list
from shoal.model.errors import ConfigError

ARROW: Final = "->"
_POLICIES: Final = {
    "org.apache.kafka.connect.mirror.DefaultReplicationPolicy": PREFIX,
    "org.apache.kafka.connect.mirror.IdentityReplicationPolicy": IDENTITY,
    "DefaultReplicationPolicy": PREFIX,
    "IdentityReplicationPolicy": IDENTITY,
}
# Old names that MirrorMaker 2 still reads.
_ALIASES: Final = {
    "topics.blacklist": "topics.exclude",
    "groups.blacklist": "groups.exclude",
    "config.properties.blacklist": "config.properties.exclude",
}
# Connection settings of a client. All other settings belong to consumers and producers, which a
# mirror does not have: they become its own settings, or are reported as without effect.
_REACH: Final = frozenset(
    {
        "bootstrap.servers",
        "client.rack",
        "request.timeout.ms",
        "default.api.timeout.ms",
        "socket.connection.setup.timeout.ms",
        "reconnect.backoff.ms",
        "reconnect.backoff.max.ms",
        "retry.backoff.ms",
        "retry.backoff.max.ms",
        "metadata.max.age.ms",
        "connections.max.idle.ms",
        "max.in.flight.requests.per.connection",
        "send.buffer.bytes",
        "receive.buffer.bytes",
        "receive.message.max.bytes",
        "security.protocol",
    }
)
_CONSUMER: Final = "consumer."
_PRODUCER: Final = "producer."
_STARTS: Final = ("earliest", "latest")


@dataclass(slots=True)
class MirrorFile:
    """The content of a configuration file."""

    flows: list[MirrorConfig]
    without_effect: list[str]
    # Keys that apply only to deep copies, in a file without deep copies.
    only_deep: list[str] = field(default_factory=list)


def read_mirror_file(path: str | Path) -> MirrorFile:
    return mirror_file(load_properties(path), str(path))


def mirror_file(properties: Mapping[str, str], name: str = "the file") -> MirrorFile:
    """Parse the enabled flows, and find the keys without effect."""
    return _Reader(properties, name).read()


@dataclass(slots=True)
class _Reader:
    properties: Mapping[str, str]
    name: str
    used: set[str] = field(default_factory=set)
    only_deep: set[str] = field(default_factory=set)

    def read(self) -> MirrorFile:
        self.used.add("clusters")
        clusters = parse_list(self.properties.get("clusters", ""))
        if not clusters:
            raise ConfigError(
                f"{self.name} has no setting `clusters`",
                remedy="add a line such as clusters = A, B",
            )
        flows = [
            self._flow(source, target)
            for source in clusters
            for target in clusters
            if source != target and self._is_on(source, target)
        ]
        self._check_flows(clusters)
        self._check_opposite(flows)
        if not flows:
            raise ConfigError(
                f"no flow is enabled in {self.name}",
                remedy=f"add the line {clusters[0]}{ARROW}{clusters[-1]}.enabled = true",
            )
        return MirrorFile(flows, sorted(set(self.properties) - self.used), sorted(self.only_deep))

    def _is_on(self, source: str, target: str) -> bool:
        key = f"{source}{ARROW}{target}.enabled"
        self.used.add(key)
        return key in self.properties and _flag(key, self.properties[key])

    def _check_flows(self, clusters: tuple[str, ...]) -> None:
        for key in self.properties:
            source, arrow, rest = key.partition(ARROW)
            if arrow and (source not in clusters or rest.partition(".")[0] not in clusters):
                raise ConfigError(
                    f"{key} in {self.name} is for a flow between clusters not listed in `clusters`",
                    remedy=f"clusters are {', '.join(clusters)}",
                )

    def _check_opposite(self, flows: list[MirrorConfig]) -> None:
        """Refuse two flows that would copy each record back to where it came from, for ever."""
        for one, other in combinations(flows, 2):
            is_back = (one.source, one.target) == (other.target, other.source)
            keeps = one.rules.naming.keeps_names and other.rules.naming.keeps_names
            if is_back and keeps and (both := one.selection().find_common(other.selection())):
                raise ConfigError(
                    f"{self.name} copies {both} in both directions with the same name: each record "
                    "would be copied in a cycle",
                    remedy="use DefaultReplicationPolicy, or give both flows other topics",
                )

    def _flow(self, source: str, target: str) -> MirrorConfig:
        flow = f"{source}{ARROW}{target}."
        settings = _Settings(self, (flow, ""))
        text, flag, number = settings.text, settings.flag, settings.number
        consumer = _Settings(self, _role_prefixes(flow, f"source.{_CONSUMER}", source))
        producer = _Settings(self, _role_prefixes(flow, f"target.{_PRODUCER}", target))
        return MirrorConfig(
            source=self._client(source, consumer),
            target=self._client(target, producer),
            topics=settings.parse_list("topics", (".*",)),
            name=text("shoal.name", f"{source}--{target}"),
            delivery=text("shoal.delivery", "idempotent"),
            start=text("shoal.start", _read_start(consumer)),
            copy=self._copy_rules(settings, producer),
            limits=_read_limits(settings, consumer, producer),
            rules=TopicRules(
                exclude=settings.parse_list("topics.exclude", TOPICS_EXCLUDE),
                naming=Naming(
                    policy=_policy(text("replication.policy.class", "DefaultReplicationPolicy")),
                    source_alias=source,
                    target_alias=target,
                    separator=text("replication.policy.separator", "."),
                ),
                refresh_s=settings.interval("refresh.topics", 600),
                sync_configs=flag("sync.topic.configs.enabled", True),
                sync_configs_s=number("sync.topic.configs.interval.seconds", 600),
                configs_exclude=settings.parse_list("config.properties.exclude", CONFIGS_EXCLUDE),
                replication_factor=int(number("replication.factor", -1)),
                follow_log_start=flag("shoal.follow.log.start", False),
            ),
            groups=GroupRules(
                sync=flag("sync.group.offsets.enabled", False),
                include=settings.parse_list("groups", (".*",)),
                exclude=settings.parse_list("groups.exclude", GROUPS_EXCLUDE),
                sync_s=number("sync.group.offsets.interval.seconds", 60),
            ),
            heartbeats=HeartbeatRules(
                emit=flag("emit.heartbeats.enabled", True),
                every_s=number("emit.heartbeats.interval.seconds", 1),
            ),
        )

    def _copy_rules(self, settings: "_Settings", producer: "_Settings") -> CopyRules:
        text = settings.text
        default = DeepRules()
        rules = CopyRules(
            depth=text("shoal.depth", AUTO_DEPTH),
            use_raw_bytes=settings.optional_flag("use.raw.bytes"),
            fetch_raw_bytes=settings.optional_flag("fetch.raw.bytes"),
            send_raw_bytes=settings.optional_flag("send.raw.bytes"),
            deep_topics=settings.parse_list("shoal.deep.topics", ()),
            deep=DeepRules(
                compression_type=producer.text("compression.type", KEEP),
                batch_size_bytes=producer.whole("batch.size", default.batch_size_bytes),
                linger_ms=producer.whole("linger.ms", default.linger_ms),
            ),
            on_bad_batch=text("shoal.on.bad.batch", "park"),
            on_loss=text("shoal.on.loss", "report"),
        )
        if rules.demanded_depth == RAW and not rules.deep_topics:
            for name in ("compression.type", "batch.size", "linger.ms"):
                self.only_deep |= producer.find_keys(name)
        return rules

    def _client(self, alias: str, role: "_Settings") -> dict[str, str]:
        """The connection settings of one cluster; a narrower key takes precedence."""
        found: dict[str, str] = {}
        for name, aliases in _reach_keys():
            value = role.text(name, "\0", aliases)
            if value != "\0":
                found[name] = value
        if BOOTSTRAP not in found:
            raise ConfigError(
                f"cluster {alias} in {self.name} has no {BOOTSTRAP}",
                remedy=f"add the line {alias}.{BOOTSTRAP} = host:port",
            )
        return found


@dataclass(slots=True)
class _Settings:
    """The settings of one flow, or of one of its clients: the narrowest prefix wins."""

    reader: _Reader
    prefixes: tuple[str, ...]  # the narrowest first

    def find_keys(self, name: str, aliases: tuple[str, ...] = ()) -> set[str]:
        names = [name, *aliases]
        keys = {f"{prefix}{each}" for prefix in self.prefixes for each in names}
        return keys & set(self.reader.properties)

    def text(self, name: str, default: str, aliases: tuple[str, ...] = ()) -> str:
        names = [name, *aliases, *(old for old, new in _ALIASES.items() if new == name)]
        found = [
            key
            for prefix in self.prefixes
            for each in names
            if (key := f"{prefix}{each}") in self.reader.properties
        ]
        self.reader.used.update(found)
        return self.reader.properties[found[0]].strip() if found else default

    def whole(self, name: str, default: int, aliases: tuple[str, ...] = ()) -> int:
        """Read a whole number, at least 0."""
        text = self.text(name, str(default), aliases)
        if not text.isdecimal():
            raise ConfigError(
                f"{name} must be a whole number, 0 or more, and is {text!r} in {self.reader.name}",
                remedy=f"write digits only, such as {name} = {default}",
            )
        return int(text)

    def parse_list(self, name: str, default: tuple[str, ...]) -> tuple[str, ...]:
        text = self.text(name, "\0")
        return default if text == "\0" else parse_list(text)

    def flag(self, name: str, default: bool) -> bool:
        return _flag(name, self.text(name, str(default)))

    def optional_flag(self, name: str) -> bool | None:
        return self.flag(name, True) if self.find_keys(name) else None

    def number(self, name: str, default: float) -> float:
        text = self.text(name, str(default))
        try:
            return float(text)
        except ValueError as error:
            raise ConfigError(f"{name} must be a number, not {text!r}") from error

    def interval(self, name: str, default: float) -> float:
        """Read an interval; 0 if it is disabled."""
        is_on = self.flag(f"{name}.enabled", True)
        pause_s = self.number(f"{name}.interval.seconds", default)
        return pause_s if is_on and pause_s > 0 else 0.0


def _flag(key: str, text: str) -> bool:
    found = {"true": True, "false": False}.get(text.strip().lower())
    if found is None:
        raise ConfigError(f"{key} must be true or false, not {text!r}")
    return found


def _policy(name: str) -> str:
    found = _POLICIES.get(name)
    if found is None:
        raise ConfigError(
            f"replication.policy.class {name} is not supported",
            remedy="use DefaultReplicationPolicy or IdentityReplicationPolicy",
        )
    return found


def _role_prefixes(flow: str, role: str, alias: str) -> tuple[str, ...]:
    """The prefixes of the settings of a flow's consumer or producer, the narrowest first."""
    short = role.partition(".")[2]
    return (
        f"{flow}{role}",
        f"{flow}{short}",
        f"{flow}admin.",
        flow,
        f"{alias}.{short}",
        f"{alias}.admin.",
        f"{alias}.",
        role,
        short,
        "admin.",
        "",
    )


def _read_start(consumer: _Settings) -> str:
    start = consumer.text("auto.offset.reset", "earliest").lower()
    if start not in _STARTS:
        raise ConfigError(
            f"auto.offset.reset = {start} is not supported by the mirror",
            remedy="use earliest or latest, or set shoal.start = TIME",
        )
    return start


def _read_limits(settings: _Settings, consumer: _Settings, producer: _Settings) -> MirrorLimits:
    default = MirrorLimits()
    limits = MirrorLimits(
        fetch_bytes=consumer.whole("fetch.max.bytes", default.fetch_bytes),
        partition_bytes=consumer.whole("max.partition.fetch.bytes", default.partition_bytes),
        fetch_wait_ms=consumer.whole(
            "fetch.max.wait.ms", default.fetch_wait_ms, ("fetch.wait.max.ms",)
        ),
        fetch_min_bytes=consumer.whole("fetch.min.bytes", default.fetch_min_bytes),
        request_bytes=producer.whole("max.request.size", default.request_bytes),
        queue_bytes=producer.whole("buffer.memory", default.queue_bytes),
        max_bytes_per_s=settings.whole("shoal.max.bytes.per.s", 0),
    )
    for key, value in (
        ("fetch.max.bytes", limits.fetch_bytes),
        ("max.partition.fetch.bytes", limits.partition_bytes),
        ("max.request.size", limits.request_bytes),
        ("buffer.memory", limits.queue_bytes),
    ):
        if value < 1:
            raise ConfigError(f"{key} must be at least 1, not {value}")
    return limits


def _reach_keys() -> list[tuple[str, tuple[str, ...]]]:
    """Name and aliases of each connection setting."""
    return [
        (each.name, each.aliases)
        for each in properties_of(ClientConfig).values()
        if each.name in _REACH or each.name.startswith(("sasl.", "ssl."))
    ]
