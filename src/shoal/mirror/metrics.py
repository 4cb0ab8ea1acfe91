"""The Prometheus metrics of the flows of a mirror, and their endpoint.

Rules:
- A scrape takes the current status of each flow, with fresh log ends of the source; a flow that
  has not started yet has `shoal_mirror_partitions` 0 and nothing else.
- Values that are not known (-1 in a status) are left out.
- Latencies are those of this process: with `--workers` there are none.
- How far the copy is proven is read from the file of `shoal mirror verify --follow`, if it exists.
"""

import asyncio
import resource
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from shoal.mirror.copy.intake import Counts
from shoal.mirror.flow import Flow
from shoal.mirror.proof.files import PartitionProof, read_proof
from shoal.mirror.run.latencies import LATENCY, MirrorLatencies, Spread
from shoal.mirror.status import MirrorStatus, PartitionStatus
from shoal.model.topics import TopicPartition
from shoal.telemetry.dialects.strimzi_mirrors import make_strimzi_mirrors
from shoal.telemetry.discovery import mirror_folder
from shoal.telemetry.endpoint import gather_chunks, make_port
from shoal.telemetry.http_port import EndpointSpec, HttpPort
from shoal.telemetry.samples import Chunk, Families, chunks_of, merge, one

# Names of metrics, and how they are counted.
_COUNTERS: Final[dict[str, Callable[[Counts], int]]] = {
    "records_total": lambda counts: counts.records,
    "bytes_total": lambda counts: counts.bytes,
    "batches_total": lambda counts: counts.batches,
    "resent_batches_total": lambda counts: counts.resent,
    "re_encoded_batches_total": lambda counts: (
        counts.trimmed + counts.closed_gaps + counts.split + counts.restamped + counts.converted
    ),
    "lost_offsets_total": lambda counts: counts.lost,
    "displaced_batches_total": lambda counts: counts.displaced,
    "damaged_batches_total": lambda counts: counts.damaged,
}
_PARTITION_GAUGES: Final[dict[str, Callable[[PartitionStatus], float]]] = {
    "position": lambda each: each.position,
    "lag_records": lambda each: each.lag,
    "lag_bytes": lambda each: each.lag_bytes,
    "lag_seconds": lambda each: each.lag_s,
}
_SPREADS: Final = ("last", "avg", "min", "max")


def collect_flow(name: str, status: MirrorStatus) -> Iterator[Chunk]:
    """The series of one flow."""
    for metric, count in _COUNTERS.items():
        yield one(f"shoal_mirror_{metric}", count(status.counts), name)
    partitions = status.partitions
    for metric, value in (
        ("paused", int(status.paused)),
        ("partitions", len(partitions)),
        ("parked_partitions", sum(bool(each.parked) for each in partitions)),
        ("waiting_partitions", sum(bool(each.waiting) for each in partitions)),
        ("refused_topics", len(status.refused)),
    ):
        yield one(f"shoal_mirror_{metric}", value, name)
    deliveries = [
        ((name, topic, chosen[0]), 1) for topic, chosen in sorted(status.deliveries.items())
    ]
    yield from chunks_of("shoal_mirror_info", deliveries)
    for metric, gauge in _PARTITION_GAUGES.items():
        samples = (
            ((name, *_labels(each.route.source)), known)
            for each in partitions
            if (known := gauge(each)) >= 0
        )
        yield from chunks_of(f"shoal_mirror_{metric}", samples)


def collect_latencies(name: str, latencies: MirrorLatencies) -> Iterator[Chunk]:
    yield LATENCY, [((name,), latencies.histogram.value())]
    for metric, spreads in (
        ("replication_latency_seconds", latencies.replication),
        ("record_age_seconds", latencies.ages),
    ):
        samples = (
            ((name, *_labels(partition), which), value)
            for partition, spread in [*spreads.items()]
            for which, value in zip(_SPREADS, _values_s(spread), strict=True)
        )
        yield from chunks_of(f"shoal_mirror_partition_{metric}", samples)


def collect_proof(name: str, proofs: Iterable[PartitionProof], now_us: int) -> Iterator[Chunk]:
    """How far the partitions of a flow are proven."""
    proven, ages, differences = [], [], []
    for each in proofs:
        topic, _, number = each.source.rpartition("-")
        labels = name, topic, number
        differences.append((labels, int(each.difference is not None)))
        if each.proven_offset >= 0:
            proven.append((labels, each.proven_offset))
            ages.append((labels, max(0.0, round((now_us - each.at_us) / 1e6, 3))))
    yield from chunks_of("shoal_mirror_proven_offset", proven)
    yield from chunks_of("shoal_mirror_proof_age_seconds", ages)
    yield from chunks_of("shoal_mirror_proof_difference", differences)


def _labels(partition: TopicPartition) -> tuple[str, str]:
    return partition.topic, str(partition.partition)


def _values_s(spread: Spread) -> tuple[float, ...]:
    average_ms = spread.total_ms / spread.count
    values_ms = (spread.last_ms, average_ms, spread.smallest_ms, spread.largest_ms)
    return tuple(round(each / 1000, 6) for each in values_ms)


def _process() -> Iterator[Chunk]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    yield one("shoal_mirror_cpu_seconds_total", round(time.process_time(), 3))
    yield one("shoal_mirror_peak_memory_bytes", usage.ru_maxrss * 1024)


def mirror_port(spec: EndpointSpec, names: list[str], flows: Mapping[str, Flow]) -> HttpPort:
    """The endpoint of a mirror; `flows` holds those of `names` that have started."""

    async def collect() -> Families:
        started = dict(flows)
        statuses = await asyncio.gather(*(flow.status() for flow in started.values()))
        families = merge({}, _process())
        for name, flow, status in zip(started, started.values(), statuses, strict=True):
            if status is None:
                merge(families, [one("shoal_mirror_partitions", 0, name)])
                continue
            merge(families, (await gather_chunks(collect_flow(name, status))).items())
            if (proof := read_proof(mirror_folder(name))) is not None:
                proofs = proof.select(status.partitions).values()
                chunks = collect_proof(name, proofs, time.time_ns() // 1000)
                merge(families, (await gather_chunks(chunks)).items())
            if (latencies := flow.latencies) is not None:
                merge(families, (await gather_chunks(collect_latencies(name, latencies))).items())
        return families

    async def why_not_ready() -> str | None:
        waiting = [name for name in names if name not in flows or not flows[name].is_copying]
        return f"these flows do not copy yet: {', '.join(waiting)}" if waiting else None

    return make_port(spec, collect, why_not_ready, {"strimzi": make_strimzi_mirrors()})
