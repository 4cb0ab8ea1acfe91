"""The plan of a run, before anything is started (pure).

Derives the run's description (`run.json`) and the workers' specs from an `ExperimentSpec`, with no
clock, file or socket.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from shoal.experiment.spec import ExperimentSpec, MirrorSpec
from shoal.model.nodes import Node
from shoal.model.serialised import arguments_of
from shoal.model.topics import TopicPartition
from shoal.workers.specs import RestartPolicy, Role, WorkerSpec
from shoal.workload.specs import (
    ConsumerSpec,
    FetchSettings,
    ProducedTopic,
    ProducerSpec,
    ScanSpec,
    StartingPoint,
)

Json = dict[str, Any]
# The first offset of a run's records, by cluster and partition; 0 where none is given.
StartOffsets = Mapping[str, Mapping[TopicPartition, int]]


@dataclass(frozen=True, slots=True)
class Addresses:
    """The addresses of a run's clusters; without a target the consumers read the source.

    `links` has the addresses of clients that connect through a proxy, by the name of the worker
    (or `mirror`) and the cluster.
    """

    source: str
    target: str | None = None
    properties: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # by cluster
    links: Mapping[tuple[str, str], str] = field(default_factory=dict)
    # The folders of the clusters' event streams, where this machine has them.
    events: Mapping[str, Path] = field(default_factory=dict)
    # The processes of clusters without an event stream, where this machine has them.
    nodes: Mapping[str, Callable[[], Sequence[Node]]] = field(default_factory=dict)

    @property
    def clusters(self) -> tuple[str, ...]:
        return ("source",) if self.target is None else ("source", "target")

    def client_of(self, cluster: str, who: str = "") -> Json:
        """The client properties with which `who` (a worker or `mirror`) connects to a cluster."""
        direct = self.source if cluster == "source" else self.target
        servers = self.links.get((who, cluster), direct)
        return {**self.properties.get(cluster, {}), "bootstrap.servers": servers}


def producer_names(spec: ExperimentSpec) -> list[str]:
    return [
        f"producer-{spec.worker_prefix}{number}" for number in range(1, spec.producers.count + 1)
    ]


def consumer_names(spec: ExperimentSpec) -> list[str]:
    """The names of all consumers; with several groups a name includes the group."""
    return [name for _, _, name in _consumers_of(spec)]


def groups_of(spec: ExperimentSpec) -> dict[str, str]:
    """The group of each consumer, by its name."""
    groups, count = spec.consumers.groups, spec.consumers.count
    return {name: groups[place // count] for place, _, name in _consumers_of(spec)}


def group_id(run: str, group: str) -> str:
    """The group id on the cluster of a group of the run; unique to the run."""
    return f"shoal-{run}-{group}"


def target_topic(mirror: MirrorSpec, topic: str) -> str:
    """The name of a topic's copy on the target."""
    return f"{prefix_of(mirror)}{topic}"


def prefix_of(mirror: MirrorSpec) -> str:
    if mirror.prefix is not None:
        return mirror.prefix
    return "source." if mirror.kind == "mm2" else ""


def total_messages(spec: ExperimentSpec) -> int:
    """How many messages the producers send if nothing goes wrong."""
    settings = apply_caps(spec)
    if settings.get("messages") is not None:
        return int(settings["messages"])
    return int(send_duration_s(spec) * settings["rate_per_s"] * spec.topics.count)


def send_duration_s(spec: ExperimentSpec) -> float:
    """How long sending takes if nothing goes wrong."""
    settings = apply_caps(spec)
    rate_per_s = settings["rate_per_s"] * spec.topics.count
    by_count = settings["messages"] / rate_per_s if settings.get("messages") else math.inf
    if settings.get("shape") == "burst":
        burst_s = settings.get("burst_s", ProducerSpec.burst_s)
        by_count *= 1 + settings.get("pause_s", ProducerSpec.pause_s) / burst_s
    elif settings.get("shape") == "ramp":
        by_count += settings.get("ramp_s", ProducerSpec.ramp_s)
    return min(by_count, settings.get("duration_s") or math.inf)


