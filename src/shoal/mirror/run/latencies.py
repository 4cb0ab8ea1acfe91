"""How old records are when they are fetched, and when the target has acknowledged them.

The newest timestamp of a batch counts, by the clock of this machine: clocks that differ give
wrong latencies, and a latency below 0 counts as 0.
"""

import time
from collections.abc import Callable
from typing import Final

from shoal.model.topics import TopicPartition
from shoal.telemetry.definitions import METRICS
from shoal.telemetry.samples import Histogram

LATENCY: Final = "shoal_mirror_replication_latency_seconds"


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


class Spread:
    """The last, smallest, largest and average of some durations."""

    __slots__ = ("count", "largest_ms", "last_ms", "smallest_ms", "total_ms")

    def __init__(self) -> None:
        self.count = self.last_ms = self.total_ms = self.largest_ms = 0
        self.smallest_ms = -1

    def add(self, duration_ms: int) -> None:
        self.count += 1
        self.last_ms = duration_ms
        self.total_ms += duration_ms
        self.largest_ms = max(self.largest_ms, duration_ms)
        if not 0 <= self.smallest_ms <= duration_ms:
            self.smallest_ms = duration_ms


class MirrorLatencies:
    """The latencies of one mirror, in this process."""

    def __init__(self, wall_ms: Callable[[], int] = _wall_ms) -> None:
        self._wall_ms = wall_ms
        self.histogram = Histogram(METRICS[LATENCY].buckets)
        # By partition of the source, since the start of this process.
        self.replication: dict[TopicPartition, Spread] = {}
        self.ages: dict[TopicPartition, Spread] = {}

    def on_fetched(self, partition: TopicPartition, timestamp_ms: int) -> None:
        if timestamp_ms >= 0:
            age_ms = max(0, self._wall_ms() - timestamp_ms)
            _spread_of(self.ages, partition).add(age_ms)

    def on_copied(self, partition: TopicPartition, timestamp_ms: int) -> None:
        """The target has acknowledged a batch with this newest timestamp."""
        if timestamp_ms >= 0:
            latency_ms = max(0, self._wall_ms() - timestamp_ms)
            _spread_of(self.replication, partition).add(latency_ms)
            self.histogram.observe(latency_ms / 1000)

    def forget(self, partition: TopicPartition) -> None:
        self.replication.pop(partition, None)
        self.ages.pop(partition, None)


def _spread_of(spreads: dict[TopicPartition, Spread], partition: TopicPartition) -> Spread:
    spread = spreads.get(partition)
    if spread is None:
        spread = spreads[partition] = Spread()
    return spread
