"""Compares the logs of a source and a target, batch by batch; writes nothing.

    reports = await verify(source, target, ["orders"])

Rules:
- The target's end is read before the source's, so everything that a correct mirror has written by
  then is in the source. Both are read up to their last stable offset, without aborted and control
  batches.
- Batches with the same bytes, codec, record count and timestamps are equal. Otherwise records are
  compared one by one (key, value, headers, timestamp), because a mirror may re-encode batches or
  split them differently.
- The timestamp of a record is the one that a consumer sees: with LogAppendTime at the source, the
  target must have the append time. A target topic with LogAppendTime sets its own timestamps,
  which are not compared.
- Offsets need not be equal, only the order. Where one log starts later (retention), records of the
  other log are skipped up to the first record that both have.
- A partition that is not available is reported, and the others are compared.
- Where a shoal mirror copied a recreated topic, its checkpoints say where the current generation
  begins at the target. Target records before that belong to an earlier generation; they are
  counted and not compared. The source is always compared from its log start, so that a mirror's
  own checkpoints cannot hide records that it did not copy.
- The comparison of a partition stops at the first difference. A target that ends early may still be
  catching up: that is neither a difference nor equality.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Final, NamedTuple

from shoal.client.client import Client
from shoal.client.codes import Code
from shoal.client.consume.isolation import AbortedFilter, BatchKind
from shoal.client.errors import ClientError, error_for
from shoal.client.results import EARLIEST, LATEST
from shoal.mirror.mm2.naming import Naming
from shoal.mirror.routes import Route
from shoal.mirror.watch.copies import find_copies
from shoal.model.errors import UsageError
from shoal.model.topics import TopicPartition
from shoal.wire.batch import TIMESTAMP_TYPE_BIT, Batch
from shoal.wire.errors import CorruptBatch
from shoal.wire.records.message_sets import read_batches
from shoal.wire.records.records import Record, decode_records

# How long a partition may take to return its offsets before it counts as not available.
ANSWER_S: Final = 10.0

NOT_COPIED_YET: Final = (
    "the source topic was deleted and created again since it was mirrored, and the mirror has "
    "not started to copy the new topic: nothing can be compared"
)


class Difference(NamedTuple):
    """Where two logs first differ; the offset is -1 on a side that has no more records."""

    source_offset: int
    target_offset: int
    what: str


@dataclass(slots=True)
class PartitionReport:
    """The result of comparing one partition."""

    partition: Annotated[TopicPartition, "partition"]
    equal_batches: Annotated[int, "equal_batches"] = 0
    records: Annotated[int, "records"] = 0  # equal records
    # Of those, the records that were compared one by one.
    records_one_by_one: Annotated[int, "records_one_by_one"] = 0
    passed_over: Annotated[int, "passed_over"] = 0  # records that the other side no longer has
    # Source offsets after the last record that the target has.
    not_yet: Annotated[int, "not_yet"] = 0
    # Target offsets copied from topics that the source no longer has.
    earlier_generations: Annotated[int, "earlier_generations"] = 0
    difference: Annotated[Difference | None, "difference"] = None
    unavailable: Annotated[str, "unavailable"] = ""  # why it was not compared, or not to the end


class _DamagedBatch(Exception):
    """A batch has a wrong CRC."""

    def __init__(self, log: "_Log", offset: int) -> None:
        super().__init__()
        self.log = log
        self.offset = offset


class _Log:
    """The log of one side, read in order by batch or by record."""

    def __init__(self, client: Client, tp: TopicPartition, first: int, end: int) -> None:
        self.end = end
        self._client = client
        self._tp = tp
        self._position = first
        self._batches: deque[Batch] = deque()
        self._records: deque[Record] = deque()
        self.has_append_times = False

    async def batch(self) -> Batch | None:
        """Return the next batch without consuming it; None if some of its records are consumed."""
        if not self._records:
            await self._fill()
        return self._batches[0] if self._batches and not self._records else None

    async def record(self) -> Record | None:
        """Return the next record without consuming it."""
        if not self._records:
            await self._fill()
        if not self._records and self._batches:
            batch = self._batches.popleft()
            self.has_append_times = bool(batch.attributes & TIMESTAMP_TYPE_BIT)
            self._records.extend(decode_records(batch))
        return self._records[0] if self._records else None

    def drop_batch(self) -> None:
        self._batches.popleft()

    def drop_record(self) -> None:
        self._records.popleft()

    async def _fill(self) -> None:
        while not self._batches and not self._records and self._position < self.end:
            await self._client.with_retries(self._fetch)
        if self._batches:
            self._check(self._batches[0])

    def _check(self, batch: Batch) -> None:
        try:
            batch.check_crc()
        except CorruptBatch:
            raise _DamagedBatch(self, batch.base_offset) from None

    async def _fetch(self) -> None:
        tp, position = self._tp, self._position
        part = (await self._client.fetch({tp: position}, isolation="read_committed"))[tp]
        if part.error_code != Code.NONE:
            raise error_for(
                part.error_code, topic=tp.topic, partition=tp.partition, offset=position
            )
        aborted_filter = AbortedFilter(part.aborted)
        for batch, _ in read_batches(part.records):
            standing = aborted_filter.classify(batch)
            if batch.last_offset < position or batch.base_offset >= self.end:
                continue
            self._position = batch.next_offset
            if standing is BatchKind.DATA and batch.record_count:
                self._take(batch, position)

    def _take(self, batch: Batch, position: int) -> None:
        if batch.base_offset < position:  # the log starts inside this batch
            self._check(batch)
            self.has_append_times = bool(batch.attributes & TIMESTAMP_TYPE_BIT)
            self._records.extend(r for r in decode_records(batch) if r.offset >= position)
        else:
            self._batches.append(batch)


async def verify(
    source: Client, target: Client, topics: Iterable[str], naming: Naming | None = None
) -> list[PartitionReport]:
    """Compare all partitions of these source topics."""
    routes, reports = await _find_routes(source, target, topics, naming or Naming())
    failed: dict[TopicPartition, str] = {}
    target_ends = await _offsets(target, [route.target for route in routes], LATEST, failed)
    missing = {route.source: failed[route.target] for route in routes if route.target in failed}
    source_ends = await _offsets(source, [route.source for route in routes], LATEST, missing)
    target_firsts = await _offsets(target, list(target_ends), EARLIEST, failed)
    missing |= {route.source: failed[route.target] for route in routes if route.target in failed}
    source_firsts = await _offsets(source, list(source_ends), EARLIEST, missing)
    copies = await find_copies(source, target, routes)
    for route in routes:
        ours, theirs = route
        if ours in missing:
            reports.append(PartitionReport(ours, unavailable=missing[ours]))
            continue
        first, report = target_firsts[theirs], PartitionReport(ours)
        base = copies[route].target_start if route in copies else 0
        start = max(first, base)
        report.earlier_generations = start - first
        logs = (
            _Log(source, ours, source_firsts[ours], source_ends[ours]),
            _Log(target, theirs, start, target_ends[theirs]),
        )
        # The target starts later if it has deleted records of this generation.
        later = source_firsts[ours] > 0, first > base
        if route in copies and copies[route].is_of_former_source:
            report.difference = Difference(-1, first, NOT_COPIED_YET)
        else:
            await _compare(report, *logs, later=later)
        reports.append(report)
    return reports


async def _find_routes(
    source: Client, target: Client, topics: Iterable[str], naming: Naming
) -> tuple[list[Route], list[PartitionReport]]:
    """The partitions that both clusters have, and reports of those that one of them lacks."""
    routes: list[Route] = []
    absent: dict[TopicPartition, str] = {}
    for ours in topics:
        theirs = naming.target_of(ours)
        if not await _has_topic(source, ours):
            absent[TopicPartition(ours, 0)] = f"the source cluster has no topic {ours}"
            continue
        has_target = await _has_topic(target, theirs)
        there = set(target.cluster.partitions_of(theirs)) if has_target else set()
        for tp in source.cluster.partitions_of(ours):
            route = Route(tp, TopicPartition(theirs, tp.partition))
            if route.target in there:
                routes.append(route)
            elif has_target:
                absent[tp] = f"the target cluster has no partition {route.target}"
            else:
                absent[tp] = f"the target cluster has no topic {theirs}"
    if not routes and absent:
        raise UsageError(next(iter(absent.values())), remedy="check --topics")
    return routes, [PartitionReport(tp, unavailable=reason) for tp, reason in absent.items()]


async def _has_topic(client: Client, name: str) -> bool:
    cluster = await client.metadata([name], refresh=True)
    return cluster.topics[name].error != Code.UNKNOWN_TOPIC_OR_PARTITION


async def _offsets(
    client: Client, partitions: list[TopicPartition], which: int, failed: dict[TopicPartition, str]
) -> dict[TopicPartition, int]:
    """Read one offset per partition; partitions that do not answer are added to `failed`."""
    asked = dict.fromkeys(partitions, which)
    listed = await client.list_offsets_or_errors(
        asked, isolation="read_committed", timeout_s=ANSWER_S
    )
    failed.update((tp, str(error)) for tp, error in listed.errors.items())
    return {tp: one.offset for tp, one in listed.offsets.items()}


async def _compare(
    report: PartitionReport, source: _Log, target: _Log, *, later: tuple[bool, bool]
) -> None:
    try:
        await _align(report, source, target, later=later)
        while await _step(report, source, target):
            pass
    except ClientError as error:
        report.unavailable = str(error)
    except _DamagedBatch as damaged:
        what = "a batch is damaged: its CRC is wrong"
        is_source = damaged.log is source
        report.difference = Difference(
            damaged.offset if is_source else -1, -1 if is_source else damaged.offset, what
        )


async def _align(
    report: PartitionReport, source: _Log, target: _Log, *, later: tuple[bool, bool]
) -> None:
    """Skip records of one side that are before the log start of the other."""
    if not any(later):
        return
    source_is_later = later[0]
    ahead, behind = (source, target) if source_is_later else (target, source)
    first = await ahead.record()
    if first is None and source_is_later:
        # The source has deleted all its records: nothing is left to compare.
        while await target.record() is not None:
            target.drop_record()
            report.passed_over += 1
    if first is None or await behind.record() is None:
        return
    while (record := await behind.record()) is not None and not _same(record, first):
        behind.drop_record()
        report.passed_over += 1
    if record is None:
        side = "target" if source_is_later else "source"
        offset = first.offset
        report.difference = Difference(
            offset if source_is_later else -1,
            -1 if source_is_later else offset,
            f"the {side} has no record that equals the first record of the other log",
        )


async def _step(report: PartitionReport, source: _Log, target: _Log) -> bool:
    """Compare the next batch or the next record of both logs; False at the end."""
    if report.difference is not None:
        return False
    ours, theirs = await asyncio.gather(source.batch(), target.batch())
    if ours is not None and theirs is not None and _same_bytes(ours, theirs):
        report.equal_batches += 1
        report.records += ours.record_count
        source.drop_batch()
        target.drop_batch()
        return True
    left, right = await source.record(), await target.record()
    if right is None:
        report.not_yet = 0 if left is None else source.end - left.offset
        return False
    if left is None:
        report.difference = Difference(
            -1, right.offset, "the target has more records than the source"
        )
        return False
    what = _difference(left, right, no_times=target.has_append_times)
    if what is not None:
        report.difference = Difference(left.offset, right.offset, what)
        return False
    report.records += 1
    report.records_one_by_one += 1
    source.drop_record()
    target.drop_record()
    return True


def _same_bytes(batch: Batch, other: Batch) -> bool:
    return (
        (batch.codec, batch.record_count, batch.base_timestamp, batch.max_timestamp)
        == (other.codec, other.record_count, other.base_timestamp, other.max_timestamp)
        and batch.timestamp_type == other.timestamp_type
        and batch.is_dense == other.is_dense
        and batch.records == other.records
    )


def _difference(record: Record, other: Record, *, no_times: bool) -> str | None:
    for name in ("key", "value", "headers", "timestamp"):
        if no_times and name == "timestamp":
            continue
        if getattr(record, name) != getattr(other, name):
            return f"the {name} differs"
    return None


def _same(record: Record, other: Record) -> bool:
    return (record.key, record.value, record.headers) == (other.key, other.value, other.headers)
