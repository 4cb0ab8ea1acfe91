"""Where two logs begin at different records, because each has deleted some at its start."""

import asyncio
from collections.abc import Sequence
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.mirror.proof.comparison import PartitionReport, compare_logs
from shoal.model.topics import TopicPartition
from shoal.wire.records.records import Record

LATER = 1_000_000


class StoredLog:
    """The records of one side from an offset on, as `shoal.mirror.proof.log.Log` reads them."""

    def __init__(
        self, records: Sequence[Record], first: int, end: int, *, has_append_times: bool = False
    ) -> None:
        self._all = [each for each in records if first <= each.offset < end]
        self._next = 0
        self.end = end
        self.has_append_times = self.saw_append_times = has_append_times

    async def peek_batch(self) -> None:
        return None

    async def peek_record(self) -> Record | None:
        return self._all[self._next] if self._next < len(self._all) else None

    def skip_record(self) -> None:
        self._next += 1

    drop_record = skip_record

    async def skip_all(self) -> int:
        count, self._next = len(self._all) - self._next, len(self._all)
        return count

    def read_again(self, offset: int) -> None:
        self._next = sum(each.offset < offset for each in self._all)


def _compare(source: StoredLog, target: StoredLog, later: tuple[bool, bool]) -> PartitionReport:
    report = PartitionReport(TopicPartition("t", 0))
    asyncio.run(compare_logs(report, source, target, later=later))  # type: ignore[arg-type]
    return report


def _records(values: Sequence[int], *, times: Sequence[int] | None = None) -> list[Record]:
    return [
        Record(offset, times[offset] if times else 7, None, str(value).encode())
        for offset, value in enumerate(values)
    ]


@given(
    runs=st.lists(st.integers(1, 5), min_size=2, max_size=12),
    starts=st.tuples(st.integers(0, 60), st.integers(0, 60)),
)
def test_what_both_have_is_compared(runs: list[int], starts: tuple[int, int]) -> None:
    """Equal records follow each other, and have the same time."""
    log = _records(list(chain.from_iterable([n] * run for n, run in enumerate(runs))))
    end, last_run = len(log), len(log) - runs[-1]
    source_first, target_first = (min(start, last_run) for start in starts)
    report = _compare(
        StoredLog(log, source_first, end),
        StoredLog(log, target_first, end),
        (source_first > 0, target_first > 0),
    )
    assert report.difference is None
    assert report.records == end - max(source_first, target_first)
    assert report.source_only == max(0, target_first - source_first)
    assert not report.not_yet


@pytest.mark.parametrize(
    "starts",
    [
        pytest.param((30, 0), id="the source is later"),
        pytest.param((0, 30), id="the target is later"),
        pytest.param((30, 10), id="both, the source more"),
        pytest.param((10, 30), id="both, the target more"),
    ],
)
@pytest.mark.parametrize("has_append_times", [False, True])
def test_records_that_differ_in_their_times_only_or_not_in_their_times(
    starts: tuple[int, int], *, has_append_times: bool
) -> None:
    count = 60
    ours = theirs = _records([1] * count, times=range(count))
    if has_append_times:
        ours = _records(range(count), times=range(count))
        theirs = _records(range(count), times=range(LATER, LATER + count))
    report = _compare(
        StoredLog(ours, starts[0], count),
        StoredLog(theirs, starts[1], count, has_append_times=has_append_times),
        (starts[0] > 0, starts[1] > 0),
    )
    assert (report.difference, report.records) == (None, count - max(starts))


@pytest.mark.parametrize("starts", [(30, 0), (0, 30), (30, 10), (10, 30)])
def test_a_record_that_is_missing_behind_the_start_is_found(starts: tuple[int, int]) -> None:
    log = _records(range(60))
    copied = [each for each in log if each.offset != 45]
    later = starts[0] > 0, starts[1] > 0
    report = _compare(StoredLog(log, starts[0], 60), StoredLog(copied, starts[1], 60), later)
    assert report.difference is not None
    assert report.difference.source_offset == 45


@pytest.mark.parametrize("later", [(True, False), (True, True)])
def test_a_target_that_is_not_yet_at_the_sources_start_is_at_its_end(
    later: tuple[bool, bool],
) -> None:
    """What follows at the target is compared in the next round, from there on."""
    source, target = StoredLog(_records(range(60)), 40, 60), StoredLog(_records(range(60)), 5, 30)
    report = _compare(source, target, later)
    assert report.difference is not None
    assert asyncio.run(target.peek_record()) is None
    record = asyncio.run(source.peek_record())
    assert record is not None
    assert record.offset == 40
