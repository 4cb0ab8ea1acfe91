"""The targets of faults in a run: clusters, topics and workers.

A thin layer: `shoal.faults` decides what is done and when; this module does it.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

from shoal.client.admin import ConfigEntry, NewTopic, Resource, ResourceType
from shoal.client.client import Client
from shoal.client.errors import ClientError
from shoal.client.results import LATEST
from shoal.control.cluster_actions import ClusterAction, perform
from shoal.lite.cluster import LiteCluster
from shoal.model.errors import SystemFailure
from shoal.model.topics import TopicPartition
from shoal.net.link_faults import LinkEffect
from shoal.systems.clusters import Cluster
from shoal.workers.supervision import WorkerPhase
from shoal.workers.supervisor import WorkerSupervisor

# For requests to a cluster: Apache Kafka elects a new leader within 20 s.
TIMEOUT_S: Final = 60.0
# Long, because a restarted worker loads all its modules again.
RESTART_TIMEOUT_S: Final = 180.0
_RETRY_EVERY_S: Final = 0.2

_Result = TypeVar("_Result")


class ClusterNodes:
    """The nodes of a cluster that shoal started; acted on as by commands and the page."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def node_ids(self) -> list[int]:
        return [node.id for node in self._cluster.nodes()]

    def kill(self, node_id: int) -> None:
        self._do("kill", node_id)

    def pause(self, node_id: int) -> None:
        self._do("pause", node_id)

    def resume(self, node_id: int) -> None:
        self._do("resume", node_id)

    def restart(self, node_id: int) -> None:
        self._do("restart", node_id)

    def _do(self, name: str, node: int, other: int | None = None, **settings: Any) -> None:
        perform(self._cluster, ClusterAction(name, node, other, settings))


class LiteNodeLinks(ClusterNodes):
    """The nodes of a Kafka Lite, which implements faults of the links between its nodes."""

    def __init__(self, cluster: LiteCluster) -> None:
        super().__init__(cluster)  # type: ignore[arg-type]  # lacks `name`, which is not used here

    def set_link(self, source: int, target: int, effect: LinkEffect) -> None:
        delay_ms, bytes_per_s = round(effect.delay_ms), math.ceil(effect.bytes_per_s)
        if effect.is_cut:
            self._do("cut", source, target, one_way=True)
        elif delay_ms or bytes_per_s:
            slow = {"delay_ms": delay_ms, "bytes_per_s": bytes_per_s}
            self._do("slow", source, target, one_way=True, **slow)
        else:
            self._do("heal", source, target, one_way=True)

    def reset_link(self, one: int, two: int) -> None:
        self._do("reset", one, two)


class ClusterAdmin:
    """Reads and changes the metadata of a cluster, as any client can."""

    def __init__(self, client: Mapping[str, str]) -> None:
        self._properties = dict(client)

    def replicas(self, topic: str) -> tuple[int, list[int]]:
        """The leader of partition 0, and its followers; waits for a leader."""

        async def find(client: Client) -> tuple[int, list[int]] | None:
            cluster = await client.metadata([topic], refresh=True)
            partition = cluster.partition(TopicPartition(topic, 0))
            if partition is None or partition.leader < 0:
                return None
            leader = partition.leader
            return leader, [node for node in partition.replicas if node != leader]

        return self._poll_until_answered(find, f"a leader of {topic}-0")

    def controller(self) -> int:
        async def find(client: Client) -> int | None:
            node_id = (await client.admin.describe_cluster()).controller_id
            return None if node_id < 0 else node_id

        return self._poll_until_answered(find, "a controller")

    def recreate(self, topic: str) -> None:
        """Delete a topic and create it again, with the same partitions and settings."""

        async def recreate_topic(client: Client) -> bool:
            cluster = await client.metadata([topic], refresh=True)
            partitions = cluster.partitions_of(topic)
            first = cluster.partition(partitions[0])
            resource = Resource(ResourceType.TOPIC, topic)
            configs = (await client.admin.describe_configs([resource]))[resource]
            copies = -1 if first is None else len(first.replicas)
            made = NewTopic(topic, len(partitions), copies, _explicit_settings(configs))
            await client.admin.delete_topics([topic])
            await _create_with_retry(client, made)
            return True

        self._poll_until_answered(recreate_topic, f"{topic} to be created again")

    def grow(self, topic: str, partitions: int) -> None:
        async def grow_topic(client: Client) -> bool:
            await client.admin.create_partitions({topic: partitions})
            return True

        self._poll_until_answered(grow_topic, f"{topic} to grow")

    def purge(self, topic: str, keep: int) -> None:
        """Delete all records of a topic but the last few of each partition."""

        async def purge_topic(client: Client) -> bool:
            cluster = await client.metadata([topic], refresh=True)
            ends = await client.list_offsets(dict.fromkeys(cluster.partitions_of(topic), LATEST))
            before = {tp: max(0, end.offset - keep) for tp, end in ends.items()}
            await client.admin.delete_records(before)
            return True

        self._poll_until_answered(purge_topic, f"the records of {topic} to be deleted")

    def _poll_until_answered(
        self, question: Callable[[Client], Awaitable[_Result | None]], what: str
    ) -> _Result:
        """Repeat the question until its answer is not None."""

        async def poll() -> _Result:
            async with asyncio.timeout(TIMEOUT_S), Client(self._properties) as client:
                while True:
                    answer = await question(client)
                    if answer is not None:
                        return answer
                    await asyncio.sleep(_RETRY_EVERY_S)

        try:
            return asyncio.run(poll())
        except TimeoutError as error:
            raise SystemFailure(f"timed out after {TIMEOUT_S:.0f} s waiting for {what}") from error


async def _create_with_retry(client: Client, topic: NewTopic) -> None:
    """Create a topic; retry while brokers still delete the old topic of that name."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            await client.admin.create_topics([topic])
        except ClientError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(_RETRY_EVERY_S)
        else:
            return


def _explicit_settings(configs: Mapping[str, ConfigEntry]) -> dict[str, str]:
    return {
        name: entry.value
        for name, entry in configs.items()
        if not entry.is_default and entry.value is not None
    }


class RunWorkers:
    """The producers and consumers of a run."""

    def __init__(self, supervisor: WorkerSupervisor) -> None:
        self._supervisor = supervisor
        self._epochs: dict[str, int] = {}

    def kill(self, name: str) -> None:
        self._epochs[name] = self._supervisor.state().workers[name].epoch
        self._supervisor.kill(name)

    def wait_until_back(self, name: str) -> None:
        before = self._epochs[name]
        is_back = self._supervisor.wait(
            lambda state: (
                state.workers[name].phase is WorkerPhase.ENDED
                or (
                    state.workers[name].phase is WorkerPhase.RUNNING
                    and state.workers[name].epoch > before
                )
            ),
            RESTART_TIMEOUT_S,
        )
        if not is_back:
            raise SystemFailure(f"worker {name} did not restart within {RESTART_TIMEOUT_S:.0f} s")
