"""Compares the logs of one source partition and its target partition; writes nothing.

Rules:
- Batches with the same bytes, codec, record count and timestamps are equal. Otherwise records are
  compared one by one (key, value, headers, timestamp), because a mirror may re-encode batches or
  split them differently.
- The timestamp of a record is the one that a consumer sees: with LogAppendTime at the source, the
  target must have the append time. A target topic with LogAppendTime sets its own timestamps,
  which are not compared.
- Offsets need not be equal, only the order. Where one log starts later (retention), records of the
  other log are skipped up to the first record that both have.
- Both are read up to a given end, without aborted and control batches. The comparison stops at the
  first difference. A target that ends early may still be catching up: that is neither a difference
  nor equality.
- A log keeps a rolling checksum of its batches that were compared to the end: of their checksums
  and last offsets, in order.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Annotated, Final, NamedTuple

from shoal.client.admin import Resource, ResourceType
from shoal.client.client import Client
from shoal.client.codes import Code
from shoal.client.consume.isolation import AbortedFilter, BatchKind
from shoal.client.errors import error_for
from shoal.model.topics import TopicPartition
from shoal.wire.batch import TIMESTAMP_TYPE_BIT, Batch
from shoal.wire.errors import CorruptBatch
from shoal.wire.records.message_sets import read_batches
from shoal.wire.records.records import Record, decode_records

# How long a partition may take to answer before it counts as not available.
ANSWER_S: Final = 10.0
CHECKSUM_BYTES: Final = 8
CLEANUP: Final = "cleanup.policy"


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two logs first differ; the offset is -1 on a side whose records have ended."""

    source_offset: Annotated[int, "source_offset"]
    target_offset: Annotated[int, "target_offset"]
    what: Annotated[str, "what"]


@dataclass(slots=True)
class PartitionReport:
    """The result of comparing one partition."""

    partition: Annotated[TopicPartition, "partition"]
    equal_batches: Annotated[int, "equal_batches"] = 0
    records: Annotated[int, "records"] = 0  # equal records
    # Of those, the records that were compared one by one.
    records_one_by_one: Annotated[int, "records_one_by_one"] = 0
    passed_over: Annotated[int, "passed_over"] = 0  # records that the other side no longer has
    # Of those, the records of the source: the target has deleted them before the source.
    source_only: Annotated[int, "source_only"] = 0
    # Source offsets before the one at which the mirror began to copy; they are not compared.
    not_copied: Annotated[int, "not_copied"] = 0
    # Source offsets after the last record that the target has.
    not_yet: Annotated[int, "not_yet"] = 0
    # Target offsets copied from topics that the source no longer has.
    earlier_generations: Annotated[int, "earlier_generations"] = 0
    difference: Annotated[Difference | None, "difference"] = None
    unavailable: Annotated[str, "unavailable"] = ""  # why it was not compared, or not to the end


class Tail(NamedTuple):
    """The last batch of a log that was compared to its end: its last offset and its CRC."""

    last_offset: Annotated[int, "last_offset"]
    crc: Annotated[int, "crc"]


class DamagedBatch(Exception):
    """A batch has a wrong CRC."""

    def __init__(self, log: "Log", offset: int) -> None:
        super().__init__()
        self.log = log
        self.offset = offset


