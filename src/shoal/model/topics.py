"""Identities inside a cluster."""

import re
from typing import Final, NamedTuple

LONGEST_TOPIC_NAME: Final = 249
_TOPIC_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")


def is_topic_name(name: str) -> bool:
    """Whether a topic can have this name, by Apache Kafka's rule."""
    is_short = len(name) <= LONGEST_TOPIC_NAME
    return name not in {".", ".."} and is_short and bool(_TOPIC_NAME.fullmatch(name))


class TopicPartition(NamedTuple):
    """One partition of one topic; prints as Kafka's tools print it."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
