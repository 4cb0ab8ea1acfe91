"""Which segments have been kept for long enough. Pure: nothing is read, nothing is deleted.

Apache Kafka's rules:
- Segments go whole, the oldest first, up to the first that has to stay. Nothing goes that is
  not committed.
- By time: a segment goes when its newest record is older than `retention.ms`. That includes
  the one that is written to: the log begins a new one then.
- By size: a segment goes if without it the log still has `retention.bytes`.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from shoal.lite.base.log_settings import LogSettings
from shoal.lite.storage.segment import Segment

UNLIMITED = -1


class KeptSegment(NamedTuple):
    """What decides about a segment. `end_offset` is where the next one begins, or the log ends."""

    end_offset: int
    size_bytes: int
    newest_ms: int


def kept_segments(segments: Sequence[Segment], end_offset: int) -> list[KeptSegment]:
    """The segments of a log that ends at an offset."""
    bounds = [*(segment.base_offset for segment in segments[1:]), end_offset]
    return [
        KeptSegment(bound, segment.size, segment.newest_ms)
        for segment, bound in zip(segments, bounds, strict=True)
    ]


def expired_before(
    segments: Sequence[KeptSegment], settings: LogSettings, *, committed: int, now_ms: int
) -> int | None:
    """The offset before which all goes; None if nothing does. `committed` is what may go."""
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


def _leading(segments: Sequence[KeptSegment], committed: int) -> Iterator[KeptSegment]:
    for segment in segments:
        # Only the last one can be empty.
        if segment.end_offset > committed or segment.size_bytes == 0:
            return
        yield segment
