"""Topics to mirror and mirrors to run, on clusters of any kind; judged by librdkafka."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from shoal.client.admin import NewTopic
from shoal.client.client import Client
from shoal.mirror.command import mirror_until
from shoal.mirror.config import MirrorConfig
from shoal.mirror.proof.comparison import PartitionReport
from shoal.mirror.status import MirrorStatus
from shoal.mirror.verify import verify
from shoal.wire.batch import HEADER_SIZE
from support.client.topic_reader import SILENT, ReadTopic, read_topic

PATIENCE_S = 90.0
HOUR_MS = 3_600_000


def client(bootstrap: str) -> Client:
    return Client({"bootstrap.servers": bootstrap, "request.timeout.ms": 10_000})


async def make_topic(bootstrap: str, topic: str, partitions: int = 1, **configs: str) -> None:
    settings = {name.replace("_", "."): value for name, value in configs.items()}
    async with client(bootstrap) as one:
        await one.admin.create_topics([NewTopic(topic, partitions, configs=settings)])


def fill(
    bootstrap: str,
    topic: str,
    numbers: Iterable[int],
    *,
    partitions: int = 1,
    at_ms: int = 0,
    key: Callable[[int], str] = lambda number: f"key {number % 7}",
    **properties: Any,
) -> None:
    """Records whose values are numbers, in batches of 20 unless told otherwise."""
    settings = {"linger.ms": 2, "batch.num.messages": 20, "enable.idempotence": True, **SILENT}
    settings |= {name.replace("_", "."): value for name, value in properties.items()}
    with Producer({"bootstrap.servers": bootstrap, **settings}) as producer:
        for number in numbers:
            place = number % partitions
            producer.produce(topic, str(number), key(number), partition=place, timestamp=at_ms)
            producer.poll(0)
        assert producer.flush(60) == 0


def damage(
    log_dirs: Mapping[int, Path], topic: str, number: int, at: int, *, batches_before: int = 0
) -> None:
    """Change a byte of a value in a batch, in the log of a cluster of one broker."""
    (folder,) = log_dirs.values()
    with (folder / f"{topic}-{number}" / f"{0:020}.log").open("r+b") as log:
        position = HEADER_SIZE + at
        for _ in range(batches_before):
            log.seek(position - HEADER_SIZE - at + 8)
            # The length of a batch counts what follows it.
            position += 12 + int.from_bytes(log.read(4), "big")
        log.seek(position)
        byte = log.read(1)
        log.seek(position)
        log.write(bytes([byte[0] ^ 1]))


def config_of(source: str, target: str, *topics: str, **options: Any) -> MirrorConfig:
    properties = {"request.timeout.ms": 10_000}
    return MirrorConfig(
        {"bootstrap.servers": source, **properties},
        {"bootstrap.servers": target, **properties},
        topics,
        **options,
    )


async def mirror_all(config: MirrorConfig) -> MirrorStatus:
    """Mirror until nothing is left to copy, or a partition is parked."""
    done = asyncio.Event()

    def look(status: MirrorStatus) -> None:
        if status.lag == 0 or status.parked:
            done.set()

    async with asyncio.timeout(PATIENCE_S):
        return await mirror_until(done.wait, config, on_status=look)


async def verify_copies(source: str, target: str, *topics: str) -> list[PartitionReport]:
    async with client(source) as one, client(target) as other:
        return await verify(one, other, list(topics))


async def assert_same(source: str, target: str, topic: str, count: int, partitions: int = 1) -> int:
    """Both hold these records, each once and in order; returns how many batches are the same."""
    original = await asyncio.to_thread(_read, source, topic, count, partitions)
    copy = await asyncio.to_thread(_read, target, topic, count, partitions)
    assert original.count == count
    assert copy == original
    reports = await verify_copies(source, target, topic)
    assert [report.difference for report in reports] == [None] * partitions
    assert [report.not_yet for report in reports] == [0] * partitions
    return sum(report.equal_batches for report in reports)


def _read(bootstrap: str, topic: str, count: int, partitions: int) -> ReadTopic:
    return read_topic(bootstrap, topic, partitions=partitions, count=count)


def values_of(bootstrap: str, topic: str, count: int, partition: int = 0) -> list[bytes | None]:
    """What a partition holds, which should be so many records."""
    found = read_topic(bootstrap, topic, partitions=partition + 1, count=count)
    return [record.value for record in found.partitions[partition]]
