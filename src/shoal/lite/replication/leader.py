"""The leader of a partition: what is committed, who is in sync, who may be answered.

Rules of this file:
- The high watermark is the lowest end of the logs of the maximal in-sync set, and of those who
  are about to join it. It never goes back, and it stands still while the in-sync set is smaller
  than `min.insync.replicas`: what is below it survives the loss of all but one of so many.
- A follower counts only by its fetches within this leader's epoch.
- A follower joins when it has reached the high watermark and the begin of the leader's epoch:
  below that begin there may be committed records above the high watermark that is known here.
  Beyond Kafka's rule it must also be as close to the end as a member has to stay.
- After every event the shell takes what there is to do: `completed`, `take_proposal`, and a
  look at `high_watermark` for readers who wait. `next_deadline_ms` says when to `tick`.
"""

from collections.abc import Iterable
from typing import Any

from shoal.lite.base.codes import Code, Refused
from shoal.lite.replication.history import check_epoch, divergence, is_incomparable
from shoal.lite.replication.in_sync_set import InSyncSet
from shoal.lite.replication.messages import (
    AlterIsr,
    Assignment,
    Completed,
    EpochEnd,
    FetchVerdict,
    IsrAnswer,
    LiveEpochs,
    Log,
    ReplicaFetch,
    ReplicationSettings,
)
from shoal.lite.replication.peers import UNKNOWN_EPOCH, UNKNOWN_OFFSET, Peer
from shoal.lite.replication.waiting import WaitingProduces
from shoal.lite.storage.state.epochs import NO_EPOCH

ALL_ACKS = -1


