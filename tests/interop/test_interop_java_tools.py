"""Apache Kafka's own command-line tools, unchanged."""

from support.kafka_tools import KafkaTools


def test_topics(kafka_tools: KafkaTools, bootstrap: str, topic: str) -> None:
    server = ("--bootstrap-server", bootstrap)
    assert topic in kafka_tools("topics", *server, "--list").split()
    told = kafka_tools("topics", *server, "--describe", "--topic", topic)
    assert f"Topic: {topic}\tPartition: 0\tLeader: 1\tReplicas: 1\tIsr: 1" in told
