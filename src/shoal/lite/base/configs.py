"""Where the values of settings come from, and what they mean for a topic.

A topic's value is its own, else the broker's dynamic value, else that of all brokers, else the
broker's property, else the default; most settings of topics have another name at the broker.
`settings` has the settings themselves.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from shoal.lite.base.codes import Refused
from shoal.lite.base.log_settings import LogSettings
from shoal.lite.base.settings import BROKER_SETTINGS, LONG_MAX, TOPIC_SETTINGS, Source
from shoal.model.errors import ConfigError

__all__ = ["Layers", "TopicRules", "check_properties", "topic_rules"]

# Broker settings that are another's in larger units: how much to multiply by.
_CODECS: Final = ("uncompressed", "gzip", "snappy", "lz4", "zstd")
_GZIP_DEFAULT: Final = -1
_MS_PER_UNIT: Final = {"minutes": 60_000, "hours": 3_600_000}


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

    def given(self, name: str) -> Iterator[tuple[str, Source]]:
        """The values that a broker's setting was given, the strongest first."""
        for values, source in (
            (self.dynamic, Source.DYNAMIC_BROKER),
            (self.dynamic_default, Source.DYNAMIC_DEFAULT_BROKER),
            (self.static, Source.STATIC_BROKER),
        ):
            if name in values:
                yield values[name], source

    def broker_value(self, name: str) -> tuple[str | None, Source]:
        """The value of a broker's setting, and where it comes from."""
        for found in self.given(name):
            return found
        return BROKER_SETTINGS[name].default, Source.DEFAULT

    def topic_value(self, name: str, overrides: Mapping[str, str]) -> tuple[str, Source]:
        """The value of a topic's setting, and where it comes from."""
        if name in overrides:
            return overrides[name], Source.TOPIC
        setting = TOPIC_SETTINGS[name]
        for synonym in setting.synonyms:
            for value, source in self.given(synonym):
                factor = _MS_PER_UNIT.get(synonym.rpartition(".")[2])
                if factor is None:
                    return value, source
                # Apache Kafka does not tell where a value in another unit comes from.
                return str(int(value) * factor if int(value) >= 0 else -1), Source.DEFAULT
        return setting.default or "", Source.DEFAULT

    def integer(self, name: str) -> int:
        return int(self.broker_value(name)[0] or 0)

    def flag(self, name: str) -> bool:
        return (self.broker_value(name)[0] or "").strip().lower() == "true"


@dataclass(frozen=True, slots=True)
class TopicRules:
    """The settings of a topic that the write path looks at, as numbers."""

    max_message_bytes: int
    uses_append_time: bool
    timestamp_after_max_ms: int
    timestamp_before_max_ms: int
    log: LogSettings
    is_compacted: bool = False
    # What batches are compressed with, and how hard; None leaves that to producers.
    codec: int | None = None
    codec_level: int | None = None

    @property
    def looks_inside(self) -> bool:
        """Whether single records must be looked at before they are written."""
        return self.is_compacted or self.timestamp_before_max_ms < LONG_MAX


def topic_rules(layers: Layers, overrides: Mapping[str, str]) -> TopicRules:
    """What applies to a topic with these overrides."""

    def value(name: str) -> str:
        return layers.topic_value(name, overrides)[0]

    codec, level = _codec(value)
    is_compacted = "compact" in value("cleanup.policy").split(",")
    segment_ms = int(value("segment.ms"))
    if is_compacted:
        # What is written to is not compacted, so it may not be written to for longer.
        segment_ms = min(segment_ms, int(value("max.compaction.lag.ms")))
    return TopicRules(
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
            deletes="delete" in value("cleanup.policy").split(","),
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
    """What a topic wants its batches compressed with, and the level where there are any."""
    name = value("compression.type")
    if name == "producer":
        return None, None
    codec = _CODECS.index(name)
    if name not in {"gzip", "lz4", "zstd"}:
        return codec, None
    level = int(value(f"compression.{name}.level"))
    return codec, None if level == _GZIP_DEFAULT and name == "gzip" else level
