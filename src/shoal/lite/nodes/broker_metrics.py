"""The metrics of one broker, and of the groups that it coordinates.

Rules of this file:
- A collector yields chunks (`shoal.telemetry.samples`); its caller lets other work run between
  them, so partitions may come and go meanwhile.
- The lag of a group is known where this broker has a replica of the partition, and where the
  process that merges the chunks of all brokers finds the leader's high watermark.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.traffic import HIGHEST_KEY, TopicTraffic
from shoal.model.topics import TopicPartition
from shoal.runtime.tasks import failure_counts
from shoal.telemetry.samples import Chunk, Families, Sample, chunks_of, one
from shoal.wire.api_keys import ApiKey

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_HIGH_WATERMARK: Final = "shoal_partition_high_watermark"
_COMMITTED: Final = "shoal_group_committed_offset"
_LAG: Final = "shoal_group_lag_records"


class BrokerGauges(NamedTuple):
    """What the core of a broker does not know."""

    connections: Callable[[], int]
    longest_hold_ms: Callable[[], int]


class BrokerCollector:
    """Collects the metrics of the broker of this process."""

    def __init__(self, core: BrokerCore, gauges: BrokerGauges) -> None:
        self._core = core
        self._gauges = gauges
        self._broker = str(core.broker_id)
        self._started_s = round(time.time(), 3)
        # CPU and wall time at the last scrape.
        self._last_s = (time.process_time(), time.monotonic())

    def collect(self) -> Iterator[Chunk]:
        yield from self._numbers()
        yield from self._traffic()
        yield from self._partitions()
        yield from self._groups()

    def _numbers(self) -> Iterator[Chunk]:
        core, broker = self._core, self._broker
        partitions = [*core.replicas.partitions.values()]
        led = [each for each in partitions if each.replica.leader is not None]
        lacking = [each for each in led if len(each.record.in_sync) < len(each.record.replicas)]
        link = core.controller.traffic
        for name, value in (
            ("connections", self._gauges.connections()),
            ("leaders", len(led)),
            ("replicas", len(partitions)),
            ("offline_replicas", len(core.replicas.offline_reasons())),
            ("under_replicated_partitions", len(lacking)),
            ("metadata_offset", core.state.applied_count),
            ("metadata_requests_total", link.requests),
            ("metadata_responses_total", link.responses),
            ("metadata_sent_bytes_total", link.sent_bytes),
            ("metadata_received_bytes_total", link.received_bytes),
            ("longest_hold_seconds", self._gauges.longest_hold_ms() / 1000),
            ("idle_ratio", self._idle_ratio()),
            ("start_time_seconds", self._started_s),
            ("threads", threading.active_count()),
            *process_numbers().items(),
        ):
            yield one(f"shoal_broker_{name}", value, broker)
        failures = [((broker, each.name), each.count) for each in failure_counts()]
        yield from chunks_of("shoal_broker_background_failures_total", failures)

    def _idle_ratio(self) -> float:
        before, self._last_s = self._last_s, (time.process_time(), time.monotonic())
        elapsed_s = self._last_s[1] - before[1]
        used_s = self._last_s[0] - before[0]
        return round(min(1.0, max(0.0, 1 - used_s / elapsed_s)), 4) if elapsed_s > 0 else 1.0

    def _traffic(self) -> Iterator[Chunk]:
        broker, traffic = self._broker, self._core.traffic
        requests = [
            ((broker, _api_name(key)), count) for key, count in enumerate(traffic.requests) if count
        ]
        yield from chunks_of("shoal_broker_requests_total", requests)
        topics = [*traffic.items()]
        for field in TopicTraffic.__slots__:
            samples = (((broker, topic), getattr(counts, field)) for topic, counts in topics)
            yield from chunks_of(f"shoal_broker_{field}_total", samples)

    def _partitions(self) -> Iterator[Chunk]:
        broker = self._broker
        partitions = [
            ((key.topic, str(key.partition)), each)
            for key, each in self._core.replicas.partitions.items()
        ]
        sizes = (((broker, *labels), each.log.size_bytes) for labels, each in partitions)
        yield from chunks_of("shoal_broker_log_size_bytes", sizes)
        led = [item for item in partitions if item[1].replica.leader is not None]
        marks = ((labels, each.high_watermark) for labels, each in led)
        yield from chunks_of(_HIGH_WATERMARK, marks)
        starts = ((labels, each.log.start_offset) for labels, each in led)
        yield from chunks_of("shoal_partition_log_start_offset", starts)

    def _groups(self) -> Iterator[Chunk]:
        shards = self._core.groups.active_shards()
        members = [
            ((group.group_id,), len(group.members)) for shard in shards for group in shard.groups()
        ]
        yield from chunks_of("shoal_group_members", members)
        for shard in shards:
            for group in shard.offsets.groups():
                offsets = [
                    ((group, topic, str(index)), committed.offset)
                    for (topic, index), committed in shard.offsets.of_group(group).items()
                ]
                yield from chunks_of(_COMMITTED, offsets)
                yield from chunks_of(_LAG, self._local_lags(offsets))

    def _local_lags(self, offsets: list[tuple[tuple[str, str, str], int]]) -> Iterator[Sample]:
        partitions = self._core.replicas.partitions
        for labels, offset in offsets:
            partition = partitions.get(TopicPartition(labels[1], int(labels[2])))
            if partition is not None:
                yield labels, max(0, partition.high_watermark - offset)


def collect_totals(core: BrokerCore) -> Iterator[Chunk]:
    """What clients sent and read, summed over topics; named as the counters of a topic."""
    topics = [*core.traffic.values()]
    for field in TopicTraffic.__slots__:
        yield one(field, sum(getattr(counts, field) for counts in topics))


def _api_name(key: int) -> str:
    known = ApiKey.COMPARE_AND_APPEND if key == HIGHEST_KEY else ApiKey(key)
    return known.name.title().replace("_", "")


def correct_lags(families: Families) -> None:
    """Compute the lag of groups from the high watermarks of leaders, where they are known."""
    marks = {tuple(labels): value for labels, value in families.get(_HIGH_WATERMARK, ())}
    lags = {tuple(labels): value for labels, value in families.get(_LAG, ())}
    for labels, offset in families.get(_COMMITTED, ()):
        mark = marks.get((labels[1], labels[2]))
        if mark is not None:
            lags[tuple(labels)] = max(0, mark - offset)
    families[_LAG] = [*lags.items()]


def process_numbers() -> dict[str, int | float]:
    """What this process uses, by the names of its metrics; less where `/proc` is missing."""
    numbers: dict[str, int | float] = {"cpu_seconds_total": round(time.process_time(), 3)}
    try:
        resident = Path("/proc/self/statm").read_bytes().split()[1]
        numbers["resident_memory_bytes"] = int(resident) * _PAGE_BYTES
        numbers["open_files"] = len([*Path("/proc/self/fd").iterdir()])
        lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
        used = dict(line.split(": ") for line in lines)
        numbers["disk_read_bytes_total"] = int(used["read_bytes"])
        numbers["disk_written_bytes_total"] = int(used["write_bytes"])
    except (OSError, ValueError, KeyError, IndexError):
        pass
    return numbers
