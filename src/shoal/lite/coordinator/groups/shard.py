"""The groups of one partition of `__consumer_offsets`, on the broker that leads it.

The thin shell around `GroupMachine` and `OffsetStore`: it performs the machine's actions. Offsets
change only by committed records. A request that changes them is checked and appended in one step,
so the log has the order in which requests were checked.

Offsets are also removed without a request: when they expire, and when their topic is deleted. Such
a removal is written only if the log has no newer commit for the key and none is being written: a
tombstone must not follow a commit that it does not consider.
"""

import asyncio
import logging
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.base.scheduler import monotonic_ms
from shoal.lite.coordinator.groups.group import ClassicGroup, ClassicGroupState
from shoal.lite.coordinator.groups.machine import GroupMachine
from shoal.lite.coordinator.groups.messages import (
    Action,
    JoinAnswer,
    JoinRequest,
    LeavingMember,
    MemberIdentity,
    Moment,
    SendAnswer,
    StoreGroup,
    SyncAnswer,
    SyncRequest,
)
from shoal.lite.coordinator.groups.offsets import OffsetStore
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
from shoal.lite.coordinator.host import CoordinatorBroker
from shoal.lite.coordinator.loaded_shard import LoadedShard, NewRecord
from shoal.lite.partitions.admission.guards import VerificationGuard
from shoal.lite.storage.header import BatchHeader
from shoal.runtime.tasks import RepeatingCall, call_every, log_only, run_once
from shoal.wire.errors import WireError
from shoal.wire.records.records import Record

# The most tombstones in one batch.
_REMOVED_AT_ONCE = 1000
_logger = logging.getLogger(__name__)


