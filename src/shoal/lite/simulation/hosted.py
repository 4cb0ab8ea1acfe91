"""One replica on one broker: the shell around `PartitionReplica`, as a broker has in production.

It fetches while the replica follows, holds fetches while there is nothing to give, appends
what producers send, and passes on what the state machines want said.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.metadata.data.records import PartitionRecord
from shoal.lite.replication.follower import FollowerPartition
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
    TruncateFully,
    TruncateTo,
)
from shoal.lite.simulation.disk import Key
from shoal.lite.simulation.log import Batch
from shoal.lite.simulation.messages import FetchCall, FetchReply, ProduceCall, ProduceReply
from shoal.lite.simulation.setup import (
    FETCH_MAX_WAIT_MS,
    REQUEST_TIMEOUT_MS,
    replication_settings,
)

if TYPE_CHECKING:
    from shoal.lite.simulation.brokers import BrokerProcess

_MOST_BATCHES = 3
_PRODUCE_TIMEOUT_MS = 1500


@dataclass(slots=True)
class _Asked:
    """A fetch that waits for its answer."""

    number: int
    fetch: ReplicaFetch
    until_ms: int


@dataclass(slots=True)
class _Held:
    """A follower's fetch that waits for something to give."""

    call: FetchCall
    until_ms: int


@dataclass(slots=True)
class _Produced:
    """A producer that waits for its acknowledgement."""

    client: int
    number: int
    batch: Batch


