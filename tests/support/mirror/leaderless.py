"""Topics whose partitions lead on chosen brokers, so that one of them can lose its leader."""

import asyncio
from collections.abc import Mapping, Sequence

from shoal.client.admin import NewTopic
from shoal.lite.cluster import LiteCluster
from support.lite.clusters import partition_of
from support.mirror.copies import client

PATIENCE_S = 90.0


async def make_placed(
    cluster: LiteCluster, topic: str, places: Mapping[int, Sequence[int]], **configs: str
) -> None:
    """A topic whose partitions have these replicas."""
    settings = {name.replace("_", "."): value for name, value in configs.items()}
    async with client(cluster.bootstrap) as one:
        await one.admin.create_topics([NewTopic(topic, assignments=places, configs=settings)])


async def await_leader(cluster: LiteCluster, topic: str, partition: int, leader: int) -> None:
    """Until a partition is led by this broker; -1 for none."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = await asyncio.to_thread(partition_of, cluster, topic, partition)
            if found.leader == leader:
                return
            await asyncio.sleep(0.1)


async def kill_leader(cluster: LiteCluster, topic: str, partition: int, node_id: int) -> None:
    """Kill the only replica of a partition, and wait until that is known."""
    await asyncio.to_thread(cluster.kill, node_id)
    await await_leader(cluster, topic, partition, -1)
