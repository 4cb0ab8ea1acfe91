"""A consumer that is a member of a group.

    async with Client({"bootstrap.servers": …, "group.id": "g"}) as client:
        async with GroupConsumer(client, ["topic"]) as consumer:
            for item in await consumer.poll_records():
                …
            await consumer.commit()

Rules of this file:
- Rebalances happen inside `poll`, so callbacks never interrupt the owner. Partitions are *revoked*
  before another member gets them, and their offsets can still be committed; *lost* partitions may
  already belong to another member, and committing them fails.
- Eager assignors revoke everything before each rebalance; if all are cooperative, members keep
  their partitions, and only those that move are revoked.
- A partition starts at the group's committed offset, otherwise at `auto.offset.reset`; with none,
  which is the default, that is an error.
- `commit` commits the positions after the records that polls returned. There is no auto-commit.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

from shoal.client.cluster.replica_choice import ReplicaSelector
from shoal.client.cluster.router import Core
from shoal.client.codes import Code
from shoal.client.consume.consumer import FetchedRecord, RawBatch, RawConsumer, records_of
from shoal.client.errors import ClientError, KafkaError, error_for
from shoal.client.groups.group_offsets import (
    GroupMember,
    OffsetCommit,
    commit_offsets,
    fetch_committed_offsets,
)
from shoal.client.groups.membership import Membership
from shoal.client.groups.protocol import Subscription
from shoal.client.results import EARLIEST, LATEST
from shoal.model.errors import UsageError
from shoal.model.topics import TopicPartition
from shoal.runtime.context_managers import ClosesOnExit
from shoal.runtime.tasks import run_awaited

Partitions = frozenset[TopicPartition]
Callback = Callable[[Partitions], Awaitable[None] | None]

_RESETS: Final = {"earliest": EARLIEST, "latest": LATEST}
_DEFAULT_POLL_MS: Final = 1_000


class GroupConsumer(ClosesOnExit):
    """A member of the group `group.id`; call it from one task only."""

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
        """Callbacks may be coroutines. Without `on_lost`, `on_revoked` is called for losses too.

        `on_reset` gets the new position when `auto.offset.reset` was applied. With `broker_id`,
        partitions are read from that broker if it has a replica, otherwise from their leaders.
        """
        self._core = core
        if isinstance(topics, str):
            raise UsageError("topics must be a list of names, not one name")
        self._topics = frozenset(topics)
        self._membership = Membership(core)
        self._replicas = ReplicaSelector(
            broker_id=broker_id,
            rack=core.config.client_rack,
            max_age_s=core.config.metadata_max_age_ms / 1000,
        )
        self._on_reset = on_reset
        self._consumer = self._make_consumer({})
        self._assigned: Partitions = frozenset()
        # After the last records that were returned.
        self._positions: dict[TopicPartition, int] = {}
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._on_lost = on_lost or on_revoked

    # State

    @property
    def assignment(self) -> Partitions:
        return self._assigned

    @property
    def member(self) -> GroupMember:
        """The current member id and generation, for transactions that commit its offsets."""
        return self._membership.member

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """The next offset of each partition, after the records that were returned."""
        return dict(self._positions)

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """Continue from this offset."""
        self._consumer.seek(tp, offset)
        self._positions[tp] = offset

    # Reading

    async def poll_batches(self, timeout_ms: int = _DEFAULT_POLL_MS) -> list[RawBatch]:
        """Whole batches, not decoded; the first one may begin before the position."""
        deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
        while True:
            self._membership.on_poll()
            if self._membership.needs_join.is_set():
                try:
                    await self._rebalance()
                except BaseException:
                    # The rebalance is not complete: the next poll starts it again.
                    self._membership.needs_join.set()
                    raise
            left_s = deadline - asyncio.get_running_loop().time()
            batches = await self._read(max(0.0, left_s))
            if batches or left_s <= 0:
                return batches

    async def poll_records(self, timeout_ms: int = _DEFAULT_POLL_MS) -> list[FetchedRecord]:
        return records_of(await self.poll_batches(timeout_ms))

    async def _read(self, timeout_s: float) -> list[RawBatch]:
        """Batches; empty when the time is over or the group rebalances."""
        reading = run_awaited("poll", self._consumer.poll(round(timeout_s * 1000)))
        waking = run_awaited("wait for a rebalance", self._membership.needs_join.wait())
        try:
            await asyncio.wait({reading, waking}, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                return []
            batches = reading.result()
        finally:
            # Batches that a cancelled poll has not returned are returned by the next one.
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
        """Commit these offsets, by default the positions after all returned records."""
        chosen = self._positions if offsets is None else offsets
        if not chosen:
            return
        coordinator = self._membership.coordinator
        group_id, member = self._core.config.group_id, self._membership.member
        if not member.member_id:
            # Without a member id the coordinator would take it for a consumer that assigns itself,
            # and store the offsets of partitions that this one has lost.
            raise error_for(
                Code.UNKNOWN_MEMBER_ID,
                message=f"this consumer is not a member of group {group_id}; poll to join it",
            )
        try:
            await commit_offsets(coordinator, group_id, chosen, member=member)
        except KafkaError as error:
            self._membership.on_commit_refused(error)
            raise

    async def fetch_committed(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetCommit]:
        """The committed offsets of the group; partitions without one are not included."""
        chosen = self._assigned if partitions is None else partitions
        coordinator = self._membership.coordinator
        return await fetch_committed_offsets(coordinator, self._core.config.group_id, chosen)

    # Rebalancing

    async def _rebalance(self) -> None:
        membership = self._membership
        if membership.is_lost:
            await self._lose()
        elif not membership.is_cooperative:
            await self._revoke(self._assigned)
        joined = await membership.join(
            Subscription(self._topics, self._assigned, membership.member.generation_id)
        )
        if membership.is_lost:
            # The coordinator removed this member meanwhile, so its partitions are lost.
            membership.is_lost = False
            await self._lose()
        await self._revoke(self._assigned - joined.partitions, joins_again=True)
        await self._take(joined.partitions - self._assigned)

    async def _lose(self) -> None:
        self._membership.is_lost = False
        lost = self._assigned
        await self._drop(lost)
        if lost:
            await _call(self._on_lost, lost)

    async def _revoke(self, partitions: Partitions, *, joins_again: bool = False) -> None:
        if not partitions:
            return
        await _call(self._on_revoked, partitions)
        await self._drop(partitions)
        if joins_again:
            # Other members get them only after this member has joined again without them.
            self._membership.needs_join.set()

    async def _take(self, partitions: Partitions) -> None:
        if partitions:
            starts = await self._starts(partitions)
            await self._read_from({**self._positions_of(self._assigned), **starts})
            self._assigned |= partitions
        await _call(self._on_assigned, partitions)

    async def _drop(self, partitions: Partitions) -> None:
        kept = self._assigned - partitions
        if partitions:
            await self._read_from(self._positions_of(kept))
        self._assigned = kept

    def _positions_of(self, partitions: Partitions) -> dict[TopicPartition, int]:
        positions = self._consumer.positions
        return {tp: self._positions.get(tp, positions[tp]) for tp in partitions}

    async def _read_from(self, positions: Mapping[TopicPartition, int]) -> None:
        await self._consumer.close()
        self._consumer = self._make_consumer(positions)
        self._positions = {tp: offset for tp, offset in positions.items() if offset >= 0}

    def _make_consumer(self, positions: Mapping[TopicPartition, int]) -> RawConsumer:
        return RawConsumer(
            self._core, positions, replica_selector=self._replicas, on_reset=self._on_reset
        )

    async def _starts(self, partitions: Partitions) -> dict[TopicPartition, int]:
        found = await self.fetch_committed(partitions)
        reset = _RESETS.get(self._core.config.auto_offset_reset)
        missing = sorted(partitions - found.keys())
        if missing and reset is None:
            raise ClientError(
                f"the group has no committed offset for {', '.join(map(str, missing))}",
                remedy="set auto.offset.reset=earliest or latest, or commit an offset first",
            )
        starts = {tp: commit.offset for tp, commit in found.items()}
        return starts | {tp: reset for tp in missing if reset is not None}

    # Closing

    async def close(self) -> None:
        """Revoke all partitions and leave; a static member stays until its session expires."""
        try:
            if self._assigned and not self._membership.is_lost:
                await _call(self._on_revoked, self._assigned)
        finally:
            await self._membership.close()
            await self._consumer.close()
            self._assigned = frozenset()


async def _call(callback: Callback | None, partitions: Partitions) -> None:
    if callback is None:
        return
    result = callback(partitions)
    if inspect.isawaitable(result):
        await result