def apply_caps(spec: ExperimentSpec) -> Json:
    """The settings of all producers together, limited by the caps."""
    settings = dict(spec.producers.settings)
    topics, caps = spec.topics.count, spec.caps
    if caps.max_rate_per_s:
        settings["rate_per_s"] = min(settings["rate_per_s"], caps.max_rate_per_s / topics)
    if caps.max_bytes:
        size_bytes = settings.get("size_bytes", ProducerSpec.size_bytes)
        most = caps.max_bytes // max(size_bytes, 1)
        settings["messages"] = min(settings.get("messages") or most, most)
    return settings


def description(run: str, spec: ExperimentSpec, addresses: Addresses) -> Json:
    """The part of `run.json` that follows from the plan."""
    settings = apply_caps(spec)
    topics = {
        **_topic_shapes(spec),
        **(_topic_shapes(growth) if (growth := growth_spec(spec)) else {}),
    }
    return {
        "run": run,
        "experiment": spec.name,
        "variant": spec.variant or None,
        "systems": {
            role: {"engine": cluster.engine, "version": cluster.version, "brokers": cluster.brokers}
            for role, cluster in spec.clusters.items()
        },
        "faults": [
            f"{fault.name} {fault.described_target} at {fault.when.at_s:g} s"
            for fault in spec.faults.faults
        ],
        "promises": dict(spec.promises),
        "thresholds": list(spec.thresholds),
        "acks": settings.get("acks", -1),
        "isolation": spec.consumers.fetching.get("isolation", FetchSettings.isolation),
        "topics": topics,
        "clusters": {
            cluster: {"bootstrap.servers": addresses.client_of(cluster)["bootstrap.servers"]}
            for cluster in addresses.clusters
        },
        "groups": list(spec.consumers.groups),
        "master": spec.workers.master or None,
        "warm_up_us": int(spec.warm_up_s * 1e6),
        "workload": {
            "producers": spec.producers.count,
            "consumers": spec.consumers.count,
            "size_bytes": ProducerSpec.size_bytes,
            **settings,
            "messages": total_messages(spec),
        },
        "mirror": _mirror(spec) if addresses.target else None,
    }


def _topic_shapes(spec: ExperimentSpec) -> Json:
    shape = {"lanes": spec.topics.target_partitions, "partitions": spec.topics.partitions}
    return dict.fromkeys(spec.topics.names, shape)


