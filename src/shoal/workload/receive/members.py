"""A consumer that is a member of a group: what it reads changes while it runs.

Rules:
- An offset is committed only when all receipts below it are sealed. So whoever reads on behind
  a member that was killed reads again what it may not have recorded: re-reads, never a gap.
- Before a partition is given up, what was received of it is sealed and committed.
- A first offset is committed as soon as it is set: a member that dies before it has received
  anything must not make the next one begin elsewhere.
- The number of an assignment grows with the group's generation, which the coordinator counts
  for all members: so assignments of one partition are in order, whoever had it.
- A commit that is refused, or that nobody answers, costs nothing but re-reads.
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
class Owner:
    """What a member calls: the consumer that it reads for."""

    receive: Receive
    # A position was set: partition, number of the assignment, and whether the group began there.
    assigned: Callable[[TopicPartition, int, bool], None]
    given_up: Callable[[Partitions], None]
    # Everything received so far is sealed when it returns.
    seal: Callable[[], Awaitable[None]]


class GroupReader:
    """Reads whatever the group gives it, until it is cancelled."""

    def __init__(self, spec: ConsumerSpec, client: Client, logs: LogReader, owner: Owner) -> None:
        self._spec = spec
        self._client = client
        self._logs = logs
        self._owner = owner
        self._sealed: Positions = {}
        self._numbers: dict[TopicPartition, int] = {}
        # Behind what was received of the partitions that it had last.
        self.positions: Positions = {}

    async def run(self) -> None:
        consumer = GroupConsumer(
            self._client,
            self._spec.recorded_names(),
            on_assigned=self._assigned,
            on_revoked=self._revoked,
            on_lost=self._lost,
            on_reset=self._reset,
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
                    _log.warning("group %s: %s", self._spec.group, error)
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
                    self._owner.receive(found, received_us)
                await self._commit_sealed()

    def sealed(self, positions: Mapping[TopicPartition, int]) -> None:
        """All receipts below these positions are sealed."""
        self._sealed = dict(positions)

    async def _commit_sealed(self) -> None:
        sealed, self._sealed = self._sealed, {}
        await self._commit({tp: at for tp, at in sealed.items() if tp in self.positions})

    async def _commit(self, positions: Positions) -> None:
        try:
            await self._consumer.commit(positions)
        except ClientError as error:
            _log.warning("group %s could not commit: %s", self._spec.group, error)

    async def _assigned(self, partitions: Partitions) -> None:
        if not partitions:
            return
        known = self._consumer.positions
        unknown = [tp for tp in partitions if tp not in known]
        firsts = await self._firsts(unknown)
        for tp, offset in firsts.items():
            self._consumer.seek(tp, offset)
        generation = self._consumer.member.generation_id
        for tp in sorted(partitions):
            self._logs.positions[tp] = firsts.get(tp, known.get(tp, -1))
            self._numbers[tp] = generation * _ASSIGNMENTS_PER_GENERATION
            self._owner.assigned(tp, self._numbers[tp], tp in firsts)
        self.positions = self._consumer.positions
        await self._owner.seal()
        await self._commit(firsts)

    async def _firsts(self, partitions: list[TopicPartition]) -> Positions:
        """Where to begin if the group has committed nothing; a partition may be new."""
        told = {start.log: start.offset for start in self._spec.partitions}
        new = {tp: EARLIEST for tp in partitions if tp not in told}
        listed = await self._client.list_offsets(new) if new else {}
        return {tp: listed[tp].offset if tp in listed else told[tp] for tp in partitions}

    def _reset(self, tp: TopicPartition, offset: int) -> None:
        _log.warning("%s: the log does not hold the position; reading goes on at %d", tp, offset)
        self._logs.positions[tp] = offset
        self._numbers[tp] += 1
        self._owner.assigned(tp, self._numbers[tp], False)

    async def _revoked(self, partitions: Partitions) -> None:
        self.positions = self._consumer.positions
        await self._owner.seal()
        await self._commit({tp: at for tp, at in self.positions.items() if tp in partitions})
        self._owner.given_up(partitions)

    def _lost(self, partitions: Partitions) -> None:
        self._sealed = {}
        self._owner.given_up(partitions)
