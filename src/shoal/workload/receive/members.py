"""Reads as a member of a group: its partitions change while it runs.

Rules:
- An offset is committed only when all receipts below it are sealed. So the member that takes over
  from a killed one reads again what that may not have recorded: re-reads, never a gap.
- Before a partition is revoked, what was received from it is sealed and committed.
- The first offset of a partition is committed as soon as it is set: if a member dies before it has
  received anything, the next one must start at the same offset.
- The number of an assignment grows with the group's generation, which the coordinator counts for
  all members. So the assignments of one partition are in order across members.
- A commit that fails or gets no response only causes re-reads.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from shoal.client.client import Client
from shoal.client.errors import ClientError
from shoal.client.groups.group_consumer import GroupConsumer
from shoal.client.results import EARLIEST
from shoal.model.topics import TopicPartition
from shoal.workload.receive.fetcher import Receive
from shoal.workload.receive.reading import FoundBatch, LogReader
from shoal.workload.specs import ConsumerSpec

_log = logging.getLogger(__name__)

_POLL_MS = 250
_ASSIGNMENTS_PER_GENERATION = 1000

Positions = dict[TopicPartition, int]
Partitions = frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class ReaderCallbacks:
    """The callbacks of a `GroupReader` into its consumer."""

    receive: Receive
    # A position was set: partition, number of the assignment, and whether the group starts there.
    on_assigned: Callable[[TopicPartition, int, bool], None]
    on_released: Callable[[Partitions], None]
    # Seals everything received so far.
    seal: Callable[[], Awaitable[None]]


class GroupReader:
    """Reads the partitions that the group assigns, until it is cancelled."""

    def __init__(
        self, spec: ConsumerSpec, client: Client, logs: LogReader, callbacks: ReaderCallbacks
    ) -> None:
        self._spec = spec
        self._client = client
        self._logs = logs
        self._callbacks = callbacks
        self._sealed: Positions = {}
        self._numbers: dict[TopicPartition, int] = {}
        # The offsets after what was received, of the partitions that it last had.
        self.positions: Positions = {}

    async def run(self) -> None:
        consumer = GroupConsumer(
            self._client,
            self._spec.producer_topic_names(),
            on_assigned=self._on_assigned,
            on_revoked=self._on_revoked,
            on_lost=self._on_lost,
            on_reset=self._on_reset,
            broker_id=self._spec.broker_id,
        )
        self._consumer = consumer
        async with consumer:
            while True:
                try:
                    batches = await consumer.poll_batches(_POLL_MS)
                except ClientError as error:
                    if not error.retriable:
                        raise
                    _log.warning("poll of group %s failed, retrying: %s", self._spec.group, error)
                    await asyncio.sleep(_POLL_MS / 1000)
                    continue
                received_us = time.time_ns() // 1000
                self.positions = consumer.positions
                if batches:
                    found = [
                        FoundBatch(
                            self._logs.index_of(TopicPartition(item.topic, item.partition)),
                            item.value,
                            item.position,
                        )
                        for item in batches
                    ]
                    self._callbacks.receive(found, received_us)
                await self._commit_sealed()

    def mark_sealed(self, positions: Mapping[TopicPartition, int]) -> None:
        """Note that all receipts below these positions are sealed."""
        self._sealed = dict(positions)

    async def _commit_sealed(self) -> None:
        sealed, self._sealed = self._sealed, {}
        await self._commit({tp: at for tp, at in sealed.items() if tp in self.positions})

    async def _commit(self, positions: Positions) -> None:
        try:
            await self._consumer.commit(positions)
        except ClientError as error:
            _log.warning("commit of group %s failed: %s", self._spec.group, error)

    async def _on_assigned(self, partitions: Partitions) -> None:
        if not partitions:
            return
        known = self._consumer.positions
        unknown = [tp for tp in partitions if tp not in known]
        first_offsets = await self._first_offsets(unknown)
        for tp, offset in first_offsets.items():
            self._consumer.seek(tp, offset)
        generation = self._consumer.member.generation_id
        for tp in sorted(partitions):
            self._logs.positions[tp] = first_offsets.get(tp, known.get(tp, -1))
            self._numbers[tp] = generation * _ASSIGNMENTS_PER_GENERATION
            self._callbacks.on_assigned(tp, self._numbers[tp], tp in first_offsets)
        self.positions = self._consumer.positions
        await self._callbacks.seal()
        await self._commit(first_offsets)

    async def _first_offsets(self, partitions: list[TopicPartition]) -> Positions:
        """The first offsets of partitions without a committed offset; a partition may be new."""
        configured = {start.log: start.offset for start in self._spec.partitions}
        new = {tp: EARLIEST for tp in partitions if tp not in configured}
        listed = await self._client.list_offsets(new) if new else {}
        return {tp: listed[tp].offset if tp in listed else configured[tp] for tp in partitions}

    def _on_reset(self, tp: TopicPartition, offset: int) -> None:
        _log.warning("%s: the position is outside the log; continuing at %d", tp, offset)
        self._logs.positions[tp] = offset
        self._numbers[tp] += 1
        self._callbacks.on_assigned(tp, self._numbers[tp], False)

    async def _on_revoked(self, partitions: Partitions) -> None:
        self.positions = self._consumer.positions
        await self._callbacks.seal()
        await self._commit({tp: at for tp, at in self.positions.items() if tp in partitions})
        self._callbacks.on_released(partitions)

    def _on_lost(self, partitions: Partitions) -> None:
        self._sealed = {}
        self._callbacks.on_released(partitions)
