"""The groups of one partition of `__consumer_offsets`, on the broker that leads it.

The thin shell around `Groups` and `OffsetBook`: what the machine wants written and answered is
done here. Offsets change by what is committed in the log only; a request that changes them is
judged and written in one step, so the log has the order in which requests were judged.

Offsets are also removed without a request: when they expire, and when their topic is deleted. Such
a removal is written only while the log has nothing newer for the key, nor is about to: it must not
follow a commit that it knows nothing of.
"""

import asyncio
import logging
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from shoal.lite.base.codes import Code, Refused
from shoal.lite.coordinator.groups.group import Group, State
from shoal.lite.coordinator.groups.machine import Groups
from shoal.lite.coordinator.groups.messages import (
    Action,
    Answer,
    Identity,
    Join,
    JoinAnswer,
    Leaving,
    Moment,
    Store,
    Sync,
    SyncAnswer,
)
from shoal.lite.coordinator.groups.offsets import OffsetBook
from shoal.lite.coordinator.groups.records import (
    CommittedOffset,
    OffsetKey,
    StoredGroup,
    encode_group,
    encode_group_key,
    encode_offset,
    encode_offset_key,
)
from shoal.lite.coordinator.groups.settings import group_settings, offsets_retention_ms
from shoal.lite.coordinator.host import Home
from shoal.lite.coordinator.loaded_shard import NewRecord, Seat
from shoal.lite.partitions.guards import Guard
from shoal.lite.partitions.partition import monotonic_ms
from shoal.lite.storage.header import BatchHeader
from shoal.runtime.tasks import RepeatingCall, call_every, log_only, run_once
from shoal.wire.errors import WireError
from shoal.wire.records.records import Record

# How many removals go into one batch.
_REMOVED_AT_ONCE = 1000
_logger = logging.getLogger(__name__)


