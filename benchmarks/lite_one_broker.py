"""Claim: one broker takes at most 0.7 of the CPU of Apache Kafka's to write, and 1 to read.

1 KiB records in batches of 64 KiB, acks=all, at no less than 0.7 of the speed; the same clients
for both: a raw generator, Apache Kafka's ProducerPerformance, and librdkafka.
"""

import sys

from benchmarks.broker_cases import MB, cases
from benchmarks.harness import Claim, prove

CLAIM = Claim(
    name="lite_one_broker",
    sentence="One broker of Kafka Lite takes at most 0.7 of the CPU of Apache Kafka's to write "
    "1 KiB records with acks=all, at 0.7 of the speed or more, and no more CPU to read them.",
    packages=("confluent-kafka", "crc32c"),
)

if __name__ == "__main__":
    sys.exit(prove(CLAIM, cases(1, produce_bar=1 / 0.7, size_bytes=500 * MB)))
