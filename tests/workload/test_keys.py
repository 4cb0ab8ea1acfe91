"""Lane keys go where Kafka's partitioner would put them, by librdkafka's own word."""

import pytest
from confluent_kafka import Producer

from shoal.client.partitioner import partition_for_key
from shoal.model.errors import UsageError
from shoal.workload.keys import KEY_PREFIX, MOST_LANES, lane_keys


@pytest.mark.parametrize("lanes", [1, 2, 3, 16, 100])
def test_every_lane_has_a_key_of_its_own(lanes: int) -> None:
    keys = lane_keys(lanes)
    assert [partition_for_key(key, lanes) for key in keys] == list(range(lanes))
    assert len(set(keys)) == lanes
    assert all(key.startswith(KEY_PREFIX) for key in keys)


def test_librdkafka_puts_each_key_into_its_lane() -> None:
    lanes = 4  # the number of partitions of a topic on librdkafka's mock cluster
    placed: dict[bytes | None, int | None] = {}
    producer = Producer({"test.mock.num.brokers": 1, "partitioner": "murmur2_random"})
    for key in lane_keys(lanes):
        producer.produce(
            "lanes",
            key=key,
            value=b"x",
            on_delivery=lambda _error, message: placed.update({message.key(): message.partition()}),
        )
    assert producer.flush(10) == 0
    assert placed == {key: lane for lane, key in enumerate(lane_keys(lanes))}


@pytest.mark.parametrize("lanes", [0, -1, MOST_LANES + 1])
def test_impossible_lane_counts_are_refused(lanes: int) -> None:
    with pytest.raises(UsageError):
        lane_keys(lanes)
