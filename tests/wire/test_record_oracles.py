"""librdkafka as the judge of the record codecs.

librdkafka carries a small broker of its own, which stores batches as they come. It encodes
what we fetch raw and decode; we encode what its consumer decodes.
"""

import socket
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from shoal.wire.batch import Batch, iter_batches
from shoal.wire.fetch import FetchPartition, decode_fetch_response, encode_fetch_request
from shoal.wire.framing import FrameDecoder, frame
from shoal.wire.produce import ProducePartition, decode_produce_response, encode_produce_request
from shoal.wire.records.columns import decode_columns
from shoal.wire.records.compression import Codec
from shoal.wire.records.records import Record, decode_records
from support.wire.record_samples import SAMPLES, encode_samples

FETCH_VERSION = 11
PRODUCE_VERSION = 7
MANY_BYTES = 50_000_000
# librdkafka sends a batch uncompressed where compression would not make it smaller.
COMPRESSIBLE = {"large and repetitive", "many small", "many headers"}


class RawConnection:
    """One request at a time over a socket."""

    def __init__(self, address: str) -> None:
        host, port = address.split(":")
        self._socket = socket.create_connection((host, int(port)), timeout=60)
        self._decoder = FrameDecoder()

    def close(self) -> None:
        self._socket.close()

    def call(self, parts: list[bytes | bytearray | memoryview]) -> memoryview:
        self._socket.sendall(b"".join(frame(parts)))
        while True:
            count = self._socket.recv_into(self._decoder.get_buffer())
            assert count > 0, "the broker closed the connection"
            frames = self._decoder.feed(count)
            if frames:
                return frames[0]

    def fetch(self, topic: str, offset: int) -> memoryview:
        request = encode_fetch_request(
            FETCH_VERSION,
            correlation_id=1,
            client_id="oracle",
            max_wait_ms=1000,
            min_bytes=1,
            max_bytes=MANY_BYTES,
            isolation=0,
            partitions=[FetchPartition(topic, None, 0, offset, MANY_BYTES)],
        )
        (fetched,) = decode_fetch_response(FETCH_VERSION, self.call([request])).partitions
        assert fetched.error_code == 0
        return fetched.records

    def produce(self, topic: str, batch: bytearray) -> None:
        parts = encode_produce_request(
            PRODUCE_VERSION,
            correlation_id=1,
            client_id="oracle",
            transactional_id=None,
            acks=-1,
            timeout_ms=60_000,
            partitions=[ProducePartition(topic, 0, batch)],
        )
        (answer,) = decode_produce_response(PRODUCE_VERSION, self.call(parts))
        assert (answer.error_code, answer.base_offset) == (0, 0)


@pytest.fixture
def host() -> Iterator[Producer]:
    """The client that holds librdkafka's own broker. Asking it for a topic creates the topic."""
    host = Producer({"bootstrap.servers": "unused", "test.mock.num.brokers": 1, "log_level": 0})
    yield host
    host.close()


@pytest.fixture
def broker(host: Producer) -> str:
    """The address of librdkafka's own broker."""
    (node,) = host.list_topics(timeout=60).brokers.values()
    return f"{node.host}:{node.port}"


@pytest.fixture
def connection(broker: str) -> Iterator[RawConnection]:
    connection = RawConnection(broker)
    yield connection
    connection.close()


def topic_of(name: str) -> str:
    return name.replace(" ", "-")


@pytest.mark.parametrize("codec", Codec, ids=lambda codec: codec.name)
def test_what_librdkafka_encodes_both_codecs_decode(
    broker: str, connection: RawConnection, codec: Codec
) -> None:
    producer = Producer(
        {"bootstrap.servers": broker, "compression.type": codec.name.lower(), "linger.ms": 20}
    )
    failures: list[object] = []
    for name, records in SAMPLES.items():
        for record in records:
            producer.produce(
                topic_of(name),
                partition=0,
                key=record.key,
                value=record.value,
                headers=list(record.headers),
                timestamp=record.timestamp,
                on_delivery=lambda error, _message: failures.append(error) if error else None,
            )
    assert producer.flush(20) == 0
    producer.close()
    assert failures == []
    for name, records in SAMPLES.items():
        batches: list[Batch] = []
        while not batches or batches[-1].next_offset < len(records):
            offset = batches[-1].next_offset if batches else 0
            batches.extend(iter_batches(connection.fetch(topic_of(name), offset)))
        for batch in batches:
            batch.check_crc()
        if name in COMPRESSIBLE:
            assert {batch.codec for batch in batches} == {codec}
        assert [record for batch in batches for record in decode_records(batch)] == list(records)
        columns = decode_columns(batches)
        assert [columns.record(index) for index in range(len(columns))] == list(records)


def test_what_we_encode_librdkafka_decodes(
    host: Producer, broker: str, connection: RawConnection
) -> None:
    samples = {f"sample-{number}": sample for number, sample in enumerate(encode_samples())}
    for topic, sample in samples.items():
        host.list_topics(topic, timeout=60)
        connection.produce(topic, sample.batch)
    consumer = Consumer(
        {"bootstrap.servers": broker, "group.id": "oracle", "check.crcs": True, "log_level": 0}
    )
    consumer.assign([TopicPartition(topic, 0, 0) for topic in samples])
    received: dict[str, list[Record]] = {topic: [] for topic in samples}
    missing = sum(len(sample.records) for sample in samples.values())
    while missing:
        messages = consumer.consume(missing, timeout=60)
        assert messages, f"{missing} messages did not come"
        missing -= len(messages)
        for message in messages:
            topic, record = as_record(message)
            received[topic].append(record)
    consumer.close()
    for topic, sample in samples.items():
        assert received[topic] == list(sample.records), f"{sample.name} in {sample.codec.name}"


def as_record(message: Any) -> tuple[str, Record]:
    assert message.error() is None
    record = Record(
        offset=message.offset(),
        timestamp=message.timestamp()[1],
        key=message.key(),
        value=message.value(),
        headers=tuple(message.headers() or ()),
    )
    return message.topic(), record
