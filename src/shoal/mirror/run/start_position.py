"""Where a mirror starts: `earliest`, `latest`, or the first record at or after a time.

A time is a date or a date and time in ISO 8601 (UTC if no time zone is given), or milliseconds
since 1970. It applies to partitions that this mirror has not copied before; others resume.

A partition that was created while the mirror was stopped is copied from its first record, as if the
mirror had run: a partition that was added to a topic, and any partition of a recreated topic.
`latest` is the time at which the mirror was first started, even after restarts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, Self

from shoal.client.client import Client
from shoal.client.results import EARLIEST, LATEST
from shoal.mirror.offsets.checkpoints import Checkpoint
from shoal.mirror.routes import Route
from shoal.mirror.watch.generations import has_other_id
from shoal.model.errors import ConfigError
from shoal.model.topics import TopicPartition

NAMED: Final = {"earliest": EARLIEST, "latest": LATEST}


def start_timestamp(start: str) -> int:
    """Parse `--start` to a timestamp for ListOffsets: ms, `EARLIEST` or `LATEST`."""
    if start in NAMED:
        return NAMED[start]
    if start.isdecimal() and int(start) < 1 << 63:
        return int(start)
    try:
        moment = datetime.fromisoformat(start)
    except ValueError as error:
        raise ConfigError(
            f"{start!r} is not a valid --start",
            remedy="use earliest, latest, a time such as 2026-01-31T12:00:00Z, or milliseconds",
        ) from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


@dataclass(frozen=True, slots=True)
class EarlierCopies:
    """What the checkpoints of a mirror say about all its copies."""

    mirror_began_ms: int = 0  # when the mirror was first started; 0 if unknown
    # By target topic: the ids of the source topic, and how many partitions it had.
    topics: Mapping[str, tuple[set[str | None], int]] = field(default_factory=dict)

    @classmethod
    def of(cls, found: Mapping[TopicPartition, Checkpoint]) -> Self:
        topics: dict[str, tuple[set[str | None], int]] = {}
        for tp, each in found.items():
            ids, count = topics.get(tp.topic, (set(), 0))
            topics[tp.topic] = (ids | {each.source_topic_id}, max(count, each.source_partitions))
        began_ms = [each.mirror_began_ms for each in found.values()]
        return cls(min(began_ms) if began_ms and all(began_ms) else 0, topics)


def choose_start(
    route: Route, start: str, earlier: EarlierCopies, source_topic_id: str | None
) -> str:
    """Choose where a partition without a checkpoint starts."""
    if route.target.topic in earlier.topics:
        ids, count = earlier.topics[route.target.topic]
        is_other = all(has_other_id(known, source_topic_id) for known in ids)
        if is_other or route.source.partition >= count:
            return "earliest"
    if start == "latest" and earlier.mirror_began_ms:
        return str(earlier.mirror_began_ms)
    return start


async def start_offsets(
    source: Client, partitions: list[TopicPartition], start: str
) -> dict[TopicPartition, int]:
    """Find the source offset at which each of these partitions starts."""
    if not partitions:
        return {}
    asked = dict.fromkeys(partitions, start_timestamp(start))
    listed = await source.list_offsets(asked, isolation="read_committed")
    offsets = {tp: one.offset for tp, one in listed.items()}
    # No record is that recent: start at the log end.
    late = [tp for tp, offset in offsets.items() if offset < 0]
    if late:
        ends = await source.list_offsets(dict.fromkeys(late, LATEST), isolation="read_committed")
        offsets |= {tp: ends[tp].offset for tp in late}
    return offsets
