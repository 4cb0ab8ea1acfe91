"""From a query to offsets of partitions, and from ranges of offsets to tasks.

Rules:
- Offsets are asked of the leaders once, when the query is planned; tasks get plain ranges.
- A range that begins below the log start has lost data: an error, unless the user says that it
  is not one; then it begins where the log does.
- More tasks than partitions, or too many records for one: ranges are cut, each into pieces of
  about one size.
- A limit on rows is shared among partitions in proportion to what they have to give.
"""

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from shoal.client.client import Client
from shoal.client.results import EARLIEST, LATEST
from shoal.model.errors import ConfigError, SystemFailure
from shoal.model.topics import TopicPartition
from shoal.pipeline.source.options import Bound, Query

Offsets = dict[TopicPartition, int]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Range:
    """Records of one partition from `start` up to, not including, `end`."""

    log: TopicPartition
    start: int
    end: int


async def partitions_of(client: Client, query: Query) -> list[TopicPartition]:
    """Every partition that the query means, in order."""
    if query.partitions:
        cluster = await client.metadata({log.topic for log in query.partitions})
        missing = [str(log) for log in query.partitions if cluster.partition(log) is None]
        logs = list(query.partitions)
    elif query.pattern is not None:
        cluster = await client.metadata()
        pattern = re.compile(query.pattern)
        names = [name for name in cluster.topics if pattern.fullmatch(name)]
        logs = [log for name in sorted(names) for log in cluster.partitions_of(name)]
        missing = []
    else:
        cluster = await client.metadata(query.topics)
        missing = [name for name in query.topics if not cluster.partitions_of(name)]
        logs = [log for name in query.topics for log in cluster.partitions_of(name)]
    if missing:
        raise ConfigError(f"not on this cluster: {', '.join(missing)}")
    return logs


async def resolve(
    client: Client, query: Query, bound: Bound, logs: list[TopicPartition]
) -> Offsets:
    """The offset of a bound in each partition."""
    if bound.everywhere is not None:
        wanted = dict.fromkeys(logs, bound.everywhere)
    else:
        odd = [str(log) for log in bound.by_partition if log not in logs]
        absent = [str(log) for log in logs if log not in bound.by_partition]
        if odd or absent:
            raise ConfigError(
                "offsets by partition must name each partition that is read and no other:"
                f" too many {odd}, missing {absent}"
            )
        wanted = dict(bound.by_partition)
    asked = {log: at for log, at in wanted.items() if bound.is_time or at in {EARLIEST, LATEST}}
    listed = await client.list_offsets(asked) if asked else {}
    found = {log: listed[log].offset if log in listed else at for log, at in wanted.items()}
    timeless = [log for log, offset in found.items() if offset < 0]
    if timeless:
        found |= await _without_time(client, query, bound, timeless)
    return {log: found[log] for log in logs}


async def _without_time(
    client: Client, query: Query, bound: Bound, logs: list[TopicPartition]
) -> Offsets:
    """Partitions that have no record as young as was asked for."""
    if bound is query.start and not query.latest_if_no_time:
        raise ConfigError(
            f"no record of {', '.join(map(str, logs))} is as young as the time to start at",
            remedy="choose an earlier time, or startingOffsetsByTimestampStrategy=latest",
        )
    listed = await client.list_offsets(dict.fromkeys(logs, LATEST))
    return {log: listed[log].offset for log in logs}


async def checked(
    client: Client, query: Query, starts: Mapping[TopicPartition, int], ends: Offsets
) -> list[Range]:
    """The ranges between both, none that begins below its log."""
    lowest = await client.list_offsets(dict.fromkeys(starts, EARLIEST)) if starts else {}
    ranges = []
    for log, start in starts.items():
        first = lowest[log].offset
        if start < first and ends[log] > start:
            lost = f"{log}: offsets {start} to {min(first, ends[log])} are deleted already"
            if query.fail_on_data_loss:
                raise SystemFailure(lost, remedy="failOnDataLoss=false reads what is left")
            _log.warning("%s", lost)
        ranges.append(Range(log, max(start, first), ends[log]))
    return [part for part in ranges if part.end > part.start]


def refuse_reversed(starts: Mapping[TopicPartition, int], ends: Offsets) -> None:
    """A table that ends before it begins was meant otherwise."""
    for log, start in starts.items():
        if start > ends[log]:
            raise ConfigError(f"{log} is to be read from offset {start}, and ends at {ends[log]}")


def refuse_loss(query: Query, starts: Mapping[TopicPartition, int], ends: Offsets) -> None:
    """A stream goes on behind what it has read; what it has not is lost with its log."""
    gone = [f"{log} is gone" for log in starts if log not in ends]
    cut = [
        f"{log} ends at {end}, and was read up to {starts[log]}: it was made anew, or cut"
        for log, end in ends.items()
        if end < starts.get(log, 0)
    ]
    if lost := ", ".join(gone + cut):
        if query.fail_on_data_loss:
            raise SystemFailure(lost, remedy="failOnDataLoss=false reads what is left")
        _log.warning("%s", lost)


def split(ranges: list[Range], least: int | None, *, most: int | None = None) -> list[Range]:
    """At least so many pieces, if there are records for that, of at most so many records each."""
    if most is not None:
        ranges = [
            piece for part in ranges for piece in _cut(part, -(-(part.end - part.start) // most))
        ]
    if least is None or len(ranges) >= least or not ranges:
        return ranges
    whole = sum(part.end - part.start for part in ranges)
    pieces = []
    for part in ranges:
        size = part.end - part.start
        pieces += _cut(part, max(1, min(round(Fraction(size * least, whole)), size)))
    return pieces


def _cut(part: Range, count: int) -> list[Range]:
    size = part.end - part.start
    cuts = [part.start + size * i // count for i in range(count + 1)]
    return [Range(part.log, a, b) for a, b in pairwise(cuts)]


def limited(starts: Mapping[TopicPartition, int], ends: Offsets, most: int) -> Offsets:
    """Ends with at most so many offsets between both, shared in proportion."""
    sizes = {log: max(end - starts.get(log, 0), 0) for log, end in ends.items()}
    whole = sum(sizes.values())
    if whole <= most:
        return ends
    shares = {log: size * most // whole for log, size in sizes.items()}
    left = most - sum(shares.values())
    for log in sorted(sizes, key=lambda log: (shares[log] - sizes[log], log)):
        more = min(left, 1, sizes[log] - shares[log])
        shares[log] += more
        left -= more
    return {log: starts.get(log, 0) + shares[log] for log in ends}
