"""One replica on this broker: its log, its role, and the requests that wait for it.

The shell around `PartitionReplica`: it does the I/O that the state machines ask for. Its clock and
timers are given to it, so it runs in a simulation as it does in a broker.

Rules of this file:
- The metadata decides which replica leads. When this replica stops leading, every waiting request
  is answered with an error.
- Consumers read below the high watermark, followers up to the log end offset. So consumers are
  woken when the high watermark advances, and followers also after each append.
- Producers are acknowledged after the followers were sent the high watermark: see `leader.py`.
- Nothing polls: `settle` runs after each event, and one timer waits for the next deadline.
- A failed log is reported to the controller, so that another replica is elected; requests that
  wait for more of its records get an error at once.
- A reader that reads the same offset again may have received damaged records: the checksum of the
  first batch is verified before the second read.
"""

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence, Sized
from typing import Any, Generic, Protocol, TypeVar

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.base.configs import TopicConfig
from shoal.lite.base.hooks import tracer
from shoal.lite.base.scheduler import Scheduler, Timer
from shoal.lite.metadata.data.records import PartitionRecord
from shoal.lite.metadata.data.status import why_offline
from shoal.lite.partitions.admission.decisions import (
    admit_coordinator_batch,
    admit_marker,
    admit_next,
)
from shoal.lite.partitions.admission.guards import VerificationGuard, VerificationGuards
from shoal.lite.replication.leader import ALL_ACKS, LeaderPartition
from shoal.lite.replication.messages import (
    AckResult,
    AdvanceStart,
    AlterIsr,
    AppendFetched,
    FetchAnswer,
    FollowerAction,
    IsrAnswer,
    PartitionState,
    ReplicaFetch,
    ReplicatedLog,
    ReplicationSettings,
    TruncateFully,
    TruncateTo,
)
from shoal.lite.replication.replica import PartitionReplica
from shoal.lite.storage.header import BatchHeader, unpack_header
from shoal.lite.storage.offline import LogOffline
from shoal.lite.storage.partition_log import LogAppendInfo, PartitionLog
from shoal.lite.storage.slices import LogSlice
from shoal.lite.storage.state.producer_state import ProducerStates
from shoal.wire.batch import TRANSACTIONAL_BIT
from shoal.wire.record_messages import NO_RECORDS

# Called with the result of an append or a deletion.
OnAcked = Callable[[Code], None]
OnDeleted = Callable[[Code], None]
# Above this number, pieces are merged: consumers are then woken a little later.
_MOST_UNREAD_PIECES = 1000
# The longest interval between checks of deadlines: computing the next deadline after every batch
# would cost more.
_TIMER_CHECK_MS = 250
_NEW_LEADER_WINDOW_MS = 5_000
# The number of readers whose last read offset is remembered.
_MOST_READERS = 64
# Smaller record sets are cheaper to read and send with the rest of the response.
_LEAST_SENT_FROM_FILE_BYTES = 100 * 1024
_logger = logging.getLogger(__name__)


class PartitionWaiter(Protocol):
    """A request that waits for data of a partition. Both calls must return at once."""

    def on_data_available(self, size_bytes: int) -> None: ...
    def on_unavailable(self) -> None: ...


class PartitionHost(Protocol):
    """The part of a broker that a replica uses."""

    @property
    def broker_id(self) -> int: ...
    @property
    def live_epochs(self) -> Mapping[int, int]: ...
    @property
    def scheduler(self) -> Scheduler: ...
    # A broker and a simulation have partitions of different types.
    def propose(self, partition: Any, leader: LeaderPartition, proposal: AlterIsr) -> None: ...
    def on_became_follower(self, partition: Any) -> None: ...
    def on_log_failed(self, partition: Any) -> None: ...


class ReplicaLog(ReplicatedLog, Protocol):
    """The part of a log that the shell uses. Appends raise `LogOffline` after an error."""

    on_offline: Callable[[], None]

    @property
    def offline_reason(self) -> str | None: ...
    @property
    def producers(self) -> ProducerStates: ...
    def append(
        self, view: memoryview, header: BatchHeader, *, leader_epoch: int
    ) -> LogAppendInfo: ...
    def append_fetched(self, record_set: Any) -> None: ...
    def truncate_to(self, offset: int) -> None: ...
    def truncate_fully(self, start_offset: int) -> None: ...
    def delete_before(self, offset: int) -> None: ...


