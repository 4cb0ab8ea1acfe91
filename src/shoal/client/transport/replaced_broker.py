"""A broker that does not answer, and has no part in the matter any more, is not waited for.

A broker that is paused, or cut off, keeps its connections: nothing tells that it will not answer
but the request's own time-out, and that is long, because brokers may take their time. But while
it is silent the cluster goes on without it, and says so in its metadata.

Rules of this file:
- Whoever waits for longer than usual asks who leads now, again and again. If others lead, and the
  silent one is in sync with nobody any more, its connection is given up like one that broke. One
  that is in sync with anybody lives, and may have to answer somebody else first.
- Nothing is asked while answers come, and those who wait at the same time share what is heard.
"""

import asyncio
from collections.abc import Awaitable, Collection
from contextlib import suppress
from typing import TypeVar

from shoal.client.cluster.metadata import ClusterMetadata
from shoal.client.cluster.router import Core
from shoal.client.errors import ClientError, ConnectionLost
from shoal.client.transport.connection import Connection
from shoal.model.topics import TopicPartition
from shoal.runtime.tasks import log_only, run_once

T = TypeVar("T")

_SILENCE_S = 0.5


async def unless_replaced(
    core: Core,
    answer: Awaitable[T],
    broker: tuple[int, Connection],
    partitions: Collection[TopicPartition],
    *,
    pause_s: float = 0.0,
) -> T:
    """The answer of a broker about partitions; `ConnectionLost` if it was replaced meanwhile.

    `pause_s` is how long it may keep silent because it was asked to.
    """
    loop = asyncio.get_running_loop()
    looks: list[asyncio.Task[None]] = []

    def look() -> None:
        # Without it the answer is still waited for, up to its time-out.
        work = _look(core, *broker, partitions)
        looks.append(run_once("look for a replaced broker", work, on_failure=log_only))

    timer = loop.call_later(pause_s + _SILENCE_S, look)
    try:
        return await answer
    finally:
        timer.cancel()
        for task in looks:
            task.cancel()


async def _look(
    core: Core, node_id: int, connection: Connection, partitions: Collection[TopicPartition]
) -> None:
    topics = {tp.topic for tp in partitions}
    while True:
        with suppress(ClientError):
            cluster = await core.recent_metadata(topics, age_s=_SILENCE_S / 2)
            if _is_replaced(cluster, node_id, partitions):
                reason = f"{connection.address} does not answer, and others lead in its place"
                connection.abort(ConnectionLost(reason, sent=True))
                return
        await asyncio.sleep(_SILENCE_S)


def _is_replaced(cluster: ClusterMetadata, node_id: int, asked: Collection[TopicPartition]) -> bool:
    is_in_sync = any(
        node_id in partition.isr
        for topic in cluster.topics.values()
        for partition in topic.partitions.values()
        if partition.leader in cluster.brokers
    )
    return not is_in_sync and all(cluster.leader(tp) is not None for tp in asked)
