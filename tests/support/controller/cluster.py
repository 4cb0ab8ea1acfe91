"""A cluster of which only the controller is real: brokers do nothing but beat and obey.

The controller is the node of production, alone in its quorum, on a simulated clock and disk.
Every record that it writes goes to an observer, as a broker would follow the log. After each
call the observer's state must be the controller's own, and the rules that hold for metadata
alone must hold.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import TypeVar
from uuid import UUID

from shoal.lite.metadata.data.records import PartitionRecord, Record, decode_record
from shoal.lite.metadata.data.requests import (
    NO_EPOCH,
    AlterPartitions,
    ControllerRequest,
    CreateTopic,
    Heartbeat,
    HeartbeatAnswer,
    InSyncAnswer,
    InSyncChange,
    NewTopicSpec,
    RegisterBroker,
    ReportBrokerExits,
)
from shoal.lite.metadata.data.rpc import Reply
from shoal.lite.metadata.data.state import ClusterState
from shoal.lite.metadata.rules.controller import Controller, ControllerSettings
from shoal.lite.metadata.server.node import ControllerNode
from shoal.lite.raft.actions import AppendEntries, StorageAction
from shoal.lite.raft.model import EntryKind, RaftEntry, ReplicaKey, Voter, Voters
from shoal.lite.raft.node import RaftNode
from shoal.lite.simulation.disk import KillAfterWrites, QuorumDisk
from shoal.lite.simulation.scheduler import SimulatedScheduler
from shoal.model.topics import TopicPartition
from support.controller.rules import check_change, check_state

A = TypeVar("A")

SESSION_MS = 3_000
BEAT_MS = 500
FIRST_BOOT = "monday"
FIRST = TopicPartition("t", 0)
# So few that a controller that takes over often starts from a snapshot.
SNAPSHOT_RECORDS = 30
_KEY = ReplicaKey(100, UUID(int=100))


@dataclass
class Process:
    """A broker's process, from its start to its end."""

    incarnation: str
    boot_id: str = FIRST_BOOT
    epoch: int = -1
    # Whether it sends heartbeats.
    is_heard: bool = True


class _Disk(QuorumDisk):
    """A disk whose new entries can be taken."""

    def __init__(self) -> None:
        super().__init__(Voters([Voter(*_KEY)]), KillAfterWrites())
        self._new: list[RaftEntry] = []

    def perform(self, action: StorageAction) -> None:
        super().perform(action)
        if isinstance(action, AppendEntries):
            self._new += [entry for entry in action.entries if entry.kind is EntryKind.DATA]

    def take_new(self) -> list[RaftEntry]:
        new, self._new = self._new, []
        return new


