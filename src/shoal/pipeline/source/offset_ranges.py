"""Resolves a query to ranges of offsets, and splits the ranges into tasks.

Rules:
- The leaders are asked for offsets once, when the query is planned; tasks get plain ranges.
- A range that begins below the log start has lost data. That is an error, unless the user sets
  failOnDataLoss=false; then it begins at the log start.
- If more tasks than partitions are wanted, or a range has too many records for one task, ranges
  are split into pieces of about equal size.
- A limit on rows is divided among partitions in proportion to their available records.
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
from shoal.pipeline.source.filters import FilterLimits
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
    """Return every partition that the query selects, in order."""
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
        raise ConfigError(
            f"this cluster does not have the topics or partitions {', '.join(missing)}",
            remedy="correct the names, or create the topics",
        )
    return logs


async def resolve(
    client: Client, query: Query, bound: Bound, logs: list[TopicPartition]
) -> Offsets:
    """Return the offset of a bound in each partition."""
    if bound.everywhere is not None:
        wanted = dict.fromkeys(logs, bound.everywhere)
    else:
        odd = [str(log) for log in bound.by_partition if log not in logs]
        absent = [str(log) for log in logs if log not in bound.by_partition]
        if odd or absent:
            raise ConfigError(
                "offsets by partition must name each partition that is read and no other:"
                f" not read {odd}, missing {absent}"
            )
        wanted = dict(bound.by_partition)
    to_list = {log: at for log, at in wanted.items() if bound.is_time or at in {EARLIEST, LATEST}}
    listed = await client.list_offsets(to_list) if to_list else {}
    found = {log: listed[log].offset if log in listed else at for log, at in wanted.items()}
    timeless = [log for log, offset in found.items() if offset < 0]
    if timeless:
        found |= await _resolve_missing_times(client, query, bound, timeless)
    return {log: found[log] for log in logs}


async def _resolve_missing_times(
    client: Client, query: Query, bound: Bound, logs: list[TopicPartition]
) -> Offsets:
    """Resolve a time in partitions that have no record at or after it: to the end, if allowed."""
    if bound is query.start and not query.latest_if_no_time:
        raise ConfigError(
            f"{', '.join(map(str, logs))} has no record at or after the starting timestamp",
            remedy="choose an earlier time, or startingOffsetsByTimestampStrategy=latest",
        )
    listed = await client.list_offsets(dict.fromkeys(logs, LATEST))
    return {log: listed[log].offset for log in logs}


async def raise_to_time(
    client: Client, starts: Offsets, ends: Offsets, limits: FilterLimits
) -> Offsets:
    """Begin each log at its first record that is as new as the filters want, or at its end."""
    if limits.from_ms is None or not starts:
        return starts
    listed = await client.list_offsets(dict.fromkeys(starts, limits.from_ms))
    # A log without such a record has the offset -1.
    since = {log: each.offset if each.offset >= 0 else ends[log] for log, each in listed.items()}
    return {log: min(max(start, since[log]), ends[log]) for log, start in starts.items()}


async def build_ranges(
    client: Client, query: Query, starts: Mapping[TopicPartition, int], ends: Offsets
) -> list[Range]:
    """Return the ranges from starts to ends, none of which begins below its log start."""
    lowest = await client.list_offsets(dict.fromkeys(starts, EARLIEST)) if starts else {}
    ranges = []
    for log, start in starts.items():
        first = lowest[log].offset
        if start < first and ends[log] > start:
            lost = f"{log}: offsets {start} to {min(first, ends[log])} are already deleted"
            if query.fail_on_data_loss:
                raise SystemFailure(lost, remedy="failOnDataLoss=false reads what is left")
            _log.warning("%s", lost)
        ranges.append(Range(log, max(start, first), ends[log]))
    return [part for part in ranges if part.end > part.start]


def refuse_reversed(starts: Mapping[TopicPartition, int], ends: Offsets) -> None:
    """Refuse a table that ends before it begins: that is a mistake in the options."""
    for log, start in starts.items():
        if start > ends[log]:
            raise ConfigError(
                f"{log}: the starting offset {start} is above the ending offset {ends[log]}"
            )


def check_data_loss(query: Query, starts: Mapping[TopicPartition, int], ends: Offsets) -> None:
    """Refuse a stream whose logs were deleted or truncated below what it has read."""
    deleted = [f"{log} was deleted" for log in starts if log not in ends]
    truncated = [
        f"{log} ends at {end}, but was read up to {starts[log]}: it was recreated or truncated"
        for log, end in ends.items()
        if end < starts.get(log, 0)
    ]
    if lost := ", ".join(deleted + truncated):
        if query.fail_on_data_loss:
            raise SystemFailure(lost, remedy="failOnDataLoss=false reads what is left")
        _log.warning("%s", lost)


def split(ranges: list[Range], least: int | None, *, most: int | None = None) -> list[Range]:
    """Split ranges into at least `least` pieces, if records suffice, of at most `most` records."""
    if most is not None:
        ranges = [
            piece
            for part in ranges
            for piece in _split_range(part, -(-(part.end - part.start) // most))
        ]
    if least is None or len(ranges) >= least or not ranges:
        return ranges
    whole = sum(part.end - part.start for part in ranges)
    pieces = []
    for part in ranges:
        size = part.end - part.start
        pieces += _split_range(part, max(1, min(round(Fraction(size * least, whole)), size)))
    return pieces


def _split_range(part: Range, count: int) -> list[Range]:
    size = part.end - part.start
    cuts = [part.start + size * i // count for i in range(count + 1)]
    return [Range(part.log, a, b) for a, b in pairwise(cuts)]


def limit_ends(starts: Mapping[TopicPartition, int], ends: Offsets, most: int) -> Offsets:
    """Lower the ends to at most `most` offsets after the starts, shared in proportion."""
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
