"""A load generator that costs almost nothing: batches are made once, and sent and read unchanged.

Rules of this file:
- It speaks versions that every Kafka since 2.8 has, to whichever cluster: Produce 9, Fetch 12.
- Clients are shared out over the brokers that lead, at least one for each; a client has one
  connection, keeps so many requests in flight, and a share of the partitions.
- Every answer is looked at: an error ends the run, but for a leader of a new topic that does not
  know of itself yet.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import NamedTuple

from confluent_kafka.admin import AdminClient

from shoal.client.transport.connection import Connection, connect
from shoal.wire.batch import iter_batches
from shoal.wire.fetch import (
    READ_UNCOMMITTED,
    FetchPartition,
    decode_fetch_response,
    encode_fetch_request,
)
from shoal.wire.framing import Part
from shoal.wire.produce import ProducePartition, decode_produce_response, encode_produce_request
from shoal.wire.records.records import Record, encode_batch

_PRODUCE_VERSION = 9
_FETCH_VERSION = 12
_ALL_ACKS = -1
# The error of a broker that does not know a new topic yet.
_NOT_YET = {3, 6}
_TIMEOUT_S = 60.0
_FRAME_LIMIT_BYTES = 256 * 1024 * 1024
_PARTITION_MAX_BYTES = 1024 * 1024
_FETCH_MAX_BYTES = 50 * 1024 * 1024
_NOT_READY = (3, 6)  # unknown topic or partition, not leader
_RETRY_S = 0.05
_FETCH_WAIT_MS = 500


class Leader(NamedTuple):
    """A broker, and the partitions of a topic that it leads."""

    host: str
    port: int
    partitions: tuple[int, ...]


@dataclass(frozen=True)
class RawProduce:
    """How to produce. With `partitions_per_request` 0 a request has all that the broker leads."""

    batch: bytearray
    record_bytes: int
    clients: int = 1
    in_flight: int = 5
    partitions_per_request: int = 0


def batch_of(record_count: int, value_bytes: int) -> bytearray:
    """A batch of equal records without keys."""
    value = bytes(range(256)) * (value_bytes // 256 + 1)
    # Of today: Apache Kafka deletes what is a week old, by these timestamps.
    now_ms = time.time_ns() // 1_000_000
    return encode_batch(
        [
            Record(offset=number, timestamp=now_ms, key=None, value=value[:value_bytes])
            for number in range(record_count)
        ]
    )


def leaders(bootstrap: str, topic: str) -> list[Leader]:
    """The leaders of a topic; waits until the broker knows the topic."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    while not (metadata := admin.list_topics(topic, timeout=30)).topics[topic].partitions:
        time.sleep(_RETRY_S)
    led = defaultdict(list)
    for number, partition in metadata.topics[topic].partitions.items():
        led[partition.leader].append(number)
    return [
        Leader(str(metadata.brokers[broker].host), metadata.brokers[broker].port, tuple(numbers))
        for broker, numbers in sorted(led.items())
    ]


def produce(bootstrap: str, topic: str, load: RawProduce, total_bytes: int) -> int:
    """Write at least `total_bytes` of values with acks=all; return how many were written."""
    return asyncio.run(_produce(leaders(bootstrap, topic), topic, load, total_bytes))


def consume(bootstrap: str, topic: str, total_bytes: int, *, clients: int = 1) -> int:
    """Read at least `total_bytes` of batches from the start; partitions are split over clients."""
    return asyncio.run(_consume(leaders(bootstrap, topic), topic, total_bytes, clients))


def produce_and_consume(bootstrap: str, topic: str, load: RawProduce, total_bytes: int) -> int:
    """Both at once, with as many consumers as producers; returns the bytes that were written."""
    led = leaders(bootstrap, topic)

    async def run() -> int:
        written_bytes, _ = await asyncio.gather(
            _produce(led, topic, load, total_bytes),
            _consume(led, topic, total_bytes, load.clients),
        )
        return written_bytes

    return asyncio.run(run())


# Producing