class HostedPartition:
    """A replica, its log, and who talks to it."""

    __slots__ = (
        "_asked",
        "_held",
        "broker",
        "has_failed",
        "is_removed",
        "is_touched",
        "key",
        "log",
        "min_insync",
        "replica",
        "seen_epoch",
        "seen_high_watermark",
    )

    def __init__(self, broker: "BrokerProcess", key: Key, min_insync: int) -> None:
        self.broker = broker
        self.key = key
        self.log = broker.disk.log(key)
        self.min_insync = min_insync
        self.replica = broker.world.parts.replica(
            broker.id,
            self.log,
            settings=replication_settings(min_insync),
            live_epochs=broker.live_epochs,
            high_watermark=broker.disk.checkpoint.get(key, 0),
        )
        self._asked: _Asked | None = None
        self._held: dict[int, _Held] = {}
        # The disk failed this log; it is of no use until the next start.
        self.has_failed = False
        # It serves nobody any more: it has failed, or the metadata has no replica here.
        self.is_removed = False
        # For the invariants: whether anything happened, and what was seen before.
        self.is_touched = False
        self.seen_epoch = -1
        self.seen_high_watermark = 0

    # Metadata

    def assign(self, record: PartitionRecord, min_insync: int) -> None:
        """The metadata has changed."""
        if self.has_failed:
            return
        self.is_touched = True
        now_ms = self.broker.now_ms
        assignment = PartitionState(
            record.replicas,
            record.in_sync,
            record.leader,
            record.leader_epoch,
            record.partition_epoch,
        )
        was = self.replica.role
        self.min_insync = min_insync
        settings = replication_settings(min_insync)
        for completed in self.replica.assign(now_ms, assignment, settings):
            self._complete(completed)
        if self.replica.role is not was:
            self._refuse_held()
            self._trace_role()
        self.settle()

    def _trace_role(self) -> None:
        world = self.broker.world
        role = self.replica.role
        if isinstance(role, LeaderPartition):
            world.counters["leaderships"] += 1
            world.trace(
                self.broker.id,
                f"leads {self.name} in epoch {role.leader_epoch} from offset "
                f"{role.epoch_start_offset}, in sync {sorted(role.isr)}",
            )
        else:
            world.trace(self.broker.id, f"follows {role.leader} in epoch {role.leader_epoch}")

    @property
    def name(self) -> str:
        return f"p{self.key[1]}"

    def fail(self) -> None:
        """The disk fails: nothing can be read or written any more."""
        self.has_failed = True
        self.stop()
        self._asked = None

    def stop(self) -> None:
        """The replica is of no use any more."""
        self.is_removed = True
        leader = self.replica.leader
        if leader is not None:
            leader.resign()
            for completed in leader.take_completed():
                self._complete(completed)
        self._refuse_held()

    # Time

    def tick(self, now_ms: int) -> None:
        """Do what the time has come for."""
        if self.has_failed:
            return
        role = self.replica.role
        if isinstance(role, LeaderPartition):
            deadline_ms = role.next_deadline_ms()
            if deadline_ms is not None and deadline_ms <= now_ms:
                self.is_touched = True
                role.tick(now_ms)
                self.settle()
            self._answer_held(role, now_ms)
            return
        asked = self._asked
        if asked is not None and asked.until_ms <= now_ms:
            self._asked = None
            role.on_fetch_failed(now_ms, asked.fetch)
        self._fetch(role)

    def next_deadline_ms(self) -> int | None:
        if self.has_failed:
            return None
        role = self.replica.role
        if isinstance(role, LeaderPartition):
            deadline_ms = role.next_deadline_ms()
            for held in self._held.values():
                if deadline_ms is None or held.until_ms < deadline_ms:
                    deadline_ms = held.until_ms
            return deadline_ms
        if self._asked is not None:
            return self._asked.until_ms
        return role.next_deadline_ms()

    def settle(self) -> None:
        """Do what there is to do after an event."""
        if self.has_failed:
            return
        role = self.replica.role
        if isinstance(role, LeaderPartition):
            for completed in role.take_completed():
                self._complete(completed)
            proposal = role.take_proposal()
            if proposal is not None:
                self.broker.propose(self, role, proposal)
            if self._held:
                self._answer_held(role, self.broker.now_ms)
        else:
            self._fetch(role)

    # Following

    def _fetch(self, follower: FollowerPartition) -> None:
        now_ms = self.broker.now_ms
        asked = self._asked
        if asked is not None and asked.fetch.leader_epoch == follower.leader_epoch:
            return
        self._asked = None
        fetch = follower.next_fetch(now_ms)
        if fetch is None:
            return
        number = self.broker.next_call()
        self._asked = _Asked(number, fetch, now_ms + FETCH_MAX_WAIT_MS + REQUEST_TIMEOUT_MS)
        call = FetchCall(number, self.key, fetch, self.broker.broker_epoch)
        self.broker.send(follower.leader, call)

    def on_fetch_reply(self, reply: FetchReply) -> None:
        asked, follower = self._asked, self.replica.follower
        if asked is None or asked.number != reply.number or follower is None:
            return
        self.is_touched = True
        self._asked = None
        answer = reply.answer
        for action in follower.on_fetch_answer(self.broker.now_ms, asked.fetch, answer):
            self._act(action, reply)
        self._fetch(follower)

    def _act(self, action: FollowerAction, reply: FetchReply) -> None:
        world, log = self.broker.world, self.log
        if isinstance(action, AppendFetched):
            log.append(reply.batches)
        elif isinstance(action, TruncateTo):
            world.counters["truncations"] += 1
            world.trace(
                self.broker.id, f"cuts {self.name} from {log.end_offset} to {action.offset}"
            )
            log.truncate_to(action.offset)
        elif isinstance(action, TruncateFully):
            world.counters["truncations"] += log.end_offset > log.start_offset
            world.trace(self.broker.id, f"begins {self.name} again at {action.start_offset}")
            log.truncate_fully(action.start_offset)
        elif isinstance(action, AdvanceStart):
            log.delete_before(action.offset)

    # Leading

    def on_fetch(self, sender: int, call: FetchCall) -> None:
        leader = self.replica.leader
        if leader is None or self.has_failed:
            self._refuse_fetch(sender, call)
            return
        self.is_touched = True
        now_ms = self.broker.now_ms
        verdict = leader.on_follower_fetch(
            now_ms, sender, call.fetch, broker_epoch=call.broker_epoch
        )
        if verdict.code != Code.NONE or verdict.diverging is not None:
            answer = FetchAnswer(
                verdict.high_watermark, verdict.log_start_offset, verdict.code, verdict.diverging
            )
            self.broker.send(sender, FetchReply(call.number, self.key, answer))
        else:
            self.broker.world.judge.on_follower_fetched(self, sender)
            self._held[sender] = _Held(call, now_ms + FETCH_MAX_WAIT_MS)
        self.settle()

    def _answer_held(self, leader: LeaderPartition, now_ms: int) -> None:
        end_offset = self.log.end_offset
        for sender, held in list(self._held.items()):
            call = held.call
            has_records = call.fetch.offset < end_offset
            if has_records or now_ms >= held.until_ms or leader.has_updates_for(sender):
                del self._held[sender]
                self._give(leader, sender, call)

    def _give(self, leader: LeaderPartition, sender: int, call: FetchCall) -> None:
        offset, log = call.fetch.offset, self.log
        if offset < log.start_offset:
            # Deleted while the fetch was held.
            answer = FetchAnswer(leader.high_watermark, log.start_offset, Code.OFFSET_OUT_OF_RANGE)
            self.broker.send(sender, FetchReply(call.number, self.key, answer))
            return
        batches = log.read(offset, _MOST_BATCHES, log.end_offset)
        first_offset = batches[0].base_offset if batches else None
        answer = FetchAnswer(leader.high_watermark, log.start_offset, first_offset=first_offset)
        leader.on_answer_sent(sender, leader.high_watermark)
        self.broker.world.judge.on_high_watermark_sent(self, sender, leader.high_watermark)
        self.broker.send(sender, FetchReply(call.number, self.key, answer, batches))
        # Producers are acknowledged after that.
        for completed in leader.take_completed():
            self._complete(completed)

    def _refuse_held(self) -> None:
        for sender, held in self._held.items():
            self._refuse_fetch(sender, held.call)
        self._held.clear()

    def _refuse_fetch(self, sender: int, call: FetchCall) -> None:
        answer = FetchAnswer(-1, -1, Code.NOT_LEADER_OR_FOLLOWER)
        self.broker.send(sender, FetchReply(call.number, self.key, answer))

    def on_in_sync_answer(
        self, leader: LeaderPartition, proposal: AlterIsr, answer: IsrAnswer
    ) -> None:
        """The controller answered, or there will be no answer."""
        if self.replica.role is leader and not self.has_failed:
            self.is_touched = True
            leader.on_isr_answer(self.broker.now_ms, proposal, answer)
            self.settle()

    # Producers

    def on_produce(self, client: int, call: ProduceCall) -> None:
        leader = self.replica.leader
        if leader is None or self.has_failed:
            self._answer(client, call, ProduceReply(call.number, Code.NOT_LEADER_OR_FOLLOWER))
            return
        try:
            leader.check_acks(call.acks)
            duplicate = self.log.duplicate_of(call.header)
        except ApiError as refused:
            if refused.code == Code.OUT_OF_ORDER_SEQUENCE_NUMBER:
                self.broker.world.judge.on_sequence_refused(self, call.header)
            self._answer(client, call, ProduceReply(call.number, refused.code))
            return
        self.is_touched = True
        now_ms = self.broker.now_ms
        batch = duplicate
        if batch is None:
            batch = self.broker.world.write_batch(self, leader, call.header)
            leader.on_append(now_ms)
        if call.acks == ALL_ACKS:
            leader.await_acks(
                now_ms,
                _Produced(client, call.number, batch),
                batch.end_offset,
                deadline_ms=now_ms + _PRODUCE_TIMEOUT_MS,
            )
        else:
            self._answer(client, call, ProduceReply(call.number, Code.NONE, batch))
        self.settle()

    def _answer(self, client: int, call: ProduceCall, reply: ProduceReply) -> None:
        if call.acks != 0:
            self.broker.send(client, reply)

    def _complete(self, completed: AckResult) -> None:
        produced: _Produced = completed.token
        if completed.code == Code.NONE:
            self.broker.world.judge.on_acknowledged(self, produced.batch)
        reply = ProduceReply(produced.number, completed.code, produced.batch)
        self.broker.send(produced.client, reply)
