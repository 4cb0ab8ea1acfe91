"""One partition with its replicas, a perfect controller, and a network that the caller controls.

The state machines are those of production. Logs are lists and survive a crash, as the kernel keeps
the writes of a killed process. Nothing happens automatically: the caller sends, delivers and loses
messages, and lets time pass. Every event is passed to `world.tell`, one line each.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.replication.leader import ALL_ACKS, LeaderPartition
from shoal.lite.replication.messages import (
    NO_LEADER,
    AckResult,
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
from shoal.lite.storage.state.epochs import EpochHistory

CONTROLLER = 100
PRODUCE_TIMEOUT_MS = 20_000


class Entry(NamedTuple):
    epoch: int
    value: str


class MemoryLog:
    """A replica's log. Every record is a batch of its own."""

    lacks_start = False

    def __init__(self) -> None:
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

    def append(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
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
    proposal: AlterIsr
    target: int = CONTROLLER


@dataclass(eq=False)
class AlterAnswered:
    target: int
    proposal: AlterIsr
    answer: IsrAnswer
    source: int = CONTROLLER


Message = FetchSent | FetchAnswered | AlterSent | AlterAnswered


@dataclass
class Broker:
    """A broker's process and its disk. Without a replica the process is dead."""

    broker_id: int
    log: MemoryLog = field(default_factory=MemoryLog)
    replica: PartitionReplica | None = None
    broker_epoch: int = 0
    live_epochs: dict[int, int] = field(default_factory=dict)
    metadata_offset: int = 0
    # Its checkpointed high watermark.
    checkpoint: int = 0

    @property
    def leader(self) -> LeaderPartition | None:
        return self.replica.leader if self.replica else None


class Produced(NamedTuple):
    """A record that a producer waits for."""

    offset: int
    value: str


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
        self.brokers = {broker_id: Broker(broker_id) for broker_id in broker_ids}
        for broker in self.brokers.values():
            broker.broker_epoch = self.controller.epochs[broker.broker_id]
            self._open(broker)

    def _open(self, broker: Broker) -> None:
        broker.live_epochs = {}
        broker.metadata_offset = 0
        broker.replica = self._replica_type(
            broker.broker_id,
            broker.log,
            settings=self.settings,
            live_epochs=broker.live_epochs,
            high_watermark=broker.checkpoint,
        )

    # Processes, metadata, time

    def kill(self, broker_id: int) -> None:
        """Kill the process; its log survives."""
        self.brokers[broker_id].replica = None
        self.network = [m for m in self.network if broker_id not in (m.source, m.target)]

    def start(self, broker_id: int) -> None:
        """Start a new process, which catches up with the metadata before it is unfenced."""
        broker = self.brokers[broker_id]
        broker.log.recover()
        broker.broker_epoch = self.controller.register(broker_id)
        self._open(broker)
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
        if broker.replica is None or broker.metadata_offset == len(self.controller.log):
            return False
        metadata = self.controller.log[broker.metadata_offset]
        broker.metadata_offset += 1
        broker.live_epochs.clear()
        broker.live_epochs.update(metadata.live_epochs)
        was = broker.replica.role
        for completed in broker.replica.assign(self.now_ms, metadata.assignment):
            self._complete(broker_id, completed)
        if (leader := broker.leader) is not None and leader is not was:
            self.tell(
                f"{broker_id} leads in epoch {leader.leader_epoch} from offset "
                f"{leader.epoch_start_offset}, high watermark {leader.high_watermark}"
            )
        elif (follower := broker.replica.follower) is not None and follower is not was:
            self.tell(f"{broker_id} follows {follower.leader} in epoch {follower.leader_epoch}")
        self.settle(broker)
        return True

    def pass_time(self, time_ms: int) -> None:
        """Let time pass, and call `tick` at each deadline."""
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
            self.tick(broker_id)
        self.now_ms = until_ms

    def tick(self, broker_id: int) -> None:
        broker = self.brokers[broker_id]
        if broker.leader:
            broker.leader.tick(self.now_ms)
            self.settle(broker)

    def settle(self, broker: Broker) -> None:
        """Process a leader's output after an event."""
        leader = broker.leader
        if leader is None:
            return
        for completed in leader.take_completed():
            self._complete(broker.broker_id, completed)
        proposal = leader.take_proposal()
        if proposal is not None:
            members = ",".join(map(str, sorted(proposal.members)))
            self.tell(
                f"{broker.broker_id} proposes ISR {members} on partition epoch "
                f"{proposal.partition_epoch}"
            )
            self.network.append(AlterSent(broker.broker_id, proposal))

    def _complete(self, broker_id: int, completed: AckResult) -> None:
        produced: Produced = completed.token
        if completed.code == Code.NONE:
            self.acknowledged[produced.offset] = produced.value
            self.tell(f"{broker_id} acknowledges {produced.value} at {produced.offset}")
        else:
            self.tell(f"{broker_id} fails {produced.value} with {completed.code.name}")

    # Producers and consumers

    def produce(self, broker_id: int, value: str, *, acks: int = ALL_ACKS) -> Code:
        broker = self.brokers[broker_id]
        leader = broker.leader
        if leader is None:
            return Code.NOT_LEADER_OR_FOLLOWER
        try:
            leader.check_acks(acks)
        except ApiError as error:
            return error.code
        produced = Produced(broker.log.end_offset, value)
        broker.log.append([Entry(leader.leader_epoch, value)])
        leader.on_append(self.now_ms)
        if acks == ALL_ACKS:
            deadline_ms = self.now_ms + PRODUCE_TIMEOUT_MS
            leader.await_acks(self.now_ms, produced, broker.log.end_offset, deadline_ms=deadline_ms)
        self.settle(broker)
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
            self.network.append(AlterAnswered(message.source, message.proposal, answer))
        else:
            broker = self.brokers[message.target]
            if broker.leader:
                broker.leader.on_isr_answer(self.now_ms, message.proposal, message.answer)
                self.settle(broker)

    def _on_fetch(self, message: FetchSent, max_records: int) -> None:
        broker = self.brokers[message.target]
        fetch, entries = message.fetch, list[Entry]()
        if broker.leader is None:
            answer = FetchAnswer(-1, -1, Code.NOT_LEADER_OR_FOLLOWER)
        else:
            verdict = broker.leader.on_follower_fetch(
                self.now_ms, message.source, fetch, broker_epoch=message.broker_epoch
            )
            first_offset = None
            if verdict.code == Code.NONE and verdict.diverging is None:
                place = fetch.offset - broker.log.base_offset
                entries = broker.log.entries[place : place + max_records]
                first_offset = fetch.offset if entries else None
            answer = FetchAnswer(
                verdict.high_watermark,
                verdict.log_start_offset,
                verdict.code,
                verdict.diverging,
                first_offset,
            )
            broker.leader.on_answer_sent(message.source, verdict.high_watermark)
            self.settle(broker)
        self.network.append(FetchAnswered(message.target, message.source, fetch, answer, entries))

    def _on_fetch_answer(self, message: FetchAnswered) -> None:
        broker = self.brokers[message.target]
        follower = broker.replica.follower if broker.replica else None
        if follower is None:
            return
        for action in follower.on_fetch_answer(self.now_ms, message.fetch, message.answer):
            self._act(broker, action, message.entries)

    def _act(self, broker: Broker, action: FollowerAction, entries: list[Entry]) -> None:
        log, me = broker.log, broker.broker_id
        if isinstance(action, AppendFetched):
            log.append(entries)
            self.tell(f"{me} appends {' '.join(entry.value for entry in entries)}")
        elif isinstance(action, TruncateTo):
            self.tell(f"{me} truncates its log from {log.end_offset} to {action.offset}")
            log.truncate_to(action.offset)
        elif isinstance(action, TruncateFully):
            self.tell(f"{me} throws its log away and starts at {action.start_offset}")
            log.truncate_fully(action.start_offset)
        else:
            assert isinstance(action, AdvanceStart)
            self.tell(f"{me} starts its log at {action.offset}")
            log.delete_before(action.offset)


def describe_answer(answer: IsrAnswer) -> str:
    if answer.code != Code.NONE:
        return answer.code.name
    members = ",".join(map(str, answer.isr))
    return f"ISR {members}, partition epoch {answer.partition_epoch}"
