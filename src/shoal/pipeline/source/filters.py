"""Which records a query cannot return, from the filters of its plan. Pure.

Rules:
- Filters only leave out topics, partitions and ranges of offsets. Spark applies all of them again
  to the rows, so one that is not understood costs nothing but time.
- A timestamp is a lower bound only: records of a log are not in the order of their times, but none
  below the first record that is as new as the bound can be.
- In batch mode, rows have other columns: only topic and partition count.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from shoal.model.topics import TopicPartition

_LARGEST: Final = 2**63 - 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Span:
    """Whole numbers from `low` up to, not including, `high`."""

    low: int = 0
    high: int = _LARGEST

    def both(self, other: "Span") -> "Span":
        return Span(max(self.low, other.low), min(self.high, other.high))

    def __contains__(self, number: int) -> bool:
        return self.low <= number < self.high


@dataclass(frozen=True, slots=True)
class FilterLimits:
    """What the filters leave."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    partition_span: Span = field(default_factory=Span)
    offsets: Span = field(default_factory=Span)
    from_ms: int | None = None

    def may_have_rows(self, log: TopicPartition) -> bool:
        return (
            (self.topics is None or log.topic in self.topics)
            and (self.partitions is None or log.partition in self.partitions)
            and log.partition in self.partition_span
        )

    def clip(
        self, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        """Leave out logs and offsets without rows."""
        kept = [log for log in starts if self.may_have_rows(log)]
        low = {log: max(starts[log], self.offsets.low) for log in kept}
        return low, {log: max(low[log], min(ends[log], self.offsets.high)) for log in kept}


def limits_of(filters: Iterable[Filter], *, has_records: bool) -> FilterLimits:
    """Return what all of these filters leave."""
    limits = FilterLimits()
    for each in filters:
        if len(getattr(each, "attribute", ())) == 1:
            limits = _narrow(limits, each, has_records=has_records)
    return limits


def _narrow(limits: FilterLimits, each: Any, *, has_records: bool) -> FilterLimits:
    [column] = each.attribute
    values = _values(each)
    match column.lower():
        case "topic" if values is not None:
            topics = frozenset(value for value in values if isinstance(value, str))
            known = limits.topics
            return replace(limits, topics=topics if known is None else topics & known)
        case "partition":
            if values is not None:
                numbers = frozenset(value for value in values if type(value) is int)
                known_numbers = limits.partitions
                both = numbers if known_numbers is None else numbers & known_numbers
                return replace(limits, partitions=both)
            return replace(limits, partition_span=limits.partition_span.both(_span(each)))
        case "offset" if has_records:
            return replace(limits, offsets=limits.offsets.both(_span(each)))
        case "timestamp" if has_records:
            from_ms = _lowest_ms(each)
            if from_ms is None:
                return limits
            return replace(limits, from_ms=max(from_ms, limits.from_ms or 0))
    return limits


def _values(each: Filter) -> tuple[Any, ...] | None:
    """Return the only values that a column may have; None if there is no such list."""
    if isinstance(each, EqualTo | EqualNullSafe):
        return (each.value,)
    return each.value if isinstance(each, In) else None


def _span(each: Filter) -> Span:
    """Return the range of whole numbers that a filter leaves."""
    values = _values(each)
    if values is not None:
        numbers = [value for value in values if type(value) is int]
        return Span(min(numbers), max(numbers) + 1) if numbers else Span(0, 0)
    value = getattr(each, "value", None)
    if type(value) is not int:
        return Span()
    if isinstance(each, GreaterThan):
        return Span(value + 1)
    if isinstance(each, GreaterThanOrEqual):
        return Span(value)
    if isinstance(each, LessThan):
        return Span(0, max(value, 0))
    return Span(0, max(value + 1, 0)) if isinstance(each, LessThanOrEqual) else Span()


def _lowest_ms(each: Filter) -> int | None:
    """Return the lowest time that a filter leaves, in ms; None if any is left."""
    if not isinstance(each, GreaterThan | GreaterThanOrEqual | EqualTo | EqualNullSafe):
        return None
    if not isinstance(each.value, datetime) or each.value.tzinfo is None:
        return None
    since = each.value - _EPOCH
    return max((since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000, 0)
