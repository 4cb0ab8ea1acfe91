"""Every setting of topics and brokers: its name, type, default and range.

Names, types and defaults are Apache Kafka's (4.x). A topic's value is its own, else the
broker's dynamic value, else the broker's property, else the default; most topic settings have
a broker setting as their synonym, which the table names.

What is accepted but has no effect yet stands in the table too, marked `idle`: clients and
mirrors copy such settings around, and must find them again. `docs/gaps.md` lists them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from shoal.lite.codes import Code, Refused
from shoal.lite.log.settings import LogSettings
from shoal.model.errors import ConfigError

LONG_MAX = (1 << 63) - 1
INT_MAX = (1 << 31) - 1


class Kind(IntEnum):
    """Types of settings, by the numbers that DescribeConfigs sends."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


class Source(IntEnum):
    """Where a value comes from, by the numbers that DescribeConfigs sends."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting. `synonym` is the broker's name for a topic's setting."""

    name: str
    kind: Kind
    default: str
    synonym: str | None = None
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    idle: bool = False

    def check(self, value: str) -> None:
        """Raise `Refused` unless the value is one that this setting can have."""
        reason = self._objection(value)
        if reason is not None:
            message = f"{value!r} is no value for {self.name}: {reason}"
            raise Refused(Code.INVALID_CONFIG, message)

    def _objection(self, value: str) -> str | None:
        if self.kind is Kind.BOOLEAN:
            return None if value in {"true", "false"} else "it must be true or false"
        if self.kind in {Kind.STRING, Kind.LIST}:
            parts = value.split(",") if self.kind is Kind.LIST else [value]
            if self.choices and not set(parts) <= set(self.choices):
                return f"it must be of {', '.join(self.choices)}"
            return None
        try:
            number = float(value) if self.kind is Kind.DOUBLE else int(value)
        except ValueError:
            return "it must be a number"
        least = -LONG_MAX - 1 if self.least is None else self.least
        most = LONG_MAX if self.kind is Kind.LONG else INT_MAX
        if self.most is not None:
            most = int(self.most)
        return None if least <= number <= most else f"it must lie between {least} and {most}"


_CODECS = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")

