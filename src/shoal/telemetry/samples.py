"""Samples of metrics, and how they are collected and merged.

Rules:
- A collector is a generator of chunks: a metric's name and at most `CHUNK` samples. Between two
  chunks its caller may do other work, so collecting many series never blocks an event loop.
- A chunk consists of JSON values: nodes send chunks to the process that has the endpoint.
- The labels of a sample are the values of the metric's labels, in their order.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

CHUNK: Final = 500

Value = int | float
Labels = Sequence[str]


class Exemplar(NamedTuple):
    """One observation of a histogram, with labels that lead to its cause."""

    labels: dict[str, str]
    value: float
    time_s: float


class HistogramValue(NamedTuple):
    """The state of a histogram: how many observations are in each bucket, the last without end."""

    counts: Sequence[int]
    total: float
    exemplars: Sequence[Exemplar | None] = ()


# Labels and value, as list or tuple.
Sample = Sequence[Any]
Chunk = tuple[str, list[Sample]]
# By the name of the metric.
Families = dict[str, list[Sample]]


class Histogram:
    """Counts observations in the buckets of a metric. With exemplars it keeps the last of each."""

    __slots__ = ("_bounds", "_exemplars", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        self._exemplars: list[Exemplar | None] = [None] * (len(bounds) + 1)

    def observe(self, value: float, exemplar: Exemplar | None = None, *, count: int = 1) -> None:
        bucket = bisect_left(self._bounds, value)
        self.counts[bucket] += count
        self.total += value * count
        if exemplar is not None:
            self._exemplars[bucket] = exemplar

    def value(self) -> HistogramValue:
        return HistogramValue(list(self.counts), self.total, list(self._exemplars))


def chunks_of(name: str, samples: Iterable[Sample]) -> Iterator[Chunk]:
    """Cut the samples of a metric into chunks."""
    remaining = iter(samples)
    while chunk := list(islice(remaining, CHUNK)):
        yield name, chunk


def one(name: str, value: Value, *labels: str) -> Chunk:
    """A chunk with one sample."""
    return name, [(labels, value)]


def merge(families: Families, chunks: Iterable[Chunk]) -> Families:
    """Add chunks to the families of their metrics; returns `families`."""
    for name, samples in chunks:
        families.setdefault(name, []).extend(samples)
    return families