def growth_spec(spec: ExperimentSpec) -> ExperimentSpec | None:
    """The workload on new partitions or a new topic: a quarter of the work; None without growth."""
    topics = spec.topics
    if topics.grow_after_s is None:
        return None
    if topics.grow_to:
        new = replace(
            topics,
            partitions=topics.grow_to,
            target_partitions=topics.grow_to,
            first_partition=topics.partitions,
            grow_after_s=None,
        )
    else:
        new = replace(topics, name=f"{topics.name}-new", grow_after_s=None)
    settings = dict(spec.producers.settings)
    for key in ("messages", "duration_s"):
        if settings.get(key):
            settings[key] = max(1, settings[key] // 4)
    settings["rate_per_s"] /= spec.producers.count
    producers = replace(spec.producers, count=1, settings=settings)
    return replace(spec, topics=new, producers=producers, worker_prefix="new-")


def mirror_mode(spec: ExperimentSpec) -> str:
    """How shoal's mirror copies: batches as they are where the run promises bytes."""
    promises_bytes = "bytes" in spec.promises.get("fidelity", ())
    is_open = spec.mirror.mode == "auto"
    return "shallow" if is_open and promises_bytes else spec.mirror.mode


def _mirror(spec: ExperimentSpec) -> Json:
    mirror = spec.mirror
    return {
        "kind": mirror.kind,
        "mode": mirror_mode(spec) if mirror.kind == "shoal" else None,
        "delivery": mirror.delivery if mirror.kind == "shoal" else None,
        "handler": mirror.handler,
        "prefix": prefix_of(mirror),
    }


def workload_workers(
    run: str, spec: ExperimentSpec, addresses: Addresses, start_offsets: StartOffsets
) -> list[WorkerSpec]:
    """The workers that are consumers and producers."""
    consumed = addresses.clusters[-1]
    logs = _starting_points(spec, consumed, start_offsets)
    consumers = []
    for place, rack, name in _consumers_of(spec):
        group = spec.consumers.groups[place // spec.consumers.count]
        mine = logs[place % spec.consumers.count :: spec.consumers.count]
        settings = dict(spec.consumers.settings)
        if settings.get("in_group"):
            mine = logs  # the group assigns them to its members
            settings.setdefault("group_id", group_id(run, group))
        consumer = ConsumerSpec(
            run=run,
            group=group,
            consumer=name,
            topics=spec.topics.names,
            partitions=mine,
            cluster=consumed,
            fetching=FetchSettings(
                **arguments_of(FetchSettings, {**spec.consumers.fetching, **rack})
            ),
            **arguments_of(ConsumerSpec, settings),
        )
        client = addresses.client_of(consumed, name)
        consumers.append(
            _worker(
                name, Role.CONSUME, client, consumer.to_json(), restart=_restart_policy(spec, name)
            )
        )
    producers = [
        _worker(
            name,
            Role.PRODUCE,
            addresses.client_of("source", name),
            _producer(run, spec, name, place).to_json(),
            restart=_restart_policy(spec, name),
        )
        for place, name in enumerate(producer_names(spec))
    ]
    return [*consumers, *producers]


def _consumers_of(spec: ExperimentSpec) -> list[tuple[int, Json, str]]:
    """For each consumer its number, the rack that it reads from, and its name."""
    found: list[tuple[int, Json, str]] = []
    consumers, worker_prefix = spec.consumers, spec.worker_prefix
    for number, group in enumerate(consumers.groups):
        rack = {"rack": consumers.racks[number]} if consumers.racks else {}
        for member in range(1, consumers.count + 1):
            is_alone = len(consumers.groups) == 1
            name = (
                f"consumer-{worker_prefix}{member}"
                if is_alone
                else f"consumer-{worker_prefix}{group}-{member}"
            )
            found.append((len(found), rack, name))
    return found


def _producer(run: str, spec: ExperimentSpec, name: str, place: int) -> ProducerSpec:
    count, settings = spec.producers.count, apply_caps(spec)
    if settings.get("messages") is not None:
        share, rest = divmod(settings["messages"], count)
        settings["messages"] = share + (place < rest)
    settings["rate_per_s"] /= count
    topics = spec.topics
    compacted = "compact" in topics.configs.get("cleanup.policy", "")
    return ProducerSpec(
        run=run,
        producer=name,
        topics=tuple(
            ProducedTopic(topic, topics.partitions, topics.target_partitions, compacted)
            for topic in topics.names
        ),
        **arguments_of(ProducerSpec, settings),
    )


def scan_workers(
    run: str, spec: ExperimentSpec, addresses: Addresses, start_offsets: StartOffsets
) -> list[WorkerSpec]:
    """The workers that scan the logs, one for each cluster."""
    return [
        _worker(
            f"scan-{spec.worker_prefix}{cluster}",
            Role.SCAN,
            addresses.client_of(cluster),
            ScanSpec(
                run=run,
                cluster=cluster,
                topics=spec.topics.names,
                partitions=_starting_points(spec, cluster, start_offsets),
                batches="bytes" in spec.promises.get("fidelity", ()),
            ).to_json(),
        )
        for cluster in addresses.clusters
    ]


def _starting_points(
    spec: ExperimentSpec, cluster: str, start_offsets: StartOffsets
) -> tuple[StartingPoint, ...]:
    topics, starts = spec.topics, start_offsets.get(cluster, {})
    is_target = cluster == "target"
    count = topics.target_partitions if is_target else topics.partitions
    points = []
    for topic in topics.names:
        name = target_topic(spec.mirror, topic) if is_target else topic
        for number in range(topics.first_partition, count):
            offset = starts.get(TopicPartition(name, number), 0)
            points.append(StartingPoint(name, number, offset, topic if name != topic else ""))
    return tuple(points)


def _worker(
    name: str, role: Role, client: Json, spec: Json, *, restart: RestartPolicy | None = None
) -> WorkerSpec:
    return WorkerSpec(name, role, {"client": client, "spec": spec}, restart)


def _restart_policy(spec: ExperimentSpec, name: str) -> RestartPolicy | None:
    """The restart policy of a worker that a fault kills for a time; None for other workers."""
    role = "producers" if name in producer_names(spec) else "consumers"
    times_s = [
        fault.lasts_s
        for fault in spec.faults.faults
        if fault.name == "kill" and fault.target in (name, role, f"{role}/any")
    ]
    delays_s = [time_s for time_s in times_s if time_s is not None]
    if not delays_s:
        return None
    return RestartPolicy(limit=1_000_000, delay_s=delays_s[0], longest_delay_s=delays_s[0])