TOPIC_SETTINGS: dict[str, Setting] = {
    setting.name: setting
    for setting in (
        Setting(
            "cleanup.policy",
            Kind.LIST,
            "delete",
            "log.cleanup.policy",
            choices=("compact", "delete"),
            idle=True,
        ),
        Setting("compression.gzip.level", Kind.INT, "-1", "compression.gzip.level", idle=True),
        Setting("compression.lz4.level", Kind.INT, "9", "compression.lz4.level", idle=True),
        Setting(
            "compression.type",
            Kind.STRING,
            "producer",
            "compression.type",
            choices=_CODECS,
            idle=True,
        ),
        Setting("compression.zstd.level", Kind.INT, "3", "compression.zstd.level", idle=True),
        Setting(
            "delete.retention.ms",
            Kind.LONG,
            "86400000",
            "log.cleaner.delete.retention.ms",
            least=0,
            idle=True,
        ),
        Setting(
            "file.delete.delay.ms",
            Kind.LONG,
            "60000",
            "log.segment.delete.delay.ms",
            least=0,
            idle=True,
        ),
        Setting("flush.messages", Kind.LONG, str(LONG_MAX), "log.flush.interval.messages", least=1),
        Setting("flush.ms", Kind.LONG, str(LONG_MAX), "log.flush.interval.ms", least=0),
        Setting("follower.replication.throttled.replicas", Kind.LIST, "", idle=True),
        Setting("index.interval.bytes", Kind.INT, "4096", "log.index.interval.bytes", least=0),
        Setting("leader.replication.throttled.replicas", Kind.LIST, "", idle=True),
        Setting(
            "max.compaction.lag.ms",
            Kind.LONG,
            str(LONG_MAX),
            "log.cleaner.max.compaction.lag.ms",
            least=1,
            idle=True,
        ),
        Setting("max.message.bytes", Kind.INT, "1048588", "message.max.bytes", least=0),
        Setting(
            "message.timestamp.after.max.ms",
            Kind.LONG,
            "3600000",
            "log.message.timestamp.after.max.ms",
            least=0,
        ),
        Setting(
            "message.timestamp.before.max.ms",
            Kind.LONG,
            str(LONG_MAX),
            "log.message.timestamp.before.max.ms",
            least=0,
        ),
        Setting(
            "message.timestamp.type",
            Kind.STRING,
            "CreateTime",
            "log.message.timestamp.type",
            choices=("CreateTime", "LogAppendTime"),
        ),
        Setting(
            "min.cleanable.dirty.ratio",
            Kind.DOUBLE,
            "0.5",
            "log.cleaner.min.cleanable.ratio",
            least=0,
            most=1,
            idle=True,
        ),
        Setting(
            "min.compaction.lag.ms",
            Kind.LONG,
            "0",
            "log.cleaner.min.compaction.lag.ms",
            least=0,
            idle=True,
        ),
        Setting("min.insync.replicas", Kind.INT, "1", "min.insync.replicas", least=1),
        Setting("preallocate", Kind.BOOLEAN, "false", "log.preallocate", idle=True),
        Setting("retention.bytes", Kind.LONG, "-1", "log.retention.bytes"),
        Setting("retention.ms", Kind.LONG, "604800000", "log.retention.ms", least=-1),
        Setting("segment.bytes", Kind.INT, "1073741824", "log.segment.bytes", least=14),
        Setting("segment.index.bytes", Kind.INT, "10485760", "log.index.size.max.bytes", least=4),
        Setting("segment.jitter.ms", Kind.LONG, "0", "log.roll.jitter.ms", least=0),
        Setting("segment.ms", Kind.LONG, "604800000", "log.roll.ms", least=1),
        Setting(
            "unclean.leader.election.enable",
            Kind.BOOLEAN,
            "false",
            "unclean.leader.election.enable",
        ),
    )
}

BROKER_SETTINGS: dict[str, Setting] = {
    setting.name: setting
    for setting in (
        Setting("auto.create.topics.enable", Kind.BOOLEAN, "true"),
        Setting("broker.heartbeat.interval.ms", Kind.INT, "2000", least=1),
        Setting("broker.session.timeout.ms", Kind.INT, "9000", least=1),
        Setting("default.replication.factor", Kind.INT, "1", least=1),
        Setting("delete.topic.enable", Kind.BOOLEAN, "true"),
        Setting("fetch.max.bytes", Kind.INT, "57671680", least=1024),
        Setting("log.retention.check.interval.ms", Kind.LONG, "300000", least=1),
        Setting("max.connections", Kind.INT, "2147483647", least=0),
        Setting("num.partitions", Kind.INT, "1", least=1),
        # Fewer partitions than Kafka's 50: a test cluster must be up in a blink.
        Setting("offsets.topic.num.partitions", Kind.INT, "8", least=1),
        Setting("offsets.topic.replication.factor", Kind.INT, "3", least=1),
        Setting("offsets.topic.segment.bytes", Kind.INT, "104857600", least=1),
        Setting("producer.id.expiration.ms", Kind.INT, "86400000", least=1),
        Setting("replica.fetch.wait.max.ms", Kind.INT, "500", least=1),
        Setting("replica.lag.time.max.ms", Kind.LONG, "30000", least=1),
        Setting("socket.request.max.bytes", Kind.INT, "104857600", least=1),
        Setting("transaction.state.log.num.partitions", Kind.INT, "8", least=1),
        Setting("transaction.state.log.replication.factor", Kind.INT, "3", least=1),
        Setting("transaction.state.log.segment.bytes", Kind.INT, "104857600", least=1),
    )
} | {
    setting.synonym: Setting(
        setting.synonym,
        setting.kind,
        setting.default,
        least=setting.least,
        most=setting.most,
        choices=setting.choices,
        idle=setting.idle,
    )
    for setting in TOPIC_SETTINGS.values()
    if setting.synonym is not None
}


