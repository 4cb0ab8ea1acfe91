"""Stops waiting for a silent broker once the cluster has replaced it as leader.

A broker that is paused or partitioned keeps its connections: only the request timeout shows that it
will not answer, and that timeout is long, because brokers may be slow. Meanwhile the cluster elects
other leaders, and its metadata shows them.

Rules of this file:
- A caller that waits longer than usual polls the metadata. If other brokers lead the partitions
  and the silent broker is in no ISR, its connection is closed as if it had been lost. A broker that
  is in an ISR is alive, and may have to answer other requests first.
- No metadata is requested while responses arrive, and concurrent waiters share the metadata.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection
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


async def await_unless_replaced(
    core: Core,
    answer: Awaitable[T],
    broker: tuple[int, Connection],
    partitions: Collection[TopicPartition],
    *,
    pause_s: float = 0.0,
) -> T:
    """Await a broker's response about partitions; `ConnectionLost` if the broker was replaced.

    `pause_s` is how long the request allows the broker to wait.
    """
    stop = watch_for_replacement(core, broker, partitions, pause_s=pause_s)
    try:
        return await answer
    finally:
        stop()


def watch_for_replacement(
    core: Core,
    broker: tuple[int, Connection],
    partitions: Collection[TopicPartition],
    *,
    pause_s: float = 0.0,
) -> Callable[[], None]:
    """Watch a broker that must answer; returns the function that ends it."""
    watches: list[asyncio.Task[None]] = []

    def start_watch() -> None:
        # If the watch fails, the response is still awaited, up to its timeout.
        work = _watch_metadata(core, *broker, partitions)
        watches.append(run_once("watch for a replaced broker", work, on_failure=log_only))

    def stop() -> None:
        timer.cancel()
        for task in watches:
            task.cancel()

    timer = asyncio.get_running_loop().call_later(pause_s + _SILENCE_S, start_watch)
    return stop


async def _watch_metadata(
    core: Core, node_id: int, connection: Connection, partitions: Collection[TopicPartition]
) -> None:
    topics = {tp.topic for tp in partitions}
    while True:
        with suppress(ClientError):
            cluster = await core.recent_metadata(topics, age_s=_SILENCE_S / 2)
            if _is_replaced(cluster, node_id, partitions):
                reason = (
                    f"{connection.address} does not answer, and other brokers lead its partitions"
                )
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
