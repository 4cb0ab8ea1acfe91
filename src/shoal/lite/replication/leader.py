"""The leader of a partition: the high watermark, the ISR, and the answers to producers.

Rules of this file:
- The high watermark is the lowest log end offset of the maximal ISR and of the followers that are
  about to join it. It never moves back, and it does not advance while the ISR is smaller than
  `min.insync.replicas`: records below it survive the loss of all but one of that many replicas.
- A follower's progress is known only from its fetches in this leader's epoch.
- A follower joins the ISR when it has reached the high watermark and the start of the leader's
  epoch: records below that start may be committed although this leader's high watermark is lower.
  Beyond Kafka's rule it must also be as close to the log end offset as a member must stay.
- The live in-sync followers are sent a new high watermark before the producer is acknowledged: any
  of them may become the last replica a moment later, and serves only records that it knows to be
  committed. A follower that does not fetch delays an acknowledgement by at most `MAX_ACK_DELAY_MS`.
- After every event the shell collects the work: `take_completed`, `take_proposal`, and
  `high_watermark` for waiting readers. `next_deadline_ms` says when to call `tick`.
"""

from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.replication.follower_progress import UNKNOWN_EPOCH, UNKNOWN_OFFSET, FollowerProgress
from shoal.lite.replication.history import check_epoch, divergence, is_incomparable
from shoal.lite.replication.in_sync_set import InSyncSet
from shoal.lite.replication.messages import (
    AckResult,
    AlterIsr,
    EpochEndOffset,
    FetchVerdict,
    IsrAnswer,
    LiveEpochs,
    PartitionState,
    ReplicaFetch,
    ReplicatedLog,
    ReplicationSettings,
)
from shoal.lite.replication.waiting import WaitingProduces
from shoal.lite.storage.state.epochs import NO_EPOCH

ALL_ACKS = -1
# The longest delay of an acknowledgement until the followers have the high watermark.
MAX_ACK_DELAY_MS = 500


class _PendingAck(NamedTuple):
    """A producer whose records are committed: the high watermark that the followers must be sent
    first, and the time at which the producer is acknowledged anyway."""

    high_watermark: int
    until_ms: int
    token: Any


