"""A broker's coordinators of one kind: one for each partition of the internal topic that it leads.

Rules of this file:
- The metadata decides: the leader of a partition coordinates the keys of that partition. A new
  leader loads it; a broker that no longer leads it resigns at once.
- The topic is created when a client first looks up a coordinator. The request waits for that only
  a moment: other requests of the same connection wait behind it, and without a controller the
  creation may take long. The client retries.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.base.configs import Layers
from shoal.lite.coordinator.loaded_shard import LoadedShard, Shard
from shoal.lite.coordinator.topics import InternalTopic, partition_of
from shoal.lite.metadata.data.records import NO_LEADER, BrokerRecord
from shoal.lite.metadata.data.requests import NewTopicSpec
from shoal.lite.metadata.data.state import ClusterState, Topic
from shoal.lite.partitions.replicas import Replicas
from shoal.model.topics import TopicPartition
from shoal.runtime.tasks import record_failure, run_awaited

ShardT = TypeVar("ShardT", bound=Shard)
# With an active controller, the creation takes a few milliseconds.
_CREATION_WAIT_S = 0.2
_logger = logging.getLogger(__name__)


class CoordinatorBroker(Protocol):
    """The part of a broker that a coordinator uses."""

    @property
    def state(self) -> ClusterState: ...
    @property
    def layers(self) -> Layers: ...
    @property
    def replicas(self) -> Replicas: ...
    async def create_topic(self, new_topic: NewTopicSpec) -> Topic: ...


class CoordinatorHost(Generic[ShardT]):
    """All coordinators of one kind on this broker.

    Call `apply_metadata` after each change of the metadata.
    """

    def __init__(
        self,
        broker: CoordinatorBroker,
        topic: InternalTopic,
        make_shard: Callable[[LoadedShard[ShardT]], ShardT],
    ) -> None:
        """`make_shard` creates the shard of a partition that this broker starts to lead."""
        self.topic = topic
        self._broker = broker
        self._make_shard = make_shard
        self._loaded: dict[int, LoadedShard[ShardT]] = {}
        self._creation: asyncio.Task[None] | None = None
        self._creation_deadline_s = 0.0

    # For requests

    def partition_for(self, key: str) -> int:
        """Return the partition that a group or a transactional id belongs to."""
        topic = self._broker.state.topics.get(self.topic.name)
        if topic is None:
            return partition_of(key, self._broker.layers.integer(self.topic.partitions_setting))
        return partition_of(key, len(topic.partitions))

    def shard_for(self, key: str) -> ShardT:
        """Return the shard that a key belongs to, if it is active here.

        Otherwise raise `ApiError`: NOT_COORDINATOR or COORDINATOR_LOAD_IN_PROGRESS.
        """
        return self.shard_at(self.partition_for(key))

    def shard_at(self, index: int) -> ShardT:
        """Return the active shard of a partition; else `ApiError`, as `shard_for`."""
        loaded = self._loaded.get(index)
        if loaded is None:
            raise ApiError(Code.NOT_COORDINATOR, "This is not the correct coordinator.")
        return loaded.shard

    def active_shards(self) -> list[ShardT]:
        """Return the shards that can handle requests now."""
        return [loaded.shard for _, loaded in sorted(self._loaded.items()) if loaded.is_active]

    def shards(self) -> list[ShardT]:
        """Return all shards, including those that are still loading."""
        return [
            shard for loaded in self._loaded.values() if (shard := loaded.shard_or_none) is not None
        ]

    @property
    def is_loading(self) -> bool:
        """Whether this broker leads partitions whose shards are still loading."""
        return any(not loaded.is_active for loaded in self._loaded.values())

    async def locate(self, key: str) -> BrokerRecord:
        """Return the broker that coordinates a key; create the topic if it is missing.

        Raise `ApiError` with COORDINATOR_NOT_AVAILABLE if no broker does now.
        """
        state = self._broker.state
        if self.topic.name not in state.topics:
            await self._create_soon()
            state = self._broker.state
        topic = state.topics.get(self.topic.name)
        record = topic and topic.partitions.get(self.partition_for(key))
        if not record or record.leader == NO_LEADER or record.leader not in state.brokers:
            raise _not_available(f"the partition of {self.topic.name} for {key!r} has no leader")
        return state.brokers[record.leader]

    async def _create_soon(self) -> None:
        """Create the topic and wait a moment; concurrent requests share one creation."""
        loop = asyncio.get_running_loop()
        if self._creation is None or self._creation.done():
            self._creation = run_awaited("creation of an internal topic", self.create_topic())
            self._creation.add_done_callback(_on_created)
            self._creation_deadline_s = loop.time() + _CREATION_WAIT_S
        creation = self._creation
        await asyncio.wait([creation], timeout=max(self._creation_deadline_s - loop.time(), 0))
        if not creation.done():
            raise _not_available(f"the topic {self.topic.name} is being created")
        creation.result()

    async def create_topic(self) -> None:
        """Create the topic if it is missing; `ApiError` COORDINATOR_NOT_AVAILABLE on failure."""
        layers = self._broker.layers
        factor = min(layers.integer(self.topic.factor_setting), len(self._broker.state.brokers))
        new_topic = NewTopicSpec(
            self.topic.name,
            layers.integer(self.topic.partitions_setting),
            factor,
            configs={
                "cleanup.policy": "compact",
                "compression.type": self.topic.compression,
                "segment.bytes": str(layers.integer(self.topic.segment_setting)),
            },
        )
        try:
            await self._broker.create_topic(new_topic)
        except ApiError as error:
            # If another broker created it first, the topic exists or is about to appear here.
            if error.code != Code.TOPIC_ALREADY_EXISTS:
                _logger.warning("cannot create the topic %s: %s", self.topic.name, error)
                raise _not_available(
                    f"cannot create the topic {self.topic.name}: {error}"
                ) from error

    # Applying the metadata

    def apply_metadata(self) -> None:
        """Load partitions that this broker started to lead; resign where it no longer leads."""
        topic = self._broker.state.topics.get(self.topic.name)
        indexes = () if topic is None else topic.partitions
        for index in {*indexes, *self._loaded}:
            partition = self._broker.replicas.partitions.get(TopicPartition(self.topic.name, index))
            role = None if partition is None else partition.replica.leader
            loaded = self._loaded.get(index)
            if loaded is not None and loaded.role is not role:
                del self._loaded[index]
                loaded.resign()
                loaded = None
            if loaded is None and partition is not None and role is not None:
                loaded = self._loaded[index] = LoadedShard(partition, role)
                loaded.load(self._make_shard(loaded))

    async def close(self) -> None:
        """Resign from all partitions; the broker is shutting down."""
        if self._creation is not None:
            self._creation.cancel()
            with suppress(asyncio.CancelledError, ApiError):
                await self._creation
        seats = list(self._loaded.values())
        self._loaded.clear()
        for loaded in seats:
            await loaded.close()


def _on_created(creation: "asyncio.Task[None]") -> None:
    """Consume the error: all waiting requests may be gone. An `ApiError` is already logged."""
    error = None if creation.cancelled() else creation.exception()
    if error is not None and not isinstance(error, ApiError):
        record_failure("creation of an internal topic", error, "the next request tries again")


def _not_available(message: str) -> ApiError:
    return ApiError(Code.COORDINATOR_NOT_AVAILABLE, message)
