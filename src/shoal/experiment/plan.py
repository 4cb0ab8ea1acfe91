"""What a run will do, before anything is started (pure).

An `Experiment` says what is sent and what is promised. From it come the run's description
(`run.json`) and the workers' specs; nothing here touches a clock, a file or a socket.
"""

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
    """One topic, one producer, one mirror, one consumer."""

    topic: str
    messages: int
    rate_per_s: float
    partitions: int = 4
    size_bytes: int = 512
    codec: str = "lz4"
    drain_timeout_s: float = 60.0
    handler: str | None = None  # what the mirror does to each batch; None: nothing
    promises: Json = field(default_factory=_default_promises)


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the clusters of a run listen."""

    source: str
    target: str

    def client_of(self, cluster: str) -> Json:
        return {"bootstrap.servers": self.source if cluster == "source" else self.target}


def description(run: str, experiment: Experiment, addresses: Addresses) -> Json:
    """The part of `run.json` that follows from the plan."""
    return {
        "run": run,
        "promises": experiment.promises,
        "topics": {experiment.topic: {"lanes": experiment.partitions}},
        "clusters": {
            "source": {"bootstrap.servers": addresses.source},
            "target": {"bootstrap.servers": addresses.target},
        },
        "groups": [GROUP],
        "warm_up_us": 0,
        "workload": {
            "messages": experiment.messages,
            "rate_per_s": experiment.rate_per_s,
            "size_bytes": experiment.size_bytes,
            "codec": experiment.codec,
        },
        "mirror": {"kind": "shoal", "handler": experiment.handler},
    }


def workload_workers(run: str, experiment: Experiment, addresses: Addresses) -> list[WorkerSpec]:
    """The consumer and the producer."""
    consumer = ConsumerSpec(
        run=run,
        group=GROUP,
        consumer="consumer-1",
        topics=(experiment.topic,),
        partitions=_beginnings(experiment),
    )
    producer = ProducerSpec(
        run=run,
        producer="producer-1",
        topics=(ProducedTopic(experiment.topic, experiment.partitions, experiment.partitions),),
        rate_per_s=experiment.rate_per_s,
        messages=experiment.messages,
        size_bytes=experiment.size_bytes,
        codec=experiment.codec,
        drain_timeout_s=experiment.drain_timeout_s,
    )
    return [
        _worker("consumer-1", Role.CONSUME, addresses.client_of("target"), consumer.to_json()),
        _worker("producer-1", Role.PRODUCE, addresses.client_of("source"), producer.to_json()),
    ]


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
            ).to_json(),
        )
        for cluster in ("source", "target")
    ]


def _beginnings(experiment: Experiment) -> tuple[StartingPoint, ...]:
    # The topics of a run are made for it, so they begin at 0.
    return tuple(StartingPoint(experiment.topic, p, 0) for p in range(experiment.partitions))


def _worker(name: str, role: Role, client: Json, spec: Json) -> WorkerSpec:
    return WorkerSpec(name, role, {"client": client, "spec": spec})
