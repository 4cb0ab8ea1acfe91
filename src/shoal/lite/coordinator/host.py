"""A broker's coordinators of one kind: a seat for each partition of the topic that it leads.

Rules of this file:
- The metadata decides: who leads a partition coordinates what belongs to it. A new leader loads
  it; one that leads no more lets go of it at once.
- The topic is made when someone first asks where a coordinator is. Whoever asks waits for that
  only a moment: other requests of the same connection wait behind, and without a controller it
  may take long. The client asks again.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

from shoal.lite.base.codes import Code, Refused
from shoal.lite.base.configs import Layers
from shoal.lite.coordinator.loaded_shard import Seat, Shard
from shoal.lite.coordinator.topics import InternalTopic, partition_of
from shoal.lite.metadata.data.records import NO_LEADER, BrokerRecord
from shoal.lite.metadata.data.requests import NewTopic
from shoal.lite.metadata.data.state import ClusterState, Topic
from shoal.lite.partitions.replicas import Replicas
from shoal.model.topics import TopicPartition
from shoal.runtime.tasks import record_failure, run_awaited

ShardT = TypeVar("ShardT", bound=Shard)
# Making a topic takes a few milliseconds if there is a controller.
_CREATION_PATIENCE_S = 0.2
_logger = logging.getLogger(__name__)


class Home(Protocol):
    """What a coordinator needs of its broker."""

    @property
    def state(self) -> ClusterState: ...
    @property
    def layers(self) -> Layers: ...
    @property
    def replicas(self) -> Replicas: ...
    async def create_topic(self, wish: NewTopic) -> Topic: ...


class CoordinatorHost(Generic[ShardT]):
    """All coordinators of one kind on this broker; `follow` after each change of the metadata."""

    def __init__(
        self, home: Home, topic: InternalTopic, make: Callable[[Seat[ShardT]], ShardT]
    ) -> None:
        """`make` gives the shard for a partition that is led here from now on."""
        self.topic = topic
        self._home = home
        self._make = make
        self._seats: dict[int, Seat[ShardT]] = {}
        self._creation: asyncio.Task[None] | None = None
        self._patience_ends_s = 0.0

    # For requests

    def partition_for(self, key: str) -> int:
        """The partition that a group or a transactional id belongs to."""
        topic = self._home.state.topics.get(self.topic.name)
        if topic is None:
            return partition_of(key, self._home.layers.integer(self.topic.partitions_setting))
        return partition_of(key, len(topic.partitions))

    def shard_for(self, key: str) -> ShardT:
        """The shard that a key belongs to, if it is active here.

        Else `Refused`: NOT_COORDINATOR or COORDINATOR_LOAD_IN_PROGRESS.
        """
        return self.shard_at(self.partition_for(key))

    def shard_at(self, index: int) -> ShardT:
        """The shard of a partition, if it is active here; else `Refused`, as `shard_for`."""
        seat = self._seats.get(index)
        if seat is None:
            raise Refused(Code.NOT_COORDINATOR, "This is not the correct coordinator.")
        return seat.shard

    def active_shards(self) -> list[ShardT]:
        """All that requests can be sent to now."""
        return [seat.shard for _, seat in sorted(self._seats.items()) if seat.is_active]

    def shards(self) -> list[ShardT]:
        """All shards, also those that are being loaded."""
        return [shard for seat in self._seats.values() if (shard := seat.shard_or_none) is not None]

    @property
    def is_loading(self) -> bool:
        """Whether this broker leads partitions whose shards cannot be asked yet."""
        return any(not seat.is_active for seat in self._seats.values())

    async def locate(self, key: str) -> BrokerRecord:
        """The broker that coordinates a key; makes the topic if it is missing.

        `Refused` with COORDINATOR_NOT_AVAILABLE if there is none now.
        """
        state = self._home.state
        if self.topic.name not in state.topics:
            await self._create_soon()
            state = self._home.state
        topic = state.topics.get(self.topic.name)
        record = topic and topic.partitions.get(self.partition_for(key))
        if not record or record.leader == NO_LEADER or record.leader not in state.brokers:
            raise _not_available(f"nobody leads the partition of {self.topic.name} for {key!r}")
        return state.brokers[record.leader]

    async def _create_soon(self) -> None:
        """Make the topic; waits a moment for it, together with whoever else asks."""
        loop = asyncio.get_running_loop()
        if self._creation is None or self._creation.done():
            self._creation = run_awaited("creation of an internal topic", self.create_topic())
            self._creation.add_done_callback(_on_created)
            self._patience_ends_s = loop.time() + _CREATION_PATIENCE_S
        creation = self._creation
        await asyncio.wait([creation], timeout=max(self._patience_ends_s - loop.time(), 0))
        if not creation.done():
            raise _not_available(f"{self.topic.name} is being made")
        creation.result()

    async def create_topic(self) -> None:
        """Make the topic, unless it is there; `Refused` with COORDINATOR_NOT_AVAILABLE if not."""
        layers = self._home.layers
        factor = min(layers.integer(self.topic.factor_setting), len(self._home.state.brokers))
        wish = NewTopic(
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
            await self._home.create_topic(wish)
        except Refused as refused:
            # If another broker was faster, the topic is there or will be in a moment.
            if refused.code != Code.TOPIC_ALREADY_EXISTS:
                _logger.warning("%s cannot be made: %s", self.topic.name, refused)
                raise _not_available(f"{self.topic.name} cannot be made: {refused}") from refused

    # Following the metadata

    def follow(self) -> None:
        """Take a seat where this broker has begun to lead, give it up where it leads no more."""
        topic = self._home.state.topics.get(self.topic.name)
        indexes = () if topic is None else topic.partitions
        for index in {*indexes, *self._seats}:
            partition = self._home.replicas.partitions.get(TopicPartition(self.topic.name, index))
            role = None if partition is None else partition.replica.leader
            seat = self._seats.get(index)
            if seat is not None and seat.role is not role:
                del self._seats[index]
                seat.resign()
                seat = None
            if seat is None and partition is not None and role is not None:
                seat = self._seats[index] = Seat(partition, role)
                seat.load(self._make(seat))

    async def close(self) -> None:
        """Give up everything; the broker ends."""
        if self._creation is not None:
            self._creation.cancel()
            with suppress(asyncio.CancelledError, Refused):
                await self._creation
        seats = list(self._seats.values())
        self._seats.clear()
        for seat in seats:
            await seat.close()


def _on_created(creation: "asyncio.Task[None]") -> None:
    """Take the error: those who asked may all be gone. A refusal was logged where it came from."""
    error = None if creation.cancelled() else creation.exception()
    if error is not None and not isinstance(error, Refused):
        record_failure("creation of an internal topic", error, "the next request tries again")


def _not_available(message: str) -> Refused:
    return Refused(Code.COORDINATOR_NOT_AVAILABLE, message)
