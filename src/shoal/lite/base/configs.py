"""How the values of settings are found, and the resolved settings of a topic.

A topic's value is its own, else the broker's dynamic value, else that of all brokers, else the
broker's property, else the default; most topic settings have another name at the broker.
`settings` has the tables of all settings.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from shoal.lite.base.codes import ApiError
from shoal.lite.base.log_settings import LogSettings
from shoal.lite.base.settings import BROKER_SETTINGS, LONG_MAX, TOPIC_SETTINGS, ConfigSource
from shoal.model.errors import ConfigError

__all__ = ["Layers", "TopicConfig", "check_properties", "resolve_topic_config"]

# Broker settings that are another's in larger units: how much to multiply by.
_CODECS: Final = ("uncompressed", "gzip", "snappy", "lz4", "zstd")
_GZIP_DEFAULT: Final = -1
_MS_PER_UNIT: Final = {"minutes": 60_000, "hours": 3_600_000}


def check_properties(properties: Mapping[str, str]) -> None:
    """Raise `ConfigError` unless all are valid settings of a broker."""
    for name, value in properties.items():
        if name not in BROKER_SETTINGS:
            from difflib import get_close_matches

            near = get_close_matches(name, BROKER_SETTINGS, n=1)
            remedy = f"did you mean {near[0]}?" if near else None
            raise ConfigError(f"{name!r} is not a broker setting", remedy=remedy)
        try:
            BROKER_SETTINGS[name].check(value)
        except ApiError as refused:
            raise ConfigError(str(refused)) from refused


@dataclass(frozen=True, slots=True)
class Layers:
    """The sources of a broker's settings, the strongest first."""

    dynamic: Mapping[str, str]
    dynamic_default: Mapping[str, str]
    static: Mapping[str, str]

    def explicit_values(self, name: str) -> Iterator[tuple[str, ConfigSource]]:
        """The explicit values of a broker's setting, the strongest first."""
        for values, source in (
            (self.dynamic, ConfigSource.DYNAMIC_BROKER),
            (self.dynamic_default, ConfigSource.DYNAMIC_DEFAULT_BROKER),
            (self.static, ConfigSource.STATIC_BROKER),
        ):
            if name in values:
                yield values[name], source

    def broker_value(self, name: str) -> tuple[str | None, ConfigSource]:
        """The value of a broker's setting, and where it comes from."""
        for found in self.explicit_values(name):
            return found
        return BROKER_SETTINGS[name].default, ConfigSource.DEFAULT

    def topic_value(self, name: str, overrides: Mapping[str, str]) -> tuple[str, ConfigSource]:
        """The value of a topic's setting, and where it comes from."""
        if name in overrides:
            return overrides[name], ConfigSource.TOPIC
        setting = TOPIC_SETTINGS[name]
        for synonym in setting.synonyms:
            for value, source in self.explicit_values(synonym):
                factor = _MS_PER_UNIT.get(synonym.rpartition(".")[2])
                if factor is None:
                    return value, source
                # Apache Kafka reports no source for a value in another unit.
                return str(int(value) * factor if int(value) >= 0 else -1), ConfigSource.DEFAULT
        return setting.default or "", ConfigSource.DEFAULT

    def integer(self, name: str) -> int:
        return int(self.broker_value(name)[0] or 0)

    def flag(self, name: str) -> bool:
        """Return whether a property of the broker is `true`."""
        return (self.broker_value(name)[0] or "").strip().lower() == "true"


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The settings of a topic that the write path uses, as numbers."""

    max_message_bytes: int
    uses_append_time: bool
    timestamp_after_max_ms: int
    timestamp_before_max_ms: int
    log: LogSettings
    is_compacted: bool = False
    # The compression of stored batches and its level; None leaves it to producers.
    codec: int | None = None
    codec_level: int | None = None

    @property
    def needs_record_inspection(self) -> bool:
        """Whether single records must be inspected before they are appended."""
        return self.is_compacted or self.timestamp_before_max_ms < LONG_MAX


def resolve_topic_config(layers: Layers, overrides: Mapping[str, str]) -> TopicConfig:
    """The settings of a topic with these overrides."""

    def value(name: str) -> str:
        return layers.topic_value(name, overrides)[0]

    codec, level = _codec(value)
    policies = {policy.strip() for policy in value("cleanup.policy").split(",")}
    is_compacted = "compact" in policies
    segment_ms = int(value("segment.ms"))
    if is_compacted:
        # The active segment is not compacted, so it must be rolled within that time.
        segment_ms = min(segment_ms, int(value("max.compaction.lag.ms")))
    return TopicConfig(
        max_message_bytes=int(value("max.message.bytes")),
        uses_append_time=value("message.timestamp.type") == "LogAppendTime",
        timestamp_after_max_ms=int(value("message.timestamp.after.max.ms")),
        timestamp_before_max_ms=int(value("message.timestamp.before.max.ms")),
        log=LogSettings(
            segment_bytes=int(value("internal.segment.bytes") or value("segment.bytes")),
            segment_ms=segment_ms,
            segment_jitter_ms=int(value("segment.jitter.ms")),
            segment_index_bytes=int(value("segment.index.bytes")),
            index_interval_bytes=int(value("index.interval.bytes")),
            retention_ms=int(value("retention.ms")),
            retention_bytes=int(value("retention.bytes")),
            deletes="delete" in policies,
            compacts=is_compacted,
            min_cleanable_dirty_ratio=float(value("min.cleanable.dirty.ratio")),
            min_compaction_lag_ms=int(value("min.compaction.lag.ms")),
            max_compaction_lag_ms=int(value("max.compaction.lag.ms")),
            delete_retention_ms=int(value("delete.retention.ms")),
            flush_messages=int(value("flush.messages")),
            flush_ms=int(value("flush.ms")),
            producer_id_expiration_ms=layers.integer("producer.id.expiration.ms"),
        ),
        is_compacted=is_compacted,
        codec=codec,
        codec_level=level,
    )


def _codec(value: Callable[[str], str]) -> tuple[int | None, int | None]:
    """The codec of a topic's batches, and its level if the codec has levels."""
    name = value("compression.type")
    if name == "producer":
        return None, None
    codec = _CODECS.index(name)
    if name not in {"gzip", "lz4", "zstd"}:
        return codec, None
    level = int(value(f"compression.{name}.level"))
    return codec, None if level == _GZIP_DEFAULT and name == "gzip" else level
