"""Claim: the consumer takes half of the CPU of ConsumerPerformance, though it checks everything.

1 KiB messages of ours, as our producer batches them, from one broker of Kafka Lite; only the
clients' CPU counts. Ours takes every record apart, checks it, and writes a receipt of it.

    python -m benchmarks.consumer [MB of each run, 1000 by default]
"""

import sys
from collections.abc import Iterator

from benchmarks import client_loads
from benchmarks.harness import MB, Case, Claim, Side, Work, prove
from benchmarks.side_by_side import PARTITIONS, System, lite
from benchmarks.workload_loads import KIB, producer_spec, read, write

CLAIM = Claim(
    name="consumer",
    sentence="The consumer with its ledger takes at most half of the CPU of Apache Kafka's "
    "ConsumerPerformance at 1 KiB.",
    packages=("confluent-kafka", "numpy", "numba", "pyarrow"),
)


def cases(system: System, size_bytes: int) -> Iterator[Case]:
    messages = size_bytes // KIB
    topic = system.create_topic(1)
    write(system.bootstrap, producer_spec(topic, PARTITIONS, messages))

    def ours() -> Work:
        return read(system.bootstrap, topic, PARTITIONS, messages)

    def java() -> Work:
        return client_loads.java_consume(system.bootstrap, topic, KIB, messages * KIB)

    def rdkafka() -> int:
        return client_loads.rdkafka_consume(
            system.bootstrap, topic, PARTITIONS, record_bytes=KIB, total_bytes=messages * KIB
        )

    conditions = {"message_bytes": KIB, "partitions": PARTITIONS, "run_bytes": size_bytes}
    consumer = Side("consumer with ledger", ours)
    theirs = Side("ConsumerPerformance", java)
    yield Case("beside ConsumerPerformance", consumer, theirs, conditions, bar=2)
    yield Case("beside librdkafka", consumer, Side("librdkafka", rdkafka), conditions, judged=False)


def main(size_mb: str = "1000") -> int:
    with lite(1) as cluster:
        return prove(CLAIM, cases(System("Kafka Lite", cluster), int(int(size_mb) * MB)))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
