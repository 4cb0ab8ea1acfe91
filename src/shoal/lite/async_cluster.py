"""A Kafka Lite cluster for asyncio programs: nothing here blocks the event loop.

    async with AsyncLiteCluster(brokers=3) as cluster:
        await cluster.kill(2)

Every call runs the call of `LiteCluster` with the same name in a separate thread. A cancelled call
still runs to its end, and a cancelled start is undone.
"""

import asyncio
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self, TypeVar

from shoal.lite.cluster import LiteCluster, NodeStatus, QuorumStatus
from shoal.model.errors import ShoalError
from shoal.model.nodes import Node
from shoal.runtime.tasks import run_awaited

ResultT = TypeVar("ResultT")


class AsyncLiteCluster:
    """The asyncio form of `LiteCluster`, which it wraps as `cluster`."""

    def __init__(
        self,
        brokers: int | None = None,
        directory: str | os.PathLike[str] | None = None,
        name: str | None = None,
        properties: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        """As for `LiteCluster`."""
        self.cluster = LiteCluster(brokers, directory, name, properties, **options)

    # Starting and stopping

    async def start(self) -> Self:
        """Start all nodes; returns when they serve clients."""
        starting = run_awaited("cluster start", asyncio.to_thread(self.cluster.start))
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            with suppress(ShoalError):
                await starting
                await self.stop()
            raise
        return self

    async def stop(self) -> None:
        """Stop the cluster cleanly; a temporary folder is removed."""
        await _run_to_completion(self.cluster.stop)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # State

    @property
    def directory(self) -> Path:
        """The folder of the running cluster."""
        return self.cluster.directory

    async def bootstrap(self) -> str:
        """The value for `bootstrap.servers` of clients."""
        return await _run_to_completion(lambda: self.cluster.bootstrap)

    async def metrics_port(self) -> int:
        """The port on which the supervisor serves metrics; 0 without `metrics`."""
        return await _run_to_completion(lambda: self.cluster.metrics_port)

    async def status(self) -> list[NodeStatus]:
        return await _run_to_completion(self.cluster.status)

    async def check_supervisor(self) -> None:
        """Raise `UnreachableError` if the supervisor has ended, and all nodes with it."""
        await _run_to_completion(self.cluster.check_supervisor)

    async def nodes(self) -> list[Node]:
        return await _run_to_completion(self.cluster.nodes)

    async def controllers(self) -> list[NodeStatus]:
        return await _run_to_completion(self.cluster.controllers)

    async def quorum(self) -> QuorumStatus | None:
        return await _run_to_completion(self.cluster.quorum)

    async def log_dirs(self) -> dict[int, Path]:
        return await _run_to_completion(self.cluster.log_dirs)

    # Commands for nodes and partitions

    async def kill(self, node_id: int) -> None:
        await _run_to_completion(lambda: self.cluster.kill(node_id))

    async def stop_node(self, node_id: int) -> None:
        await _run_to_completion(lambda: self.cluster.stop_node(node_id))

    async def pause(self, node_id: int) -> None:
        await _run_to_completion(lambda: self.cluster.pause(node_id))

    async def resume(self, node_id: int) -> None:
        await _run_to_completion(lambda: self.cluster.resume(node_id))

    async def restart(self, node_id: int) -> None:
        await _run_to_completion(lambda: self.cluster.restart(node_id))

    async def add(self) -> NodeStatus:
        return await _run_to_completion(self.cluster.add)

    async def remove(self, node_id: int) -> None:
        await _run_to_completion(lambda: self.cluster.remove(node_id))

    async def replace_controller(self, node_id: int) -> None:
        await _run_to_completion(lambda: self.cluster.replace_controller(node_id))

    async def crash(self) -> None:
        await _run_to_completion(self.cluster.crash)

    async def move_leader(self, topic: str, partition: int, node_id: int) -> None:
        await _run_to_completion(lambda: self.cluster.move_leader(topic, partition, node_id))

    async def shrink_in_sync(self, topic: str, partition: int, node_id: int) -> None:
        await _run_to_completion(lambda: self.cluster.shrink_in_sync(topic, partition, node_id))

    # Fault injection

    async def cut_link(self, source: int, target: int, *, one_way: bool = False) -> None:
        await _run_to_completion(lambda: self.cluster.cut_link(source, target, one_way=one_way))

    async def slow_link(self, source: int, target: int, delay_ms: int = 0, **how: Any) -> None:
        """`how` is as in `LiteCluster.slow_link`."""
        await _run_to_completion(lambda: self.cluster.slow_link(source, target, delay_ms, **how))

    async def heal_link(self, source: int, target: int, *, one_way: bool = False) -> None:
        await _run_to_completion(lambda: self.cluster.heal_link(source, target, one_way=one_way))

    async def reset_link(self, source: int, target: int) -> None:
        await _run_to_completion(lambda: self.cluster.reset_link(source, target))

    async def isolate(self, node_id: int) -> None:
        await _run_to_completion(lambda: self.cluster.isolate(node_id))

    async def fail_disk(self, node_id: int, **fault: Any) -> None:
        await _run_to_completion(lambda: self.cluster.fail_disk(node_id, **fault))

    async def heal_disk(self, node_id: int) -> None:
        await _run_to_completion(lambda: self.cluster.heal_disk(node_id))

    async def fail_task(self, node_id: int, task: str) -> None:
        await _run_to_completion(lambda: self.cluster.fail_task(node_id, task))

    async def fail_requests(self, node_id: int, api_key: int, **fault: Any) -> int:
        return await _run_to_completion(
            lambda: self.cluster.fail_requests(node_id, api_key, **fault)
        )

    async def requests_left(self, fault: int) -> int:
        return await _run_to_completion(lambda: self.cluster.requests_left(fault))

    async def faults(self) -> list[dict[str, Any]]:
        return await _run_to_completion(self.cluster.faults)

    async def heal(self) -> None:
        await _run_to_completion(self.cluster.heal)

    async def merged_trace(self) -> str:
        return await _run_to_completion(self.cluster.merged_trace)


async def _run_to_completion(call: Callable[[], ResultT]) -> ResultT:
    """Run a call in a thread; a cancellation is raised only after the call has ended."""
    running = run_awaited("cluster command", asyncio.to_thread(call))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        with suppress(ShoalError):
            await running
        raise
