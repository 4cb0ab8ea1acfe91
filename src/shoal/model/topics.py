"""Identities inside a cluster."""

from typing import NamedTuple


class TopicPartition(NamedTuple):
    """One partition of one topic; prints as Kafka's tools print it."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
