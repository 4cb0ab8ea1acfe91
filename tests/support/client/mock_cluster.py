"""Clusters of librdkafka's own, inside this process: not our code on the other side.

They know no admin requests; a topic is made, with four partitions, when a client of theirs asks
for it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Producer

PARTITIONS = 4


@dataclass
class MockCluster:
    """A cluster of librdkafka and a producer for it."""

    producer: Producer
    bootstrap: str

    def make_topic(self, topic: str) -> None:
        self.producer.list_topics(topic, timeout=60)


@contextmanager
def mock_cluster(*topics: str, brokers: int = 1, **properties: Any) -> Iterator[MockCluster]:
    """A cluster with these topics, while the context lasts; the properties are its producer's."""
    producer = Producer(
        {
            "bootstrap.servers": "127.0.0.1:1",  # replaced by the mock's own
            "test.mock.num.brokers": brokers,
            "log_level": 0,
            **properties,
        }
    )
    addresses = [f"{b.host}:{b.port}" for b in producer.list_topics(timeout=60).brokers.values()]
    cluster = MockCluster(producer, ",".join(addresses))
    for topic in topics:
        cluster.make_topic(topic)
    try:
        yield cluster
    finally:
        producer.close()