async def _produce(led: list[Leader], topic: str, load: RawProduce, total_bytes: int) -> int:
    requests = iter(range(-(-total_bytes // load.record_bytes)))
    async with _connections(led, load.clients, load.in_flight) as connections:
        lanes = [
            _produce_lane(connection, topic, load, (groups, requests))
            for connection, partitions in connections
            for groups in [_groups(partitions, load.partitions_per_request)]
            for _ in range(load.in_flight)
        ]
        return sum(await asyncio.gather(*lanes))


def _groups(partitions: tuple[int, ...], size: int) -> Iterator[tuple[int, ...]]:
    """Which partitions each request is for, shared by the lanes of a connection."""
    size = size or len(partitions)
    return cycle([partitions[at : at + size] for at in range(0, len(partitions), size)])


async def _produce_lane(
    connection: Connection,
    topic: str,
    load: RawProduce,
    plan: tuple[Iterator[tuple[int, ...]], Iterator[int]],
) -> int:
    """Send one request after the other until all batches are written."""
    groups, wanted = plan
    written_bytes = 0
    while True:
        chosen = [number for number in next(groups) if next(wanted, None) is not None]
        if not chosen:
            return written_bytes
        left = chosen
        while left:
            items = [ProducePartition(topic, number, load.batch) for number in left]
            answer = await connection.request(
                partial(_produce_request, items), name="Produce", timeout_s=_TIMEOUT_S
            )
            answers = decode_produce_response(_PRODUCE_VERSION, answer)
            left = [each.partition for each in answers if each.error_code in _NOT_YET]
            assert all(each.error_code in {0, *_NOT_YET} for each in answers), answers
        written_bytes += len(chosen) * load.record_bytes


def _produce_request(items: list[ProducePartition], correlation_id: int) -> list[Part]:
    return encode_produce_request(
        _PRODUCE_VERSION,
        correlation_id=correlation_id,
        client_id="benchmark",
        transactional_id=None,
        acks=_ALL_ACKS,
        timeout_ms=30_000,
        partitions=items,
    )


# Consuming


async def _consume(led: list[Leader], topic: str, total_bytes: int, clients: int) -> int:
    left = _Left(total_bytes)
    async with _connections(led, clients, in_flight=1) as connections:
        await asyncio.gather(
            *(
                _consume_lane(connection, topic, dict.fromkeys(partitions, 0), left)
                for connection, partitions in connections
            )
        )
    return total_bytes - left.count_bytes


@dataclass
class _Left:
    count_bytes: int


async def _consume_lane(
    connection: Connection, topic: str, offsets: dict[int, int], left: _Left
) -> None:
    while left.count_bytes > 0:
        wanted = [
            FetchPartition(topic, None, number, offset, _PARTITION_MAX_BYTES)
            for number, offset in offsets.items()
        ]

        answer = await connection.request(
            partial(_fetch_request, wanted), name="Fetch", timeout_s=_TIMEOUT_S
        )
        for fetched in decode_fetch_response(_FETCH_VERSION, answer).partitions:
            if fetched.error_code in _NOT_READY:  # a leader that has not heard of the topic yet
                await asyncio.sleep(_RETRY_S)
                continue
            assert fetched.error_code == 0, fetched
            left.count_bytes -= len(fetched.records)
            for batch in iter_batches(fetched.records):
                offsets[fetched.partition] = batch.last_offset + 1


def _fetch_request(wanted: list[FetchPartition], correlation_id: int) -> list[Part]:
    request = encode_fetch_request(
        _FETCH_VERSION,
        correlation_id=correlation_id,
        client_id="benchmark",
        max_wait_ms=_FETCH_WAIT_MS,
        min_bytes=1,
        max_bytes=_FETCH_MAX_BYTES,
        isolation=READ_UNCOMMITTED,
        partitions=wanted,
    )
    return [request]


@asynccontextmanager
async def _connections(
    led: list[Leader], clients: int, in_flight: int
) -> AsyncIterator[list[tuple[Connection, tuple[int, ...]]]]:
    """As many clients, each with its partitions of one leader."""
    made: list[tuple[Connection, tuple[int, ...]]] = []
    try:
        for leader in led:
            count = max(1, min(clients // len(led), len(leader.partitions)))
            for place in range(count):
                connection = await connect(
                    leader.host,
                    leader.port,
                    max_in_flight=in_flight,
                    limit_bytes=_FRAME_LIMIT_BYTES,
                )
                made.append((connection, leader.partitions[place::count]))
        yield made
    finally:
        for connection, _ in made:
            await connection.close()
