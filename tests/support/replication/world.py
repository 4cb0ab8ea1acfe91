"""One partition with its replicas, a perfect controller, and a network that the caller controls.

The replicas are production's `PartitionShell`, and leaders answer with production's
`ReplicaSession`. Logs are lists and survive a crash, as the kernel keeps the writes of a killed
process. Nothing happens automatically: the caller sends, delivers and loses messages, and lets time
pass. Every event is passed to `world.tell`, one line each.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from random import Random
from typing import Any, NamedTuple
from uuid import UUID

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.base.configs import Layers, resolve_topic_config
from shoal.lite.metadata.data.records import PartitionRecord
from shoal.lite.partitions.partition import PartitionShell
from shoal.lite.partitions.sessions.fetch_session import to_fetch_answer
from shoal.lite.partitions.sessions.replica_session import ReplicaSessions
from shoal.lite.replication.fetch_sessions import FINAL_EPOCH
from shoal.lite.replication.leader import ALL_ACKS, LeaderPartition
from shoal.lite.replication.messages import (
    NO_LEADER,
    AdvanceStart,
    AlterIsr,
    AppendFetched,
    FetchAnswer,
    FollowerAction,
    IsrAnswer,
    PartitionState,
    ReplicaFetch,
    ReplicationSettings,
    TruncateFully,
    TruncateTo,
)
from shoal.lite.replication.replica import PartitionReplica
from shoal.lite.simulation.log import header_of
from shoal.lite.simulation.scheduler import SimulatedScheduler
from shoal.lite.storage.header import BatchHeader
from shoal.lite.storage.partition_log import LogAppendInfo
from shoal.lite.storage.state.epochs import EpochHistory
from shoal.lite.storage.state.producer_state import ProducerStates
from shoal.wire.fetch import NO_SESSION_ID, READ_UNCOMMITTED, FetchPartition, FetchRequest

CONTROLLER = 100
PRODUCE_TIMEOUT_MS = 20_000
TOPIC_ID = UUID(int=1)
RULES = resolve_topic_config(Layers({}, {}, {}), {})


class Entry(NamedTuple):
    epoch: int
    value: str


class MemoryLog:
    """A replica's log. Every record is a batch of its own."""

    lacks_start = False
    offline_reason: str | None = None

    def __init__(self) -> None:
        self.on_offline: Callable[[], None] = lambda: None
        self.producers = ProducerStates()
        self.entries: list[Entry] = []
        self.base_offset = 0
        self.start_offset = 0
        self.epochs = EpochHistory()

    @property
    def end_offset(self) -> int:
        return self.base_offset + len(self.entries)

    def at(self, offset: int) -> Entry | None:
        """The record, if it can be read."""
        if self.start_offset <= offset < self.end_offset:
            return self.entries[offset - self.base_offset]
        return None

    def begin_epoch(self, epoch: int) -> None:
        self.epochs.assign(epoch, self.end_offset)

    def append(self, view: memoryview, header: BatchHeader, *, leader_epoch: int) -> LogAppendInfo:
        """Append a producer's record."""
        offset = self.end_offset
        self.append_fetched([Entry(leader_epoch, str(view, "utf-8"))])
        return LogAppendInfo(offset, is_duplicate=False)

    def append_fetched(self, record_set: Iterable[Entry]) -> None:
        for entry in record_set:
            self.epochs.assign(entry.epoch, self.end_offset)
            self.entries.append(entry)

    def truncate_to(self, offset: int) -> None:
        assert offset <= self.end_offset
        del self.entries[offset - self.base_offset :]
        self.epochs.truncate_from_end(offset)

    def truncate_fully(self, start_offset: int) -> None:
        self.entries.clear()
        self.base_offset = self.start_offset = start_offset
        self.epochs = EpochHistory()

    def delete_before(self, offset: int) -> None:
        self.start_offset = max(self.start_offset, offset)
        self.epochs.truncate_from_start(self.start_offset)

    def recover(self) -> None:
        """As a log is opened again after its process was killed."""
        self.epochs.truncate_from_end(self.end_offset)


