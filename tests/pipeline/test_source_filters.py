"""Filters of a plan as limits of what is read: never less than the filters themselves leave."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from shoal.model.topics import TopicPartition
from shoal.pipeline.source.filters import FilterLimits, limits_of

TOPICS = ("a", "b")
numbers = st.integers(-3, 12)
OF_COLUMN = {"topic": st.sampled_from(TOPICS), "partition": numbers, "offset": numbers}


@st.composite
def filters(draw: st.DrawFn) -> Filter:
    column = draw(st.sampled_from(sorted(OF_COLUMN)))
    values = OF_COLUMN[column]
    kind = draw(st.sampled_from([EqualTo, In, GreaterThan, LessThan, Not, IsNotNull, *_BOUNDS]))
    if kind is In:
        return In((column,), tuple(draw(st.lists(values, max_size=3))))
    if kind is Not:
        return Not(EqualTo((column,), draw(values)))
    if kind is IsNotNull:
        return IsNotNull((column,))
    bound: Filter = kind((column,), draw(values))
    return bound


_BOUNDS = [GreaterThanOrEqual, LessThanOrEqual]


def holds(each: Any, row: dict[str, Any]) -> bool:
    """What Spark makes of a filter."""
    if isinstance(each, Not):
        return not holds(each.child, row)
    if isinstance(each, IsNotNull):
        return True
    value = row[each.attribute[0]]
    operators: dict[Any, Callable[[], Any]] = {
        EqualTo: lambda: value == each.value,
        In: lambda: value in each.value,
        GreaterThan: lambda: value > each.value,
        GreaterThanOrEqual: lambda: value >= each.value,
        LessThan: lambda: value < each.value,
        LessThanOrEqual: lambda: value <= each.value,
    }
    return bool(operators[type(each)]())


@given(st.lists(filters(), max_size=4))
def test_no_row_that_the_filters_leave_is_left_out(given_filters: list[Filter]) -> None:
    logs = [TopicPartition(topic, partition) for topic in TOPICS for partition in range(3)]
    limits = limits_of(given_filters, has_records=True)
    starts, ends = limits.clip(dict.fromkeys(logs, 2), dict.fromkeys(logs, 9))
    for log in logs:
        for offset in range(2, 9):
            row = {"topic": log.topic, "partition": log.partition, "offset": offset}
            if all(holds(each, row) for each in given_filters):
                assert starts[log] <= offset < ends[log]
    assert all(starts[log] <= ends[log] for log in starts)


def test_filters_that_are_understood_leave_out_all_else() -> None:
    offsets = [GreaterThan(("offset",), 4), LessThanOrEqual(("OFFSET",), 6)]
    limits = limits_of(
        [EqualTo(("topic",), "a"), In(("partition",), (1,)), *offsets], has_records=True
    )
    logs = [TopicPartition(topic, partition) for topic in TOPICS for partition in range(3)]
    starts, ends = limits.clip(dict.fromkeys(logs, 0), dict.fromkeys(logs, 100))
    assert (starts, ends) == ({TopicPartition("a", 1): 5}, {TopicPartition("a", 1): 7})


def test_times_are_lower_bounds_and_batches_have_no_offsets() -> None:
    time = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(microseconds=1999)
    milliseconds = 1767225600001
    assert limits_of([GreaterThan(("timestamp",), time)], has_records=True).from_ms == milliseconds
    for odd in (
        [LessThan(("timestamp",), time)],
        [GreaterThan(("timestamp",), time.replace(tzinfo=None))],
        [GreaterThan(("offset", "inner"), 5)],
    ):
        assert limits_of(odd, has_records=True) == FilterLimits()
    assert limits_of([GreaterThan(("offset",), 5)], has_records=False) == FilterLimits()