class GroupShard:
    """A `Shard` of the group coordinator."""

    def __init__(self, home: Home, seat: "Seat[GroupShard]") -> None:
        self._home = home
        self._seat = seat
        self._loop = asyncio.get_running_loop()
        self.book = OffsetBook(self._topic_id_of)
        self._groups = Groups(
            group_settings(home.layers),
            new_id=lambda: str(uuid.uuid4()),
            has_offsets=self.book.has,
        )
        self._stored: dict[str, StoredGroup] = {}
        self._is_active = False
        self._waiting: set[asyncio.Future[Any]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._expiry_timer: RepeatingCall | None = None
        # Offsets that are written and not committed in the log yet; those of transactions apart.
        self._committing: Counter[OffsetKey] = Counter()
        self._unsettled: Counter[OffsetKey] = Counter()
        # Topics that were deleted while this shard is being loaded.
        self._deleted_topics: set[str] = set()

    # As a shard

    def replay(self, header: BatchHeader, records: Sequence[Record]) -> None:
        try:
            replayed = self.book.replay(header, records)
        except WireError:
            _logger.exception("the records from %d on cannot be read", header.base_offset)
            return
        if self._is_active:
            # The machine knows its groups better than the log does.
            for group in replayed.offsets_of:
                self._groups.on_offsets_changed(_now(), group)
            # A topic may be deleted while offsets of it are on their way.
            self._clean([key for key in replayed.offsets if self.book.is_stale(key)])
            return
        for group, stored in replayed.groups.items():
            if stored is None:
                self._stored.pop(group, None)
            else:
                self._stored[group] = stored

    def start(self) -> None:
        self._is_active = True
        now = _now()
        self._groups.load(now, self._stored)
        self._stored.clear()
        for group in self.book.groups():
            self._groups.on_offsets_changed(now, group)
        self._settle()
        self._expiry_timer = call_every("offset expiry", self._expiry_pause_s, self._expire)
        self.forget_topics(())

    def stop(self) -> None:
        self._is_active = False
        for timer in (self._timer, self._expiry_timer):
            if timer is not None:
                timer.cancel()
        for future in list(self._waiting):
            if not future.done():
                message = "This is not the correct coordinator."
                future.set_exception(Refused(Code.NOT_COORDINATOR, message))

    # Membership

    async def join(self, request: Join) -> JoinAnswer:
        self._groups.settings = group_settings(self._home.layers)
        answer: JoinAnswer = await self._wait(
            lambda token: self._groups.join(_now(), request, token)
        )
        return answer

    async def sync(self, request: Sync) -> SyncAnswer:
        answer: SyncAnswer = await self._wait(
            lambda token: self._groups.sync(_now(), request, token)
        )
        return answer

    def heartbeat(self, group: str, identity: Identity) -> Code:
        return self._groups.heartbeat(_now(), group, identity)

    def leave(self, group: str, leaving: Iterable[Leaving]) -> list[Code]:
        codes = self._groups.leave(_now(), group, leaving)
        self._settle()
        return codes

    async def _wait(self, ask: Callable[["asyncio.Future[Any]"], None]) -> Any:
        token = self._loop.create_future()
        self._waiting.add(token)
        token.add_done_callback(self._waiting.discard)
        ask(token)
        self._settle()
        return await token

    # Groups

    def group(self, group_id: str) -> Group | None:
        return self._groups.groups.get(group_id)

    def groups(self) -> Collection[Group]:
        return self._groups.groups.values()

    async def delete(self, group_id: str) -> None:
        """Remove a group and all its offsets; `Refused` if it has members."""
        group = self.group(group_id)
        if group is None:
            raise Refused(Code.GROUP_ID_NOT_FOUND, f"there is no group {group_id!r}")
        self._groups.begin_delete(group_id)
        await self._remove(group, self.book.keys_of(group_id))

    async def delete_offsets(self, keys: Iterable[OffsetKey]) -> None:
        records = [_tombstone(key) for key in keys if self.book.record_offset(key) is not None]
        if records:
            await self._append(records)

    async def _remove(self, group: Group, keys: Sequence[OffsetKey]) -> None:
        """Write down that a group, marked as dead, is gone with these offsets, its last ones."""
        records = [_tombstone(key) for key in keys]
        records.append(NewRecord(encode_group_key(group.group_id), None))
        try:
            future = self._append(records)
        except Refused:
            self._groups.end_delete(group.group_id, is_deleted=False)
            raise

        def removed(done: "asyncio.Future[None]") -> None:
            is_deleted = not done.cancelled() and done.exception() is None
            self._groups.end_delete(group.group_id, is_deleted=is_deleted)

        future.add_done_callback(removed)
        # Whoever asked may go away; the group is deleted nevertheless.
        await asyncio.shield(future)

    # Offsets

    def commit(
        self, group: str, identity: Identity, offsets: Mapping[tuple[str, int], CommittedOffset]
    ) -> "asyncio.Future[None]":
        """Write offsets down; done when they count. `Refused` if they may not be committed."""
        self._groups.check_commit(_now(), group, identity, is_transactional=False)
        future = self._append(_commits(group, offsets))
        _count_until_done(self._committing, future, [OffsetKey(group, *p) for p in offsets])
        return future

    def commit_in_transaction(
        self,
        group: str,
        identity: Identity,
        offsets: Mapping[tuple[str, int], CommittedOffset],
        *,
        producer_id: int,
        producer_epoch: int,
        guard: Guard | None,
    ) -> "asyncio.Future[None]":
        """Write offsets down that count if the transaction commits; done when that is sure."""
        self._groups.check_commit(_now(), group, identity, is_transactional=True)
        future = self._append(
            _commits(group, offsets),
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            is_transactional=True,
            guard=guard,
        )
        keys = [OffsetKey(group, *place) for place in offsets]
        for counter in (self._committing, self._unsettled):
            _count_until_done(counter, future, keys)
        return future

    def is_unstable(self, key: OffsetKey) -> bool:
        """Whether a transaction may yet commit another offset for a partition."""
        return key in self._unsettled or self.book.is_pending(*key)

    def forget_topics(self, deleted: Collection[str]) -> None:
        """Remove the offsets of topics that were deleted, also where the name is in use again."""
        self._deleted_topics.update(deleted)
        if self._is_active:
            self.book.disown(self._deleted_topics)
            self._deleted_topics.clear()
            self._clean(list(self.book.stale()))

    def _topic_id_of(self, name: str) -> UUID | None:
        topic = self._home.state.topics.get(name)
        return None if topic is None else topic.topic_id

    # Expiry

    def _expiry_pause_s(self) -> float:
        return self._home.layers.integer("offsets.retention.check.interval.ms") / 1000

    def _expire(self) -> None:
        now = _now()
        retention_ms = offsets_retention_ms(self._home.layers)
        expired: list[OffsetKey] = []
        for group in list(self.groups()):
            gone = self.book.expired(group, now.wall_ms, retention_ms)
            if self._is_over(group, len(gone)):
                self._groups.begin_delete(group.group_id)
                self._spawn(self._remove(group, gone))
            else:
                expired += gone
        self._clean(expired)

    def _is_over(self, group: Group, expired_count: int) -> bool:
        """Whether nothing is left of a group once its expired offsets are gone."""
        if group.state is not State.EMPTY or group.pending:
            return False
        if self.book.pending_of(group.group_id):
            return False
        if any(key.group == group.group_id for key in self._committing):
            return False
        return expired_count == len(self.book.keys_of(group.group_id))

    def _clean(self, keys: Sequence[OffsetKey]) -> None:
        for start in range(0, len(keys), _REMOVED_AT_ONCE):
            some = {key: self.book.record_offset(key) for key in keys[start:][:_REMOVED_AT_ONCE]}
            self._spawn(self._remove_unwanted(some))

    def _spawn(self, work: Any) -> None:
        # What was not removed is found again when offsets expire the next time.
        task = run_once("removal of offsets", _tried(work), on_failure=log_only)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _remove_unwanted(self, places: Mapping[OffsetKey, int | None]) -> None:
        """Remove offsets, by where they lie in the log, unless something newer came."""
        records = [
            _tombstone(key)
            for key, offset in places.items()
            if self.book.record_offset(key) == offset and key not in self._committing
        ]
        if records:
            await self._append(records)

    # Doing what the machine wants

    def _append(self, records: Sequence[NewRecord], **producer: Any) -> "asyncio.Future[None]":
        timeout_ms = self._home.layers.integer("offsets.commit.timeout.ms")
        return self._seat.append(records, timeout_ms=timeout_ms, **producer)

    def _settle(self) -> None:
        while actions := self._groups.take_actions():
            for action in actions:
                self._perform(action)
        self._arm()

    def _perform(self, action: Action) -> None:
        match action:
            case Answer(token, answer):
                # The client may have gone; then its connection has cancelled the future.
                if not token.done():
                    token.set_result(answer)
            case Store(number, group, stored):
                self._store(number, NewRecord(encode_group_key(group), encode_group(stored)))

    def _store(self, number: int, record: NewRecord) -> None:
        try:
            future = self._append([record])
        except Refused as refused:
            self._groups.stored(_now(), number, refused.code)
            return

        def stored(done: "asyncio.Future[None]") -> None:
            error = done.exception()
            code = error.code if isinstance(error, Refused) else Code.NONE
            self._groups.stored(_now(), number, code)
            if self._is_active:
                self._settle()

        future.add_done_callback(stored)

    def _arm(self) -> None:
        deadline_ms = self._groups.next_deadline_ms()
        if deadline_ms is None or not self._is_active:
            return
        deadline_s = deadline_ms / 1000
        if self._timer is not None:
            if not self._timer.cancelled() and self._timer.when() <= deadline_s:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(deadline_s, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        self._groups.tick(_now())
        self._settle()


async def _tried(work: Any) -> None:
    """What nobody waits for: if it fails it is tried again when its time comes again."""
    try:
        await work
    except Refused as refused:
        _logger.info("old offsets were not removed: %s", refused)


def _commits(group: str, offsets: Mapping[tuple[str, int], CommittedOffset]) -> list[NewRecord]:
    return [
        NewRecord(encode_offset_key(OffsetKey(group, *place)), encode_offset(committed))
        for place, committed in offsets.items()
    ]


def _count_until_done(
    counter: Counter[OffsetKey], future: "asyncio.Future[None]", keys: Sequence[OffsetKey]
) -> None:
    """Count what is on its way; a key that is not has no entry."""
    counter.update(keys)

    def on_done(_: "asyncio.Future[None]") -> None:
        counter.subtract(keys)
        for key in keys:
            if counter[key] <= 0:
                del counter[key]

    future.add_done_callback(on_done)


def _tombstone(key: OffsetKey) -> NewRecord:
    return NewRecord(encode_offset_key(key), None)


def _now() -> Moment:
    return Moment(monotonic_ms(), time.time_ns() // 1_000_000)