class Metadata(NamedTuple):
    """The whole metadata, at one point of its log."""

    assignment: PartitionState
    live_epochs: dict[int, int]


class PerfectController:
    """Never fails, and elects only in-sync or eligible leader replicas (KIP-966)."""

    def __init__(self, broker_ids: Iterable[int], min_insync_replicas: int) -> None:
        replicas = tuple(broker_ids)
        self.min_insync_replicas = min(min_insync_replicas, len(replicas))
        self.elr: frozenset[int] = frozenset()
        self.epochs = {broker_id: broker_id for broker_id in replicas}
        self.fenced: set[int] = set()
        self.assignment = PartitionState(
            replicas, replicas, leader=replicas[0], leader_epoch=0, partition_epoch=0
        )
        self._next_epoch = 10
        self.log: list[Metadata] = []
        self._write()

    @property
    def candidates(self) -> frozenset[int]:
        """The replicas that have every committed record."""
        return frozenset(self.assignment.isr) | self.elr

    def register(self, broker_id: int) -> int:
        """Register a new incarnation of a broker, which starts fenced."""
        if broker_id not in self.fenced:
            self.fence(broker_id)
        self._next_epoch += 1
        self.epochs[broker_id] = self._next_epoch
        return self._next_epoch

    def fence(self, broker_id: int) -> None:
        self.fenced.add(broker_id)
        self._change(frozenset(self.assignment.isr) - {broker_id})

    def unfence(self, broker_id: int) -> None:
        self.fenced.discard(broker_id)
        self._change(frozenset(self.assignment.isr))

    def move_leader(self, broker_id: int) -> None:
        """A preferred leader takes over."""
        assert broker_id in self.assignment.isr
        self._change(frozenset(self.assignment.isr), leader=broker_id)

    def alter(self, proposal: AlterIsr) -> IsrAnswer:
        """Compare and set."""
        assignment = self.assignment
        if proposal.leader_epoch != assignment.leader_epoch:
            return IsrAnswer(Code.FENCED_LEADER_EPOCH)
        if proposal.partition_epoch != assignment.partition_epoch:
            return IsrAnswer(Code.INVALID_UPDATE_VERSION)
        for broker_id, epoch in proposal.isr:
            if broker_id in self.fenced or epoch not in (-1, self.epochs[broker_id]):
                return IsrAnswer(Code.INELIGIBLE_REPLICA)
        self._change(proposal.members, is_granted=True)
        now = self.assignment
        return IsrAnswer(Code.NONE, now.leader_epoch, now.partition_epoch, now.isr)

    def _change(
        self, isr: frozenset[int], leader: int | None = None, *, is_granted: bool = False
    ) -> None:
        before = self.assignment
        elr = (self.elr | frozenset(before.isr)) - isr
        if leader is None:
            leader = before.leader
        if leader == NO_LEADER or leader in self.fenced:
            alive = sorted(isr - self.fenced) or sorted(elr - self.fenced)
            leader = alive[0] if alive else NO_LEADER
            isr |= {leader} if alive else frozenset()
            elr -= isr
        if len(isr) >= self.min_insync_replicas:
            elr = frozenset()
        is_new = leader != before.leader
        changed = PartitionState(
            before.replicas,
            tuple(sorted(isr)),
            leader,
            before.leader_epoch + is_new,
            before.partition_epoch,
        )
        if is_granted or (changed, elr) != (before, self.elr):
            self.elr = elr
            self.assignment = replace(changed, partition_epoch=before.partition_epoch + 1)
        self._write()

    def _write(self) -> None:
        live = {i: epoch for i, epoch in self.epochs.items() if i not in self.fenced}
        self.log.append(Metadata(self.assignment, live))


@dataclass(eq=False)
class FetchSent:
    source: int
    target: int
    fetch: ReplicaFetch
    broker_epoch: int