LogT = TypeVar("LogT", bound=ReplicaLog)


class PartitionShell(Generic[LogT]):
    """A replica on this broker, which leads or follows."""

    __slots__ = (
        "_assigned_ms",
        "_deletions",
        "_due_ms",
        "_host",
        "_last_reads",
        "_now_ms",
        "_scheduler",
        "_timer",
        "_unread",
        "_woken_high_watermark",
        "followers",
        "guards",
        "is_removed",
        "log",
        "name",
        "readers",
        "record",
        "replica",
        "rules",
    )

    def __init__(
        self,
        host: PartitionHost,
        name: str,
        log: LogT,
        *,
        record: PartitionRecord,
        rules: TopicConfig,
        settings: ReplicationSettings,
        high_watermark: int,
        replica_type: type[PartitionReplica] = PartitionReplica,
    ) -> None:
        """`name` is that of the topic. The replica has no role before `assign`."""
        self._host = host
        self._scheduler = host.scheduler
        self._now_ms = host.scheduler.now_ms
        # Whether this broker no longer has the replica; an answer of its leader may still arrive.
        self.is_removed = False
        # The next check of the leader's deadlines.
        self._timer: Timer | None = None
        self._due_ms = 0
        self.name = name
        self.log = log
        self.record = record
        self.rules = rules
        self.replica = replica_type(
            host.broker_id,
            log,
            settings=settings,
            live_epochs=host.live_epochs,
            high_watermark=high_watermark,
        )
        self.readers: set[PartitionWaiter] = set()
        # In the order in which they came: a simulation is repeatable.
        self.followers: dict[PartitionWaiter, None] = {}
        # By reader: the offset of its last read.
        self._last_reads: dict[int | str, int] = {}
        log.on_offline = self._on_offline
        self.guards = VerificationGuards()
        self._woken_high_watermark = self.high_watermark
        # Appended pieces above the high watermark that consumers know: end offset and size.
        self._unread: deque[tuple[int, int]] = deque()
        self._assigned_ms = 0
        # DeleteRecords requests that wait until all live replicas have deleted the records.
        self._deletions: list[tuple[int, OnDeleted]] = []

    def __repr__(self) -> str:
        return f"{self.name}-{self.record.partition}"

    # State

    @property
    def leader(self) -> LeaderPartition:
        """The leader's state machine; `ApiError` if this replica does not lead."""
        role = self.replica.role
        if isinstance(role, LeaderPartition):
            return role
        reason = why_offline(self.record) or f"broker {self.record.leader} leads"
        raise ApiError(Code.NOT_LEADER_OR_FOLLOWER, f"{self!r}: {reason}")

    @property
    def high_watermark(self) -> int:
        """All in-sync replicas have the records below it; consumers read up to it."""
        return self.replica.role.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """The records below it are committed and belong to no open transaction."""
        log = self.log
        return max(log.producers.first_unstable_offset(self.high_watermark), log.start_offset)

    def has_new_leader(self) -> bool:
        """Return whether batches that the previous leader rejected may still be retried here."""
        may_be_another = len(self.record.replicas) > 1 and self.record.leader_epoch > 0
        return may_be_another and self._now_ms() - self._assigned_ms < _NEW_LEADER_WINDOW_MS

    # Failed logs

    def _on_offline(self) -> None:
        """Handle a failed log; called in any thread."""
        self._scheduler.call_soon_threadsafe(self._report_offline)

    def _report_offline(self) -> None:
        if not self.is_removed:
            self._host.on_log_failed(self)
            for waiter in (*self.readers, *self.followers):
                waiter.on_unavailable()

    # Metadata

    def assign(self, record: PartitionRecord, settings: ReplicationSettings) -> None:
        """Apply changed metadata."""
        now_ms = self._now_ms()
        self.record = record
        assignment = PartitionState(
            record.replicas,
            record.in_sync,
            record.leader,
            record.leader_epoch,
            record.partition_epoch,
            record.failed,
        )
        was, was_epoch = self.replica.role, self.replica.role.leader_epoch
        try:
            _call_waiters(self.replica.assign(now_ms, assignment, settings))
        except LogOffline:
            self._host.on_log_failed(self)
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
            self._notify_unavailable()
            if self.replica.follower is not None:
                self._host.on_became_follower(self)
        self.settle()

    def stop_serving(self) -> None:
        """Answer all waiting requests: this broker no longer has the partition."""
        self.is_removed = True
        leader = self.replica.leader
        if leader is not None:
            leader.resign()
            _call_waiters(leader.take_completed())
        self._notify_unavailable()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _notify_unavailable(self) -> None:
        for waiter in (*self.readers, *self.followers):
            waiter.on_unavailable()
        deletions, self._deletions = self._deletions, []
        for _, on_deleted in deletions:
            on_deleted(Code.NOT_LEADER_OR_FOLLOWER)

    # As a leader

    def append(
        self,
        view: memoryview,
        header: BatchHeader,
        *,
        acks: int,
        timeout_ms: int,
        on_acked: OnAcked,
        guard: VerificationGuard | None = None,
    ) -> LogAppendInfo:
        """Append a producer's batch, if it is next. With acks=all, `on_acked` is called with the
        result when all in-sync replicas have it or the wait fails, possibly before this returns.
        The first batch of a transaction needs the guard under which the coordinator was asked."""
        leader = self.leader
        try:
            duplicate = admit_next(header, self, guard)
            if duplicate is None:
                appended = self.log.append(view, header, leader_epoch=leader.leader_epoch)
            else:
                appended = LogAppendInfo(duplicate.base_offset, is_duplicate=True)
        except LogOffline:
            self._host.on_log_failed(self)
            raise
        return self._after_append(
            leader, header, appended, acks=acks, timeout_ms=timeout_ms, on_acked=on_acked
        )

    def await_replication(self, *, timeout_ms: int, on_acked: OnAcked) -> None:
        """Call `on_acked` when all in-sync replicas have everything up to the log end offset."""
        now_ms = self._now_ms()
        deadline_ms = now_ms + timeout_ms
        self.leader.await_acks(now_ms, on_acked, self.log.end_offset, deadline_ms=deadline_ms)
        self._ensure_timer_by(deadline_ms)
        self.settle()

    def _after_append(
        self,
        leader: LeaderPartition,
        header: BatchHeader,
        appended: LogAppendInfo,
        *,
        acks: int,
        timeout_ms: int,
        on_acked: OnAcked,
    ) -> LogAppendInfo:
        """Wake the followers, and wait for them with acks=all."""
        if header.attributes & TRANSACTIONAL_BIT and not header.is_control:
            self.guards.drop(header.producer_id, header.producer_epoch)
        now_ms = self._now_ms()
        end_offset = appended.base_offset + header.last_offset_delta + 1
        size_bytes = header.size
        if not appended.is_duplicate:
            self._note_unread(end_offset, size_bytes)
            if tracer.current is not None:
                count, offset = header.record_count, appended.base_offset
                tracer.current.event(f"{self!r}: writes {count} record(s) at offset {offset}")
            leader.on_append(now_ms)
        if acks == ALL_ACKS:
            leader.await_acks(now_ms, on_acked, end_offset, deadline_ms=now_ms + timeout_ms)
            if timeout_ms < _TIMER_CHECK_MS:
                self._ensure_timer_by(now_ms + timeout_ms)
        if not appended.is_duplicate:
            for waiter in self.followers:
                waiter.on_data_available(size_bytes)
        self.settle()
        return appended

    def read_for_replica(self, replica_id: int, offset: int, max_bytes: int) -> Sized:
        """Return records up to the log end offset; `ApiError` if they cannot be read."""
        raise NotImplementedError

    def delete_before(self, offset: int, on_deleted: OnDeleted) -> None:
        """Delete records; `on_deleted` is called when all live replicas have deleted them, or when
        this replica no longer leads."""
        try:
            self.log.delete_before(offset)
        except LogOffline:
            self._host.on_log_failed(self)
            raise
        self._deletions.append((offset, on_deleted))
        for waiter in self.followers:
            waiter.on_data_available(0)
        self.settle()

    def _settle_deletions(self, leader: LeaderPartition) -> None:
        low_watermark = leader.low_watermark
        deleted = [item for item in self._deletions if item[0] <= low_watermark]
        self._deletions = [item for item in self._deletions if item[0] > low_watermark]
        for _, on_deleted in deleted:
            on_deleted(Code.NONE)

    def settle(self) -> None:
        """Process the leader's output after an event."""
        leader = self.replica.leader
        if leader is None:
            return
        if self._deletions:
            self._settle_deletions(leader)
        if leader.high_watermark != self._woken_high_watermark and self._wake_readers():
            for waiter in self.followers:
                waiter.on_data_available(0)
        if leader.has_pending_work:
            self._process_output(leader)
        if self._timer is None:
            self._arm_timer(leader, self._now_ms())

    def _process_output(self, leader: LeaderPartition) -> None:
        _call_waiters(leader.take_completed())
        proposal = leader.take_proposal()
        if proposal is not None:
            self._host.propose(self, leader, proposal)

    def on_high_watermark_sent(self) -> None:
        """Send acknowledgements that waited for a follower to get the high watermark."""
        leader = self.replica.leader
        if leader is not None and leader.has_pending_work:
            self._process_output(leader)

    def _wake_readers(self) -> bool:
        """Wake consumers if the high watermark advanced; return whether it did."""
        high_watermark = self.replica.role.high_watermark
        woken, self._woken_high_watermark = self._woken_high_watermark, high_watermark
        if high_watermark <= woken:
            return False
        if tracer.current is not None and self.replica.leader is not None:
            tracer.current.event(f"{self!r}: the high watermark is {high_watermark}")
        size_bytes = 0
        unread = self._unread
        while unread and unread[0][0] <= high_watermark:
            size_bytes += unread.popleft()[1]
        # At least one byte: the high watermark may be within a piece.
        for waiter in self.readers:
            waiter.on_data_available(max(1, size_bytes))
        return True

    def _note_unread(self, end_offset: int, size_bytes: int) -> None:
        unread = self._unread
        if len(unread) >= _MOST_UNREAD_PIECES:
            size_bytes += unread.pop()[1]
        unread.append((end_offset, size_bytes))

    def on_isr_answer(self, leader: LeaderPartition, proposal: AlterIsr, answer: IsrAnswer) -> None:
        """Handle the controller's answer to a proposal, or the lack of one."""
        if self.replica.role is leader and not self.is_removed:
            leader.on_isr_answer(self._now_ms(), proposal, answer)
            self.settle()

    def _arm_timer(self, leader: LeaderPartition, now_ms: int) -> None:
        """Start the timer for the next deadline, or for an earlier check for new deadlines."""
        deadline_ms = leader.next_deadline_ms()
        if deadline_ms is not None:
            self._due_ms = max(now_ms + 1, min(deadline_ms, now_ms + _TIMER_CHECK_MS))
            self._timer = self._scheduler.call_at_ms(self._due_ms, self._on_timer)

    def _ensure_timer_by(self, deadline_ms: int) -> None:
        """Cancel the timer if a deadline is before it; `settle` starts a new one."""
        if self._timer is not None and deadline_ms < self._due_ms:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        self._timer = None
        leader = self.replica.leader
        if leader is None:
            return
        now_ms = self._now_ms()
        deadline_ms = leader.next_deadline_ms()
        if deadline_ms is not None and deadline_ms <= now_ms:
            leader.tick(now_ms)
            self.settle()
        elif deadline_ms is not None:
            self._arm_timer(leader, now_ms)

    # As a follower

    def on_fetch_answer(self, fetch: ReplicaFetch, answer: FetchAnswer, records: Sized) -> None:
        """Apply the leader's answer to a fetch."""
        follower = self.replica.follower
        if follower is None or self.is_removed:
            return
        now_ms = self._now_ms()
        try:
            for action in follower.on_fetch_answer(now_ms, fetch, answer):
                self._apply_action(action, records)
            if self._wake_readers():
                self.log.producers.on_high_watermark(self._woken_high_watermark)
        except LogOffline:
            self._host.on_log_failed(self)
        except ApiError as error:
            _logger.warning("%r: cannot append the records of the leader: %s", self, error)
            follower.on_fetch_failed(now_ms, fetch)

    def _apply_action(self, action: FollowerAction, records: Sized) -> None:
        log = self.log
        match action:
            case AppendFetched():
                log.append_fetched(records)
                self._note_unread(log.end_offset, len(records))
                if tracer.current is not None:
                    tracer.current.event(f"{self!r}: has copied the records below {log.end_offset}")
            case TruncateTo(offset):
                _logger.info("%r: truncated from offset %d to %d", self, log.end_offset, offset)
                log.truncate_to(offset)
                if tracer.current is not None:
                    tracer.current.event(f"{self!r}: has truncated its log to {offset}")
            case TruncateFully(start_offset):
                _logger.info("%r: truncated fully, restarts at offset %d", self, start_offset)
                log.truncate_fully(start_offset)
            case AdvanceStart(offset):
                log.delete_before(offset)


