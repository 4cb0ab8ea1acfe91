"""Sparse logarithmic histograms of latencies: build, merge, subtract, and percentiles for display.

The buckets are those of `shoal.model.events`. Pure; without numpy, because mirrors use it too.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping

from shoal.model.events import BUCKETS_PER_OCTAVE, LatencyHistogram


def bucket_of(latency_us: int) -> int:
    """The bucket of a sample."""
    return int(math.log2(latency_us) * BUCKETS_PER_OCTAVE) if latency_us > 1 else 0


def bucket_end_us(bucket: int) -> float:
    """The upper end of a bucket."""
    return float(2 ** ((bucket + 1) / BUCKETS_PER_OCTAVE))


class HistogramBuilder:
    """Collects samples until they are taken."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._sum_us = 0
        self._negative = 0

    def add(self, latency_us: int, count: int = 1) -> None:
        self._counts[bucket_of(latency_us)] += count
        self._sum_us += max(latency_us, 0) * count
        self._negative += count if latency_us < 0 else 0

    def take(self) -> LatencyHistogram:
        """The samples since the last call."""
        taken = make_histogram(self._counts, self._sum_us, self._negative)
        self._counts, self._sum_us, self._negative = Counter(), 0, 0
        return taken


def make_histogram(counts: Mapping[int, int], sum_us: int, negative: int) -> LatencyHistogram:
    """A histogram of counts by bucket."""
    buckets = {str(bucket): count for bucket, count in sorted(counts.items()) if count}
    return LatencyHistogram(sum(buckets.values()), sum_us, buckets, negative)


def merge(histograms: Iterable[LatencyHistogram]) -> LatencyHistogram:
    """One histogram with the samples of all."""
    counts: Counter[int] = Counter()
    sum_us = negative = 0
    for each in histograms:
        counts.update({int(bucket): count for bucket, count in each.buckets.items()})
        sum_us += each.sum_us
        negative += each.negative
    return make_histogram(counts, sum_us, negative)


def subtract(later: LatencyHistogram, earlier: LatencyHistogram) -> LatencyHistogram:
    """The samples that `later` has beside those of `earlier`.

    If it has fewer in a bucket, `earlier` belongs to another process: then all of `later` is new.
    """
    counts = {
        int(bucket): count - earlier.buckets.get(bucket, 0)
        for bucket, count in later.buckets.items()
    }
    if later.count < earlier.count or any(count < 0 for count in counts.values()):
        return later
    sum_us = max(later.sum_us - earlier.sum_us, 0)
    return make_histogram(counts, sum_us, max(later.negative - earlier.negative, 0))


def percentile_us(histogram: LatencyHistogram, percent: float) -> float:
    """The upper end of the bucket that has the percentile; 0 without samples."""
    rank, seen = histogram.count * percent / 100, 0
    buckets = sorted((int(bucket), count) for bucket, count in histogram.buckets.items())
    for bucket, count in buckets:
        seen += count
        if seen >= rank:
            return bucket_end_us(bucket)
    return 0.0
