"""Which segments retention deletes. Pure: nothing is read, nothing is deleted.

Apache Kafka's rules:
- Complete segments are deleted, the oldest first, up to the first one that must stay. Nothing above
  the high watermark is deleted.
- By time: a segment is deleted when its newest record is older than `retention.ms`. This includes
  the active segment: the log is rolled then.
- By size: a segment is deleted if the log still has `retention.bytes` without it.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from shoal.lite.base.log_settings import LogSettings
from shoal.lite.storage.segment import Segment

UNLIMITED = -1


class RetentionSegment(NamedTuple):
    """What decides about a segment. The next one begins, or the log ends, at `end_offset`."""

    end_offset: int
    size_bytes: int
    newest_ms: int


def retention_segments(segments: Sequence[Segment], end_offset: int) -> list[RetentionSegment]:
    """The segments of a log that ends at `end_offset`."""
    bounds = [*(segment.base_offset for segment in segments[1:]), end_offset]
    return [
        RetentionSegment(bound, segment.size, segment.newest_ms)
        for segment, bound in zip(segments, bounds, strict=True)
    ]


def find_expired_offset(
    segments: Sequence[RetentionSegment], settings: LogSettings, *, committed: int, now_ms: int
) -> int | None:
    """The offset below which everything expires; None if nothing does.

    Nothing above `committed`, the high watermark, expires.
    """
    if not settings.deletes:
        return None
    total_bytes = sum(segment.size_bytes for segment in segments)
    end_offset = None
    for segment in _leading(segments, committed):
        is_old = settings.retention_ms != UNLIMITED and (
            now_ms - segment.newest_ms > settings.retention_ms
        )
        left_bytes = total_bytes - segment.size_bytes
        is_too_much = settings.retention_bytes != UNLIMITED and (
            left_bytes >= settings.retention_bytes
        )
        if not (is_old or is_too_much):
            break
        total_bytes = left_bytes
        end_offset = segment.end_offset
    return end_offset


def _leading(segments: Sequence[RetentionSegment], committed: int) -> Iterator[RetentionSegment]:
    for segment in segments:
        # Only the active segment can be empty.
        if segment.end_offset > committed or segment.size_bytes == 0:
            return
        yield segment