class Partition(PartitionShell[PartitionLog]):
    """A replica whose log is on disk, with the reads and appends that only a broker has."""

    __slots__ = ()

    def on_read(self, reader: int | str, offset: int) -> None:
        """Handle a read; `LogOffline` if it repeats a read of a damaged batch."""
        if self._last_reads.get(reader) == offset:
            self.log.check_batch(offset)
        self._last_reads[reader] = offset
        if len(self._last_reads) > _MOST_READERS:
            del self._last_reads[next(iter(self._last_reads))]

    def read_for_replica(
        self, replica_id: int, offset: int, max_bytes: int
    ) -> memoryview | LogSlice:
        log = self.log
        records = log.read(offset, max_bytes, upper_offset=log.end_offset, keeps_units=True)
        if not records.size:
            return NO_RECORDS
        self.on_read(f"replica {replica_id}", offset)
        return self.as_records(records)

    def as_records(self, records: LogSlice) -> memoryview | LogSlice:
        """Return a record set for an answer; large ones are sent from their file.

        Raise `LogOffline` if the log cannot be read.
        """
        if records.size < _LEAST_SENT_FROM_FILE_BYTES:
            return memoryview(self.log.content(records))
        return records

    def configure(self, rules: TopicConfig) -> None:
        """Apply new settings of the topic."""
        self.rules = rules
        self.log.settings = rules.log

    def append_as_coordinator(
        self,
        view: memoryview,
        header: BatchHeader,
        *,
        timeout_ms: int,
        on_acked: OnAcked,
        guard: VerificationGuard | None = None,
    ) -> LogAppendInfo:
        """Append a coordinator's batch with acks=all."""
        leader = self.leader
        try:
            admit_coordinator_batch(view, header, self, guard)
            appended = self.log.append(view, header, leader_epoch=leader.leader_epoch)
        except LogOffline:
            self._host.on_log_failed(self)
            raise
        return self._after_append(
            leader, header, appended, acks=ALL_ACKS, timeout_ms=timeout_ms, on_acked=on_acked
        )

    def append_marker(
        self, view: memoryview, *, is_bumped: bool, timeout_ms: int, on_acked: OnAcked
    ) -> LogAppendInfo:
        """Append a transaction marker with acks=all."""
        leader = self.leader
        header = unpack_header(view)
        try:
            admit_marker(view, header, self, is_bumped=is_bumped)
            appended = self.log.append(view, header, leader_epoch=leader.leader_epoch)
        except LogOffline:
            self._host.on_log_failed(self)
            raise
        # In the second protocol a marker has the epoch of the producer's next transaction.
        self.guards.drop(header.producer_id, header.producer_epoch - is_bumped)
        return self._after_append(
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
        """Append a mirror's admitted batches at their offsets with acks=all."""
        leader = self.leader
        try:
            self.log.append_unit(view, headers, leader_epoch=leader.leader_epoch)
        except LogOffline:
            self._host.on_log_failed(self)
            raise
        last = headers[-1]
        self._note_unread(last.base_offset, len(view) - last.size)
        appended = LogAppendInfo(last.base_offset, is_duplicate=False)
        self._after_append(
            leader, last, appended, acks=ALL_ACKS, timeout_ms=timeout_ms, on_acked=on_acked
        )


def _call_waiters(completed: list[AckResult]) -> None:
    for token, code in completed:
        token(code)
