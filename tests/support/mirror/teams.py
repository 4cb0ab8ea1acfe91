"""The same copy by any hands: a topic of several partitions, slowly, with a fault half way."""

import asyncio
from collections.abc import Callable

from shoal.mirror.config import MirrorConfig, MirrorLimits
from shoal.mirror.flow import MakeCopyBackend
from shoal.mirror.status import MirrorStatus
from support.client.topic_reader import read_topic
from support.mirror.runs import fill, make, running

PARTITIONS = 4
RECORDS = 1500  # in each
# About three seconds for all.
BYTES_PER_S = 200_000


def values(partition: int) -> list[str]:
    return [f"{partition}-{number}" + "x" * 60 for number in range(RECORDS)]


def prepare(source: str, target: str, topic: str, *, delivery: str = "idempotent") -> MirrorConfig:
    asyncio.run(make(source, topic, partitions=PARTITIONS))
    for partition in range(PARTITIONS):
        fill(source, topic, values(partition), partition=partition)
    return MirrorConfig(
        {"bootstrap.servers": source},
        {"bootstrap.servers": target},
        (topic,),
        name=topic,
        delivery=delivery,
        limits=MirrorLimits(max_bytes_per_s=BYTES_PER_S, partition_bytes=20_000),
    )


async def copy_all(
    config: MirrorConfig, make_backend: MakeCopyBackend, harm: Callable[[], None] | None = None
) -> MirrorStatus:
    """Copy all, with something bad when a part has been copied."""
    total = PARTITIONS * RECORDS

    def is_there(share: float) -> Callable[[MirrorStatus], bool]:
        return lambda status: sum(status.positions.values()) >= total * share

    async with running(config, make_backend) as mirror:
        await mirror.until(is_there(0.25))
        if harm is not None:
            await asyncio.to_thread(harm)
        return await mirror.until(is_there(1))


def check_copy(target: str, topic: str) -> None:
    """Every record once and in order, as a client that is not ours sees it."""
    found = read_topic(target, topic, partitions=PARTITIONS, count=PARTITIONS * RECORDS)
    for partition, records in found.partitions.items():
        assert [(record.value or b"").decode() for record in records] == values(partition)
