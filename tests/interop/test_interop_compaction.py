"""Compacted topics: what any Kafka leaves of them."""

import time
from collections.abc import Callable, Iterator

import pytest

from shoal.wire.batch import iter_batches
from shoal.wire.records.records import Record, decode_records, encode_batch
from support.lite.client import PlainClient, at
from support.lite.clusters import eventually

# Apache Kafka looks for logs to compact every 15 s, and takes its time.
PATIENCE_S = 100.0
NewTopic = Callable[..., str]


@pytest.fixture
def client(bootstrap: str) -> Iterator[PlainClient]:
    with PlainClient(bootstrap) as plain:
        yield plain


def send(client: PlainClient, topic: str, *pairs: tuple[bytes, bytes | None]) -> None:
    now_ms = time.time_ns() // 1_000_000
    records = [Record(0, now_ms, key, value) for key, value in pairs]
    assert client.produce(topic, encode_batch(records)).error_code == 0


def read_stored(client: PlainClient, topic: str) -> list[Record]:
    records: list[Record] = []
    offset = 0
    while True:
        [fetched] = client.fetch(at(topic, offset)).partitions
        batches = list(iter_batches(fetched.records))
        if not batches:
            return records
        for batch in batches:
            batch.check_crc()
            records += [record for record in decode_records(batch) if record.offset >= offset]
            offset = batch.next_offset


def test_the_last_value_of_each_key_stays(client: PlainClient, new_topic: NewTopic) -> None:
    topic = new_topic(
        cleanup_policy="compact",
        internal_segment_bytes="1000",
        min_cleanable_dirty_ratio="0.01",
        delete_retention_ms="100",
    )
    for number in range(40):
        send(client, topic, (b"often", b"%d" % number), (b"once%d" % number, b"v"))
    send(client, topic, (b"once3", None))
    for number in range(40):
        send(client, topic, (b"filler", b"%d" % number * 30))

    def is_compact() -> bool:
        # Compaction looks again only when something was written.
        send(client, topic, (b"filler", b"more " * 40))
        kept = [record for record in read_stored(client, topic) if record.key != b"filler"]
        found = {record.key: (record.offset, record.value) for record in kept}
        return len(found) == len(kept) and b"once3" not in found

    eventually(is_compact, PATIENCE_S)
    kept = [record for record in read_stored(client, topic) if record.key != b"filler"]
    found = {record.key: (record.offset, record.value) for record in kept}
    expected = {b"once%d" % number: (2 * number + 1, b"v") for number in range(40) if number != 3}
    assert found == expected | {b"often": (78, b"39")}
