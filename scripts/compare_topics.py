"""Compare a topic of two clusters record by record, with librdkafka only.

    python scripts/compare_topics.py SOURCE_BOOTSTRAP TARGET_BOOTSTRAP TOPIC [TARGET_TOPIC]

Reads both to the end, committed records only, and compares them partition by partition: the number
of records, and their keys, values, headers and timestamps (type and time), in order. Prints a line
for each partition; exit code 0 if all are the same, 1 if not.

It verifies mirrors without sharing code with them: it needs confluent-kafka and nothing else.
"""

import sys
import time
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

PATIENCE_S = 120.0


def consumer(bootstrap: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "compare-topics",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 50,
            "log_level": 0,
        }
    )


def partitions(bootstrap: str, topic: str) -> int:
    asking = consumer(bootstrap)
    try:
        found = asking.list_topics(topic, timeout=30).topics[topic]
        if found.error is not None:
            raise SystemExit(f"{bootstrap}: {topic}: {found.error}")
        return len(found.partitions)
    finally:
        asking.close()


def records(bootstrap: str, topic: str, partition: int) -> Iterator[tuple[Any, ...]]:
    """All records of a partition, to its end."""
    reading = consumer(bootstrap)
    deadline = time.monotonic() + PATIENCE_S
    try:
        first, _ = reading.get_watermark_offsets(TopicPartition(topic, partition), timeout=30)
        reading.assign([TopicPartition(topic, partition, first)])
        while time.monotonic() < deadline:
            for message in reading.consume(10_000, timeout=0.5):
                error = message.error()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
                    return
                if error is not None:
                    raise SystemExit(f"{bootstrap}: {topic}-{partition}: {error}")
                yield content(message)
        raise SystemExit(
            f"{bootstrap}: {topic}-{partition} was not read to its end within {PATIENCE_S} s"
        )
    finally:
        reading.close()


def content(message: Message) -> tuple[Any, ...]:
    return (message.key(), message.value(), message.headers() or [], message.timestamp())


def compare(source: tuple[str, str], target: tuple[str, str], partition: int) -> bool:
    """Whether a partition is the same on both sides; prints the result."""
    ours, theirs = records(*source, partition), records(*target, partition)
    count = 0
    for left, right in zip_longest(ours, theirs):
        if left != right:
            print(f"{source[1]}-{partition}: record {count} differs: {left!r} and {right!r}")
            return False
        count += 1
    print(f"{source[1]}-{partition}: {count} records are the same")
    return True


def main() -> int:
    if len(sys.argv) not in (4, 5):
        print(__doc__)
        return 2
    source, target = (sys.argv[1], sys.argv[3]), (sys.argv[2], sys.argv[-1])
    count = partitions(*source)
    if partitions(*target) < count:
        print(f"{target[1]} has fewer partitions than {source[1]}")
        return 1
    same = [compare(source, target, number) for number in range(count)]
    return 0 if all(same) else 1


if __name__ == "__main__":
    sys.exit(main())