def topic_setting(name: str) -> Setting:
    """The setting of a topic by its name; `Refused` if there is none."""
    return _known(TOPIC_SETTINGS, name, "topic")


def broker_setting(name: str) -> Setting:
    """The setting of a broker by its name; `Refused` if there is none."""
    return _known(BROKER_SETTINGS, name, "broker")


def _known(settings: Mapping[str, Setting], name: str, owner: str) -> Setting:
    setting = settings.get(name)
    if setting is None:
        raise Refused(Code.INVALID_CONFIG, f"{name!r} is no setting of a {owner}")
    return setting


def check_properties(properties: Mapping[str, str]) -> None:
    """Raise `ConfigError` unless all are settings that a broker can have."""
    for name, value in properties.items():
        if name not in BROKER_SETTINGS:
            from difflib import get_close_matches

            near = get_close_matches(name, BROKER_SETTINGS, n=1)
            remedy = f"did you mean {near[0]}?" if near else None
            raise ConfigError(f"{name!r} is no setting of a broker", remedy=remedy)
        try:
            BROKER_SETTINGS[name].check(value)
        except Refused as refused:
            raise ConfigError(str(refused)) from refused


@dataclass(frozen=True, slots=True)
class Layers:
    """The places in which a broker looks for a value, nearest first."""

    dynamic: Mapping[str, str]
    dynamic_default: Mapping[str, str]
    static: Mapping[str, str]

    def broker_value(self, name: str) -> tuple[str, Source]:
        """The value of a broker's setting, and where it comes from."""
        for values, source in (
            (self.dynamic, Source.DYNAMIC_BROKER),
            (self.dynamic_default, Source.DYNAMIC_DEFAULT_BROKER),
            (self.static, Source.STATIC_BROKER),
        ):
            if name in values:
                return values[name], source
        return BROKER_SETTINGS[name].default, Source.DEFAULT

    def topic_value(self, name: str, overrides: Mapping[str, str]) -> tuple[str, Source]:
        """The value of a topic's setting, and where it comes from."""
        if name in overrides:
            return overrides[name], Source.TOPIC
        setting = TOPIC_SETTINGS[name]
        if setting.synonym is None:
            return setting.default, Source.DEFAULT
        return self.broker_value(setting.synonym)

    def integer(self, name: str) -> int:
        return int(self.broker_value(name)[0])

    def flag(self, name: str) -> bool:
        return self.broker_value(name)[0] == "true"


@dataclass(frozen=True, slots=True)
class TopicRules:
    """The settings of a topic that the write path looks at, as numbers."""

    max_message_bytes: int
    uses_append_time: bool
    timestamp_after_max_ms: int
    timestamp_before_max_ms: int
    log: LogSettings


def topic_rules(layers: Layers, overrides: Mapping[str, str]) -> TopicRules:
    """What applies to a topic with these overrides."""

    def value(name: str) -> str:
        return layers.topic_value(name, overrides)[0]

    return TopicRules(
        max_message_bytes=int(value("max.message.bytes")),
        uses_append_time=value("message.timestamp.type") == "LogAppendTime",
        timestamp_after_max_ms=int(value("message.timestamp.after.max.ms")),
        timestamp_before_max_ms=int(value("message.timestamp.before.max.ms")),
        log=LogSettings(
            segment_bytes=int(value("segment.bytes")),
            segment_ms=int(value("segment.ms")),
            segment_jitter_ms=int(value("segment.jitter.ms")),
            segment_index_bytes=int(value("segment.index.bytes")),
            index_interval_bytes=int(value("index.interval.bytes")),
            retention_ms=int(value("retention.ms")),
            retention_bytes=int(value("retention.bytes")),
            deletes="delete" in value("cleanup.policy").split(","),
            flush_messages=int(value("flush.messages")),
            flush_ms=int(value("flush.ms")),
            producer_id_expiration_ms=layers.integer("producer.id.expiration.ms"),
        ),
    )
