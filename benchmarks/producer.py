"""Claim: the raw producer takes a third of ProducerPerformance's CPU, and at most librdkafka's.

1 KiB messages, acks=all, idempotent, to one broker of Kafka Lite; only the clients' CPU counts.
Ours makes batches as large as it does by default (512 KiB), the others are given 64 KiB, four
times their own default. Ours numbers, times, reserves and records every message besides. librdkafka
is driven through its Python binding, which is how it is mostly used.

    python -m benchmarks.producer [MB of each run, 1000 by default]
"""

import sys
from collections.abc import Iterator

from benchmarks import client_loads
from benchmarks.harness import MB, Case, Claim, Side, Work, prove
from benchmarks.side_by_side import PARTITIONS, System, lite
from benchmarks.workload_loads import KIB, producer_spec, write

CLAIM = Claim(
    name="producer",
    sentence="The raw producer takes at most a third of the CPU of Apache Kafka's "
    "ProducerPerformance at 1 KiB, and no more than librdkafka.",
    packages=("confluent-kafka", "numpy", "numba", "pyarrow"),
)


def cases(system: System, size_bytes: int) -> Iterator[Case]:
    def ours() -> Work:
        topic = system.create_topic(1)
        done = write(system.bootstrap, producer_spec(topic, PARTITIONS, size_bytes // KIB))
        system.delete_topic(topic)
        return done

    def java() -> Work:
        topic = system.create_topic(1)
        done = client_loads.java_produce(system.bootstrap, topic, KIB, size_bytes)
        system.delete_topic(topic)
        return done

    def rdkafka() -> int:
        topic = system.create_topic(1)
        done = client_loads.rdkafka_produce(system.bootstrap, topic, PARTITIONS, size_bytes)
        system.delete_topic(topic)
        return done

    conditions = {"message_bytes": KIB, "partitions": PARTITIONS, "run_bytes": size_bytes}
    raw = Side("raw producer", ours)
    yield Case(
        "beside ProducerPerformance", raw, Side("ProducerPerformance", java), conditions, bar=3
    )
    yield Case("beside librdkafka", raw, Side("librdkafka", rdkafka), conditions, bar=1)


def main(size_mb: str = "1000") -> int:
    with lite(1) as cluster:
        return prove(CLAIM, cases(System("Kafka Lite", cluster), int(int(size_mb) * MB)))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
