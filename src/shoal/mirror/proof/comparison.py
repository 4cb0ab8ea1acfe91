"""Compares the logs of one source partition and its target partition; writes nothing.

Rules:
- Batches with the same bytes, codec, record count and timestamps are equal. Otherwise records are
  compared one by one (key, value, headers, timestamp), because a mirror may re-encode batches or
  split them differently.
- The timestamp of a record is the one that a consumer sees: with LogAppendTime at the source, the
  target must have the append time. A target topic with LogAppendTime sets its own timestamps,
  which are not compared.
- Offsets need not be equal, only the order. Where one log starts later (retention), records of the
  other log are skipped up to the first record that both have. Which one it is may be unknown: then
  it is that whose first record is in the other log.
- The comparison stops at the first difference. A target that ends early may still be catching up:
  that is neither a difference nor equality.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from typing import Annotated

from shoal.mirror.proof.alignment import FoundStart, find_start
from shoal.mirror.proof.log import DamagedBatch, Log
from shoal.model.topics import TopicPartition
from shoal.wire.batch import Batch
from shoal.wire.records.records import Record


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
    first, other = await source.peek_record(), await target.peek_record()
    if first is None and later[0]:
        # The source has deleted all its records: nothing is left to compare.
        report.passed_over += await target.skip_all()
        return False
    if first is None or other is None:
        return False
    places: list[tuple[FoundStart, Log]] = []
    # The later log is probably the one whose records are younger.
    pairs = ((source, target), (target, source))
    for ahead, behind in pairs[:: -1 if other.timestamp > first.timestamp else 1]:
        place = await find_start(ahead, behind) if later[ahead is target] else None
        if place is not None:
            places.append((place, behind))
            if place.is_whole:
                break
    if not places:
        report.difference = _not_aligned(first, other, is_source_later=later[0])
        if later[0]:
            target.read_again(target.end)  # the source's first record may still come
        return False
    place, behind = max(places, key=itemgetter(0))
    behind.read_again(place.offset)
    report.passed_over += place.before
    report.source_only += place.before if behind is source else 0
    return True


def _not_aligned(first: Record, other: Record, *, is_source_later: bool) -> Difference:
    side = "target" if is_source_later else "source"
    return Difference(
        first.offset if is_source_later else -1,
        -1 if is_source_later else other.offset,
        f"the {side} has no record that equals the first record of the other log",
    )


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
