"""Claim: three brokers that replicate take at most half the CPU of Apache Kafka's three.

1 KiB records in batches of 64 KiB, acks=all, replication factor 3, at no less than 0.7 of the
speed; the same clients for both: a raw generator, Apache Kafka's ProducerPerformance, and
librdkafka.
"""

import sys

from benchmarks.broker_cases import MB, cases
from benchmarks.harness import Claim, prove

CLAIM = Claim(
    name="lite_three_brokers",
    sentence="Three brokers of Kafka Lite take at most half the CPU of Apache Kafka's three to "
    "write 1 KiB records with acks=all and three replicas, at 0.7 of the speed or more, and no "
    "more CPU to read them.",
    packages=("confluent-kafka", "crc32c"),
)

if __name__ == "__main__":
    sys.exit(prove(CLAIM, cases(3, produce_bar=2.0, size_bytes=300 * MB)))