class LeaderPartition:
    """A replica that leads, for as long as it leads without a break."""

    def __init__(
        self,
        broker_id: int,
        assignment: Assignment,
        log: Log,
        *,
        settings: ReplicationSettings,
        live_epochs: LiveEpochs,
        high_watermark: int,
        now_ms: int,
    ) -> None:
        """`high_watermark` is the last that this replica heard of."""
        self.broker_id = broker_id
        self.log = log
        self.high_watermark = max(log.start_offset, min(high_watermark, log.end_offset))
        self._settings = settings
        self._live_epochs = live_epochs
        self._now_ms = now_ms
        self._replicas = assignment.replicas
        self._peers: dict[int, Peer] = {}
        self._in_sync = InSyncSet(assignment.partition_epoch, frozenset(assignment.isr), settings)
        self._proposals = 0
        self._waiting = WaitingProduces()
        self._completed: list[Completed] = []
        self._begin_epoch(assignment)
        self._advance(now_ms)

    # What is so

    @property
    def partition_epoch(self) -> int:
        return self._in_sync.partition_epoch

    @property
    def isr(self) -> frozenset[int]:
        """The in-sync set that the controller confirmed."""
        return self._in_sync.confirmed

    @property
    def maximal_isr(self) -> frozenset[int]:
        """All who may be in the in-sync set, as the controller sees it."""
        return self._in_sync.maximal

    @property
    def is_under_min_isr(self) -> bool:
        """Too few are in sync to commit anything; a topic cannot ask for more than it has."""
        count = len(self._in_sync.confirmed)
        return count < self._settings.min_insync_replicas and count < len(self._replicas)

    @property
    def is_settled(self) -> bool:
        """Whether all that earlier leaders may have committed is below the high watermark."""
        return self.high_watermark >= self.epoch_start_offset

    @property
    def low_watermark(self) -> int:
        """Below it, records are deleted on all live replicas."""
        starts = [peer.start_offset for peer in self._peers.values() if self._is_live(peer)]
        return min([self.log.start_offset, *starts])

    @property
    def told_offset(self) -> int:
        """Everything below it is known to be committed by all in sync, if answers arrive."""
        told_offset, in_sync, live = self.high_watermark, self._in_sync.confirmed, self._live_epochs
        for peer in self._peers.values():
            told = peer.told_high_watermark
            if told < told_offset and peer.broker_id in in_sync and peer.broker_id in live:
                told_offset = told
        return told_offset

    def readable_from(self, offset: int) -> list[Peer]:
        """The followers from which a consumer may read on: in sync, live, and with the offset."""
        return [
            peer
            for peer in self._peers.values()
            if peer.broker_id in self.isr
            and self._is_live(peer)
            and UNKNOWN_OFFSET != peer.start_offset <= offset <= peer.end_offset
        ]

    # Questions of clients

    def check_epoch(self, known_epoch: int) -> None:
        """Refuse a client whose idea of the leader is older or newer than ours."""
        check_epoch(known_epoch, self.leader_epoch)

    def check_acks(self, acks: int) -> None:
        """Refuse, before anything is written, what could not be acknowledged."""
        if acks == ALL_ACKS and self.is_under_min_isr:
            raise Refused(
                Code.NOT_ENOUGH_REPLICAS,
                f"{len(self.isr)} replica(s) in sync, min.insync.replicas is "
                f"{self._settings.min_insync_replicas}",
            )

    def divergence(self, offset: int, last_fetched_epoch: int) -> EpochEnd | None:
        """Where a reader's history parts from this log; `Refused` if he is out of range."""
        return divergence(self.log, offset, last_fetched_epoch)

    def latest_offset(self) -> int:
        """Where consumers end; refused while it could be lower than what was told before."""
        if not self.is_settled:
            raise Refused(
                Code.OFFSET_NOT_AVAILABLE,
                f"the high watermark {self.high_watermark} has not reached the begin of the "
                f"leader's epoch, {self.epoch_start_offset}",
            )
        return self.high_watermark

    # Events

    def appended(self, now_ms: int) -> None:
        """Records were appended to the leader's log."""
        self._advance(now_ms)

    def await_acks(self, token: Any, required_offset: int, *, deadline_ms: int) -> None:
        """Let a producer wait until all in-sync replicas have everything below an offset.

        Duplicates wait too: that a batch was written before does not mean it is committed.
        """
        if required_offset <= self.high_watermark:
            self._completed.append(Completed(token, Code.NONE))
            return
        self._waiting.add(token, required_offset, deadline_ms)
        if self.is_under_min_isr:
            self._give_up_waits()

    def follower_fetched(
        self, now_ms: int, replica_id: int, fetch: ReplicaFetch, *, broker_epoch: int
    ) -> FetchVerdict:
        """A follower asks for more. What it asks for tells what it has."""
        try:
            peer = self._recognised(replica_id, fetch, broker_epoch)
            diverging = divergence(self.log, fetch.offset, fetch.last_fetched_epoch)
        except Refused as refused:
            return self._verdict(code=refused.code)
        if diverging is not None:
            return self._verdict(diverging=diverging)
        if is_incomparable(self.log, fetch.offset, fetch.last_fetched_epoch):
            # Its records are deleted here, but it would go on answering for them: that a
            # producer's batch is among them, which was never committed.
            return self._verdict(code=Code.OFFSET_OUT_OF_RANGE)
        peer.fetched(now_ms, fetch, broker_epoch=broker_epoch, leader_end=self.log.end_offset)
        self._expand(now_ms, peer)
        self._advance(now_ms)
        return FetchVerdict(self.high_watermark, self.log.start_offset)

    def has_news_for(self, replica_id: int) -> bool:
        """Whether a fetch that waits for records should be answered without any.

        A follower that knows what is committed can serve it at once when it is the last one, and
        who deletes records waits until the followers have deleted them too.
        """
        peer = self._peers.get(replica_id)
        return (
            peer is None
            or self.high_watermark > peer.told_high_watermark
            or self.log.start_offset > max(peer.told_start_offset, peer.start_offset)
        )

    def told(self, replica_id: int, high_watermark: int) -> None:
        """An answer with this high watermark, and the log's start, left to a follower."""
        if replica_id in self._peers:
            peer = self._peers[replica_id]
            peer.told_high_watermark = high_watermark
            peer.told_start_offset = self.log.start_offset

    def isr_answered(self, now_ms: int, proposal: AlterIsr, answer: IsrAnswer) -> None:
        """The controller answered a proposal, or the shell says why there is no answer."""
        self._in_sync.answered(now_ms, proposal, answer)
        self._advance(now_ms)

    def reassigned(
        self,
        now_ms: int,
        assignment: Assignment,
        settings: ReplicationSettings | None = None,
    ) -> None:
        """The metadata changed, maybe the settings too, and this replica still leads."""
        if assignment.partition_epoch <= self.partition_epoch:
            # An answer of the controller was here first.
            return
        if settings is not None:
            self._settings = self._in_sync.settings = settings
        self._in_sync.confirm(assignment.partition_epoch, frozenset(assignment.isr))
        self._replicas = assignment.replicas
        if assignment.leader_epoch > self.leader_epoch:
            self._now_ms = now_ms
            self._begin_epoch(assignment)
        else:
            self._peers = {
                broker_id: self._peers.get(broker_id) or Peer(broker_id, now_ms, is_in_sync=False)
                for broker_id in self._followers_in(assignment.replicas)
            }
        self._advance(now_ms)

    def configure(self, now_ms: int, settings: ReplicationSettings) -> None:
        """Follow new settings."""
        self._settings = self._in_sync.settings = settings
        self._advance(now_ms)

    def tick(self, now_ms: int) -> None:
        """Time has passed."""
        self._finish(self._waiting.expired(now_ms), Code.REQUEST_TIMED_OUT)
        self._in_sync.tick(now_ms)
        self._shrink(now_ms)
        self._advance(now_ms)

    def resign(self) -> None:
        """Another replica leads, or the partition is gone: nothing more is promised here."""
        self._finish(self._waiting.give_up(), Code.NOT_LEADER_OR_FOLLOWER)

    # What there is to do

    @property
    def has_to_do(self) -> bool:
        """Whether anybody can be answered, or something is to be sent to the controller."""
        return bool(self._completed) or self._in_sync.is_to_send

    def completed(self) -> list[Completed]:
        """Producers who can be answered now."""
        completed, self._completed = self._completed, []
        return completed

    def take_proposal(self) -> AlterIsr | None:
        """What to send to the controller now."""
        return self._in_sync.take_proposal()

    def next_deadline_ms(self) -> int | None:
        """When something happens by time alone; None if nothing will."""
        earliest_ms = self._waiting.next_deadline_ms
        deadline_ms = self._in_sync.next_deadline_ms
        if deadline_ms is not None and (earliest_ms is None or deadline_ms < earliest_ms):
            earliest_ms = deadline_ms
        end_offset = self.log.end_offset
        for peer in self._peers.values():
            if peer.end_offset == end_offset:
                continue
            deadline_ms = self._late_from_ms(peer)
            if deadline_ms is not None and (earliest_ms is None or deadline_ms < earliest_ms):
                earliest_ms = deadline_ms
        return earliest_ms

    def _late_from_ms(self, peer: Peer) -> int | None:
        """When a follower that is not at the end stops being caught up, if that matters."""
        late_ms = peer.caught_up_ms + self._settings.replica_lag_time_max_ms + 1
        if peer.broker_id not in self._in_sync.confirmed:
            # The high watermark waits for it no longer.
            return late_ms if late_ms > self._now_ms else None
        free_ms = self._in_sync.free_from_ms
        return None if free_ms is None else max(late_ms, free_ms)

    # The high watermark

    def _begin_epoch(self, assignment: Assignment) -> None:
        self.leader_epoch = assignment.leader_epoch
        # Followers may have records of any earlier epoch. Only with ours in the history can
        # each of them be told where its log parts from this one.
        self.log.begin_epoch(self.leader_epoch)
        self.epoch_start_offset = self.log.end_offset
        self._peers = {
            broker_id: Peer(broker_id, self._now_ms, is_in_sync=broker_id in assignment.isr)
            for broker_id in self._followers_in(assignment.replicas)
        }

    def _followers_in(self, replicas: Iterable[int]) -> list[int]:
        return [broker_id for broker_id in replicas if broker_id != self.broker_id]

    def _advance(self, now_ms: int) -> None:
        self._now_ms = now_ms
        is_under_min_isr = self.is_under_min_isr
        if not is_under_min_isr:
            self.high_watermark = max(self.high_watermark, self._replicated_offset(now_ms))
        reached = self._waiting.reached(self.high_watermark)
        if reached:
            self._finish(reached, Code.NONE)
        if is_under_min_isr:
            self._give_up_waits()

    def _replicated_offset(self, now_ms: int) -> int:
        """All who are in sync, or about to be, have everything below it."""
        maximal = self.maximal_isr
        lowest = end_offset = self.log.end_offset
        lag_ms = self._settings.replica_lag_time_max_ms
        for peer in self._peers.values():
            if peer.end_offset < lowest and (
                peer.broker_id in maximal
                # Without those about to join, a single in-sync leader would run away from them.
                or (peer.is_caught_up(end_offset, now_ms, lag_ms) and self._is_eligible(peer))
            ):
                lowest = peer.end_offset
        return lowest

    def _give_up_waits(self) -> None:
        self._finish(self._waiting.give_up(), Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND)

    def _finish(self, tokens: Iterable[Any], code: Code) -> None:
        self._completed.extend(Completed(token, code) for token in tokens)

    # Followers

    def _recognised(self, replica_id: int, fetch: ReplicaFetch, broker_epoch: int) -> Peer:
        if fetch.leader_epoch == NO_EPOCH:
            message = "a replica must say which leader it follows"
            raise Refused(Code.INVALID_REQUEST, message)
        check_epoch(fetch.leader_epoch, self.leader_epoch)
        peer = self._peers.get(replica_id)
        if peer is None:
            # It knows of an assignment that has not arrived here.
            message = f"broker {replica_id} has no replica of this partition"
            raise Refused(Code.UNKNOWN_LEADER_EPOCH, message)
        if broker_epoch < max(peer.broker_epoch, self._live_epochs.get(replica_id, UNKNOWN_EPOCH)):
            # A request of an earlier incarnation, which may have had a longer log.
            message = f"broker {replica_id} was registered again after epoch {broker_epoch}"
            raise Refused(Code.NOT_LEADER_OR_FOLLOWER, message)
        return peer

    def _verdict(
        self, *, code: Code = Code.NONE, diverging: EpochEnd | None = None
    ) -> FetchVerdict:
        return FetchVerdict(self.high_watermark, self.log.start_offset, code, diverging)

    def _is_live(self, peer: Peer) -> bool:
        return peer.broker_id in self._live_epochs

    def _is_eligible(self, peer: Peer) -> bool:
        """Not fenced, and the incarnation that fetched is the one that is registered."""
        return self._live_epochs.get(peer.broker_id) == peer.broker_epoch

    # The in-sync set

    def _expand(self, now_ms: int, peer: Peer) -> None:
        if (
            peer.broker_id not in self._in_sync.confirmed
            and peer.end_offset >= max(self.high_watermark, self.epoch_start_offset)
            # Else it would leave again at the next tick, and come back, and leave.
            and not self._is_late(now_ms, peer.broker_id)
            and self._is_eligible(peer)
            and self._in_sync.may_propose(now_ms)
        ):
            self._propose(now_ms, self.isr | {peer.broker_id})

    def _shrink(self, now_ms: int) -> None:
        if not self._in_sync.may_propose(now_ms):
            return
        late = {broker_id for broker_id in self.isr if self._is_late(now_ms, broker_id)}
        if late:
            self._propose(now_ms, self.isr - late)

    def _is_late(self, now_ms: int, broker_id: int) -> bool:
        if broker_id == self.broker_id:
            return False
        peer = self._peers.get(broker_id)
        lag_ms = self._settings.replica_lag_time_max_ms
        return peer is None or not peer.is_caught_up(self.log.end_offset, now_ms, lag_ms)

    def _propose(self, now_ms: int, members: Iterable[int]) -> None:
        isr = tuple((broker_id, self._known_epoch(broker_id)) for broker_id in sorted(members))
        self._proposals += 1
        proposal = AlterIsr(self._proposals, self.leader_epoch, self.partition_epoch, isr)
        self._in_sync.propose(now_ms, proposal)

    def _known_epoch(self, broker_id: int) -> int:
        if broker_id == self.broker_id:
            return self._live_epochs.get(broker_id, UNKNOWN_EPOCH)
        peer = self._peers.get(broker_id)
        return UNKNOWN_EPOCH if peer is None else peer.broker_epoch
