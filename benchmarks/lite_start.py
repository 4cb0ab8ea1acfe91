"""Claim: three brokers take writes 10 times as soon as Apache Kafka's three, in a fifth of the
memory.

The clock runs from the call that starts a cluster of three in an empty folder, and stops when a
write with acks=all to a new topic with three replicas is acknowledged. Apache Kafka is as ready
as can be: its jars are there, and its folders are formatted without a JVM.

Memory is measured when all that has been idle for some seconds: what is shared is divided (PSS).
"A broker" is one process of a broker; "the cluster" has the supervisor and the fork server in
it, divided by the number of brokers.
"""

import statistics
import sys
import time
from typing import Any

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from benchmarks.harness import LEAST_PAIRS, Claim, store
from benchmarks.side_by_side import System, all_pids, apache, lite, proportional_bytes
from shoal.systems.clusters import Cluster

CLAIM = Claim(
    name="lite_start",
    sentence="Three brokers of Kafka Lite take writes 10 times as soon as Apache Kafka's three, "
    "and an idle one has at most 60 MB of memory and 0.2 of Apache Kafka's.",
    packages=("confluent-kafka",),
)
BROKERS = 3
LEAST_TIMES = 10
MOST_MEMORY_MB = 60
MOST_MEMORY_SHARE = 0.2
_IDLE_S = 3.0
_MB = 1e6


def measure_start(cluster: Cluster) -> dict[str, float]:
    """One start, and the memory afterwards."""
    started = time.perf_counter()
    with cluster:
        serving_s = time.perf_counter() - started
        _write_one(cluster.bootstrap)
        written_s = time.perf_counter() - started
        time.sleep(_IDLE_S)
        system = System(cluster.engine, cluster)
        brokers = [proportional_bytes([pid]) / _MB for pid in system.broker_pids()]
        whole = proportional_bytes(all_pids(system)) / _MB
    return {
        "serving_s": round(serving_s, 3),
        "first_write_s": round(written_s, 3),
        "broker_mb": round(statistics.mean(brokers), 1),
        "cluster_mb_per_broker": round(whole / BROKERS, 1),
    }


def _write_one(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.create_topics([NewTopic("first", 1, BROKERS)])["first"].result()
    outcome: list[KafkaError | None] = []

    def on_delivery(error: KafkaError | None, _: Message) -> None:
        outcome.append(error)

    producer = Producer(
        {"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0, "log_level": 0}
    )
    producer.produce("first", b"x", on_delivery=on_delivery)
    assert producer.flush(60) == 0
    assert outcome == [None], outcome


def median(runs: list[dict[str, float]], what: str) -> float:
    return round(statistics.median(run[what] for run in runs), 3)


def main() -> int:
    print(CLAIM.sentence, flush=True)
    ours: list[dict[str, float]] = []
    theirs: list[dict[str, float]] = []
    for _ in range(LEAST_PAIRS):
        ours.append(measure_start(lite(BROKERS)))
        theirs.append(measure_start(apache(BROKERS)))
        print(f"  ours {ours[-1]}\n  theirs {theirs[-1]}", flush=True)
    ratios = [t["first_write_s"] / o["first_write_s"] for o, t in zip(ours, theirs, strict=True)]
    memory_mb = median(ours, "broker_mb")
    memory_share = memory_mb / median(theirs, "broker_mb")
    result: dict[str, Any] = {
        "times_as_soon_median": round(statistics.median(ratios), 1),
        "times_as_soon_interval": [round(min(ratios), 1), round(max(ratios), 1)],
        "memory_mb": memory_mb,
        "memory_share": round(memory_share, 3),
        "ours": {what: median(ours, what) for what in ours[0]} | {"runs": ours},
        "theirs": {what: median(theirs, what) for what in theirs[0]} | {"runs": theirs},
    }
    holds = (
        result["times_as_soon_median"] >= LEAST_TIMES
        and memory_mb <= MOST_MEMORY_MB
        and memory_share <= MOST_MEMORY_SHARE
    )
    conditions = {"brokers": BROKERS, "replication_factor": BROKERS, "idle_s": _IDLE_S}
    return store(CLAIM, holds=holds, conditions=conditions, pairs=len(ours), **result)


if __name__ == "__main__":
    sys.exit(main())
