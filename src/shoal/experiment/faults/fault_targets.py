"""What faults need of the systems in a run: clusters, their topics and their workers.

Thin: `shoal.faults` decides what is done and when, and here it is done.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeVar

from shoal.client.admin import ConfigEntry, NewTopic, Resource, ResourceType
from shoal.client.client import Client
from shoal.client.errors import ClientError
from shoal.client.results import LATEST
from shoal.lite.cluster import LiteCluster
from shoal.model.errors import SystemFailure
from shoal.model.topics import TopicPartition
from shoal.net.ways import Effect
from shoal.systems.clusters import Cluster
from shoal.workers.supervision import Phase
from shoal.workers.supervisor import Supervisor

# For what a cluster is asked or told: a new leader of Apache Kafka takes 20 s at most.
PATIENCE_S: Final = 60.0
# For a worker that has to load all its modules again.
BACK_PATIENCE_S: Final = 180.0
_PAUSE_S: Final = 0.2

_Result = TypeVar("_Result")


class ClusterNodes:
    """The nodes of a cluster of ours."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.kill = cluster.kill
        self.pause = cluster.pause
        self.resume = cluster.resume
        self.restart = cluster.restart

    def node_ids(self) -> list[int]:
        return [node.id for node in self._cluster.nodes()]


class LiteNodeLinks(ClusterNodes):
    """The nodes of a Kafka Lite, which hinder the links between them themselves."""

    def __init__(self, cluster: LiteCluster) -> None:
        super().__init__(cluster)  # type: ignore[arg-type]  # it lacks names, which nobody asks for
        self._lite = cluster

    def set_link(self, source: int, target: int, effect: Effect) -> None:
        if effect.is_cut:
            self._lite.cut_link(source, target, one_way=True)
        else:
            self._lite.slow_link(
                source,
                target,
                round(effect.delay_ms),
                bytes_per_s=math.ceil(effect.bytes_per_s or 0),
                one_way=True,
            )

    def reset_link(self, one: int, two: int) -> None:
        self._lite.reset_link(one, two)


class ClusterAdmin:
    """Asks and changes a cluster as any client can."""

    def __init__(self, client: Mapping[str, str]) -> None:
        self._properties = dict(client)

    def replicas(self, topic: str) -> tuple[int, list[int]]:
        """The leader of partition 0, and its followers; waits for a leader."""

        async def found(client: Client) -> tuple[int, list[int]] | None:
            cluster = await client.metadata([topic], refresh=True)
            partition = cluster.partition(TopicPartition(topic, 0))
            if partition is None or partition.leader < 0:
                return None
            leader = partition.leader
            return leader, [node for node in partition.replicas if node != leader]

        return self._ask(found, f"a leader of {topic}-0")

    def controller(self) -> int:
        async def found(client: Client) -> int | None:
            node_id = (await client.admin.describe_cluster()).controller_id
            return None if node_id < 0 else node_id

        return self._ask(found, "a controller")

    def recreate(self, topic: str) -> None:
        """Delete a topic and make it again, with the same partitions and settings."""

        async def again(client: Client) -> bool:
            cluster = await client.metadata([topic], refresh=True)
            partitions = cluster.partitions_of(topic)
            first = cluster.partition(partitions[0])
            resource = Resource(ResourceType.TOPIC, topic)
            configs = (await client.admin.describe_configs([resource]))[resource]
            copies = -1 if first is None else len(first.replicas)
            made = NewTopic(topic, len(partitions), copies, _own_settings(configs))
            await client.admin.delete_topics([topic])
            await _made_again(client, made)
            return True

        self._ask(again, f"{topic} to be made again")

    def grow(self, topic: str, partitions: int) -> None:
        async def grown(client: Client) -> bool:
            await client.admin.create_partitions({topic: partitions})
            return True

        self._ask(grown, f"{topic} to grow")

    def purge(self, topic: str, keep: int) -> None:
        """Delete all records of a topic but the last few of each partition."""

        async def purged(client: Client) -> bool:
            cluster = await client.metadata([topic], refresh=True)
            ends = await client.list_offsets(dict.fromkeys(cluster.partitions_of(topic), LATEST))
            before = {tp: max(0, end.offset - keep) for tp, end in ends.items()}
            await client.admin.delete_records(before)
            return True

        self._ask(purged, f"the records of {topic} to be deleted")

    def _ask(self, question: Callable[[Client], Awaitable[_Result | None]], what: str) -> _Result:
        """The answer, once there is one."""

        async def asked() -> _Result:
            async with asyncio.timeout(PATIENCE_S), Client(self._properties) as client:
                while True:
                    answer = await question(client)
                    if answer is not None:
                        return answer
                    await asyncio.sleep(_PAUSE_S)

        try:
            return asyncio.run(asked())
        except TimeoutError as error:
            raise SystemFailure(f"waited {PATIENCE_S:.0f} s for {what}") from error


async def _made_again(client: Client, topic: NewTopic) -> None:
    """Brokers take their time to forget a topic, and refuse its name until they have."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            await client.admin.create_topics([topic])
        except ClientError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(_PAUSE_S)
        else:
            return


def _own_settings(configs: Mapping[str, ConfigEntry]) -> dict[str, str]:
    return {
        name: entry.value
        for name, entry in configs.items()
        if not entry.is_default and entry.value is not None
    }


class RunWorkers:
    """The producers and consumers of a run."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._epochs: dict[str, int] = {}

    def kill(self, name: str) -> None:
        self._epochs[name] = self._supervisor.state().workers[name].epoch
        self._supervisor.kill(name)

    def wait_until_back(self, name: str) -> None:
        before = self._epochs[name]
        is_back = self._supervisor.wait(
            lambda state: (
                state.workers[name].phase is Phase.ENDED
                or (
                    state.workers[name].phase is Phase.RUNNING
                    and state.workers[name].epoch > before
                )
            ),
            BACK_PATIENCE_S,
        )
        if not is_back:
            raise SystemFailure(f"{name} did not come back within {BACK_PATIENCE_S:.0f} s")
