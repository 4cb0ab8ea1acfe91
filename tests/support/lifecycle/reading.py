"""What a cluster holds, as an independent client sees it: confluent-kafka and nothing else.

Read committed and to the end. The identity of a record is its key.
"""

import time
from collections.abc import Iterable, Mapping
from typing import Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from support.lifecycle.judging import Seen

PATIENCE_S: Final = 60.0
_SETTINGS: Final = {
    "group.id": "lifecycle-judge",
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "isolation.level": "read_committed",
    "auto.offset.reset": "earliest",
    "fetch.wait.max.ms": 20,
    "log_level": 0,
}

Place = tuple[str, int]


class Unreadable(Exception):
    """A partition cannot be read to its end now."""


def read_topics(
    bootstrap: str, topics: Iterable[str], *, patience_s: float = PATIENCE_S
) -> dict[Place, list[Seen]]:
    """All records of those topics that exist, by partition."""
    consumer = Consumer({**_SETTINGS, "bootstrap.servers": bootstrap})
    try:
        there = consumer.list_topics(timeout=patience_s).topics
        places = [
            (name, number)
            for name in topics
            if name in there and there[name].error is None
            for number in there[name].partitions
        ]
        found: dict[Place, list[Seen]] = {place: [] for place in places}
        if places:
            consumer.assign([TopicPartition(*place, OFFSET_BEGINNING) for place in places])
            _read_to_ends(consumer, found, time.monotonic() + patience_s)
    except KafkaException as error:
        raise Unreadable(f"{bootstrap}: {error}") from error
    finally:
        consumer.close()
    return found


def _read_to_ends(consumer: Consumer, found: Mapping[Place, list[Seen]], deadline: float) -> None:
    unread = set(found)
    while unread:
        if time.monotonic() > deadline:
            raise Unreadable(f"no end of {sorted(unread)}")
        for message in consumer.consume(10_000, timeout=0.1):
            topic, number, error = message.topic(), message.partition(), message.error()
            if error is None:
                if topic is None or number is None:
                    raise Unreadable("a message without a place")
                identity = (message.key() or b"").decode()
                found[topic, number].append(Seen(identity, message.timestamp()[1]))
            elif error.code() == KafkaError._PARTITION_EOF and topic is not None:
                unread.discard((topic, number if number is not None else -1))