@dataclass(eq=False)
class FetchAnswered:
    source: int
    target: int
    fetch: ReplicaFetch
    answer: FetchAnswer
    entries: list[Entry]


@dataclass(eq=False)
class AlterSent:
    source: int
    leader: LeaderPartition
    proposal: AlterIsr
    target: int = CONTROLLER


@dataclass(eq=False)
class AlterAnswered:
    target: int
    leader: LeaderPartition
    proposal: AlterIsr
    answer: IsrAnswer
    source: int = CONTROLLER

    @classmethod
    def to(cls, sent: AlterSent, answer: IsrAnswer) -> "AlterAnswered":
        return cls(sent.source, sent.leader, sent.proposal, answer)


Message = FetchSent | FetchAnswered | AlterSent | AlterAnswered


class ScriptedPartition(PartitionShell[MemoryLog]):
    """A replica that says what it does."""

    __slots__ = ("_broker_id", "_tell_world", "_told_role")

    def __init__(
        self, broker: "Broker", world: "World", replica_type: type[PartitionReplica]
    ) -> None:
        super().__init__(
            broker,
            "p",
            broker.log,
            record=record_of(world.controller.assignment),
            rules=RULES,
            settings=world.settings,
            high_watermark=broker.checkpoint,
            replica_type=replica_type,
        )
        self._broker_id = broker.broker_id
        self._tell_world = world.tell
        self._told_role: object = self.replica.role

    def _tell(self, line: str) -> None:
        self._tell_world(f"{self._broker_id} {line}")

    def settle(self) -> None:
        role = self.replica.role
        if role is not self._told_role:
            self._told_role = role
            if isinstance(role, LeaderPartition):
                self._tell(
                    f"leads in epoch {role.leader_epoch} from offset {role.epoch_start_offset}, "
                    f"high watermark {role.high_watermark}"
                )
            else:
                self._tell(f"follows {role.leader} in epoch {role.leader_epoch}")
        super().settle()

    def tick(self) -> None:
        """Handle a deadline of the leader: production's timer may fire later."""
        if self._timer is not None:
            self._timer.cancel()
        self._on_timer()

    def read_for_replica(self, replica_id: int, offset: int, max_bytes: int) -> list[Entry]:
        place = offset - self.log.base_offset
        return self.log.entries[place : place + max_bytes]

    def _apply_action(self, action: FollowerAction, records: Any) -> None:
        end_offset = self.log.end_offset
        super()._apply_action(action, records)
        match action:
            case AppendFetched():
                self._tell(f"appends {' '.join(entry.value for entry in records)}")
            case TruncateTo(offset):
                self._tell(f"truncates its log from {end_offset} to {offset}")
            case TruncateFully(start_offset):
                self._tell(f"throws its log away and starts at {start_offset}")
            case AdvanceStart(offset):
                self._tell(f"starts its log at {offset}")


def record_of(state: PartitionState) -> PartitionRecord:
    return PartitionRecord(
        TOPIC_ID,
        0,
        state.replicas,
        state.isr,
        state.leader,
        state.leader_epoch,
        state.partition_epoch,
    )


