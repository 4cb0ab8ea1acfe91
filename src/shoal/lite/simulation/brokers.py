"""A broker's process: an observer of the metadata log, and the replicas that the log gives it.

A thin shell, as in production, by the rules that the state machines have for it:

- It registers with an incarnation of its own. Until the metadata has that incarnation, the metadata
  is applied, but the broker does not act on it.
- Then it opens its logs, and first of all reports to the controller where records are missing. Only
  after that may it become a leader.
- It sends heartbeats with the number of metadata records that it has applied, and asks the
  controller for changes of the in-sync replicas.
- A replica that the metadata removes is deleted.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.metadata.data import requests
from shoal.lite.metadata.data.records import NO_LEADER, ConfigRecord, PartitionRecord
from shoal.lite.metadata.data.rpc import Reply
from shoal.lite.metadata.data.state import ClusterState
from shoal.lite.partitions.reports import ControllerReports
from shoal.lite.raft.actions import Action, Committed, LoadSnapshot, SendToPeer
from shoal.lite.raft.model import EntryKind, ReplicaKey, StoredState
from shoal.lite.raft.storage.driver import perform_actions
from shoal.lite.raft.storage.memory import MemoryStorage
from shoal.lite.simulation.disk import Key
from shoal.lite.simulation.fetching import FetchServer, SimulatedFetcher
from shoal.lite.simulation.messages import (
    ControllerCall,
    ControllerReply,
    FetchCall,
    FetchRelease,
    FetchReply,
    ProduceMessage,
)
from shoal.lite.simulation.partition import SimulatedPartition
from shoal.lite.simulation.process import Process
from shoal.lite.simulation.scheduler import SimulatedScheduler
from shoal.lite.simulation.setup import HEARTBEAT_MS, REQUEST_TIMEOUT_MS

if TYPE_CHECKING:
    from shoal.lite.simulation.world import BrokerNode, World

_RETRY_MS = 40
# A request, or its answer, may be lost.
_LOST_CODES = (Code.NOT_CONTROLLER, Code.REQUEST_TIMED_OUT)
OnReply = Callable[[ControllerReply], None]


@dataclass(slots=True)
class _Asked:
    """A question to the controller. `on_reply` hears of silence as a time-out."""

    on_reply: OnReply
    until_ms: int


class BrokerProcess(Process):
    """One start of a broker."""

    def __init__(self, world: "World", node: "BrokerNode", random: Random) -> None:
        super().__init__(world, node.id, node.clock)
        self.node = node
        self.disk = node.disk
        self.incarnation = node.next_incarnation()
        self.broker_id = node.id
        self.scheduler = SimulatedScheduler(lambda: self.now_ms)
        self._earlier = tuple(self.disk.processes)
        self._clean_incarnation = self.disk.begin(self.incarnation)
        self._boot_id = world.parts.boot_id(node)
        key = ReplicaKey(node.id, node.directory)
        self.raft = world.parts.raft_node(
            key,
            StoredState(world.voters),
            now_ms=self.now_ms,
            random=random,
            config=world.setup.raft,
        )
        self._storage = MemoryStorage()
        self.state = ClusterState()
        self.live_epochs: dict[int, int] = {}
        self.hosted: dict[Key, SimulatedPartition] = {}
        self._fetch_server = FetchServer(self, random)
        # By their leaders.
        self._fetchers: dict[int, SimulatedFetcher] = {}
        # Those with new followers, or with followers in a new leader epoch.
        self._leaders_to_refetch: set[int] = set()
        self.broker_epoch = requests.NO_EPOCH
        self.wants_to_stop = False
        # The logs in which something is missing that the controller has not heard of; None until
        # the logs are open.
        self._unreported: list[Key] | None = None
        self._asked: dict[int, _Asked] = {}
        self._reports = ControllerReports(self, self._send_report, self._gather_proposals)
        self.propose = self._reports.propose
        self._heartbeat_at_ms: int | None = self.now_ms
        # What the metadata says that was not followed yet.
        self._has_new_metadata = False
        self._follows_all = True
        self._changed: set[Key] = set()

    def start(self) -> None:
        """Do what the node wants at its start."""
        self._settle_raft()
        self._beat()

    @property
    def is_current(self) -> bool:
        """Whether the metadata knows this very process."""
        broker = self.state.brokers.get(self.id)
        known = None if broker is None else broker.incarnation
        return self.world.parts.knows_itself(self.incarnation, known)

    # Events

    def receive(self, sender: int, message: Any) -> None:
        if isinstance(message, FetchCall):
            self._fetch_server.on_call(sender, message)
        elif isinstance(message, FetchReply):
            if (fetcher := self._fetchers.get(sender)) is not None:
                fetcher.on_reply(message)
        elif isinstance(message, FetchRelease):
            self._fetch_server.on_release(sender, message)
        elif isinstance(message, ProduceMessage):
            self._on_produce(sender, message)
        elif isinstance(message, ControllerReply):
            asked = self._asked.pop(message.number, None)
            if asked is not None:
                asked.on_reply(message)
        else:
            self.raft.receive(self.now_ms, sender, message)
            self._settle_raft()

    def _on_produce(self, sender: int, call: ProduceMessage) -> None:
        hosted = self.hosted.get(call.key)
        if hosted is not None:
            hosted.on_produce(sender, call)
        elif call.acks != 0:
            self.send(sender, self.world.produce_error(call, Code.NOT_LEADER_OR_FOLLOWER))

    def wake(self) -> None:
        now_ms = self.now_ms
        deadline_ms = self.raft.next_deadline_ms()
        if deadline_ms is not None and deadline_ms <= now_ms:
            self.raft.tick(now_ms)
            self._settle_raft()
        for number, asked in list(self._asked.items()):
            if asked.until_ms <= now_ms:
                del self._asked[number]
                asked.on_reply(ControllerReply(number, Code.REQUEST_TIMED_OUT))
        if self._heartbeat_at_ms is not None and self._heartbeat_at_ms <= now_ms:
            self._beat()
        self.scheduler.call_due(now_ms)
        for fetcher in list(self._fetchers.values()):
            if fetcher.due_ms <= now_ms:
                fetcher.tick(now_ms)

    def next_deadline_ms(self) -> int | None:
        deadline_ms = self.raft.next_deadline_ms()
        times = [] if deadline_ms is None else [deadline_ms]
        if self._heartbeat_at_ms is not None:
            times.append(self._heartbeat_at_ms)
        deadline_ms = self.scheduler.next_deadline_ms()
        if deadline_ms is not None:
            times.append(deadline_ms)
        times += [asked.until_ms for asked in self._asked.values()]
        times += [fetcher.due_ms for fetcher in self._fetchers.values()]
        return min(times, default=None)

    def finish_event(self) -> None:
        self.scheduler.finish_event()

    def stop(self) -> None:
        """Give everything away, and end."""
        self.wants_to_stop = True
        self._heartbeat_at_ms = self.now_ms

    # The controller

    def _ask(self, request: requests.ControllerRequest[Any], on_reply: OnReply) -> None:
        number = self.next_call()
        target = self.raft.leader_id
        if target is None:
            # Nobody to ask: as if the question was lost.
            self._asked[number] = _Asked(on_reply, self.now_ms + _RETRY_MS)
            return
        self._asked[number] = _Asked(on_reply, self.now_ms + REQUEST_TIMEOUT_MS)
        self.send(target, ControllerCall(number, request))

    def _beat(self) -> None:
        self._heartbeat_at_ms = None
        if self.broker_epoch == requests.NO_EPOCH:
            before = self.state.brokers.get(self.id)
            request: requests.ControllerRequest[Any] = requests.RegisterBroker(
                broker_id=self.id,
                incarnation=self.incarnation,
                host="simulated",
                port=self.id,
                boot_id=self._boot_id,
                directory_id=self.disk.directory_id,
                earlier=self._earlier,
                previous_epoch=requests.NO_EPOCH if before is None else before.epoch,
                clean_incarnation=self._clean_incarnation,
            )
            self._ask(request, self._on_registered)
        elif self._unreported is None:
            self._heartbeat_at_ms = self.now_ms + _RETRY_MS
        elif self._unreported:
            request = requests.ReportLosses(self.id, self.broker_epoch, self._unreported)
            self._ask(request, self._on_losses_reported)
        else:
            request = requests.Heartbeat(
                self.id,
                self.broker_epoch,
                self.state.applied_count,
                want_shutdown=self.wants_to_stop,
            )
            self._ask(request, self._on_beat)

    def _on_registered(self, reply: ControllerReply) -> None:
        if reply.code == Code.NONE:
            self.broker_epoch = reply.answer.broker_epoch
            self._follow_if_registered()
            self._update_fetchers()
            self._beat()
        elif reply.code == Code.INVALID_REGISTRATION:
            self.world.on_registration_refused(self)
        else:
            self._heartbeat_at_ms = self.now_ms + _RETRY_MS

    def _on_losses_reported(self, reply: ControllerReply) -> None:
        if reply.code in requests.FENCED_CODES:
            self.world.on_broker_exit(self, cleanly=False)
        elif reply.code != Code.NONE:
            self._heartbeat_at_ms = self.now_ms + _RETRY_MS
        else:
            self.world.counters["losses reported"] += 1
            self._on_all_losses_reported()
            self._beat()

    def _on_all_losses_reported(self) -> None:
        """All losses are reported: from now on the controller may trust this broker."""
        if self._unreported:
            self.write_down()
        self._unreported = []
        self.disk.cut.clear()
        self.world.judge.on_damage_reported(self)

    def _on_beat(self, reply: ControllerReply) -> None:
        now_ms = self.now_ms
        if reply.code in requests.FENCED_CODES:
            self.world.on_broker_exit(self, cleanly=False)
            return
        if reply.code != Code.NONE:
            self._heartbeat_at_ms = now_ms + _RETRY_MS
            return
        answer: requests.HeartbeatAnswer = reply.answer
        if answer.should_shut_down:
            self.world.on_broker_exit(self, cleanly=self.wants_to_stop)
            return
        # Until it counts, it wants to count soon.
        self._heartbeat_at_ms = now_ms + (_RETRY_MS if answer.is_fenced else HEARTBEAT_MS)
        # As housekeeping does.
        for hosted in self.hosted.values():
            if hosted.has_failed:
                self.on_log_failed(hosted)

    # For partitions

    def _gather_proposals(self, send: Callable[[], None]) -> None:
        self.scheduler.call_soon(send)

    def _send_report(
        self, request: requests.ControllerRequest[Any], on_reply: Callable[[Reply], object]
    ) -> None:
        """Ask; what may be lost is asked again, except for proposals, as production does."""

        def on_answer(reply: ControllerReply) -> None:
            if reply.code == Code.NONE:
                on_reply(Reply(reply.answer, None, 0))
            elif reply.code in _LOST_CODES and not isinstance(request, requests.AlterPartitions):
                self.scheduler.call_at_ms(
                    self.now_ms + _RETRY_MS, lambda: self._ask(request, on_answer)
                )
            else:
                on_reply(Reply(None, ApiError(reply.code, "refused"), 0))

        self._ask(request, on_answer)

    def on_became_follower(self, hosted: SimulatedPartition) -> None:
        self._leaders_to_refetch.add(hosted.record.leader)

    def on_log_failed(self, hosted: SimulatedPartition) -> None:
        if not hosted.is_removed:
            self._reports.report_failure(hosted.key)

    # Metadata

    def _settle_raft(self) -> None:
        perform_actions(self.raft, self._storage, self._perform, self.now_ms)
        self._follow_if_registered()

    def _follow_if_registered(self) -> None:
        is_registered = self.broker_epoch != requests.NO_EPOCH
        if self._has_new_metadata and is_registered and self.is_current:
            self._has_new_metadata = False
            self._follow()

    def _perform(self, action: Action) -> None:
        match action:
            case SendToPeer(to, message):
                self.send(to, message)
            case Committed(base_offset, entries):
                self.world.judge.on_committed(self, base_offset, entries)
                for entry in entries:
                    if entry.kind is EntryKind.DATA:
                        for data in entry.records:
                            self._apply(data)
            case LoadSnapshot(_, records):
                self.state = ClusterState()
                self._follows_all = True
                for data in records:
                    self._apply(data)
            case _:
                self.world.judge.on_unexpected_action(self, action)

    def _apply(self, data: bytes) -> None:
        record = self.world.decode_record(data)
        self.state.apply(record)
        self._has_new_metadata = True
        if isinstance(record, PartitionRecord):
            self._changed.add(record.key)
        elif isinstance(record, ConfigRecord):
            self._follows_all = True

    def _follow(self) -> None:
        """Do what the metadata says."""
        self.live_epochs.clear()
        self.live_epochs.update(self.state.live_epochs())
        for record in list(self.state.partitions()):
            if self._follows_all or record.key in self._changed:
                self._follow_partition(record)
        self._follows_all = False
        self._changed.clear()
        if self._leaders_to_refetch:
            self._update_fetchers()
        if self._unreported is None:
            self._unreported = self.disk.open(self.hosted)
            if not self._unreported:
                self._on_all_losses_reported()

    def _follow_partition(self, record: PartitionRecord) -> None:
        hosted = self.hosted.get(record.key)
        if self.id not in record.replicas:
            if hosted is not None:
                hosted.stop_serving()
                del self.hosted[record.key]
            self.disk.delete(record.key)
            return
        min_insync = self.state.min_insync(record)
        if hosted is None:
            hosted = self.hosted[record.key] = SimulatedPartition(self, record, min_insync)
        hosted.follow(record, min_insync)
        if record.recovering and record.leader == NO_LEADER:
            self._reports.report_log_end(hosted)

    def followers_of(self, leader_id: int) -> list[SimulatedPartition]:
        """The replicas that follow a leader."""
        return [
            hosted
            for hosted in self.hosted.values()
            if (follower := hosted.replica.follower) is not None and follower.leader == leader_id
        ]

    def _update_fetchers(self) -> None:
        """Have a fetcher for each leader that is followed."""
        if self.broker_epoch == requests.NO_EPOCH:
            return
        roles = [hosted.replica.follower for hosted in self.hosted.values()]
        leaders = {role.leader: None for role in roles if role and role.leader != NO_LEADER}
        for leader_id in self._fetchers.keys() - leaders.keys():
            del self._fetchers[leader_id]
        for leader_id in leaders:
            if leader_id not in self._fetchers:
                self._fetchers[leader_id] = SimulatedFetcher(self, leader_id)
            elif leader_id in self._leaders_to_refetch:
                self._fetchers[leader_id].wake()
        self._leaders_to_refetch.clear()

    def write_down(self) -> None:
        """Note the high watermarks, as production does now and then."""
        for key, hosted in self.hosted.items():
            if not hosted.has_failed:
                self.disk.checkpoint[key] = hosted.replica.role.high_watermark

    @property
    def has_failed_logs(self) -> bool:
        return any(hosted.has_failed for hosted in self.hosted.values())
