"""Clusters of librdkafka's own, inside this process: not our code on the other side.

They know no admin requests; a topic is made, with four partitions, when a client of theirs asks
for it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ConfluentPartition

PARTITIONS = 4
SILENT = {"log_level": 0}


@dataclass
class MockCluster:
    """A cluster of librdkafka and a producer for it."""

    producer: Producer
    bootstrap: str

    def make_topic(self, topic: str) -> None:
        self.producer.list_topics(topic, timeout=10)


@contextmanager
def mock_cluster(*, brokers: int = 1, **properties: Any) -> Iterator[MockCluster]:
    producer = Producer(
        {
            "bootstrap.servers": "127.0.0.1:1",  # replaced by the mock's own
            "test.mock.num.brokers": brokers,
            **SILENT,
            **properties,
        }
    )
    addresses = [f"{b.host}:{b.port}" for b in producer.list_topics(timeout=10).brokers.values()]
    try:
        yield MockCluster(producer, ",".join(addresses))
    finally:
        producer.close()


@dataclass(frozen=True)
class ReadRecord:
    """A record as an independent client read it."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, str | bytes | None], ...]
    timestamp: tuple[int, int]


@dataclass
class ReadTopic:
    """All records of a topic, by partition, in order."""

    partitions: dict[int, list[ReadRecord]] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return sum(len(records) for records in self.partitions.values())


def read_topic(bootstrap: str, topic: str, *, partitions: int, count: int) -> ReadTopic:
    """Read with confluent-kafka until there are so many, and a little longer for surplus."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            **SILENT,
        }
    )
    found = ReadTopic({partition: [] for partition in range(partitions)})
    try:
        consumer.assign([ConfluentPartition(topic, p, 0) for p in range(partitions)])
        idle = 0
        while idle < (2 if found.count >= count else 50):
            messages = consumer.consume(10_000, timeout=0.2)
            idle = 0 if messages else idle + 1
            for message in messages:
                assert message.error() is None, message.error()
                headers = message.headers() or []
                assert isinstance(headers, list)
                found.partitions[message.partition() or 0].append(
                    ReadRecord(message.key(), message.value(), tuple(headers), message.timestamp())
                )
    finally:
        consumer.close()
    return found
