"""MirrorMaker 2's configuration file, as it is: clusters, flows between them, and settings.

    clusters = A, B
    A.bootstrap.servers = a:9092
    B.bootstrap.servers = b:9092
    A->B.enabled = true
    A->B.topics = orders, pay.*

Rules, as in MirrorMaker 2:
- A setting of a flow stands under `A->B.`, or without it for all flows; the first wins. One of
  a cluster stands under `A.`, and what is for its clients only also under `A.consumer.`,
  `A.producer.` or `A.admin.`; settings of clients without an alias are for all clusters.
- Flows are off unless `A->B.enabled` is true. Topics get the source's alias before their names
  unless the policy is the identity.
- What this mirror has of its own stands under `shoal.` (`shoal.name`, `shoal.delivery`,
  `shoal.start`, `shoal.max.bytes.per.s`, `shoal.deep.topics`, `shoal.on.bad.batch`,
  `shoal.on.loss`); what KIP-712 names has its name.
- A key that changes nothing here is named, so that nobody counts on it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from shoal.client.config import ClientConfig
from shoal.client.properties import declared_properties, load_properties
from shoal.mirror.config import (
    BOOTSTRAP,
    CopyRules,
    GroupRules,
    HeartbeatRules,
    MirrorConfig,
    MirrorLimits,
    TopicRules,
)
from shoal.mirror.deep import KEEP, DeepRules
from shoal.mirror.naming import IDENTITY, PREFIX, Naming
from shoal.mirror.patterns import CONFIGS_EXCLUDE, GROUPS_EXCLUDE, TOPICS_EXCLUDE, listed
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
# Properties of clients that a mirror decides itself.
_OURS: Final = frozenset({"acks", "enable.idempotence", "isolation.level", "group.id", "client.id"})


@dataclass(slots=True)
class MirrorFile:
    """What a file says."""

    flows: list[MirrorConfig]
    without_effect: list[str]


def read_mirror_file(path: str | Path) -> MirrorFile:
    return mirror_file(load_properties(path), str(path))


def mirror_file(properties: Mapping[str, str], name: str = "the file") -> MirrorFile:
    """The flows that are on, and the keys that change nothing."""
    return _Reader(properties, name).read()


@dataclass(slots=True)
class _Reader:
    properties: Mapping[str, str]
    name: str
    used: set[str] = field(default_factory=set)

    def read(self) -> MirrorFile:
        self.used.add("clusters")
        clusters = listed(self.properties.get("clusters", ""))
        if not clusters:
            raise ConfigError(
                f"{self.name} names no clusters", remedy="write clusters = A, B into it"
            )
        flows = [
            self._flow(source, target)
            for source in clusters
            for target in clusters
            if source != target and self._is_on(source, target)
        ]
        self._check_flows(clusters)
        if not flows:
            raise ConfigError(
                f"{self.name} has no flow that is on",
                remedy=f"write {clusters[0]}{ARROW}{clusters[-1]}.enabled = true into it",
            )
        return MirrorFile(flows, sorted(set(self.properties) - self.used))

    def _is_on(self, source: str, target: str) -> bool:
        key = f"{source}{ARROW}{target}.enabled"
        self.used.add(key)
        return key in self.properties and _flag(key, self.properties[key])

    def _check_flows(self, clusters: tuple[str, ...]) -> None:
        for key in self.properties:
            source, arrow, rest = key.partition(ARROW)
            if arrow and (source not in clusters or rest.partition(".")[0] not in clusters):
                raise ConfigError(
                    f"{key} in {self.name} is for a flow between clusters that it does not name",
                    remedy=f"clusters are {', '.join(clusters)}",
                )

    def _flow(self, source: str, target: str) -> MirrorConfig:
        settings = _Settings(self, f"{source}{ARROW}{target}.")
        text, flag, number = settings.text, settings.flag, settings.number
        return MirrorConfig(
            source=self._client(source, "consumer."),
            target=self._client(target, "producer."),
            topics=settings.listed("topics", (".*",)),
            name=text("shoal.name", f"{source}--{target}"),
            delivery=text("shoal.delivery", "idempotent"),
            start=text("shoal.start", "earliest"),
            copy=self._copy_rules(settings),
            limits=MirrorLimits(max_bytes_per_s=int(number("shoal.max.bytes.per.s", 0))),
            rules=TopicRules(
                exclude=settings.listed("topics.exclude", TOPICS_EXCLUDE),
                naming=Naming(
                    policy=_policy(text("replication.policy.class", "DefaultReplicationPolicy")),
                    source_alias=source,
                    target_alias=target,
                    separator=text("replication.policy.separator", "."),
                ),
                refresh_s=settings.interval("refresh.topics", 600),
                sync_configs=flag("sync.topic.configs.enabled", True),
                sync_configs_s=number("sync.topic.configs.interval.seconds", 600),
                configs_exclude=settings.listed("config.properties.exclude", CONFIGS_EXCLUDE),
                replication_factor=int(number("replication.factor", -1)),
                follow_log_start=flag("shoal.follow.log.start", False),
            ),
            groups=GroupRules(
                sync=flag("sync.group.offsets.enabled", False),
                include=settings.listed("groups", (".*",)),
                exclude=settings.listed("groups.exclude", GROUPS_EXCLUDE),
                sync_s=number("sync.group.offsets.interval.seconds", 60),
            ),
            heartbeats=HeartbeatRules(
                emit=flag("emit.heartbeats.enabled", True),
                every_s=number("emit.heartbeats.interval.seconds", 1),
            ),
        )

    def _copy_rules(self, settings: "_Settings") -> CopyRules:
        text, flag, number = settings.text, settings.flag, settings.number
        use_raw = flag("use.raw.bytes", True)
        return CopyRules(
            use_raw_bytes=use_raw,
            fetch_raw_bytes=flag("fetch.raw.bytes", use_raw),
            send_raw_bytes=flag("send.raw.bytes", use_raw),
            deep_topics=settings.listed("shoal.deep.topics", ()),
            deep=DeepRules(
                compression_type=text("compression.type", KEEP),
                batch_size_bytes=int(number("batch.size", DeepRules().batch_size_bytes)),
                linger_ms=int(number("linger.ms", 0)),
            ),
            on_bad_batch=text("shoal.on.bad.batch", "park"),
            on_loss=text("shoal.on.loss", "report"),
        )

    def _client(self, alias: str, role: str) -> dict[str, str]:
        """The properties of one cluster's client; the narrower goes before the wider."""
        found: dict[str, str] = {}
        known = _client_keys()
        for prefix in ("", f"{alias}.", f"{alias}.admin.", f"{alias}.{role}"):
            for key, value in self.properties.items():
                name = key.removeprefix(prefix)
                if key.startswith(prefix) and name in known:
                    found[name] = value
                    self.used.add(key)
        if BOOTSTRAP not in found:
            raise ConfigError(
                f"cluster {alias} in {self.name} has no {BOOTSTRAP}",
                remedy=f"write {alias}.{BOOTSTRAP} = host:port into it",
            )
        return found


