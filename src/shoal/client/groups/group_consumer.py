"""Reading topics as a member of a group, which shares their partitions.

    async with Client({"bootstrap.servers": …, "group.id": "g"}) as client:
        async with GroupConsumer(client, ["topic"]) as consumer:
            for item in await consumer.poll_records():
                …
            await consumer.commit()

Rules of this file:
- Rebalances happen inside `poll`, so callbacks never interrupt the owner. What is given up is
  told before others can have it, and may be committed then; what is *lost* others may have
  already, and committing it fails.
- Eager assignors give everything up before each rebalance; if all are cooperative, members keep
  what they have, and only what moves is given up.
- A partition begins at the group's committed offset, else where `auto.offset.reset` says; with
  none, which is the default, that is an error.
- `commit` commits behind what polls have handed out. Nothing is committed by itself.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import TracebackType
from typing import Final, Self

from shoal.client.cluster.replica_choice import ReadPlaces
from shoal.client.cluster.router import Core
from shoal.client.consume.consumer import ConsumerRecord, RawBatch, RawConsumer, records_of
from shoal.client.errors import ClientError, KafkaError
from shoal.client.groups.group_offsets import (
    GroupMember,
    OffsetCommit,
    commit_offsets,
    committed_offsets,
)
from shoal.client.groups.membership import Membership
from shoal.client.groups.protocol import Subscription
from shoal.client.results import EARLIEST, LATEST
from shoal.model.errors import UsageError
from shoal.model.topics import TopicPartition
from shoal.runtime.tasks import run_awaited

Partitions = frozenset[TopicPartition]
Callback = Callable[[Partitions], Awaitable[None] | None]

_RESETS: Final = {"earliest": EARLIEST, "latest": LATEST}
_DEFAULT_POLL_MS: Final = 1_000


class GroupConsumer:
    """A member of the group `group.id`; all calls from one task."""

    def __init__(
        self,
        core: Core,
        topics: Iterable[str],
        *,
        on_assigned: Callback | None = None,
        on_revoked: Callback | None = None,
        on_lost: Callback | None = None,
        on_reset: Callable[[TopicPartition, int], None] | None = None,
        broker_id: int | None = None,
    ) -> None:
        """Callbacks may be coroutines. Without `on_lost`, `on_revoked` is told of losses too.

        `on_reset` is told where reading goes on when the log does not hold a position. Read
        from the broker `broker_id` where it has a replica, else from leaders.
        """
        self._core = core
        if isinstance(topics, str):
            raise UsageError("topics must be a list of names, not one name")
        self._topics = frozenset(topics)
        self._membership = Membership(core)
        self._places = ReadPlaces(
            broker_id=broker_id,
            rack=core.config.client_rack,
            max_age_s=core.config.metadata_max_age_ms / 1000,
        )
        self._on_reset = on_reset
        self._consumer = self._make_consumer({})
        self._assigned: Partitions = frozenset()
        # Behind what was handed out.
        self._positions: dict[TopicPartition, int] = {}
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._on_lost = on_lost or on_revoked

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    # What is so

    @property
    def assignment(self) -> Partitions:
        return self._assigned

    @property
    def member(self) -> GroupMember:
        """Who this member is now, for transactions that commit its offsets."""
        return self._membership.member

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """The next offset of each partition, behind what was handed out."""
        return dict(self._positions)

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """Go on from this offset."""
        self._consumer.seek(tp, offset)
        self._positions[tp] = offset

    # Reading

    async def poll_batches(self, timeout_ms: int = _DEFAULT_POLL_MS) -> list[RawBatch]:
        """Whole batches, unread; a first one may begin before the position."""
        deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
        while True:
            self._membership.polled()
            if self._membership.needs_join.is_set():
                try:
                    await self._rebalance()
                except BaseException:
                    # Half way is nowhere: the next poll begins again.
                    self._membership.needs_join.set()
                    raise
            left_s = deadline - asyncio.get_running_loop().time()
            batches = await self._read(max(0.0, left_s))
            if batches or left_s <= 0:
                return batches

    async def poll_records(self, timeout_ms: int = _DEFAULT_POLL_MS) -> list[ConsumerRecord]:
        return records_of(await self.poll_batches(timeout_ms))

    async def _read(self, patience_s: float) -> list[RawBatch]:
        """Batches, or none when the time is over or the group rebalances."""
        reading = run_awaited("poll", self._consumer.poll(round(patience_s * 1000)))
        waking = run_awaited("wait for a rebalance", self._membership.needs_join.wait())
        try:
            await asyncio.wait({reading, waking}, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                return []
            batches = reading.result()
        finally:
            # What a poll has not returned it hands out next time.
            for task in (reading, waking):
                task.cancel()
            await asyncio.gather(reading, waking, return_exceptions=True)
        self._positions.update(
            (tp, offset) for tp, offset in self._consumer.positions.items() if offset >= 0
        )
        return batches

    # Committing

    async def commit(
        self, offsets: Mapping[TopicPartition, OffsetCommit | int] | None = None
    ) -> None:
        """Commit these offsets, or behind everything that was handed out."""
        chosen = self._positions if offsets is None else offsets
        if not chosen:
            return
        coordinator = self._membership.coordinator
        group_id, member = self._core.config.group_id, self._membership.member
        try:
            await commit_offsets(coordinator, group_id, chosen, member=member)
        except KafkaError as error:
            self._membership.refused_commit(error)
            raise

    async def committed(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetCommit]:
        """What the group has committed; partitions without a commit are left out."""
        chosen = self._assigned if partitions is None else partitions
        coordinator = self._membership.coordinator
        return await committed_offsets(coordinator, self._core.config.group_id, chosen)

    # Rebalancing

    async def _rebalance(self) -> None:
        membership = self._membership
        if membership.is_lost:
            await self._lose()
        elif not membership.is_cooperative:
            await self._give_up(self._assigned)
        joined = await membership.join(
            Subscription(self._topics, self._assigned, membership.member.generation_id)
        )
        if membership.is_lost:
            # On the way it was forgotten: what it had is not its own any more.
            membership.is_lost = False
            await self._lose()
        await self._give_up(self._assigned - joined.partitions, joins_again=True)
        await self._take(joined.partitions - self._assigned)

    async def _lose(self) -> None:
        self._membership.is_lost = False
        lost = self._assigned
        await self._drop(lost)
        if lost:
            await _called(self._on_lost, lost)

    async def _give_up(self, partitions: Partitions, *, joins_again: bool = False) -> None:
        if not partitions:
            return
        await _called(self._on_revoked, partitions)
        await self._drop(partitions)
        if joins_again:
            # They can be given to others only when we have said that they are free.
            self._membership.needs_join.set()

    async def _take(self, partitions: Partitions) -> None:
        if partitions:
            starts = await self._starts(partitions)
            await self._read_from({**self._kept(self._assigned), **starts})
            self._assigned |= partitions
        await _called(self._on_assigned, partitions)

    async def _drop(self, partitions: Partitions) -> None:
        kept = self._assigned - partitions
        if partitions:
            await self._read_from(self._kept(kept))
        self._assigned = kept

    def _kept(self, partitions: Partitions) -> dict[TopicPartition, int]:
        positions = self._consumer.positions
        return {tp: self._positions.get(tp, positions[tp]) for tp in partitions}

    async def _read_from(self, positions: Mapping[TopicPartition, int]) -> None:
        await self._consumer.close()
        self._consumer = self._make_consumer(positions)
        self._positions = {tp: offset for tp, offset in positions.items() if offset >= 0}

    def _make_consumer(self, positions: Mapping[TopicPartition, int]) -> RawConsumer:
        return RawConsumer(self._core, positions, places=self._places, on_reset=self._on_reset)

    async def _starts(self, partitions: Partitions) -> dict[TopicPartition, int]:
        found = await self.committed(partitions)
        reset = _RESETS.get(self._core.config.auto_offset_reset)
        missing = sorted(partitions - found.keys())
        if missing and reset is None:
            raise ClientError(
                f"the group has committed nothing for {', '.join(map(str, missing))}",
                remedy="set auto.offset.reset=earliest or latest, or commit a first offset",
            )
        starts = {tp: commit.offset for tp, commit in found.items()}
        return starts | {tp: reset for tp in missing if reset is not None}

    # The end

    async def close(self) -> None:
        """Give everything up and leave; a static member keeps its place for its successor."""
        try:
            if self._assigned and not self._membership.is_lost:
                await _called(self._on_revoked, self._assigned)
        finally:
            await self._membership.close()
            await self._consumer.close()
            self._assigned = frozenset()


async def _called(callback: Callback | None, partitions: Partitions) -> None:
    if callback is None:
        return
    result = callback(partitions)
    if inspect.isawaitable(result):
        await result
