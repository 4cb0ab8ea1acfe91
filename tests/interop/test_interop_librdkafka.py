"""librdkafka, by its Python package: messages in every compression, and offsets."""

import time
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition

PATIENCE_S = 60.0


def consume(bootstrap: str, topic: str, count: int) -> list[Message]:
    settings = {"bootstrap.servers": bootstrap, "group.id": "nobody", "log_level": 0}
    messages: list[Message] = []
    deadline = time.monotonic() + PATIENCE_S
    with Consumer(settings | {"enable.auto.commit": False}) as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])
        while len(messages) < count and time.monotonic() < deadline:
            messages += consumer.consume(count - len(messages), timeout=1.0)
    return messages


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_messages_come_back_in_every_compression(
    bootstrap: str, new_topic: Callable[..., str], codec: str
) -> None:
    topic = new_topic()
    properties = {"bootstrap.servers": bootstrap, "log_level": 0, "compression.type": codec}
    with Producer(properties) as producer:
        for number in range(300):
            producer.produce(topic, b"%d " % number * 20, key=b"k%d" % number)
        assert producer.flush(PATIENCE_S) == 0
    messages = consume(bootstrap, topic, 300)
    assert [message.value() for message in messages] == [b"%d " % n * 20 for n in range(300)]
    assert [message.offset() for message in messages] == list(range(300))
