"""One replica on one simulated broker: the shell of production, and the messages around it.

Rules of this file:
- What production's `PartitionShell` does is not done here: roles, appends, acknowledgements, the
  in-sync set and their timers are its own.
- Here are the producers, and what the judge wants to know; fetches are in `fetching`.
"""

from collections.abc import Sized
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
from shoal.lite.simulation.log import SimulatedBatch, SimulatedLog
from shoal.lite.simulation.messages import ProduceMessage, ProduceReply
from shoal.lite.simulation.setup import replication_settings
from shoal.lite.storage.header import BatchHeader

if TYPE_CHECKING:
    from shoal.lite.simulation.brokers import BrokerProcess

_PRODUCE_TIMEOUT_MS = 1500
_RULES = resolve_topic_config(Layers({}, {}, {}), {})
# A simulated batch is its header.
_NO_BYTES = memoryview(b"")


@dataclass(slots=True)
class _Produced:
    """A producer that waits for its acknowledgement, which may come before the append returns."""

    partition: "SimulatedPartition"
    client: int
    number: int
    batch: SimulatedBatch | None = None
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
    """A replica, its log, and who talks to it."""

    __slots__ = (
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

    # Fetches

    def on_fetch_answer(self, fetch: ReplicaFetch, answer: FetchAnswer, records: Sized) -> None:
        self.is_touched = True
        super().on_fetch_answer(fetch, answer, records)

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

    def read_for_replica(
        self, replica_id: int, offset: int, max_bytes: int
    ) -> list[SimulatedBatch]:
        return self.log.read(offset, max_bytes, self.log.end_offset)

    def on_high_watermark_sent(self) -> None:
        self.is_touched = True
        super().on_high_watermark_sent()

    # Producers

    def on_produce(self, client: int, call: ProduceMessage) -> None:
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

    def _new_batch(self, header: BatchHeader, leader_epoch: int) -> SimulatedBatch:
        world = self.broker.world
        batch = self.log.next_batch(world.next_batch_number(), header, leader_epoch)
        world.judge.will_write(self, batch)
        return batch

    def _answer(self, client: int, call: ProduceMessage, reply: ProduceReply) -> None:
        if call.acks != 0:
            self.broker.send(client, reply)