@dataclass(slots=True)
class _Settings:
    """The settings of one flow: its own before those of all."""

    reader: _Reader
    prefix: str

    def text(self, name: str, default: str) -> str:
        found = default
        names = [name, *(old for old, new in _ALIASES.items() if new == name)]
        for key in [f"{self.prefix}{each}" for each in names] + names:
            if key in self.reader.properties:
                if found is default:
                    found = self.reader.properties[key].strip()
                self.reader.used.add(key)
        return found

    def listed(self, name: str, default: tuple[str, ...]) -> tuple[str, ...]:
        text = self.text(name, "\0")
        return default if text == "\0" else listed(text)

    def flag(self, name: str, default: bool) -> bool:
        return _flag(name, self.text(name, str(default)))

    def number(self, name: str, default: float) -> float:
        text = self.text(name, str(default))
        try:
            return float(text)
        except ValueError as error:
            raise ConfigError(f"{name} must be a number, not {text!r}") from error

    def interval(self, name: str, default: float) -> float:
        """0 where it is switched off."""
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
            f"the replication policy {name} is not known here",
            remedy="use DefaultReplicationPolicy or IdentityReplicationPolicy",
        )
    return found


def _client_keys() -> frozenset[str]:
    declared = declared_properties(ClientConfig).values()
    return frozenset(key for each in declared for key in (each.name, *each.aliases)) - _OURS