class Broker:
    """A broker's process and its disk. Without a partition the process is dead.

    It is the host of its partition and of the sessions of its followers.
    """

    def __init__(self, broker_id: int, world: "World") -> None:
        self.broker_id = broker_id
        self._world = world
        self.log = MemoryLog()
        self.partition: ScriptedPartition | None = None
        self.broker_epoch = 0
        self.live_epochs: dict[int, int] = {}
        self.metadata_offset = 0
        # Its checkpointed high watermark.
        self.checkpoint = 0
        self.sessions = ReplicaSessions(self, Random(0))

    def open(self, replica_type: type[PartitionReplica]) -> None:
        self.live_epochs = {}
        self.metadata_offset = 0
        self.scheduler = SimulatedScheduler(lambda: self._world.now_ms)
        self.partition = ScriptedPartition(self, self._world, replica_type)

    @property
    def replica(self) -> PartitionReplica | None:
        return self.partition.replica if self.partition else None

    @property
    def leader(self) -> LeaderPartition | None:
        return self.partition.replica.leader if self.partition else None

    def propose(
        self, partition: ScriptedPartition, leader: LeaderPartition, proposal: AlterIsr
    ) -> None:
        members = ",".join(map(str, sorted(proposal.members)))
        self._world.tell(
            f"{self.broker_id} proposes ISR {members} on partition epoch {proposal.partition_epoch}"
        )
        self._world.network.append(AlterSent(self.broker_id, leader, proposal))

    def on_became_follower(self, partition: ScriptedPartition) -> None:
        """Nothing: the caller sends fetches."""

    def on_log_failed(self, partition: ScriptedPartition) -> None:
        raise AssertionError("a log in memory does not fail")

    def is_registered(self, broker_id: int) -> bool:
        return True

    def find_partition(self, requested: FetchPartition, *, uses_ids: bool) -> ScriptedPartition:
        if self.partition is None:
            raise ApiError(Code.NOT_LEADER_OR_FOLLOWER, f"{self.broker_id} is dead")
        return self.partition