class Log:
    """The log of one side, read in order by batch or by record."""

    def __init__(self, client: Client, tp: TopicPartition, first: int, end: int) -> None:
        self.end = end
        self._client = client
        self._tp = tp
        self._position = first
        self._batches: deque[Batch] = deque()
        self._records: deque[Record] = deque()
        self._opened: Batch | None = None  # whose records are in `_records`
        self.has_append_times = False
        self.checksum = ""
        self.tail: Tail | None = None

    @property
    def next_offset(self) -> int:
        """Everything below was compared or skipped."""
        if self._records:
            return self._records[0].offset
        return self._batches[0].base_offset if self._batches else self._position

    def skip_to(self, offset: int) -> None:
        """Begin no earlier than at this offset; before anything is read."""
        self._position = max(self._position, offset)

    async def is_compacted(self) -> bool:
        """Whether the broker may remove records from the middle of this log."""
        topic = Resource(ResourceType.TOPIC, self._tp.topic)
        found = await self._client.admin.describe_configs([topic], names=[CLEANUP])
        entry = found[topic].get(CLEANUP)
        return entry is not None and "compact" in (entry.value or "")

    async def peek_batch(self) -> Batch | None:
        """Return the next batch without consuming it; None if some of its records are consumed."""
        if not self._records:
            await self._fill()
        return self._batches[0] if self._batches and not self._records else None

    async def peek_record(self) -> Record | None:
        """Return the next record without consuming it."""
        if not self._records:
            await self._fill()
        if not self._records and self._batches:
            self._open(self._batches.popleft(), 0)
        return self._records[0] if self._records else None

    def drop_batch(self) -> None:
        self._add_to_checksum(self._batches.popleft())

    def drop_record(self) -> None:
        self._records.popleft()
        if not self._records and self._opened is not None:
            self._add_to_checksum(self._opened)

    def _add_to_checksum(self, batch: Batch) -> None:
        self.tail = Tail(batch.last_offset, batch.crc)
        text = f"{self.checksum} {batch.last_offset} {batch.crc}".encode()
        self.checksum = blake2b(text, digest_size=CHECKSUM_BYTES).hexdigest()

    def _open(self, batch: Batch, first: int) -> None:
        self._opened = batch
        self.has_append_times = bool(batch.attributes & TIMESTAMP_TYPE_BIT)
        self._records.extend(r for r in decode_records(batch) if r.offset >= first)

    async def _fill(self) -> None:
        while not self._batches and not self._records and self._position < self.end:
            await self._client.with_retries(self._fetch, timeout_s=ANSWER_S)
        if self._batches:
            self._check(self._batches[0])

    def _check(self, batch: Batch) -> None:
        try:
            batch.check_crc()
        except CorruptBatch:
            raise DamagedBatch(self, batch.base_offset) from None

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
            if batch.last_offset < position:
                continue
            if batch.base_offset >= self.end:
                self._position = self.end  # compaction removed what was before it
                continue
            self._position = batch.next_offset
            if standing is BatchKind.DATA and batch.record_count:
                self._take(batch, position)

    def _take(self, batch: Batch, position: int) -> None:
        if batch.base_offset < position:  # the log starts inside this batch
            self._check(batch)
            self._open(batch, position)
        else:
            self._batches.append(batch)


async def compare_logs(
    report: PartitionReport,
    source: Log,
    target: Log,
    *,
    later: tuple[bool, bool],
    may_continue: Callable[[], bool] = lambda: True,
) -> bool:
    """Compare two logs up to their ends, or while `may_continue`; the result is in `report`.

    `later` says whether the source, and the target, may start later than the other. Returns whether
    the first records that both have are found. Errors of the clusters are raised.
    """
    is_aligned = False
    try:
        is_aligned = await _align(report, source, target, later=later)
        while await _step(report, source, target) and may_continue():
            pass
    except DamagedBatch as damaged:
        what = "a batch is damaged: its CRC is wrong"
        is_source = damaged.log is source
        report.difference = Difference(
            damaged.offset if is_source else -1, -1 if is_source else damaged.offset, what
        )
    return is_aligned


async def _align(
    report: PartitionReport, source: Log, target: Log, *, later: tuple[bool, bool]
) -> bool:
    """Skip records of one side that are before the log start of the other; False if not found."""
    if not any(later):
        return True
    source_is_later = later[0]
    ahead, behind = (source, target) if source_is_later else (target, source)
    first = await ahead.peek_record()
    if first is None and source_is_later:
        # The source has deleted all its records: nothing is left to compare.
        while await target.peek_record() is not None:
            target.drop_record()
            report.passed_over += 1
    if first is None or await behind.peek_record() is None:
        return False
    while (record := await behind.peek_record()) is not None and not _same(record, first):
        behind.drop_record()
        report.passed_over += 1
        report.source_only += not source_is_later
    if record is None:
        side = "target" if source_is_later else "source"
        offset = first.offset
        report.difference = Difference(
            offset if source_is_later else -1,
            -1 if source_is_later else offset,
            f"the {side} has no record that equals the first record of the other log",
        )
    return record is not None


async def _step(report: PartitionReport, source: Log, target: Log) -> bool:
    """Compare the next batch or the next record of both logs; False at the end."""
    if report.difference is not None:
        return False
    ours, theirs = await asyncio.gather(source.peek_batch(), target.peek_batch())
    if ours is not None and theirs is not None and _same_bytes(ours, theirs):
        report.equal_batches += 1
        report.records += ours.record_count
        source.drop_batch()
        target.drop_batch()
        return True
    left, right = await source.peek_record(), await target.peek_record()
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