class ControllerCluster:
    """A controller, and brokers that live as far as it can see."""

    def __init__(
        self,
        brokers: int = 0,
        *,
        properties: Mapping[str, str] | None = None,
        racks: Mapping[int, str] | None = None,
        balance_delay_ms: int | None = 1_000,
        tell: Callable[[Record], None] = lambda _: None,
    ) -> None:
        self.now_ms = 1_000_000
        self.observer = ClusterState()
        # The log, as far as it is not empty.
        self.entries: list[tuple[Record, ...]] = []
        self.processes: dict[int, Process] = {}
        self.clean_ends: dict[int, str] = {}
        self.folders: dict[int, str] = {}
        self._settings = ControllerSettings(
            session_timeout_ms=SESSION_MS,
            balance_delay_ms=balance_delay_ms,
            recovery_timeout_ms=2_000,
            properties=properties or {},
        )
        self._racks = racks or {}
        self._tell = tell
        self._starts = 0
        self._topics = 0
        self._next_beat_ms = self.now_ms
        self._disk = _Disk()
        self._start_controller()
        for broker_id in range(1, brokers + 1):
            self.start(broker_id)

    @property
    def state(self) -> ClusterState:
        assert self._node.controller is not None
        return self._node.controller.state

    def partition(self, name: str = "t", index: int = 0) -> PartitionRecord:
        return self.state.topics[name].partitions[index]

    # What goes to the controller

    def _start_controller(self) -> None:
        stored = self._disk.load_state()
        self._scheduler = SimulatedScheduler(lambda: self.now_ms)
        self._node = ControllerNode(
            RaftNode(_KEY, stored, now_ms=self.now_ms, random=Random(1)),
            self._disk,
            stored,
            cluster_id="cluster",
            new_controller=lambda state: Controller(state, self._settings),
            scheduler=self._scheduler,
            send=lambda _to, _message: None,
            on_failed=_fail,
            snapshot_records=SNAPSHOT_RECORDS,
        )
        self._node.start()
        self._follow()

    def ask(self, request: ControllerRequest[A]) -> A:
        replies: list[Reply] = []
        self._node.submit(request, replies.append)
        self._follow()
        [reply] = replies
        if reply.refused is not None:
            raise reply.refused
        answer: A = reply.answer
        return answer

    def tick(self) -> None:
        """Let the controller do what is due."""
        self._scheduler.call_due(self.now_ms)
        self._follow()

    def wait(self, duration_ms: int) -> None:
        """Let time pass: whoever is heard beats, and the controller is called when it wants."""
        end_ms = self.now_ms + duration_ms
        while True:
            deadline_ms = self._scheduler.next_deadline_ms()
            times = [end_ms, self._next_beat_ms]
            times += [] if deadline_ms is None else [deadline_ms]
            self.now_ms = max(self.now_ms, min(times))
            if self.now_ms >= self._next_beat_ms:
                self._next_beat_ms = self.now_ms + BEAT_MS
                for broker_id in [b for b, p in self.processes.items() if p.is_heard]:
                    self.beat(broker_id)
            self.tick()
            if self.now_ms >= end_ms:
                return

    def fail_over(self) -> None:
        """Another controller takes over, with what is committed and nothing else."""
        self._start_controller()

    def _follow(self) -> None:
        for entry in self._disk.take_new():
            records = tuple(decode_record(data) for data in entry.records)
            self.entries.append(records)
            for record in records:
                self._observe(record)
        assert self.observer.snapshot() == self.state.snapshot()
        check_state(self.state)

    def _observe(self, record: Record) -> None:
        if isinstance(record, PartitionRecord):
            before = None
            if record.partition in self._partitions_of(record.topic_id):
                before = self.observer.partition(*record.key)
            check_change(self.observer, before, record)
        self.observer.apply(record)
        self._tell(record)

    def _partitions_of(self, topic_id: UUID) -> Mapping[int, PartitionRecord]:
        return self.observer.topics[self.observer.topic_names[topic_id]].partitions

    # Brokers

    def register(self, broker_id: int, boot_id: str = FIRST_BOOT) -> Process:
        """A process starts and registers; it has not caught up yet."""
        self._starts += 1
        process = Process(f"process-{self._starts}", boot_id)
        folder = self.folders.setdefault(broker_id, f"folder-{self._starts}")
        request = RegisterBroker(
            broker_id,
            process.incarnation,
            f"host-{broker_id}",
            9000 + broker_id,
            boot_id,
            folder,
            # Nobody copies a folder.
            earlier=tuple(f"process-{number}" for number in range(1, self._starts)),
            previous_epoch=self.epoch_of(broker_id),
            clean_incarnation=self.clean_ends.pop(broker_id, None),
            rack=self._racks.get(broker_id),
        )
        process.epoch = self.ask(request).broker_epoch
        self.processes[broker_id] = process
        return process

    def epoch_of(self, broker_id: int) -> int:
        """The epoch under which a broker is registered."""
        broker = self.state.brokers.get(broker_id)
        return NO_EPOCH if broker is None else broker.epoch

    def start(self, broker_id: int, boot_id: str = FIRST_BOOT) -> None:
        self.register(broker_id, boot_id)
        self.beat(broker_id)

    def beat(
        self, broker_id: int, *, want_fence: bool = False, want_shutdown: bool = False
    ) -> HeartbeatAnswer:
        return self.ask(
            Heartbeat(
                broker_id,
                self.processes[broker_id].epoch,
                self.known_count(broker_id),
                want_fence=want_fence,
                want_shutdown=want_shutdown,
            )
        )

    def known_count(self, _broker_id: int) -> int:
        """How many records a broker has applied."""
        return self.observer.applied_count

    def kill(self, *broker_ids: int) -> None:
        """Processes die at once, and whoever started them sees it."""
        dead = {broker_id: self.processes.pop(broker_id) for broker_id in broker_ids}
        self.ask(ReportBrokerExits({b: process.incarnation for b, process in dead.items()}))

    def stop(self, broker_id: int) -> None:
        """A process ends by itself, with everything on the disk."""
        answer = self.beat(broker_id, want_shutdown=True)
        assert answer.should_shut_down
        process = self.processes.pop(broker_id)
        self.clean_ends[broker_id] = process.incarnation

    # Topics

    def create(self, name: str = "t", partitions: int = 1, factor: int = 3, **configs: str) -> None:
        settings = {key.replace("_", "."): value for key, value in configs.items()}
        self._create(NewTopicSpec(name, partitions, factor, configs=settings))

    def create_assigned(self, *assignments: tuple[int, ...], name: str = "t") -> None:
        self._create(NewTopicSpec(name, -1, -1, dict(enumerate(assignments))))

    def _create(self, topic: NewTopicSpec) -> None:
        self._topics += 1
        self.ask(CreateTopic(topic, UUID(int=self._topics)))

    def propose(
        self,
        members: tuple[int, ...],
        partition: TopicPartition = FIRST,
        *,
        broker_id: int | None = None,
        behind: tuple[int, int] = (0, 0),
        epochs: Mapping[int, int] | None = None,
    ) -> InSyncAnswer:
        """A leader proposes an in-sync set; `behind` is how old its two epochs are."""
        record = self.partition(*partition)
        leader = record.leader if broker_id is None else broker_id
        known = {b: self.state.brokers[b].epoch for b in self.state.brokers} | dict(epochs or {})
        change = InSyncChange(
            record.topic_id,
            record.partition,
            record.leader_epoch - behind[0],
            record.partition_epoch - behind[1],
            tuple((member, known.get(member, -1)) for member in members),
        )
        request = AlterPartitions(leader, self.state.brokers[leader].epoch, [change])
        [answer] = self.ask(request)
        return answer

    def expand(self, *members: int, partition: TopicPartition = FIRST) -> None:
        """Replicas have caught up, and the leader takes them in."""
        in_sync = self.partition(*partition).in_sync
        answer = self.propose((*in_sync, *members), partition)
        assert answer.partition is not None, answer.code


def _fail(reason: str) -> None:
    raise AssertionError(reason)
