"""One replica on this broker: its log, the state machine that leads or follows, and who waits.

The thin shell around `Replica`: what the state machines want said and written is done here.

Rules of this file:
- The metadata decides who leads. Whoever waits for a leader that is none any more is told.
- Consumers read below the high watermark, followers up to the end of the log. So the first are
  woken when the high watermark moves, the others when anything is appended too.
- What is committed is told to the followers before it is told to the producer: any of them may be
  the last one a moment later, and serves what it knows to be committed. Nobody waits long for a
  follower that does not ask.
- Nothing polls: an event is followed by `settle`, and one timer waits for the next deadline.
- A log that fails is reported to the controller, so that another replica leads; whoever waits
  for more of it gets an error at once.
- A reader that asks for the same records again may have got damaged ones: the first batch of what
  it asks for is compared with its checksum before it gets it again.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from shoal.lite.base.codes import Code, Refused
from shoal.lite.base.configs import TopicRules
from shoal.lite.base.hooks import tracer
from shoal.lite.metadata.data.records import PartitionRecord
from shoal.lite.metadata.data.status import why_offline
from shoal.lite.partitions.guards import Guard, Guards
from shoal.lite.replication.leader import ALL_ACKS, LeaderPartition
from shoal.lite.replication.messages import (
    AdvanceStart,
    AlterIsr,
    AppendFetched,
    Assignment,
    Completed,
    FetchAnswer,
    FollowerAction,
    IsrAnswer,
    ReplicaFetch,
    ReplicationSettings,
    TruncateFully,
    TruncateTo,
)
from shoal.lite.replication.replica import Replica
from shoal.lite.storage.header import BatchHeader, unpack_header
from shoal.lite.storage.offline import LogOffline
from shoal.lite.storage.partition_log import Appended, PartitionLog

OnAcked = Callable[[Code], None]
# More are taken together: consumers are then told a little later of what is committed.
_MOST_UNREAD_PIECES = 1000
# How often deadlines are looked at, at least, while there are any: finding the next one with every
# batch would cost more.
_LOOK_MS = 250
_NEW_LEADER_MS = 5_000
# Of so many readers it is remembered what they read last.
_MOST_READERS = 64
# How long a producer waits at most for the followers to be told.
_TELLING_S = 0.5
_logger = logging.getLogger(__name__)


class Waiter(Protocol):
    """Someone who waits for more of a partition. Both calls only take note, at once."""

    def on_more(self, size_bytes: int) -> None: ...
    def on_gone(self) -> None: ...


class Host(Protocol):
    """What a replica needs of its broker."""

    @property
    def broker_id(self) -> int: ...
    @property
    def live_epochs(self) -> Mapping[int, int]: ...
    def propose(self, partition: "Partition", leader: LeaderPartition, wish: AlterIsr) -> None: ...
    def on_follower(self, partition: "Partition") -> None: ...
    def on_failed(self, partition: "Partition") -> None: ...


class Partition:
    """A replica that leads or follows."""

    __slots__ = (
        "_assigned_ms",
        "_deletions",
        "_due_ms",
        "_host",
        "_last_reads",
        "_loop",
        "_telling_timer",
        "_timer",
        "_unread",
        "_untold",
        "_woken_high_watermark",
        "followers",
        "guards",
        "is_gone",
        "log",
        "name",
        "readers",
        "record",
        "replica",
        "rules",
    )

    def __init__(
        self,
        host: Host,
        name: str,
        log: PartitionLog,
        *,
        record: PartitionRecord,
        rules: TopicRules,
        settings: ReplicationSettings,
        high_watermark: int,
    ) -> None:
        """`name` is that of the topic. Neither leads nor follows before `assign`."""
        self._host = host
        self._loop = asyncio.get_running_loop()
        # Whether this broker has it no more: an answer of its leader may still come.
        self.is_gone = False
        # When to look at the leader's deadlines next.
        self._timer: asyncio.TimerHandle | None = None
        self._due_ms = 0
        self.name = name
        self.log = log
        self.record = record
        self.rules = rules
        self.replica = Replica(
            host.broker_id,
            log,
            settings=settings,
            live_epochs=host.live_epochs,
            high_watermark=high_watermark,
        )
        self.readers: set[Waiter] = set()
        self.followers: set[Waiter] = set()
        # By reader: the offset that it got records from last.
        self._last_reads: dict[int | str, int] = {}
        log.on_offline = self._on_offline
        self.guards = Guards()
        self._woken_high_watermark = self.high_watermark
        # What was not committed when consumers were last told: where each piece ends, its bytes.
        self._unread: deque[tuple[int, int]] = deque()
        self._assigned_ms = 0
        # Producers whose records are committed: up to where the followers have to be told that
        # first, and until when that is waited for.
        self._untold: deque[tuple[int, float, OnAcked]] = deque()
        self._telling_timer: asyncio.TimerHandle | None = None
        # Who waits until all live replicas have deleted what lies before an offset.
        self._deletions: list[tuple[int, asyncio.Future[Code]]] = []

    def __repr__(self) -> str:
        return f"{self.name}-{self.record.partition}"

    # What is so

    @property
    def leader(self) -> LeaderPartition:
        """The state machine, if this replica leads; else `Refused`."""
        role = self.replica.role
        if isinstance(role, LeaderPartition):
            return role
        reason = why_offline(self.record) or f"broker {self.record.leader} leads"
        raise Refused(Code.NOT_LEADER_OR_FOLLOWER, f"{self!r}: {reason}")

    @property
    def high_watermark(self) -> int:
        """Everything below it is on all in-sync replicas; consumers read up to here."""
        return self.replica.role.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """Everything below it is committed and belongs to no open transaction."""
        log = self.log
        return max(log.producers.first_unstable_offset(self.high_watermark), log.start_offset)

    def has_new_leader(self) -> bool:
        """Whether what another leader has refused may still be on its way to this one."""
        may_be_another = len(self.record.replicas) > 1 and self.record.leader_epoch > 0
        return may_be_another and monotonic_ms() - self._assigned_ms < _NEW_LEADER_MS

    # Damage

    def _on_offline(self) -> None:
        """The log has failed; called in any thread."""
        self._loop.call_soon_threadsafe(self._report_offline)

    def _report_offline(self) -> None:
        if not self.is_gone:
            self._host.on_failed(self)
            for waiter in (*self.readers, *self.followers):
                waiter.on_gone()

    def on_read(self, reader: int | str, offset: int) -> None:
        """A reader gets records from `offset` on; `LogOffline` if it got damaged ones before."""
        if self._last_reads.get(reader) == offset:
            self.log.check_batch(offset)
        self._last_reads[reader] = offset
        if len(self._last_reads) > _MOST_READERS:
            del self._last_reads[next(iter(self._last_reads))]

    # Metadata

    def assign(self, record: PartitionRecord, settings: ReplicationSettings) -> None:
        """The metadata has changed."""
        now_ms = monotonic_ms()
        self.record = record
        assignment = Assignment(
            record.replicas,
            record.in_sync,
            record.leader,
            record.leader_epoch,
            record.partition_epoch,
        )
        was, was_epoch = self.replica.role, self.replica.role.leader_epoch
        try:
            _complete(self.replica.assign(now_ms, assignment, settings))
        except LogOffline:
            self._host.on_failed(self)
        role = self.replica.role
        if role is not was or role.leader_epoch != was_epoch:
            self._assigned_ms = now_ms
            leads = "leads" if self.replica.leader is not None else f"follows {record.leader}"
            news = f"{self!r}: {leads} in epoch {record.leader_epoch}, in sync {record.in_sync}"
            _logger.info("%s", news)
            if tracer.current is not None:
                tracer.current.event(news)
            self.guards.clear()
            self._unread.clear()
            self._acknowledge_all()
            self._tell_gone()
            if self.replica.follower is not None:
                self._host.on_follower(self)
        self.settle()

    def configure(self, rules: TopicRules) -> None:
        """Follow new settings of the topic."""
        self.rules = rules
        self.log.settings = rules.log

    def leave(self) -> None:
        """This broker has the partition no more: tell those who wait."""
        self.is_gone = True
        leader = self.replica.leader
        if leader is not None:
            leader.resign()
            _complete(leader.completed())
        self._acknowledge_all()
        self._tell_gone()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tell_gone(self) -> None:
        for waiter in (*self.readers, *self.followers):
            waiter.on_gone()
        for _, future in self._deletions:
            if not future.done():
                future.set_result(Code.NOT_LEADER_OR_FOLLOWER)
        self._deletions.clear()

    # Leading

    def append(
        self,
        view: memoryview,
        header: BatchHeader,
        *,
        acks: int,
        timeout_ms: int,
        on_acked: OnAcked,
        guard: Guard | None = None,
    ) -> Appended:
        """Write a checked batch. With acks=all, `on_acked` is told when it is on all in-sync
        replicas, or why not, and maybe before this returns. The first batch of a transaction needs
        the guard under which the coordinator was asked."""
        leader = self.leader
        try:
            if header.is_transactional:
                self.guards.check(header, self.log.producers, guard)
            appended = self.log.append(view, header, leader_epoch=leader.leader_epoch)
        except LogOffline:
            self._host.on_failed(self)
            raise
        return self._appended(
            leader, header, appended, acks=acks, timeout_ms=timeout_ms, on_acked=on_acked
        )

    def append_as_coordinator(
        self,
        view: memoryview,
        header: BatchHeader,
        *,
        timeout_ms: int,
        on_acked: OnAcked,
        guard: Guard | None = None,
    ) -> Appended:
        """Write a coordinator's batch, on all in-sync replicas."""
        leader = self.leader
        try:
            if header.is_transactional:
                self.guards.check(header, self.log.producers, guard)
            epoch = leader.leader_epoch
            appended = self.log.append_as_coordinator(view, header, leader_epoch=epoch)
        except LogOffline:
            self._host.on_failed(self)
            raise
        return self._appended(
            leader, header, appended, acks=ALL_ACKS, timeout_ms=timeout_ms, on_acked=on_acked
        )

    def append_marker(
        self, view: memoryview, *, is_bumped: bool, timeout_ms: int, on_acked: OnAcked
    ) -> Appended:
        """Write the end of a transaction, on all in-sync replicas."""
        leader = self.leader
        header = unpack_header(view)
        leader.check_acks(ALL_ACKS)
        try:
            epoch = leader.leader_epoch
            appended = self.log.append_marker(view, header, leader_epoch=epoch, is_bumped=is_bumped)
        except LogOffline:
            self._host.on_failed(self)
            raise
        # By the second protocol a marker has the epoch of the transaction that comes next.
        self.guards.drop(header.producer_id, header.producer_epoch - is_bumped)
        return self._appended(
            leader, header, appended, acks=ALL_ACKS, timeout_ms=timeout_ms, on_acked=on_acked
        )

    def append_unit(
        self,
        view: memoryview,
        headers: Sequence[BatchHeader],
        *,
        timeout_ms: int,
        on_acked: OnAcked,
    ) -> None:
        """Write a mirror's checked batches at their offsets, on all in-sync replicas."""
        leader = self.leader
        try:
            self.log.append_unit(view, headers, leader_epoch=leader.leader_epoch)
        except LogOffline:
            self._host.on_failed(self)
            raise
        last = headers[-1]
        self._note_unread(last.base_offset, len(view) - last.size)
        appended = Appended(last.base_offset, is_duplicate=False)
        self._appended(
            leader, last, appended, acks=ALL_ACKS, timeout_ms=timeout_ms, on_acked=on_acked
        )

    def await_end(self, *, timeout_ms: int, on_acked: OnAcked) -> None:
        """Tell when all that is written now is on all in-sync replicas."""
        deadline_ms = monotonic_ms() + timeout_ms
        self.leader.await_acks(on_acked, self.log.end_offset, deadline_ms=deadline_ms)
        self._look_by(deadline_ms)
        self.settle()

    def _appended(
        self,
        leader: LeaderPartition,
        header: BatchHeader,
        appended: Appended,
        *,
        acks: int,
        timeout_ms: int,
        on_acked: OnAcked,
    ) -> Appended:
        """Tell followers, and wait for them if that is wanted."""
        if header.is_transactional and not header.is_control:
            self.guards.drop(header.producer_id, header.producer_epoch)
        now_ms = monotonic_ms()
        end_offset = appended.base_offset + header.last_offset_delta + 1
        size_bytes = header.size
        if not appended.is_duplicate:
            self._note_unread(end_offset, size_bytes)
            if tracer.current is not None:
                count, offset = header.record_count, appended.base_offset
                tracer.current.event(f"{self!r}: writes {count} record(s) at offset {offset}")
            leader.appended(now_ms)
        if acks == ALL_ACKS:
            leader.await_acks(on_acked, end_offset, deadline_ms=now_ms + timeout_ms)
            if timeout_ms < _LOOK_MS:
                self._look_by(now_ms + timeout_ms)
        if not appended.is_duplicate:
            for waiter in self.followers:
                waiter.on_more(size_bytes)
        self.settle()
        return appended

    def delete_before(self, offset: int) -> "asyncio.Future[Code]":
        """Delete records; the future is done when all live replicas have done so too."""
        future: asyncio.Future[Code] = self._loop.create_future()
        try:
            self.log.delete_before(offset)
        except LogOffline:
            self._host.on_failed(self)
            raise
        self._deletions.append((offset, future))
        for waiter in self.followers:
            waiter.on_more(0)
        self.settle()
        return future

    def _settle_deletions(self, leader: LeaderPartition) -> None:
        low_watermark = leader.low_watermark
        for offset, future in self._deletions:
            if offset <= low_watermark and not future.done():
                future.set_result(Code.NONE)
        self._deletions = [item for item in self._deletions if not item[1].done()]

    def settle(self) -> None:
        """Do what there is to do after an event."""
        leader = self.replica.leader
        if leader is None:
            return
        if leader.has_to_do:
            self._do(leader)
        if self._deletions:
            self._settle_deletions(leader)
        if leader.high_watermark != self._woken_high_watermark and self._wake_readers():
            for waiter in self.followers:
                waiter.on_more(0)
        if self._untold:
            self._acknowledge(leader)
        if self._timer is None:
            self._arm(leader, monotonic_ms())

    def _do(self, leader: LeaderPartition) -> None:
        for on_acked, code in leader.completed():
            if code == Code.NONE:
                until_s = self._loop.time() + _TELLING_S
                self._untold.append((leader.high_watermark, until_s, on_acked))
            else:
                on_acked(code)
        proposal = leader.take_proposal()
        if proposal is not None:
            self._host.propose(self, leader, proposal)

    def on_told(self) -> None:
        """What is committed was told to a follower."""
        if self._untold and (leader := self.replica.leader) is not None:
            self._acknowledge(leader)

    def _acknowledge(self, leader: LeaderPartition) -> None:
        """Tell producers what all followers in sync were told, or did not ask for in time."""
        untold = self._untold
        told_offset = leader.told_offset
        while untold and untold[0][0] <= told_offset:
            untold.popleft()[2](Code.NONE)
        if untold and self._telling_timer is None:
            self._telling_timer = self._loop.call_at(untold[0][1], self._on_telling_late)

    def _on_telling_late(self) -> None:
        self._telling_timer = None
        untold = self._untold
        now_s = self._loop.time()
        while untold and untold[0][1] <= now_s:
            untold.popleft()[2](Code.NONE)
        if untold:
            self._telling_timer = self._loop.call_at(untold[0][1], self._on_telling_late)

    def _acknowledge_all(self) -> None:
        """This replica leads no more, but what was committed is."""
        while self._untold:
            self._untold.popleft()[2](Code.NONE)

    def _wake_readers(self) -> bool:
        """Tell consumers if there is more for them; says whether there is."""
        high_watermark = self.replica.role.high_watermark
        woken, self._woken_high_watermark = self._woken_high_watermark, high_watermark
        if high_watermark <= woken:
            return False
        if tracer.current is not None and self.replica.leader is not None:
            tracer.current.event(f"{self!r}: all in sync have what is below {high_watermark}")
        size_bytes = 0
        unread = self._unread
        while unread and unread[0][0] <= high_watermark:
            size_bytes += unread.popleft()[1]
        # At least one: it may lie within a piece, and there is more in any case.
        for waiter in self.readers:
            waiter.on_more(max(1, size_bytes))
        return True

    def _note_unread(self, end_offset: int, size_bytes: int) -> None:
        unread = self._unread
        if len(unread) >= _MOST_UNREAD_PIECES:
            size_bytes += unread.pop()[1]
        unread.append((end_offset, size_bytes))

    def on_in_sync_answer(self, leader: LeaderPartition, wish: AlterIsr, answer: IsrAnswer) -> None:
        """The controller answered a proposal, or there will be no answer."""
        if self.replica.role is leader:
            leader.isr_answered(monotonic_ms(), wish, answer)
            self.settle()

    def _arm(self, leader: LeaderPartition, now_ms: int) -> None:
        """Look at the time when there is a deadline, or soon: until then there may be another."""
        deadline_ms = leader.next_deadline_ms()
        if deadline_ms is not None:
            self._due_ms = max(now_ms + 1, min(deadline_ms, now_ms + _LOOK_MS))
            self._timer = self._loop.call_at(self._due_ms / 1000, self._on_time)

    def _look_by(self, deadline_ms: int) -> None:
        """There is a deadline that may be sooner than the next look."""
        if self._timer is not None and deadline_ms < self._due_ms:
            self._timer.cancel()
            self._timer = None

    def _on_time(self) -> None:
        self._timer = None
        leader = self.replica.leader
        if leader is None:
            return
        now_ms = monotonic_ms()
        deadline_ms = leader.next_deadline_ms()
        if deadline_ms is not None and deadline_ms <= now_ms:
            leader.tick(now_ms)
            self.settle()
        elif deadline_ms is not None:
            self._arm(leader, now_ms)

    # Following

    def on_fetched(self, fetch: ReplicaFetch, answer: FetchAnswer, records: memoryview) -> None:
        """The leader has answered a fetch."""
        follower = self.replica.follower
        if follower is None or self.is_gone:
            return
        now_ms = monotonic_ms()
        try:
            for action in follower.answered(now_ms, fetch, answer):
                self._act(action, records)
            if self._wake_readers():
                self.log.producers.replicated(self._woken_high_watermark)
        except LogOffline:
            self._host.on_failed(self)
        except Refused as refused:
            _logger.warning("%r: what the leader sent cannot be written: %s", self, refused)
            follower.failed(now_ms, fetch)

    def _act(self, action: FollowerAction, records: memoryview) -> None:
        log = self.log
        match action:
            case AppendFetched():
                log.append_fetched(records)
                self._note_unread(log.end_offset, len(records))
                if tracer.current is not None:
                    tracer.current.event(f"{self!r}: has copied what is below {log.end_offset}")
            case TruncateTo(offset):
                _logger.info("%r: cut from %d to %d", self, log.end_offset, offset)
                log.truncate_to(offset)
                if tracer.current is not None:
                    tracer.current.event(f"{self!r}: has cut its log to {offset}")
            case TruncateFully(start_offset):
                _logger.info("%r: begins again at %d", self, start_offset)
                log.truncate_fully(start_offset)
            case AdvanceStart(offset):
                log.delete_before(offset)


def _complete(completed: list[Completed]) -> None:
    for token, code in completed:
        token(code)


def monotonic_ms() -> int:
    """The clock of all time-outs; the event loop's own, in milliseconds."""
    return time.monotonic_ns() // 1_000_000
