"""A Kafka cluster of librdkafka's own making, inside the test process: two brokers that
know nothing of our code. A topic has four partitions, made when first asked for."""

from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Producer


@contextmanager
def mock_cluster(*topics: str) -> Iterator[str]:
    """The bootstrap servers of a cluster with these topics, while the context lasts."""
    owner = Producer({"test.mock.num.brokers": 2, "log_level": 0})
    brokers = owner.list_topics(timeout=10).brokers.values()
    for topic in topics:
        owner.list_topics(topic, timeout=10)
    yield ",".join(f"{broker.host}:{broker.port}" for broker in brokers)
    owner.flush(5)
