"""One replica on one simulated broker: the shell of production, and the messages around it.

Rules of this file:
- What production's `PartitionShell` does is not done here: roles, appends, acknowledgements, the
  in-sync set and their timers are its own.
- Here are the fetches: a follower has one on its way, and a leader holds a fetch until the shell
  says that there is data. As in production, a fetch is answered after the event that woke it, and
  acknowledgements are released after the answer is sent.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.base.configs import Layers, resolve_topic_config
from shoal.lite.metadata.data.records import PartitionRecord
from shoal.lite.partitions.partition import PartitionShell
from shoal.lite.replication.leader import ALL_ACKS, LeaderPartition
from shoal.lite.replication.messages import (
    FetchAnswer,
    FollowerAction,
    ReplicaFetch,
    TruncateFully,
    TruncateTo,
)
from shoal.lite.simulation.log import Batch, SimulatedLog
from shoal.lite.simulation.messages import FetchCall, FetchReply, ProduceCall, ProduceReply
from shoal.lite.simulation.setup import (
    FETCH_MAX_WAIT_MS,
    REQUEST_TIMEOUT_MS,
    replication_settings,
)
from shoal.lite.storage.header import BatchHeader

if TYPE_CHECKING:
    from shoal.lite.simulation.brokers import BrokerProcess

_MOST_BATCHES = 3
_PRODUCE_TIMEOUT_MS = 1500
_RULES = resolve_topic_config(Layers({}, {}, {}), {})
# A simulated batch is its header.
_NO_BYTES = memoryview(b"")


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
    """A producer that waits for its acknowledgement, which may come before the append returns."""

    partition: "SimulatedPartition"
    client: int
    number: int
    batch: Batch | None = None
    code: Code | None = None

    def on_acked(self, code: Code) -> None:
        self.code = code
        self.answer_if_done()

    def answer_if_done(self) -> None:
        if self.batch is None or self.code is None:
            return
        broker = self.partition.broker
        if self.code == Code.NONE:
            broker.world.judge.on_acknowledged(self.partition, self.batch)
        broker.send(self.client, ProduceReply(self.number, self.code, self.batch))


class SimulatedPartition(PartitionShell[SimulatedLog]):
    """A replica, its log, and who talks to it. It is a waiter of its own shell."""

    __slots__ = (
        "_asked",
        "_held",
        "_is_answering",
        "broker",
        "is_touched",
        "key",
        "min_insync",
        "seen_epoch",
        "seen_high_watermark",
    )

    def __init__(self, broker: "BrokerProcess", record: PartitionRecord, min_insync: int) -> None:
        self.broker = broker
        self.key = key = record.key
        self.min_insync = min_insync
        log = broker.disk.log(key)
        super().__init__(
            broker,
            f"p{record.partition}",
            log,
            record=record,
            rules=_RULES,
            settings=replication_settings(min_insync),
            high_watermark=broker.disk.checkpoint.get(key, 0),
            replica_type=broker.world.parts.replica,
        )
        log.offline_reason = None
        log.new_batch = self._new_batch
        self.followers.add(self)
        self._asked: _Asked | None = None
        self._held: dict[int, _Held] = {}
        self._is_answering = False
        # For the invariants: whether anything happened, and what was seen before.
        self.is_touched = False
        self.seen_epoch = -1
        self.seen_high_watermark = 0

    @property
    def has_failed(self) -> bool:
        """Whether the disk failed this log; it is of no use until the next start."""
        return self.log.offline_reason is not None

    def settle(self) -> None:
        self.is_touched = True
        super().settle()

    # Metadata

    def follow(self, record: PartitionRecord, min_insync: int) -> None:
        """The metadata has changed."""
        was = self.replica.role
        self.min_insync = min_insync
        self.assign(record, replication_settings(min_insync))
        if self.replica.role is not was:
            self._trace_role()

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

    # Time

    def tick(self, now_ms: int) -> None:
        """Do what the time has come for, beside the timers of the shell."""
        follower = self.replica.follower
        if follower is None:
            self._answer_held()
            return
        asked = self._asked
        if asked is not None and asked.until_ms <= now_ms:
            self._asked = None
            follower.on_fetch_failed(now_ms, asked.fetch)
        self.fetch()

    def next_deadline_ms(self) -> int | None:
        follower = self.replica.follower
        if follower is None:
            return min((held.until_ms for held in self._held.values()), default=None)
        if self.has_failed:
            return None
        return follower.next_deadline_ms() if self._asked is None else self._asked.until_ms

    # Following

    def fetch(self) -> None:
        """Send the next fetch, unless one of this leader epoch is on its way."""
        follower = self.replica.follower
        if follower is None or self.is_removed or self.has_failed:
            return
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
        asked = self._asked
        if asked is None or asked.number != reply.number or self.replica.follower is None:
            return
        self.is_touched = True
        self._asked = None
        self.on_fetch_answer(asked.fetch, reply.answer, reply.batches)
        self.fetch()

    def _apply_action(self, action: FollowerAction, records: Any) -> None:
        world, log = self.broker.world, self.log
        if isinstance(action, TruncateTo):
            world.counters["truncations"] += 1
            world.trace(
                self.broker.id, f"cuts {self.name} from {log.end_offset} to {action.offset}"
            )
        elif isinstance(action, TruncateFully):
            world.counters["truncations"] += log.end_offset > log.start_offset
            world.trace(self.broker.id, f"begins {self.name} again at {action.start_offset}")
        super()._apply_action(action, records)

    # Leading

    def on_fetch(self, sender: int, call: FetchCall) -> None:
        leader = self.replica.leader
        if leader is None or self.has_failed:
            self._refuse_fetch(sender, call)
            return
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
        self._answer_held()

    def on_data_available(self, size_bytes: int) -> None:
        """There are records, or a high watermark, for held fetches."""
        if self._held and not self._is_answering:
            self._is_answering = True
            self.broker.scheduler.call_soon(self._answer_held)

    def on_unavailable(self) -> None:
        """This replica leads no longer, or in another epoch, or its log failed."""
        for sender, held in self._held.items():
            self._refuse_fetch(sender, held.call)
        self._held.clear()

    def _answer_held(self) -> None:
        self._is_answering = False
        leader, end_offset = self.replica.leader, self.log.end_offset
        if leader is None:
            return
        now_ms = self.broker.now_ms
        for sender, held in list(self._held.items()):
            has_records = held.call.fetch.offset < end_offset
            if has_records or now_ms >= held.until_ms or leader.has_updates_for(sender):
                del self._held[sender]
                self._give(leader, sender, held.call)

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
        self.is_touched = True
        self.on_high_watermark_sent()

    def _refuse_fetch(self, sender: int, call: FetchCall) -> None:
        answer = FetchAnswer(-1, -1, Code.NOT_LEADER_OR_FOLLOWER)
        self.broker.send(sender, FetchReply(call.number, self.key, answer))

    # Producers

    def on_produce(self, client: int, call: ProduceCall) -> None:
        produced = _Produced(self, client, call.number)
        try:
            self.leader.check_acks(call.acks)
            appended = self.append(
                _NO_BYTES,
                call.header,
                acks=call.acks,
                timeout_ms=_PRODUCE_TIMEOUT_MS,
                on_acked=produced.on_acked,
            )
        except ApiError as refused:
            if refused.code == Code.OUT_OF_ORDER_SEQUENCE_NUMBER:
                self.broker.world.judge.on_sequence_refused(self, call.header)
            self._answer(client, call, ProduceReply(call.number, refused.code))
            return
        batch = self.log.at(appended.base_offset)
        if call.acks == ALL_ACKS:
            produced.batch = batch
            produced.answer_if_done()
        else:
            self._answer(client, call, ProduceReply(call.number, Code.NONE, batch))

    def _new_batch(self, header: BatchHeader, leader_epoch: int) -> Batch:
        world = self.broker.world
        batch = self.log.next_batch(world.next_batch_number(), header, leader_epoch)
        world.judge.will_write(self, batch)
        return batch

    def _answer(self, client: int, call: ProduceCall, reply: ProduceReply) -> None:
        if call.acks != 0:
            self.broker.send(client, reply)
