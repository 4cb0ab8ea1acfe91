"""A topic as an independent client, librdkafka's, reads it: whole, by partition, in order."""

import time
from dataclasses import dataclass, field

from confluent_kafka import Consumer, KafkaError, Message
from confluent_kafka import TopicPartition as ConfluentPartition

PATIENCE_S = 60.0
SILENT = {"log_level": 0}


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
    """All records there are, which should be so many: read until each partition has ended."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            # Where records were deleted at the start of the log.
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 20,
            **SILENT,
        }
    )
    found = ReadTopic({partition: [] for partition in range(partitions)})
    ended: set[int] = set()
    deadline = time.monotonic() + PATIENCE_S
    try:
        consumer.assign([ConfluentPartition(topic, p, 0) for p in range(partitions)])
        while found.count < count or len(ended) < partitions:
            assert time.monotonic() < deadline, f"{found.count} of {count} records, ended: {ended}"
            for message in consumer.consume(10_000, timeout=0.03):
                partition = message.partition() or 0
                if _is_end(message):
                    ended.add(partition)
                else:
                    ended.discard(partition)
                    found.partitions[partition].append(_record(message))
    finally:
        consumer.close()
    return found


def _is_end(message: Message) -> bool:
    error = message.error()
    assert error is None or error.code() == KafkaError._PARTITION_EOF, error
    return error is not None


def _record(message: Message) -> ReadRecord:
    headers = message.headers() or []
    assert isinstance(headers, list)
    return ReadRecord(message.key(), message.value(), tuple(headers), message.timestamp())
