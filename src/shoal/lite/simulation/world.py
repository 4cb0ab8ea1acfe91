"""Nodes, clients, a network and time: everything that a history happens in.

Rules of this file:
- One thing happens at a time: a message arrives, an alarm goes off, or a step of the history is
  taken. Each of these is counted, and after each of them the judge looks.
- Everything follows from the seed: there is no other chance, and no other clock.
"""

import heapq
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any
from uuid import UUID

from shoal.lite.base.codes import Code
from shoal.lite.metadata.data.records import NO_LEADER, Record, decode_record
from shoal.lite.metadata.data.requests import ReportBrokerExits
from shoal.lite.raft.model import ReplicaKey, Voter, Voters
from shoal.lite.simulation.brokers import BrokerProcess
from shoal.lite.simulation.clients import Administrator, SimulatedConsumer, SimulatedProducer
from shoal.lite.simulation.controllers import ControllerProcess
from shoal.lite.simulation.disk import BrokerDisk, Key, KillAfterWrites
from shoal.lite.simulation.errors import ProcessKilled, Violation
from shoal.lite.simulation.judge import Judge
from shoal.lite.simulation.messages import (
    COPIED,
    ControllerCall,
    ControllerReply,
    ProduceMessage,
    ProduceReply,
)
from shoal.lite.simulation.network import Network
from shoal.lite.simulation.parts import Parts
from shoal.lite.simulation.process import Clock, Process
from shoal.lite.simulation.setup import Setup
from shoal.lite.simulation.words import describe

FIRST_CONTROLLER = 101
ADMINISTRATOR = 900
FIRST_PRODUCER = 1001
_NEVER_COPIED = (ControllerCall, ControllerReply, ProduceMessage, ProduceReply)


class ControllerMachine:
    """A controller's place: its disk and its clock."""

    def __init__(self, node_id: int, world: "World", clock: Clock) -> None:
        self.id = node_id
        self.clock = clock
        self.key = ReplicaKey(node_id, UUID(int=node_id))
        self.kill_after = KillAfterWrites()
        self.disk = world.parts.quorum_disk(world.voters, self.kill_after)
        self.process: ControllerProcess | None = None


class BrokerNode:
    """A broker's place: a machine with a disk, a clock and power."""

    def __init__(self, node_id: int, clock: Clock) -> None:
        self.id = node_id
        self.clock = clock
        self.kill_after = KillAfterWrites()
        self.boots = 1
        self._starts = 0
        self._disks = 0
        self.disk = self._new_disk()
        self.process: BrokerProcess | None = None
        # The numbers of processes whose data was lost and whom the metadata still trusts.
        self._losses: list[int] = []
        # The folder as it was some time ago.
        self._copy: BrokerDisk | None = None

    @property
    def directory(self) -> UUID:
        return UUID(int=self.id * 1000 + self._disks)

    def next_incarnation(self) -> str:
        self._starts += 1
        return f"{self.id}.{self._starts}"

    def _new_directory(self) -> str:
        self._disks += 1
        return f"disk-{self.id}.{self._disks}"

    def _new_disk(self) -> BrokerDisk:
        return BrokerDisk(self._new_directory(), self.kill_after)

    def lose_power(self, random: Random) -> None:
        self.boots += 1
        self._losses.append(self._starts)
        self.disk.lose_power(random)

    def lose_disk(self) -> None:
        self._replace_disk(self._new_disk())

    def copy_disk(self) -> None:
        """Copy the folder, unless a copy exists."""
        if self._copy is None:
            self._copy = self.disk.copy()

    def has_older_copy(self, key: Key) -> bool:
        """Whether there is a copy of the folder that has less of a partition."""
        copy, log = self._copy, self.disk.logs.get(key)
        if copy is None or log is None or copy.processes == self.disk.processes:
            return False
        return key not in copy.logs or copy.logs[key].end_offset < log.end_offset

    def restore_copy(self) -> None:
        """Put the copy in the place of the folder."""
        copy, self._copy = self._copy, None
        if copy is not None:
            self._replace_disk(copy)

    def _replace_disk(self, disk: BrokerDisk) -> None:
        self._losses.append(self._starts)
        self.disk = disk

    def rename_directory(self) -> None:
        """What the user does with an older copy, which the cluster refuses."""
        self.disk.rename(self._new_directory())

    def has_lost(self, key: Key) -> bool:
        """Whether there is less in a log than the processes had that the metadata knows."""
        return bool(self._losses) or key in self.disk.damaged

    def on_registered(self, incarnation: str) -> bool:
        """A process is in the metadata; says whether data was lost before it was started."""
        start = int(incarnation.split(".")[1])
        kept = [loss for loss in self._losses if loss >= start]
        is_after_loss = len(kept) < len(self._losses)
        self._losses = kept
        return is_after_loss