class World:
    """All of it."""

    def __init__(
        self,
        broker_count: int,
        settings: ReplicationSettings,
        *,
        replica_type: type[PartitionReplica] = PartitionReplica,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.settings = settings
        self.tell = tell
        self.now_ms = 0
        self.network: list[Message] = []
        self.acknowledged: dict[int, str] = {}
        self._replica_type = replica_type
        broker_ids = range(1, broker_count + 1)
        self.controller = PerfectController(broker_ids, settings.min_insync_replicas)
        self.brokers = {broker_id: Broker(broker_id, self) for broker_id in broker_ids}
        for broker in self.brokers.values():
            broker.broker_epoch = self.controller.epochs[broker.broker_id]
            broker.open(self._replica_type)

    # Processes, metadata, time

    def kill(self, broker_id: int) -> None:
        """Kill the process; its log survives."""
        self.brokers[broker_id].partition = None
        self.network = [m for m in self.network if broker_id not in (m.source, m.target)]

    def start(self, broker_id: int) -> None:
        """Start a new process, which catches up with the metadata before it is unfenced."""
        broker = self.brokers[broker_id]
        broker.log.recover()
        broker.broker_epoch = self.controller.register(broker_id)
        broker.open(self._replica_type)
        # Old metadata is history: only its latest state is applied.
        broker.metadata_offset = len(self.controller.log) - 1
        self.learn(broker_id)

    def checkpoint(self, broker_id: int) -> None:
        """Checkpoint the high watermark."""
        broker = self.brokers[broker_id]
        if broker.replica:
            broker.checkpoint = broker.replica.role.high_watermark

    def learn(self, broker_id: int) -> bool:
        """Let a broker apply the next change of the metadata, if any."""
        broker = self.brokers[broker_id]
        if broker.partition is None or broker.metadata_offset == len(self.controller.log):
            return False
        metadata = self.controller.log[broker.metadata_offset]
        broker.metadata_offset += 1
        broker.live_epochs.clear()
        broker.live_epochs.update(metadata.live_epochs)
        broker.partition.assign(record_of(metadata.assignment), self.settings)
        return True

    def pass_time(self, time_ms: int) -> None:
        """Let time pass, and let leaders act at each deadline."""
        until_ms = self.now_ms + time_ms
        while True:
            deadlines = [
                (deadline_ms, broker.broker_id)
                for broker in self.brokers.values()
                if broker.leader
                and (deadline_ms := broker.leader.next_deadline_ms()) is not None
                and deadline_ms <= until_ms
            ]
            if not deadlines:
                break
            deadline_ms, broker_id = min(deadlines)
            self.now_ms = max(self.now_ms, deadline_ms)
            if (partition := self.brokers[broker_id].partition) is not None:
                partition.tick()
        self.now_ms = until_ms

    # Producers and consumers

    def produce(self, broker_id: int, value: str, *, acks: int = ALL_ACKS) -> Code:
        partition = self.brokers[broker_id].partition
        assert partition
        offset = partition.log.end_offset

        def on_acked(code: Code) -> None:
            if code == Code.NONE:
                self.acknowledged[offset] = value
                self.tell(f"{broker_id} acknowledges {value} at {offset}")
            else:
                self.tell(f"{broker_id} fails {value} with {code.name}")

        try:
            partition.leader.check_acks(acks)
            partition.append(
                memoryview(value.encode()),
                header_of(producer_id=-1, base_sequence=-1, count=1),
                acks=acks,
                timeout_ms=PRODUCE_TIMEOUT_MS,
                on_acked=on_acked,
            )
        except ApiError as error:
            return error.code
        return Code.NONE

    def read(self, broker_id: int, offset: int) -> list[Entry]:
        """What a consumer gets from any replica; `ApiError` as the broker would."""
        broker = self.brokers[broker_id]
        assert broker.replica
        role = broker.replica.role
        assert role.divergence(offset, -1) is None
        log = broker.log
        return log.entries[offset - log.base_offset : role.high_watermark - log.base_offset]

    # Messages

    def send_fetch(self, broker_id: int, *, leader: int | None = None) -> FetchSent | None:
        broker = self.brokers[broker_id]
        follower = broker.replica.follower if broker.replica else None
        fetch = follower.next_fetch(self.now_ms) if follower else None
        if follower is None or fetch is None:
            return None
        target = leader or follower.leader
        sent = FetchSent(broker_id, target, fetch, broker.broker_epoch)
        self.network.append(sent)
        return sent

    def deliver(self, message: Message, *, max_records: int = 3, keep: bool = False) -> None:
        """Let a message arrive; with `keep` it will arrive once more."""
        if not keep:
            self.network.remove(message)
        if isinstance(message, FetchSent):
            self._on_fetch(message, max_records)
        elif isinstance(message, FetchAnswered):
            self._on_fetch_answer(message)
        elif isinstance(message, AlterSent):
            answer = self.controller.alter(message.proposal)
            self.tell(f"controller answers {message.source}: {describe_answer(answer)}")
            self.network.append(AlterAnswered.to(message, answer))
        elif (partition := self.brokers[message.target].partition) is not None:
            partition.on_isr_answer(message.leader, message.proposal, message.answer)

    def _on_fetch(self, message: FetchSent, max_records: int) -> None:
        """Answer a fetch that belongs to no session, with at most so many records."""
        fetch = message.fetch
        requested = FetchPartition("p", TOPIC_ID, 0, fetch.offset, max_records, *fetch[1:])
        request = FetchRequest(
            replica_id=message.source,
            max_wait_ms=0,
            min_bytes=1,
            max_bytes=max_records,
            isolation=READ_UNCOMMITTED,
            session_id=NO_SESSION_ID,
            session_epoch=FINAL_EPOCH,
            partitions=[requested],
            forgotten=[],
            replica_epoch=message.broker_epoch,
        )
        session = self.brokers[message.target].sessions.find(request)
        answers = session.on_fetch(request, wait_ms=0, uses_ids=True)
        assert answers
        [fetched] = answers
        answer = to_fetch_answer(fetched, lambda _: fetch.offset)
        entries = list(fetched.records)
        self.network.append(FetchAnswered(message.target, message.source, fetch, answer, entries))
        session.release_acks()

    def _on_fetch_answer(self, message: FetchAnswered) -> None:
        if (partition := self.brokers[message.target].partition) is not None:
            partition.on_fetch_answer(message.fetch, message.answer, message.entries)


def describe_answer(answer: IsrAnswer) -> str:
    if answer.code != Code.NONE:
        return answer.code.name
    members = ",".join(map(str, answer.isr))
    return f"ISR {members}, partition epoch {answer.partition_epoch}"
