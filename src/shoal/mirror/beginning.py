"""Where a mirror begins: `earliest`, `latest`, or the first record of a time or later.

A time is a day or a moment by ISO 8601 (without a zone: UTC), or milliseconds since 1970. It
counts for partitions that this mirror has not copied before; others go on where they were.
"""

from datetime import UTC, datetime
from typing import Final

from shoal.client.client import Client
from shoal.client.results import EARLIEST, LATEST
from shoal.model.errors import ConfigError
from shoal.model.topics import TopicPartition

NAMED: Final = {"earliest": EARLIEST, "latest": LATEST}


def start_timestamp(start: str) -> int:
    """What to ask the source for: a time in ms, `EARLIEST` or `LATEST`."""
    if start in NAMED:
        return NAMED[start]
    if start.isdecimal():
        return int(start)
    try:
        moment = datetime.fromisoformat(start)
    except ValueError as error:
        raise ConfigError(
            f"{start!r} is no start of a mirror",
            remedy="earliest, latest, a time such as 2026-01-31T12:00:00Z, or milliseconds",
        ) from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


async def start_offsets(
    source: Client, partitions: list[TopicPartition], start: str
) -> dict[TopicPartition, int]:
    """The source offset at which each of these partitions begins."""
    if not partitions:
        return {}
    asked = dict.fromkeys(partitions, start_timestamp(start))
    listed = await source.list_offsets(asked, isolation="read_committed")
    offsets = {tp: one.offset for tp, one in listed.items()}
    # Nothing is as young as that: what comes next is.
    late = [tp for tp, offset in offsets.items() if offset < 0]
    if late:
        ends = await source.list_offsets(dict.fromkeys(late, LATEST), isolation="read_committed")
        offsets |= {tp: ends[tp].offset for tp in late}
    return offsets
