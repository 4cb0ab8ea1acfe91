"""What a run will do, before anything is started (pure).

An `Experiment` says what is sent and what is promised. From it come the run's description
(`run.json`) and the workers' specs; nothing here touches a clock, a file or a socket.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shoal.workers.specs import Role, WorkerSpec
from shoal.workload.specs import ConsumerSpec, ProducedTopic, ProducerSpec, ScanSpec, StartingPoint

Json = dict[str, Any]

GROUP = "consumers"


def _default_promises() -> Json:
    return {"delivery": "exactly_once", "order": True, "fidelity": ["key", "headers", "payload"]}


@dataclass(frozen=True, slots=True)
class Experiment:
    """One topic, some producers and consumers, and a mirror if there are two clusters."""

    topic: str
    messages: int  # in all
    rate_per_s: float  # in all
    partitions: int = 4
    replication_factor: int = 1
    topic_configs: Mapping[str, str] = field(default_factory=dict)
    producers: int = 1
    consumers: int = 1
    size_bytes: int = 512
    codec: str = "lz4"
    acks: int = -1
    max_in_flight: int = 5
    drain_timeout_s: float = 60.0
    handler: str | None = None  # what the mirror does to each batch; None: nothing
    promises: Json = field(default_factory=_default_promises)


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the clusters of a run listen; with no target the consumers read the source."""

    source: str
    target: str | None = None

    @property
    def clusters(self) -> tuple[str, ...]:
        return ("source",) if self.target is None else ("source", "target")

    def client_of(self, cluster: str) -> Json:
        servers = self.source if cluster == "source" else self.target
        return {"bootstrap.servers": servers}


def producer_names(experiment: Experiment) -> list[str]:
    return [f"producer-{number}" for number in range(1, experiment.producers + 1)]


def consumer_names(experiment: Experiment) -> list[str]:
    return [f"consumer-{number}" for number in range(1, experiment.consumers + 1)]


def description(run: str, experiment: Experiment, addresses: Addresses) -> Json:
    """The part of `run.json` that follows from the plan."""
    return {
        "run": run,
        "promises": experiment.promises,
        "acks": experiment.acks,
        "topics": {experiment.topic: {"lanes": experiment.partitions}},
        "clusters": {cluster: addresses.client_of(cluster) for cluster in addresses.clusters},
        "groups": [GROUP],
        "warm_up_us": 0,
        "workload": {
            "messages": experiment.messages,
            "rate_per_s": experiment.rate_per_s,
            "size_bytes": experiment.size_bytes,
            "codec": experiment.codec,
            "producers": experiment.producers,
            "consumers": experiment.consumers,
        },
        "mirror": _mirror(experiment, addresses),
    }


def _mirror(experiment: Experiment, addresses: Addresses) -> Json | None:
    return {"kind": "shoal", "handler": experiment.handler} if addresses.target else None


def workload_workers(run: str, experiment: Experiment, addresses: Addresses) -> list[WorkerSpec]:
    """The consumers and the producers."""
    consumed = addresses.clusters[-1]
    return [
        *(
            _worker(
                name,
                Role.CONSUME,
                addresses.client_of(consumed),
                ConsumerSpec(
                    run=run,
                    group=GROUP,
                    consumer=name,
                    topics=(experiment.topic,),
                    partitions=_beginnings(experiment)[place :: experiment.consumers],
                    cluster=consumed,
                ).to_json(),
            )
            for place, name in enumerate(consumer_names(experiment))
        ),
        *(
            _worker(
                name,
                Role.PRODUCE,
                addresses.client_of("source"),
                _producer(run, experiment, name, place).to_json(),
            )
            for place, name in enumerate(producer_names(experiment))
        ),
    ]


def _producer(run: str, experiment: Experiment, name: str, place: int) -> ProducerSpec:
    share, rest = divmod(experiment.messages, experiment.producers)
    return ProducerSpec(
        run=run,
        producer=name,
        topics=(ProducedTopic(experiment.topic, experiment.partitions, experiment.partitions),),
        rate_per_s=experiment.rate_per_s / experiment.producers,
        messages=share + (place < rest),
        size_bytes=experiment.size_bytes,
        codec=experiment.codec,
        acks=experiment.acks,
        idempotent=experiment.acks == -1,
        max_in_flight=experiment.max_in_flight,
        drain_timeout_s=experiment.drain_timeout_s,
    )


def scan_workers(run: str, experiment: Experiment, addresses: Addresses) -> list[WorkerSpec]:
    """One scan for each cluster."""
    return [
        _worker(
            f"scan-{cluster}",
            Role.SCAN,
            addresses.client_of(cluster),
            ScanSpec(
                run=run,
                cluster=cluster,
                topics=(experiment.topic,),
                partitions=_beginnings(experiment),
                batches="bytes" in experiment.promises.get("fidelity", ()),
            ).to_json(),
        )
        for cluster in addresses.clusters
    ]


def _beginnings(experiment: Experiment) -> tuple[StartingPoint, ...]:
    # The topics of a run are made for it, so they begin at 0.
    return tuple(StartingPoint(experiment.topic, p, 0) for p in range(experiment.partitions))


def _worker(name: str, role: Role, client: Json, spec: Json) -> WorkerSpec:
    return WorkerSpec(name, role, {"client": client, "spec": spec})
