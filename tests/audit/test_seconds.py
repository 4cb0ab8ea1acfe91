"""Numbers of each second are the same after they were packed, or are not packed."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shoal.audit.times.latency import buckets_per_second, maxima_per_second
from shoal.audit.times.seconds import (
    pack_counts,
    pack_latencies,
    percentiles_per_second,
    unpack_counts,
    unpack_latencies,
)

SECONDS = st.integers(-10, 60)
COUNTS = st.dictionaries(SECONDS, st.integers(1, 2**31 + 9), max_size=40)
WAITS_US = st.one_of(st.integers(0, 10**7), st.integers(-5, 2**42))
SAMPLES = st.lists(st.tuples(SECONDS, WAITS_US), max_size=60)


@given(COUNTS)
def test_counts_are_packed_in_four_bytes_or_not_at_all(counts: dict[int, int]) -> None:
    rows = np.array(sorted(counts.items()), dtype=np.int64).reshape(-1, 2)
    packed = pack_counts(rows)
    if packed is not None:
        assert unpack_counts(packed).tolist() == rows.tolist()
        assert packed.values.nbytes <= 4 * (packed.size + 1)
    else:
        is_sparse = not counts or max(counts) - min(counts) + 1 > 4 * len(counts)
        assert is_sparse or max(counts.values()) >= 2**31


@given(SAMPLES)
def test_latencies_are_packed_in_eight_bytes_or_not_at_all(samples: list[tuple[int, int]]) -> None:
    table = np.array(samples, dtype=np.int64).reshape(-1, 2)
    times_us, waits_us = table[:, 0] * 1_000_000, table[:, 1]
    buckets, maxima = (make(times_us, waits_us) for make in (buckets_per_second, maxima_per_second))
    packed = pack_latencies(buckets, maxima)
    if packed is not None:
        percentiles, highest = unpack_latencies(packed)
        assert percentiles.tolist() == percentiles_per_second(buckets).tolist()
        assert highest.tolist() == maxima.tolist()
        assert packed.values.nbytes == 8 * packed.size
    else:
        seconds = maxima[:, 0].tolist()
        is_sparse = not seconds or seconds[-1] - seconds[0] + 1 > 4 * len(seconds)
        assert is_sparse or not 0 <= maxima[:, 1].min() <= maxima[:, 1].max() < 2**39
