"""Mirrors in the test's own event loop, and records for them by a client that is not ours."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from confluent_kafka import Producer

from shoal.client.admin import NewTopic, Resource, ResourceType
from shoal.client.client import Client
from shoal.mirror.command import mirror_until
from shoal.mirror.config import MirrorConfig
from shoal.mirror.flow import MakeCopyBackend
from shoal.mirror.run.copier import Copier
from shoal.mirror.status import MirrorStatus
from support.client.topic_reader import SILENT

PATIENCE_S = 60


def client(bootstrap: str) -> Client:
    return Client({"bootstrap.servers": bootstrap})


async def make(
    bootstrap: str, *topics: str, partitions: int = 1, configs: Mapping[str, str] | None = None
) -> None:
    async with client(bootstrap) as made:
        await made.admin.create_topics(
            [NewTopic(topic, partitions, 1, configs=configs or {}) for topic in topics]
        )


def fill(
    bootstrap: str, topic: str, values: list[str], *, partition: int = 0, **settings: Any
) -> None:
    """In batches of ten."""
    common = {"bootstrap.servers": bootstrap, "linger.ms": 5, "batch.num.messages": 10, **SILENT}
    producer = Producer({**common, **settings})
    for value in values:
        producer.produce(topic, value=value, key=value, partition=partition)
        producer.poll(0)
    assert producer.flush(PATIENCE_S) == 0
    producer.close()


def values(name: str, count: int = 20) -> list[str]:
    return [f"{name}-{number}" for number in range(count)]


async def eventually(look: Callable[[], Awaitable[object]], expected: object) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while await look() != expected:  # noqa: ASYNC110 - only asking tells
            await asyncio.sleep(0.1)


async def setting(bootstrap: str, topic: str, name: str) -> str | None:
    """The value of a topic's setting."""
    resource = Resource(ResourceType.TOPIC, topic)
    async with client(bootstrap) as asked:
        return (await asked.admin.describe_configs([resource]))[resource][name].value


class Running:
    """A mirror that runs beside the test."""

    def __init__(self) -> None:
        self.status: MirrorStatus | None = None
        self._changed = asyncio.Event()

    def take(self, status: MirrorStatus) -> None:
        self.status = status
        self._changed.set()

    async def until(self, condition: Callable[[MirrorStatus], bool]) -> MirrorStatus:
        async with asyncio.timeout(PATIENCE_S):
            while self.status is None or not condition(self.status):
                self._changed.clear()
                await self._changed.wait()
        return self.status

    async def copied(self, records: int) -> MirrorStatus:
        return await self.until(lambda status: status.counts.records >= records)


@asynccontextmanager
async def running(
    config: MirrorConfig, make_backend: MakeCopyBackend = Copier
) -> AsyncIterator[Running]:
    """The mirror runs inside the block, and ends in order with it."""
    stop = asyncio.Event()
    mirror = Running()
    task = asyncio.create_task(
        mirror_until(stop.wait, config, on_status=mirror.take, make_backend=make_backend)
    )
    try:
        yield mirror
    finally:
        stop.set()
        mirror.status = await task
