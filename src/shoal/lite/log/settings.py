"""What can be set about a log. Alone in its file: programs that only name settings load no log."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Settings of a log, by Apache Kafka's names, dots as underscores."""

    segment_bytes: int = 1024 * 1024 * 1024
    index_interval_bytes: int = 4096
    flush_messages: int = (1 << 63) - 1
    producer_id_expiration_ms: int = 86_400_000
