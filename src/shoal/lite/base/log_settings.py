"""Settings of a log. In its own module, so that code that only names them imports no log."""

from dataclasses import dataclass

_NEVER = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Settings of a log, by Apache Kafka's names, dots as underscores."""

    segment_bytes: int = 1024 * 1024 * 1024
    # The longest time span of a segment's timestamps, less a random part of the jitter.
    segment_ms: int = 604_800_000
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10_485_760
    index_interval_bytes: int = 4096
    # -1: without a limit. Both count only if `cleanup.policy` has delete.
    retention_ms: int = 604_800_000
    retention_bytes: int = -1
    deletes: bool = True
    # These count only if `cleanup.policy` has compact.
    compacts: bool = False
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = _NEVER
    delete_retention_ms: int = 86_400_000
    flush_messages: int = _NEVER
    flush_ms: int = _NEVER
    producer_id_expiration_ms: int = 86_400_000