class GroupShard:
    """A `Shard` of the group coordinator."""

    def __init__(self, broker: CoordinatorBroker, loaded: "LoadedShard[GroupShard]") -> None:
        self._broker = broker
        self._loaded = loaded
        self._loop = asyncio.get_running_loop()
        self.offsets = OffsetStore(self._topic_id_of)
        self._machine = GroupMachine(
            group_settings(broker.layers),
            new_id=lambda: str(uuid.uuid4()),
            has_offsets=self.offsets.has,
        )
        self._stored: dict[str, StoredGroup] = {}
        self._is_active = False
        self._waiting: set[asyncio.Future[Any]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._expiry_timer: RepeatingCall | None = None
        # Offsets that are appended and not committed in the log yet; those of transactions also
        # separately.
        self._committing: Counter[OffsetKey] = Counter()
        self._unsettled: Counter[OffsetKey] = Counter()
        # Topics that were deleted while this shard was loading.
        self._deleted_topics: set[str] = set()

    # Shard

    def replay(self, header: BatchHeader, records: Sequence[Record]) -> None:
        try:
            replayed = self.offsets.replay(header, records)
        except WireError:
            _logger.exception("cannot decode the records from offset %d on", header.base_offset)
            return
        if self._is_active:
            # The machine's groups are newer than the log, so only offsets are applied.
            for group in replayed.offsets_of:
                self._machine.on_offsets_changed(_now(), group)
            # A topic may be deleted while its offsets are being written.
            self._remove_offsets([key for key in replayed.offsets if self.offsets.is_stale(key)])
            return
        for group, stored in replayed.groups.items():
            if stored is None:
                self._stored.pop(group, None)
            else:
                self._stored[group] = stored

    def start(self) -> None:
        self._is_active = True
        now = _now()
        self._machine.load(now, self._stored)
        self._stored.clear()
        for group in self.offsets.groups():
            self._machine.on_offsets_changed(now, group)
        self._process_actions()
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
                future.set_exception(ApiError(Code.NOT_COORDINATOR, message))

    # Membership

    async def join(self, request: JoinRequest) -> JoinAnswer:
        self._machine.settings = group_settings(self._broker.layers)
        answer: JoinAnswer = await self._wait(
            lambda token: self._machine.join(_now(), request, token)
        )
        return answer

    async def sync(self, request: SyncRequest) -> SyncAnswer:
        answer: SyncAnswer = await self._wait(
            lambda token: self._machine.sync(_now(), request, token)
        )
        return answer

    def heartbeat(self, group: str, identity: MemberIdentity) -> Code:
        return self._machine.heartbeat(_now(), group, identity)

    def leave(self, group: str, leaving: Iterable[LeavingMember]) -> list[Code]:
        codes = self._machine.leave(_now(), group, leaving)
        self._process_actions()
        return codes

    async def _wait(self, ask: Callable[["asyncio.Future[Any]"], None]) -> Any:
        token = self._loop.create_future()
        self._waiting.add(token)
        token.add_done_callback(self._waiting.discard)
        ask(token)
        self._process_actions()
        return await token

    # Groups

    def group(self, group_id: str) -> ClassicGroup | None:
        return self._machine.groups.get(group_id)

    def groups(self) -> Collection[ClassicGroup]:
        return self._machine.groups.values()

    async def delete(self, group_id: str) -> None:
        """Delete a group and all its offsets; `ApiError` if it has members."""
        group = self.group(group_id)
        if group is None:
            raise ApiError(Code.GROUP_ID_NOT_FOUND, f"the group {group_id!r} does not exist")
        self._machine.begin_delete(group_id)
        await self._remove_group(group, self.offsets.keys_of(group_id))

    async def delete_offsets(self, keys: Iterable[OffsetKey]) -> None:
        records = [_tombstone(key) for key in keys if self.offsets.record_offset(key) is not None]
        if records:
            await self._append(records)

    async def _remove_group(self, group: ClassicGroup, keys: Sequence[OffsetKey]) -> None:
        """Write the tombstones of a dead group and its last offsets."""
        records = [_tombstone(key) for key in keys]
        records.append(NewRecord(encode_group_key(group.group_id), None))
        try:
            future = self._append(records)
        except ApiError:
            self._machine.end_delete(group.group_id, is_deleted=False)
            raise

        def on_removed(done: "asyncio.Future[None]") -> None:
            is_deleted = not done.cancelled() and done.exception() is None
            self._machine.end_delete(group.group_id, is_deleted=is_deleted)

        future.add_done_callback(on_removed)
        # The client may disconnect; the group is deleted nevertheless.
        await asyncio.shield(future)

    # Offsets

    def commit(
        self,
        group: str,
        identity: MemberIdentity,
        offsets: Mapping[tuple[str, int], CommittedOffset],
    ) -> "asyncio.Future[None]":
        """Commit offsets; the future is done when they are committed. `ApiError` if not allowed."""
        self._machine.check_commit(_now(), group, identity, is_transactional=False)
        future = self._append(_commit_records(group, offsets))
        _count_until_done(self._committing, future, [OffsetKey(group, *p) for p in offsets])
        return future

    def commit_in_transaction(
        self,
        group: str,
        identity: MemberIdentity,
        offsets: Mapping[tuple[str, int], CommittedOffset],
        *,
        producer_id: int,
        producer_epoch: int,
        guard: VerificationGuard | None,
    ) -> "asyncio.Future[None]":
        """Write offsets that take effect if the transaction commits."""
        self._machine.check_commit(_now(), group, identity, is_transactional=True)
        future = self._append(
            _commit_records(group, offsets),
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
        """Return whether an open transaction may commit another offset for a partition."""
        return key in self._unsettled or self.offsets.is_pending(*key)

    def forget_topics(self, deleted: Collection[str]) -> None:
        """Remove the offsets of deleted topics, even if a new topic has the same name."""
        self._deleted_topics.update(deleted)
        if self._is_active:
            self.offsets.disown(self._deleted_topics)
            self._deleted_topics.clear()
            self._remove_offsets(list(self.offsets.stale()))

    def _topic_id_of(self, name: str) -> UUID | None:
        topic = self._broker.state.topics.get(name)
        return None if topic is None else topic.topic_id

    # Expiry

    def _expiry_pause_s(self) -> float:
        return self._broker.layers.integer("offsets.retention.check.interval.ms") / 1000

    def _expire(self) -> None:
        now = _now()
        retention_ms = offsets_retention_ms(self._broker.layers)
        expired: list[OffsetKey] = []
        for group in list(self.groups()):
            gone = self.offsets.find_expired(group, now.wall_ms, retention_ms)
            if self._can_delete(group, len(gone)):
                self._machine.begin_delete(group.group_id)
                self._spawn(self._remove_group(group, gone))
            else:
                expired += gone
        self._remove_offsets(expired)

    def _can_delete(self, group: ClassicGroup, expired_count: int) -> bool:
        """Return whether a group can be deleted together with its expired offsets."""
        if group.state is not ClassicGroupState.EMPTY or group.pending:
            return False
        if self.offsets.pending_of(group.group_id):
            return False
        if any(key.group == group.group_id for key in self._committing):
            return False
        return expired_count == len(self.offsets.keys_of(group.group_id))

    def _remove_offsets(self, keys: Sequence[OffsetKey]) -> None:
        for start in range(0, len(keys), _REMOVED_AT_ONCE):
            some = {key: self.offsets.record_offset(key) for key in keys[start:][:_REMOVED_AT_ONCE]}
            self._spawn(self._remove_if_unchanged(some))

    def _spawn(self, work: Any) -> None:
        # Offsets that were not removed are found again by the next expiry run.
        task = run_once("removal of offsets", _log_api_error(work), on_failure=log_only)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _remove_if_unchanged(self, places: Mapping[OffsetKey, int | None]) -> None:
        """Remove offsets, given with their log offsets, unless a newer commit exists."""
        records = [
            _tombstone(key)
            for key, offset in places.items()
            if self.offsets.record_offset(key) == offset and key not in self._committing
        ]
        if records:
            await self._append(records)

    # Actions of the machine

    def _append(self, records: Sequence[NewRecord], **producer: Any) -> "asyncio.Future[None]":
        timeout_ms = self._broker.layers.integer("offsets.commit.timeout.ms")
        return self._loaded.append(records, timeout_ms=timeout_ms, **producer)

    def _process_actions(self) -> None:
        while actions := self._machine.take_actions():
            for action in actions:
                self._perform(action)
        self._arm_timer()

    def _perform(self, action: Action) -> None:
        match action:
            case SendAnswer(token, answer):
                # The client may have disconnected; then its connection has cancelled the future.
                if not token.done():
                    token.set_result(answer)
            case StoreGroup(number, group, stored):
                self._store(number, NewRecord(encode_group_key(group), encode_group(stored)))

    def _store(self, number: int, record: NewRecord) -> None:
        try:
            future = self._append([record])
        except ApiError as error:
            self._machine.on_stored(_now(), number, error.code)
            return

        def on_stored(done: "asyncio.Future[None]") -> None:
            error = done.exception()
            code = error.code if isinstance(error, ApiError) else Code.NONE
            self._machine.on_stored(_now(), number, code)
            if self._is_active:
                self._process_actions()

        future.add_done_callback(on_stored)

    def _arm_timer(self) -> None:
        deadline_ms = self._machine.next_deadline_ms()
        if deadline_ms is None or not self._is_active:
            return
        deadline_s = deadline_ms / 1000
        if self._timer is not None:
            if not self._timer.cancelled() and self._timer.when() <= deadline_s:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(deadline_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._machine.tick(_now())
        self._process_actions()


async def _log_api_error(work: Any) -> None:
    """Run a removal that no request waits for; if it fails, the next expiry run retries it."""
    try:
        await work
    except ApiError as error:
        _logger.info("cannot remove old offsets now: %s", error)


def _commit_records(
    group: str, offsets: Mapping[tuple[str, int], CommittedOffset]
) -> list[NewRecord]:
    return [
        NewRecord(encode_offset_key(OffsetKey(group, *place)), encode_offset(committed))
        for place, committed in offsets.items()
    ]


def _count_until_done(
    counter: Counter[OffsetKey], future: "asyncio.Future[None]", keys: Sequence[OffsetKey]
) -> None:
    """Count keys while their append is pending; other keys have no entry."""
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