class World:
    """All of it, and the time."""

    def __init__(self, setup: Setup, parts: Parts, trace: Callable[[str], None] | None) -> None:
        self.setup = setup
        self.parts = parts
        self._trace = trace
        self.now_ms = 0
        self.events = 0
        self.counters: Counter[str] = Counter()
        self.random = Random(setup.seed ^ 0xC0FFEE)
        self.network = Network(setup.seed)
        self._queue: list[tuple[int, int, Callable[[Any, Any, Any], None], Any, Any, Any]] = []
        self._numbers = 0
        self._batches = 0
        self._calls = 0
        self._records: dict[bytes, Record] = {}
        first_observer = FIRST_CONTROLLER + setup.controllers
        controller_ids = range(FIRST_CONTROLLER, first_observer + setup.observers)
        # Those of the beginning.
        self.voters = Voters(
            Voter(node_id, UUID(int=node_id)) for node_id in controller_ids[: setup.controllers]
        )
        self.controllers = {i: ControllerMachine(i, self, self._clock()) for i in controller_ids}
        self.brokers: dict[int, BrokerNode] = {}
        self.judge = Judge(self)
        self.administrator = Administrator(self, ADMINISTRATOR, self._clock())
        self.producers: dict[int, SimulatedProducer] = {}
        self.consumer = SimulatedConsumer(self)

    # Making it

    def _clock(self) -> Clock:
        drift = self.setup.drift
        rate = 1 + self.random.uniform(-drift, drift)
        return Clock(self.random.randrange(1_000_000), rate)

    def add_broker(self, broker_id: int) -> BrokerNode:
        node = self.brokers[broker_id] = BrokerNode(broker_id, self._clock())
        return node

    def add_producer(self, key: Key, acks: int, *, is_idempotent: bool) -> None:
        node_id = FIRST_PRODUCER + len(self.producers)
        self.producers[node_id] = SimulatedProducer(
            self, node_id, self._clock(), key=key, acks=acks, is_idempotent=is_idempotent
        )

    # What can be seen

    def process_of(self, node_id: int) -> Process | None:
        if (broker := self.brokers.get(node_id)) is not None:
            return broker.process
        if (controller := self.controllers.get(node_id)) is not None:
            return controller.process
        if node_id == ADMINISTRATOR:
            return self.administrator
        return self.producers.get(node_id)

    def live_brokers(self) -> list[BrokerProcess]:
        return [node.process for node in self.brokers.values() if node.process is not None]

    def live_controllers(self) -> list[ControllerProcess]:
        return [node.process for node in self.controllers.values() if node.process is not None]

    def active_controller(self) -> ControllerProcess | None:
        """The controller that leads the newest epoch of those that believe to lead."""
        active = [c for c in self.live_controllers() if c.controller is not None]
        return max(active, key=lambda c: c.raft.epoch, default=None)

    def find_leader(self, key: Key, random: Random) -> int:
        """Who leads a partition, as some broker sees it."""
        brokers = self.live_brokers()
        if not brokers:
            return NO_LEADER
        state = random.choice(brokers).state
        return state.partition(*key).leader if key[0] in state.topic_names else NO_LEADER

    def decode_record(self, data: bytes) -> Record:
        """A record of the metadata; each is decoded once."""
        record = self._records.get(data)
        if record is None:
            record = self._records[data] = decode_record(data)
        return record

    def trace(self, node_id: int, what: str) -> None:
        if self._trace is not None:
            self._trace(f"{self.now_ms:6d} ms  {node_id:4d}  {what}")

    # Events

    def after(self, delay_ms: int, do: Callable[[Any, Any, Any], None], *arguments: Any) -> None:
        """Do something later, if it has three arguments or fewer."""
        self._numbers += 1
        padded = (*arguments, None, None, None)[:3]
        heapq.heappush(self._queue, (self.now_ms + delay_ms, self._numbers, do, *padded))

    def send(self, source: int, target: int, message: Any) -> None:
        may_copy = isinstance(message, COPIED) or not isinstance(message, _NEVER_COPIED)
        for delay_ms in self.network.delays_ms(source, target, self.now_ms, may_copy=may_copy):
            self._numbers += 1
            item = (self.now_ms + delay_ms, self._numbers, self._deliver, target, source, message)
            heapq.heappush(self._queue, item)

    def next_event(self) -> None:
        """Let the next thing happen."""
        time_ms, _, do, first, second, third = heapq.heappop(self._queue)
        self.now_ms = time_ms
        do(first, second, third)

    def next_event_ms(self) -> int:
        return self._queue[0][0]

    def _deliver(self, target: int, source: int, message: Any) -> None:
        process = self.process_of(target)
        if process is None:
            return
        if process.paused_until_ms > self.now_ms:
            delay_ms = process.paused_until_ms - self.now_ms
            self.after(delay_ms, self._deliver, target, source, message)
            return
        self.events += 1
        if self._trace is not None and (words := describe(message)) is not None:
            self.trace(target, f"<- {source}  {words}")
        self.let(process, process.receive, source, message)

    def _wake(self, process: Process, time_ms: int, _: None) -> None:
        if not process.is_alive or process.alarm_ms != time_ms:
            return
        if process.paused_until_ms > self.now_ms:
            process.alarm_ms = process.paused_until_ms
            delay_ms = process.paused_until_ms - self.now_ms
            self.after(delay_ms, self._wake, process, process.alarm_ms)
            return
        self.events += 1
        process.alarm_ms = None
        self.let(process, process.wake)

    def let(self, process: Process, do: Callable[..., None], *arguments: Any) -> None:
        """Let a process do something, look at what it did, and set its alarm."""
        try:
            do(*arguments)
            process.finish_event()
        except ProcessKilled:
            self.trace(process.id, "is killed between two writes")
            self.counters["kills between writes"] += 1
            self.end(process)
            self.after(self.random.randrange(1, 1500), self.restart, process.id)
        if process.is_alive:
            self.judge.check_process(process)
            self._set_alarm(process)
        else:
            self.judge.check_disk(process.id)

    def _set_alarm(self, process: Process) -> None:
        deadline_ms = process.next_deadline_ms()
        if deadline_ms is None:
            process.alarm_ms = None
            return
        at_ms = max(process.clock.when(deadline_ms), self.now_ms + 1)
        if process.alarm_ms != at_ms:
            process.alarm_ms = at_ms
            self.after(at_ms - self.now_ms, self._wake, process, at_ms)

    # Processes

    def start(self, node_id: int) -> None:
        """Start a node, if it is not running."""
        if self.process_of(node_id) is not None:
            return
        random = Random(self.random.getrandbits(32))
        self.counters["starts"] += 1
        if (controller := self.controllers.get(node_id)) is not None:
            controller.kill_after.writes_left = None
            controller.process = ControllerProcess(self, controller, random)
            self.trace(node_id, "starts")
            self.let(controller.process, controller.process.start)
        else:
            broker = self.brokers[node_id]
            broker.kill_after.writes_left = None
            broker.process = BrokerProcess(self, broker, random)
            self.trace(node_id, f"starts as {broker.process.incarnation}")
            self.let(broker.process, broker.process.start)

    def restart(self, node_id: int, _: None = None, __: None = None) -> None:
        """The time has come to start a node again."""
        self.start(node_id)

    def end(self, process: Process) -> None:
        """A process ends, in the middle of anything."""
        process.end()
        if isinstance(process, BrokerProcess):
            process.node.process = None
            if self.setup.is_embedded:
                death = ReportBrokerExits({process.id: process.incarnation})
                self.after(1, self._see_death, death)
        else:
            self.controllers[process.id].process = None

    def _see_death(self, death: ReportBrokerExits, _: None, __: None) -> None:
        for controller in self.live_controllers():
            self.let(controller, controller.on_broker_died, death)

    def on_broker_exit(self, process: BrokerProcess, *, cleanly: bool) -> None:
        """A broker shuts down: cleanly, or because the controller demands it."""
        if cleanly:
            self.counters["clean stops"] += 1
            process.write_down()
            process.disk.flush()
            process.disk.clean_incarnation = process.incarnation
        self.trace(
            process.id, "shuts down cleanly" if cleanly else "shuts down: removed by the controller"
        )
        self.end(process)
        self.after(self.random.randrange(1, 1200), self.restart, process.id)

    def on_registration_refused(self, process: BrokerProcess) -> None:
        """The folder of a broker is an older copy: the broker stops, and the user renames it."""
        self.counters["older copies refused"] += 1
        self.trace(process.id, "shuts down: its folder is an older copy; the folder gets a new id")
        process.node.rename_directory()
        self.end(process)
        self.after(self.random.randrange(1, 1200), self.restart, process.id)

    # For shells

    def next_call(self) -> int:
        self._calls += 1
        return self._calls

    def next_batch_number(self) -> int:
        self._batches += 1
        return self._batches

    def produce_error(self, call: ProduceMessage, code: Code) -> ProduceReply:
        return ProduceReply(call.number, code)


__all__ = ["BrokerNode", "ControllerMachine", "Violation", "World"]
