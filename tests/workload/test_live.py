"""First impressions of a consumer, beside a plain count of everything that arrived."""

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.workload.receive import live
from shoal.workload.receive.live import LatencyBuckets, LiveCheck, LiveCounts

Delivery = tuple[int, int, int, int]


def check_shown(check: LiveCheck, deliveries: list[Delivery]) -> None:
    columns = np.array(deliveries, np.int64).reshape(-1, 4).T
    producers, topics, lanes = columns[:3].astype(np.int32)
    check.add_messages(producers, topics, lanes, columns[3])


def plainly(deliveries: list[Delivery], counts: dict[tuple[int, int, int], int]) -> LiveCounts:
    """The same, one delivery at a time, with sets."""
    seen: dict[tuple[int, int, int], set[int]] = defaultdict(set)
    duplicates = late = 0
    for *names, sequence in deliveries:
        stream = seen[names[0], names[1], names[2]]
        duplicates += sequence in stream
        late += sequence not in stream and sequence < max(stream, default=-1)
        stream.add(sequence)
    for name in counts:
        seen[name] |= set()
    return LiveCounts(
        streams=len(seen),
        open_gaps=sum(max(s, default=-1) + 1 - len(s) for s in seen.values()),
        duplicates=duplicates,
        late=late,
        missing_tails=sum(max(n - 1 - max(seen[k], default=-1), 0) for k, n in counts.items()),
    )


deliveries = st.lists(
    st.tuples(st.integers(0, 1), st.integers(1, 2), st.integers(0, 2), st.integers(0, 12)),
    max_size=60,
)


@given(st.lists(deliveries, max_size=5))
def test_it_counts_as_a_plain_count_does(parts: list[list[Delivery]]) -> None:
    check = LiveCheck(from_start=True)
    for part in parts:
        check_shown(check, part)
    counts = {(0, 1, 0): 9, (1, 2, 2): 3}
    for (producer, topic, lane), count in counts.items():
        check.add_marker(producer, topic, lane, count)
    assert check.counts() == plainly([d for part in parts for d in part], counts)


def test_who_begins_in_the_middle_misses_nothing_before() -> None:
    check = LiveCheck(from_start=False)
    check_shown(check, [(0, 1, 0, 500), (0, 1, 0, 501), (0, 1, 0, 503)])
    assert check.counts() == LiveCounts(1, 1, 0, 0, 0)


def test_an_endless_gap_costs_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "LONGEST_WINDOW", 100)
    check = LiveCheck(from_start=True)
    for start in range(1, 1000, 10):
        check_shown(check, [(0, 1, 0, sequence) for sequence in range(start, start + 10)])
    assert check.counts() == LiveCounts(1, 1, 0, 0, 0)
    assert max(len(stream.window) for stream in check._streams.values()) <= 110


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=300), st.floats(0.1, 100))
def test_percentiles_are_within_a_bucket_of_the_exact_ones(
    samples: list[int], percent: float
) -> None:
    buckets = LatencyBuckets()
    buckets.add(np.array(samples, np.int64))
    exact = sorted(samples)[max(int(np.ceil(len(samples) * percent / 100)) - 1, 0)]
    assert exact / 1.05 - 1 <= buckets.percentile_us(percent) <= exact * 1.05 + 1
    assert sum(count for _, count in buckets.octaves()) == len(samples)


def test_negative_latencies_are_counted() -> None:
    buckets = LatencyBuckets()
    buckets.add(np.array([-5, 3], np.int64))
    assert (buckets.negative, buckets.count, buckets.max_us) == (1, 2, 3)
