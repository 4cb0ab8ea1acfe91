"""Lane keys go where Kafka's partitioner would put them, by librdkafka's own word."""

from collections import Counter

import numpy as np
import pytest
from confluent_kafka import Producer

from shoal.client.produce.partitioner import partition_for_key
from shoal.model.errors import UsageError
from shoal.workload.envelope import Envelope, MessageKind
from shoal.workload.envelope_columns import MessageWriter
from shoal.workload.send.keys import KEY_PREFIX, MAX_LANES, lane_keys


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
    expected = {key: lane for lane, key in enumerate(lane_keys(lanes))}
    expected |= {key or b"": lane for lane, key in enumerate(many_keys(lanes, 1))}
    for key in expected:
        producer.produce(
            "lanes",
            key=key,
            value=b"x",
            on_delivery=lambda _error, message: placed.update({message.key(): message.partition()}),
        )
    assert producer.flush(10) == 0
    assert placed == expected


def many_keys(
    lanes: int, sequences: int, kind: MessageKind = MessageKind.MESSAGE
) -> list[bytes | None]:
    """Keys of a compacted topic, lane by lane within each sequence."""
    writer = MessageWriter(Envelope("r", "p", "t", 200), lanes, many_keys=True)
    sequence, lane = np.divmod(np.arange(lanes * sequences, dtype=np.int64), lanes)
    keys = writer.keys(lane, sequence, kind=kind)
    return [keys.at(row) for row in range(len(lane))]


@pytest.mark.parametrize("lanes", [1, 3, 16, 500])
@pytest.mark.quick("3")
def test_keys_of_compacted_topics_stay_in_their_lane_and_most_are_written_once(lanes: int) -> None:
    keys = many_keys(lanes, 64)
    placed = [partition_for_key(key or b"", lanes) for key in keys]
    assert placed == list(range(lanes)) * 64
    written = Counter(Counter(keys).values())
    assert written == {1: 50 * lanes, 2: 4 * lanes, 3: 2 * lanes}
    markers = many_keys(lanes, 1, MessageKind.MARKER)
    assert [partition_for_key(key or b"", lanes) for key in markers] == list(range(lanes))
    assert not set(markers) & set(keys)
    assert all(key is not None and key.startswith(KEY_PREFIX) for key in [*keys, *markers])


def test_keys_belong_to_one_producer_and_one_topic() -> None:
    forms = [Envelope("r", p, t, 200) for p, t in (("p", "t"), ("q", "t"), ("p", "u"))]
    forms += [Envelope("r", "p", "t", 200, incarnation=number) for number in (1, 2)]
    one = np.zeros(1, np.int64)
    keys = {MessageWriter(form, 1, many_keys=True).keys(one, one).at(0) for form in forms}
    kind = MessageKind.MARKER
    markers = {MessageWriter(form, 1).keys(one, one, kind=kind).at(0) for form in forms}
    assert len(keys | markers) == 10


def test_equal_keys_have_equal_numbers() -> None:
    writer = MessageWriter(Envelope("r", "p", "t", 200), 2, many_keys=True)
    sequence, lane = np.divmod(np.arange(400, dtype=np.int64), 2)
    keys, numbers = many_keys(2, 200), writer.key_numbers(lane, sequence).tolist()
    assert len(set(zip(keys, numbers, strict=True))) == len(set(keys)) == len(set(numbers)) < 400


@pytest.mark.parametrize("lanes", [0, -1, MAX_LANES + 1])
def test_impossible_lane_counts_are_refused(lanes: int) -> None:
    with pytest.raises(UsageError):
        lane_keys(lanes)