class LeaderPartition:
    """A replica that leads; lives as long as it leads without interruption."""

    def __init__(
        self,
        broker_id: int,
        assignment: PartitionState,
        log: ReplicatedLog,
        *,
        settings: ReplicationSettings,
        live_epochs: LiveEpochs,
        high_watermark: int,
        now_ms: int,
    ) -> None:
        """`high_watermark` is the last one that this replica knew."""
        self.broker_id = broker_id
        self.log = log
        self.high_watermark = max(log.start_offset, min(high_watermark, log.end_offset))
        self._settings = settings
        self._live_epochs = live_epochs
        self._now_ms = now_ms
        self._replicas = assignment.replicas
        self._failed = assignment.failed
        self._followers: dict[int, FollowerProgress] = {}
        self._in_sync = InSyncSet(assignment.partition_epoch, frozenset(assignment.isr), settings)
        self._proposals = 0
        self._waiting = WaitingProduces()
        self._pending_acks: deque[_PendingAck] = deque()
        self._completed: list[AckResult] = []
        self._begin_epoch(assignment)
        self._advance(now_ms)

    # State

    @property
    def partition_epoch(self) -> int:
        return self._in_sync.partition_epoch

    @property
    def isr(self) -> frozenset[int]:
        """The ISR that the controller confirmed."""
        return self._in_sync.confirmed

    @property
    def maximal_isr(self) -> frozenset[int]:
        """All replicas that may be in the controller's ISR."""
        return self._in_sync.maximal

    @property
    def is_under_min_isr(self) -> bool:
        """Whether the ISR is too small to commit; a topic cannot need more replicas than it has."""
        count = len(self._in_sync.confirmed)
        return count < self._settings.min_insync_replicas and count < len(self._replicas)

    @property
    def has_reached_epoch_start(self) -> bool:
        """Whether all records that earlier leaders may have committed are below it."""
        return self.high_watermark >= self.epoch_start_offset

    @property
    def low_watermark(self) -> int:
        """The offset below which all live replicas have deleted their records."""
        starts = [
            follower.start_offset
            for follower in self._followers.values()
            if self._is_live(follower)
        ]
        return min([self.log.start_offset, *starts])

    def followers_with_offset(self, offset: int) -> list[FollowerProgress]:
        """Return the followers that can serve a consumer: in sync, live, and with the offset."""
        return [
            follower
            for follower in self._followers.values()
            if follower.broker_id in self.isr
            and self._is_live(follower)
            and UNKNOWN_OFFSET != follower.start_offset <= offset <= follower.end_offset
        ]

    # Requests of clients

    def check_epoch(self, known_epoch: int) -> None:
        """Raise `ApiError` if a client's leader epoch is older or newer than this one."""
        check_epoch(known_epoch, self.leader_epoch)

    def check_acks(self, acks: int) -> None:
        """Raise `ApiError`, before the append, if the append could not be acknowledged."""
        if acks == ALL_ACKS and self.is_under_min_isr:
            raise ApiError(
                Code.NOT_ENOUGH_REPLICAS,
                f"the ISR has {len(self.isr)} replica(s), but min.insync.replicas is "
                f"{self._settings.min_insync_replicas}",
            )

    def divergence(self, offset: int, last_fetched_epoch: int) -> EpochEndOffset | None:
        """Return where a reader's log diverges from this one; `ApiError` if it is out of range."""
        return divergence(self.log, offset, last_fetched_epoch)

    def latest_offset(self) -> int:
        """Return the high watermark; `ApiError` while it may be lower than an earlier leader's."""
        if not self.has_reached_epoch_start:
            raise ApiError(
                Code.OFFSET_NOT_AVAILABLE,
                f"the high watermark {self.high_watermark} has not reached the start of the "
                f"leader epoch, offset {self.epoch_start_offset}",
            )
        return self.high_watermark

    # Events

    def on_append(self, now_ms: int) -> None:
        """Advance the high watermark after an append to the leader's log."""
        self._advance(now_ms)

    def await_acks(
        self, now_ms: int, token: Any, required_offset: int, *, deadline_ms: int
    ) -> None:
        """Let a producer wait until all in-sync replicas have the records below an offset.

        Duplicates wait too: a batch that was written before need not be committed.
        """
        if required_offset <= self.high_watermark:
            self._delay_ack(now_ms, token)
            return
        self._waiting.add(token, required_offset, deadline_ms)
        if self.is_under_min_isr:
            self._fail_waiting_produces()

    def on_follower_fetch(
        self, now_ms: int, replica_id: int, fetch: ReplicaFetch, *, broker_epoch: int
    ) -> FetchVerdict:
        """Handle a follower's fetch; its fetch offset is its log end offset."""
        try:
            follower = self._find_follower(replica_id, fetch, broker_epoch)
            diverging = divergence(self.log, fetch.offset, fetch.last_fetched_epoch)
        except ApiError as error:
            return self._verdict(code=error.code)
        if diverging is not None:
            return self._verdict(diverging=diverging)
        if is_incomparable(self.log, fetch.offset, fetch.last_fetched_epoch):
            # The follower's last records are deleted here and cannot be compared. It must not keep
            # them: if it became leader, it would treat an uncommitted batch as a duplicate.
            return self._verdict(code=Code.OFFSET_OUT_OF_RANGE)
        follower.record_fetch(
            now_ms, fetch, broker_epoch=broker_epoch, leader_end=self.log.end_offset
        )
        self._expand(now_ms, follower)
        self._advance(now_ms)
        return FetchVerdict(self.high_watermark, self.log.start_offset)

    def has_updates_for(self, replica_id: int) -> bool:
        """Return whether a held fetch should be answered without records.

        A follower that knows the high watermark can serve committed records at once if it becomes
        the last replica. DeleteRecords waits until the followers know the log start offset.
        """
        follower = self._followers.get(replica_id)
        return (
            follower is None
            or self.high_watermark > follower.sent_high_watermark
            or self.log.start_offset > max(follower.sent_start_offset, follower.start_offset)
        )

    def on_answer_sent(self, replica_id: int, high_watermark: int) -> None:
        """Record that an answer with this high watermark and the log start offset was sent."""
        if replica_id in self._followers:
            follower = self._followers[replica_id]
            follower.sent_high_watermark = high_watermark
            follower.sent_start_offset = self.log.start_offset

    def on_isr_answer(self, now_ms: int, proposal: AlterIsr, answer: IsrAnswer) -> None:
        """Handle the controller's answer to a proposal, or the shell's code for a missing one."""
        self._in_sync.on_answer(now_ms, proposal, answer)
        self._advance(now_ms)

    def on_assignment(
        self,
        now_ms: int,
        assignment: PartitionState,
        settings: ReplicationSettings | None = None,
    ) -> None:
        """Apply changed metadata, and possibly settings, while this replica still leads."""
        if assignment.partition_epoch <= self.partition_epoch:
            # The controller's answer arrived before the metadata.
            return
        if settings is not None:
            self._settings = self._in_sync.settings = settings
        self._in_sync.confirm(assignment.partition_epoch, frozenset(assignment.isr))
        self._replicas = assignment.replicas
        self._failed = assignment.failed
        if assignment.leader_epoch > self.leader_epoch:
            self._now_ms = now_ms
            self._begin_epoch(assignment)
        else:
            self._followers = {
                broker_id: self._followers.get(broker_id)
                or FollowerProgress(broker_id, now_ms, is_in_sync=False)
                for broker_id in self._followers_in(assignment.replicas)
            }
        self._advance(now_ms)

    def configure(self, now_ms: int, settings: ReplicationSettings) -> None:
        """Apply new settings."""
        self._settings = self._in_sync.settings = settings
        self._advance(now_ms)

    def tick(self, now_ms: int) -> None:
        """Handle the passing of time."""
        self._finish(self._waiting.pop_expired(now_ms), Code.REQUEST_TIMED_OUT)
        while self._pending_acks and self._pending_acks[0].until_ms <= now_ms:
            self._acknowledge_next()
        self._in_sync.tick(now_ms)
        self._shrink(now_ms)
        self._advance(now_ms)

    def resign(self) -> None:
        """Answer all waiting producers: another replica leads, or the partition is removed.

        Committed records stay committed, so their producers are acknowledged.
        """
        while self._pending_acks:
            self._acknowledge_next()
        self._finish(self._waiting.pop_all(), Code.NOT_LEADER_OR_FOLLOWER)

    # Output

    @property
    def has_pending_work(self) -> bool:
        """Whether a producer may be answered or a proposal is to be sent to the controller."""
        return (
            bool(self._completed) or bool(self._pending_acks) or self._in_sync.has_unsent_proposal
        )

    def take_completed(self) -> list[AckResult]:
        """Return the producers that can be answered now."""
        pending_acks = self._pending_acks
        if pending_acks:
            sent_high_watermark = self._lowest_sent_high_watermark()
            while pending_acks and pending_acks[0].high_watermark <= sent_high_watermark:
                self._acknowledge_next()
        completed, self._completed = self._completed, []
        return completed

    def take_proposal(self) -> AlterIsr | None:
        """Return the proposal to send to the controller now, if any."""
        return self._in_sync.take_proposal()

    def next_deadline_ms(self) -> int | None:
        """Return when `tick` must be called next; None if no deadline is set."""
        earliest_ms = self._waiting.next_deadline_ms
        deadline_ms = self._in_sync.next_deadline_ms
        if deadline_ms is not None and (earliest_ms is None or deadline_ms < earliest_ms):
            earliest_ms = deadline_ms
        if self._pending_acks:
            deadline_ms = self._pending_acks[0].until_ms
            if earliest_ms is None or deadline_ms < earliest_ms:
                earliest_ms = deadline_ms
        end_offset = self.log.end_offset
        for follower in self._followers.values():
            if follower.end_offset == end_offset:
                continue
            deadline_ms = self._late_from_ms(follower)
            if deadline_ms is not None and (earliest_ms is None or deadline_ms < earliest_ms):
                earliest_ms = deadline_ms
        return earliest_ms

    def _late_from_ms(self, follower: FollowerProgress) -> int | None:
        """Return when a lagging follower stops being caught up; None if that has no effect."""
        late_ms = follower.caught_up_ms + self._settings.replica_lag_time_max_ms + 1
        if follower.broker_id not in self._in_sync.confirmed:
            # It is not in the ISR: from then on the high watermark does not wait for it.
            return late_ms if late_ms > self._now_ms else None
        free_ms = self._in_sync.next_proposal_ms
        return None if free_ms is None else max(late_ms, free_ms)

    # The high watermark

    def _begin_epoch(self, assignment: PartitionState) -> None:
        self.leader_epoch = assignment.leader_epoch
        # Followers may have records of any earlier epoch. Where their logs diverge can be computed
        # only once the history contains this epoch.
        self.log.begin_epoch(self.leader_epoch)
        self.epoch_start_offset = self.log.end_offset
        self._followers = {
            broker_id: FollowerProgress(
                broker_id, self._now_ms, is_in_sync=broker_id in assignment.isr
            )
            for broker_id in self._followers_in(assignment.replicas)
        }

    def _followers_in(self, replicas: Iterable[int]) -> list[int]:
        return [broker_id for broker_id in replicas if broker_id != self.broker_id]

    def _advance(self, now_ms: int) -> None:
        self._now_ms = now_ms
        is_under_min_isr = self.is_under_min_isr
        if not is_under_min_isr:
            self.high_watermark = max(self.high_watermark, self._lowest_replicated_offset(now_ms))
        for token in self._waiting.pop_reached(self.high_watermark):
            self._delay_ack(now_ms, token)
        if is_under_min_isr:
            self._fail_waiting_produces()

    def _lowest_replicated_offset(self, now_ms: int) -> int:
        """Return the lowest log end offset of the replicas in the ISR or about to join it."""
        maximal = self.maximal_isr
        lowest = end_offset = self.log.end_offset
        lag_ms = self._settings.replica_lag_time_max_ms
        for follower in self._followers.values():
            if follower.end_offset < lowest and (
                follower.broker_id in maximal
                # Without followers about to join, a leader alone in the ISR would outrun them.
                or (
                    follower.is_caught_up(end_offset, now_ms, lag_ms)
                    and self._is_eligible(follower)
                )
            ):
                lowest = follower.end_offset
        return lowest

    def _fail_waiting_produces(self) -> None:
        self._finish(self._waiting.pop_all(), Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND)

    def _finish(self, tokens: Iterable[Any], code: Code) -> None:
        self._completed.extend(AckResult(token, code) for token in tokens)

    # Acknowledgements

    def _delay_ack(self, now_ms: int, token: Any) -> None:
        """Acknowledge committed records once the followers know that they are committed."""
        until_ms = now_ms + MAX_ACK_DELAY_MS
        self._pending_acks.append(_PendingAck(self.high_watermark, until_ms, token))

    def _lowest_sent_high_watermark(self) -> int:
        """Return the lowest high watermark that was sent to the live in-sync followers."""
        lowest, in_sync, live = self.high_watermark, self._in_sync.confirmed, self._live_epochs
        for follower in self._followers.values():
            sent = follower.sent_high_watermark
            if sent < lowest and follower.broker_id in in_sync and follower.broker_id in live:
                lowest = sent
        return lowest

    def _acknowledge_next(self) -> None:
        self._completed.append(AckResult(self._pending_acks.popleft().token, Code.NONE))

    # Followers

    def _find_follower(
        self, replica_id: int, fetch: ReplicaFetch, broker_epoch: int
    ) -> FollowerProgress:
        if fetch.leader_epoch == NO_EPOCH:
            message = "a replica's fetch must contain a leader epoch"
            raise ApiError(Code.INVALID_REQUEST, message)
        check_epoch(fetch.leader_epoch, self.leader_epoch)
        follower = self._followers.get(replica_id)
        if follower is None:
            # It knows a newer assignment than this broker.
            message = f"broker {replica_id} has no replica of this partition"
            raise ApiError(Code.UNKNOWN_LEADER_EPOCH, message)
        if broker_epoch < max(
            follower.broker_epoch, self._live_epochs.get(replica_id, UNKNOWN_EPOCH)
        ):
            # An earlier incarnation of the broker sent it, which may have had a longer log.
            message = f"broker epoch {broker_epoch} of broker {replica_id} is outdated"
            raise ApiError(Code.NOT_LEADER_OR_FOLLOWER, message)
        return follower

    def _verdict(
        self, *, code: Code = Code.NONE, diverging: EpochEndOffset | None = None
    ) -> FetchVerdict:
        return FetchVerdict(self.high_watermark, self.log.start_offset, code, diverging)

    def _is_live(self, follower: FollowerProgress) -> bool:
        """Return whether its broker is unfenced and its log has not failed."""
        broker_id = follower.broker_id
        return broker_id in self._live_epochs and broker_id not in self._failed

    def _is_eligible(self, follower: FollowerProgress) -> bool:
        """Return whether it is live and its broker epoch is the registered one."""
        is_current = self._live_epochs.get(follower.broker_id) == follower.broker_epoch
        return is_current and self._is_live(follower)

    # The ISR

    def _expand(self, now_ms: int, follower: FollowerProgress) -> None:
        if (
            follower.broker_id not in self._in_sync.confirmed
            and follower.end_offset >= max(self.high_watermark, self.epoch_start_offset)
            # Otherwise it would leave the ISR at the next tick and rejoin with the next fetch.
            and not self._is_late(now_ms, follower.broker_id)
            and self._is_eligible(follower)
            and self._in_sync.can_propose(now_ms)
        ):
            self._propose(now_ms, self.isr | {follower.broker_id})

    def _shrink(self, now_ms: int) -> None:
        if not self._in_sync.can_propose(now_ms):
            return
        late = {broker_id for broker_id in self.isr if self._is_late(now_ms, broker_id)}
        if late:
            self._propose(now_ms, self.isr - late)

    def _is_late(self, now_ms: int, broker_id: int) -> bool:
        if broker_id == self.broker_id:
            return False
        follower = self._followers.get(broker_id)
        lag_ms = self._settings.replica_lag_time_max_ms
        return follower is None or not follower.is_caught_up(self.log.end_offset, now_ms, lag_ms)

    def _propose(self, now_ms: int, members: Iterable[int]) -> None:
        isr = tuple((broker_id, self._broker_epoch_of(broker_id)) for broker_id in sorted(members))
        self._proposals += 1
        proposal = AlterIsr(self._proposals, self.leader_epoch, self.partition_epoch, isr)
        self._in_sync.propose(now_ms, proposal)

    def _broker_epoch_of(self, broker_id: int) -> int:
        if broker_id == self.broker_id:
            return self._live_epochs.get(broker_id, UNKNOWN_EPOCH)
        follower = self._followers.get(broker_id)
        return UNKNOWN_EPOCH if follower is None else follower.broker_epoch
