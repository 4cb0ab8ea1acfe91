"""Latencies and times, as counts of whole microseconds.

They are exact: a histogram has one entry for each microsecond that occurs (`runs` keeps them,
`ranks` finds percentiles). Only pictures use coarser buckets, each wider by 1/32.
"""

from collections.abc import Callable, Container
from typing import NamedTuple

import numpy as np

from shoal.audit.arrays import (
    LARGEST,
    Ints,
    counts_of_values,
    highest_by_pair,
    sum_by_key,
)


class LatencyName(NamedTuple):
    """The name of a latency and its group; None for latencies of producers and logs."""

    name: str
    group: str | None


_EXACT = 64  # every value below has its own bucket
_STEPS = 32  # buckets for each doubling
BUCKET_BITS = 12


def list_latencies(group: str, known: Container[tuple[str | None, str]]) -> list[LatencyName]:
    """Return the latencies of a group's result, in report order; `known` are the measured ones."""
    names = [
        LatencyName("e2e_intended", group),
        LatencyName("e2e_actual", group),
        LatencyName("producer", None),
    ]
    some = [LatencyName("replication", None), LatencyName("staleness", group)]
    return [*names, *(each for each in some if (each.group, each.name) in known)]


def histogram(values: Ints) -> Ints:
    """Return rows of (microseconds, count), ascending."""
    return np.stack(counts_of_values(values), axis=1)


def nearest_rank(table: Ints, numerator: int, denominator: int) -> int:
    """Return the smallest value that at least this share of the samples does not exceed."""
    reached = np.cumsum(table[:, 1])
    rank = -(-int(reached[-1]) * numerator // denominator)
    return int(table[np.searchsorted(reached, rank), 0])


def look_up_buckets(values: Ints, rule: Callable[[Ints], Ints]) -> Ints:
    """Return what the rule says of each value, asked once of each in a narrow range."""
    if not len(values):
        return rule(values)
    low, high = int(values.min()), int(values.max())
    if high - low > len(values):
        return rule(values)
    table = rule(np.arange(low, high + 1, dtype=np.int64))
    return table[values - low]


def bucket_of(values: Ints) -> Ints:
    """Return the bucket of each value; all values up to 0 share the first."""
    return look_up_buckets(values, _bucket_of_each)


def _bucket_of_each(values: Ints) -> Ints:
    clipped = np.maximum(values, 0)
    exponent = np.frexp(clipped.astype(np.float64))[1].astype(np.int64)  # bits of the value
    shift = np.maximum(exponent - 6, 0)
    coarse = _EXACT + (shift - 1) * _STEPS + (clipped >> shift) - _STEPS
    return np.where(shift == 0, clipped, coarse)


def bucket_bounds(bucket: int) -> tuple[int, int]:
    """Return the smallest and the largest value of a bucket."""
    if bucket < _EXACT:
        return bucket, bucket
    shift, step = divmod(bucket - _EXACT, _STEPS)
    low = (step + _STEPS) << (shift + 1)
    return low, low + (1 << (shift + 1)) - 1


def per_second(times_us: Ints) -> Ints:
    """Rows of (second, count)."""
    return np.stack(counts_of_values(times_us // 1_000_000), axis=1)


def buckets_per_second(times_us: Ints, values: Ints) -> Ints:
    """Rows of (second << BUCKET_BITS | bucket, count)."""
    packed = ((times_us // 1_000_000) << BUCKET_BITS) | bucket_of(values)
    return np.stack(counts_of_values(packed), axis=1)


def maxima_per_second(times_us: Ints, values: Ints) -> Ints:
    """Rows of (second, largest value)."""
    seconds = times_us // 1_000_000
    start = int(seconds.min(initial=LARGEST))
    table = highest_by_pair(np.zeros_like(seconds), seconds - start, values)
    return np.stack([table[:, 1] + start, table[:, 2]], axis=1)


def latency_buckets(table: Ints) -> Ints:
    """Return rows of (bucket, count) of all seconds, given those of `buckets_per_second`."""
    buckets = table[:, 0] & ((1 << BUCKET_BITS) - 1)
    return np.stack(sum_by_key(buckets, table[:, 1]), axis=1)
