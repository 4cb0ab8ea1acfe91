"""Where records go: by the hash that all Kafka clients agree on, or to one partition at a time."""

import pytest

from shoal.client.produce.partitioner import StickyPartitioner, murmur2, partition_for_key

# From Apache Kafka's own unit test of its hash (UtilsTest.testMurmur2), as signed numbers.
KAFKA_VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("data", "signed"), KAFKA_VECTORS.items())
def test_hash_agrees_with_kafka(data: bytes, signed: int) -> None:
    assert murmur2(data) == signed & 0xFFFFFFFF
    assert partition_for_key(data, 10) == (signed & 0x7FFFFFFF) % 10


def test_without_a_key_one_partition_is_kept_until_its_batch_is_full() -> None:
    chosen = iter([2, 0, 1])
    choice = StickyPartitioner(lambda partitions: next(chosen) % partitions)
    assert [choice.partition("t", 3) for _ in range(3)] == [2, 2, 2]
    assert choice.partition("other", 3) == 0
    choice.on_batch_complete("t", 1)  # not the one that is filled at the moment
    assert choice.partition("t", 3) == 2
    choice.on_batch_complete("t", 2)
    assert choice.partition("t", 3) == 1
