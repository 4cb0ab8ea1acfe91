"""What all dialects share: names, labels and values translated from native families.

Rules:
- A dialect has a table of metrics, and reads native families only: a value exists once.
- With a node, the series of that broker are kept, for dashboards that expect one target for each
  broker. Cluster-wide series are then at the lowest broker that serves, and only there.
- Public dashboards expect rates as gauges where Prometheus would compute them: `Rates` does that
  between two scrapes.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

from shoal.telemetry.definitions import Kind, Metric
from shoal.telemetry.samples import Chunk, Families, Sample, chunks_of

Translate = Callable[[Families, str], Iterator[Chunk]]


@dataclass(frozen=True, slots=True)
class Dialect:
    """A table of metrics, and the function that makes their samples."""

    metrics: dict[str, Metric]
    translate: Translate


@dataclass(frozen=True, slots=True)
class Renamed:
    """A metric that is a native one with another name, other labels, and a factor."""

    name: str
    kind: Kind
    source: str
    # Positions of the native labels that are kept.
    positions: tuple[int, ...]
    labels: tuple[str, ...]
    # Labels with a fixed value.
    more: dict[str, str] = field(default_factory=dict)
    factor: float = 1

    @property
    def metric(self) -> Metric:
        text = f"{self.source} by another name."
        return Metric(self.name, self.kind, "", (*self.labels, *self.more), text, "cluster")

    def chunks(self, samples: Iterable[Sample]) -> Iterator[Chunk]:
        fixed = tuple(self.more.values())
        positions, factor = self.positions, self.factor
        return chunks_of(
            self.name,
            (
                (
                    (*(labels[i] for i in positions), *fixed),
                    value if factor == 1 else value * factor,
                )
                for labels, value in samples
            ),
        )


def by_name(metrics: Iterable[Metric]) -> dict[str, Metric]:
    return {metric.name: metric for metric in metrics}


def samples_of_node(samples: Sequence[Sample], node: str) -> Iterable[Sample]:
    """Those whose first label is a node; all without one."""
    return [each for each in samples if each[0][0] == node] if node else samples


def lowest_broker(families: Families) -> str:
    """The lowest broker that serves; empty if none does."""
    up = [labels[0] for labels, value in families.get("shoal_broker_up", ()) if value]
    return min(up, key=int, default="")


def value_of(families: Families, name: str) -> float:
    """The value of a metric without labels; -1 if it is missing."""
    samples = families.get(name)
    return samples[0][1] if samples else -1


class Rates:
    """Changes per second of values between two scrapes."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._last: dict[tuple[str, ...], tuple[float, float, float]] = {}

    def rate(self, key: tuple[str, ...], value: float) -> float:
        """The rate since the previous scrape; 0 at the first, and after a reset."""
        now_s = self._now_s()
        value_before, time_before, rate_before = self._last.get(key, (value, now_s, 0.0))
        elapsed_s = now_s - time_before
        if elapsed_s < 1 and key in self._last:
            return rate_before  # several targets are scraped at the same time
        rate = max(0.0, value - value_before) / elapsed_s if elapsed_s else 0.0
        self._last[key] = (value, now_s, rate)
        return rate


def all_chunks(parts: Iterable[Iterable[Chunk]]) -> Iterator[Chunk]:
    return chain.from_iterable(parts)
