"""Histograms: buckets, merging, differences and percentiles."""

import random

import pytest

from shoal.model.events import LatencyHistogram
from shoal.telemetry.histogram import (
    HistogramBuilder,
    bucket_end_us,
    bucket_of,
    merge,
    percentile_us,
    subtract,
)


def build(*samples_us: int) -> LatencyHistogram:
    builder = HistogramBuilder()
    for sample_us in samples_us:
        builder.add(sample_us)
    return builder.take()


@pytest.mark.parametrize(
    ("latency_us", "bucket"), [(-5, 0), (0, 0), (1, 0), (2, 16), (3, 25), (4, 32), (1024, 160)]
)
def test_samples_are_in_the_bucket_of_the_contract(latency_us: int, bucket: int) -> None:
    assert bucket_of(latency_us) == bucket
    assert latency_us <= bucket_end_us(bucket)


def test_samples_are_counted_and_taken_once() -> None:
    builder = HistogramBuilder()
    builder.add(-3)
    builder.add(1000, 2)
    assert builder.take() == LatencyHistogram(3, 2000, {"0": 1, "159": 2}, 1)
    assert builder.take() == LatencyHistogram(0, 0, {}, 0)


def test_merging_adds_and_subtracting_undoes_it() -> None:
    one, two = build(5, 70, 70), build(-1, 70, 9000)
    both = merge([one, two])
    assert both == build(5, 70, 70, -1, 70, 9000)
    assert subtract(both, one) == two
    assert subtract(one, both) == one  # a process that started again


@pytest.mark.parametrize("percent", [50, 90, 99, 100])
def test_percentiles_are_within_a_bucket(percent: float) -> None:
    samples = sorted(random.Random(7).randrange(1, 10**7) for _ in range(1000))
    exact = samples[int(percent * 10) - 1]
    found = percentile_us(build(*samples), percent)
    assert exact <= found <= exact * 2 ** (1 / 16) + 1


def test_no_samples_have_no_percentile() -> None:
    assert percentile_us(build(), 99) == 0
