"""The steps of a history: what is done to the cluster, and what is asked of it.

Each verb of `setup` is a method here. A step draws its details from its own number and from how
the world is when its time comes; where it makes no sense then, it does nothing.
"""

from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Any

from shoal.lite.metadata.data import requests
from shoal.lite.metadata.data.records import NO_LEADER, PartitionRecord
from shoal.lite.metadata.data.rpc import Reply
from shoal.lite.metadata.rules import placement
from shoal.lite.raft.model import Voter
from shoal.lite.raft.node import RaftRole
from shoal.lite.simulation.brokers import BrokerProcess
from shoal.lite.simulation.disk import Key
from shoal.lite.simulation.partition import SimulatedPartition
from shoal.lite.simulation.process import Process
from shoal.lite.simulation.setup import Step
from shoal.lite.simulation.world import BrokerNode, World
from shoal.model.topics import TopicPartition

TOPIC = "topic"
_MOST_BROKERS = 6
_BLINK_MS = 1
_ALL_DOWN = 0.7


class Mischief:
    """Takes steps."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = Random()
        self._is_idle = False
        self._verbs: dict[str, Callable[[], None]] = {
            "send": self._send,
            "read": self._read,
            "ask-end": self._ask_end,
            "write-down": self._write_down,
            "flush": self._flush,
            "delete-records": self._delete_records,
            "move-leader": self._move_leader,
            "change-settings": self._change_settings,
            "prefer-leaders": self._prefer_leaders,
            "shrink-in-sync": self._shrink_in_sync,
            "reassign": self._reassign,
            "join": self._join,
            "snapshot": self._snapshot,
            "kill-broker": lambda: self._kill(self._any_broker()),
            "kill-leader": lambda: self._kill(self._any_leader()),
            "kill-writing-broker": self._kill_writing_broker,
            "kill-all-brokers": lambda: self._kill_all(world.live_brokers()),
            "stop-broker": self._stop_broker,
            "pause-broker": lambda: self._pause(self._any_broker()),
            "pause-leader": lambda: self._pause(self._any_leader()),
            "cut-broker": lambda: self._isolate(self._any_broker()),
            "cut-link": self._disconnect_link,
            "fail-log": self._fail_log,
            "kill-everything": self._kill_everything,
            "kill-controller": lambda: self._kill(self._any_controller()),
            "bounce-voter": self._bounce_voter,
            "kill-active-controller": lambda: self._kill(world.active_controller()),
            "kill-writing-controller": self._kill_writing_controller,
            "kill-all-controllers": lambda: self._kill_all(world.live_controllers()),
            "pause-active-controller": lambda: self._pause(world.active_controller()),
            "cut-controller": lambda: self._isolate(self._any_controller()),
            "resign-controller": self._resign_controller,
            "alarm-controller": self._alarm_controller,
            "change-voters": self._change_voters,
            "power-broker": lambda: self._lose_power([self._random.choice(list(world.brokers))]),
            "power-leader": self._power_leader,
            "power-some": self._power_some,
            "power-everything": self._power_everything,
            "lose-disk": self._lose_disk,
            "cut-log": self._damage_log,
            "restore-copy": self._restore_copy,
        }

    def take(self, step: Step) -> bool:
        """Take a step now; says whether it made any sense."""
        self._random = Random(step.salt)
        self._is_idle = False
        self._verbs[step.verb]()
        return not self._is_idle

    # Whom

    def _choose_one(self, items: Iterable[Any]) -> Any:
        found = list(items)
        return self._random.choice(found) if found else None

    def _any_broker(self) -> BrokerProcess | None:
        process: BrokerProcess | None = self._choose_one(self._world.live_brokers())
        return process

    def _any_controller(self) -> Process | None:
        process: Process | None = self._choose_one(self._world.live_controllers())
        return process

    def _choose_partition(self) -> PartitionRecord | None:
        record: PartitionRecord | None = self._choose_one(self._world.judge.state.partitions())
        return record

    def _any_leader(self) -> BrokerProcess | None:
        """The leader of some partition, as far as it is running."""
        record = self._choose_partition()
        if record is None or record.leader == NO_LEADER:
            return None
        return self._world.brokers[record.leader].process

    def _any_replica(self) -> SimulatedPartition | None:
        broker = self._any_broker()
        hosted = broker.hosted.values() if broker else ()
        replica: SimulatedPartition | None = self._choose_one(h for h in hosted if not h.has_failed)
        return replica

    def _any_led_replica(self) -> SimulatedPartition | None:
        led = [
            hosted
            for broker in self._world.live_brokers()
            for hosted in broker.hosted.values()
            if hosted.replica.leader is not None
            and not hosted.has_failed
            and not self._is_paused(broker)
        ]
        replica: SimulatedPartition | None = self._choose_one(led)
        return replica

    def _is_paused(self, process: Process) -> bool:
        return process.paused_until_ms > self._world.now_ms

    def _some_ms(self) -> int:
        """Mostly short, sometimes longer than every time-out."""
        return int(self._random.expovariate(1 / 500)) + 1

    # Clients

    def _send(self) -> None:
        producer = self._choose_one(self._world.producers.values())
        if producer is not None:
            count = self._random.choice((1, 1, 2, 3))
            self._world.let(producer, producer.send_records, count)

    def _read(self) -> None:
        hosted = self._any_replica()
        if hosted is not None:
            self._world.consumer.read(hosted)

    def _ask_end(self) -> None:
        hosted = self._any_led_replica()
        if hosted is not None:
            self._world.judge.check_latest_offset(hosted)

    # Care

    def _write_down(self) -> None:
        if (broker := self._any_broker()) is not None:
            broker.write_down()

    def _flush(self) -> None:
        node = self._choose_one(self._world.brokers.values())
        node.disk.flush()

    def _delete_records(self) -> None:
        hosted = self._any_led_replica()
        if hosted is None:
            return
        log, high_watermark = hosted.log, hosted.replica.role.high_watermark
        if high_watermark > log.start_offset:
            offset = self._random.randint(log.start_offset, high_watermark)
            self._world.trace(hosted.broker.id, f"deletes {hosted.name} below {offset}")
            self._world.let(hosted.broker, hosted.delete_before, offset, lambda _: None)

    def _ask(self, request: requests.ControllerRequest[Any]) -> None:
        self._world.administrator.ask(request)

    def _move_leader(self) -> None:
        record = self._choose_partition()
        if record is not None:
            partition = TopicPartition(TOPIC, record.partition)
            self._ask(requests.MoveLeader(partition, self._random.choice(record.replicas)))

    def _change_settings(self) -> None:
        """Ask for another number of replicas that must be in sync."""
        most = self._world.setup.replication_factor
        value = str(self._random.randint(1, most))
        change = requests.ConfigEdit("min.insync.replicas", requests.SET, value)
        self._ask(requests.AlterConfigs("topic", TOPIC, [change]))

    def _prefer_leaders(self) -> None:
        self._ask(requests.ElectLeaders(requests.Election.PREFERRED))

    def _shrink_in_sync(self) -> None:
        record = self._choose_partition()
        if record is not None and len(record.in_sync) > 1:
            partition = TopicPartition(TOPIC, record.partition)
            leaving = [b for b in record.in_sync if b != record.leader]
            self._ask(requests.ShrinkInSync(partition, (self._random.choice(leaving),)))

    def _reassign(self) -> None:
        record = self._choose_partition()
        if record is None:
            return
        partition = TopicPartition(TOPIC, record.partition)
        target: Sequence[int] | None = None
        if self._random.random() < 0.8:
            brokers = list(self._world.judge.state.brokers)
            count = min(len(record.target_replicas), len(brokers))
            target = self._random.sample(brokers, count)
        self._ask(requests.Reassign({partition: target}))

    def _join(self) -> None:
        """A new broker comes, or one that came gets its share."""
        world = self._world
        if len(world.brokers) < _MOST_BROKERS and self._random.random() < 0.5:
            broker_id = len(world.brokers) + 1
            world.add_broker(broker_id)
            world.start(broker_id)
            world.counters["joins"] += 1
            return
        newest = max(world.brokers)
        if newest in world.judge.state.brokers:
            self._ask(requests.Reassign(placement.plan_share(world.judge.state, newest)))

    def _snapshot(self) -> None:
        controller = self._choose_one(self._world.live_controllers())
        if controller is not None and not self._is_paused(controller):
            self._world.let(controller, controller.node.save_snapshot)

    # Faults

    def _kill(self, process: Process | None, down_ms: int | None = None) -> None:
        if process is None:
            self._is_idle = True
            return
        if down_ms is None:
            down_ms = self._some_ms()
        self._world.counters["kills"] += 1
        self._world.trace(process.id, "is killed")
        self._world.end(process)
        self._world.after(down_ms, self._world.restart, process.id)
        if isinstance(process, BrokerProcess):
            process.node.copy_disk()

    def _kill_all(self, processes: Sequence[Process]) -> None:
        for process in processes:
            self._kill(process)

    def _kill_everything(self) -> None:
        self._kill_all([*self._world.live_brokers(), *self._world.live_controllers()])

    def _fail_log(self) -> None:
        hosted = self._any_replica()
        if hosted is not None and not self._is_paused(hosted.broker):
            self._world.counters["logs failed"] += 1
            self._world.trace(hosted.broker.id, f"has a disk that fails {hosted.name}")
            self._world.let(hosted.broker, hosted.log.go_offline)

    def _bounce_voter(self) -> None:
        """Restart a controller that has voted for one of two candidates."""
        controllers = self._world.live_controllers()
        candidates = [
            (c.raft.epoch, c.id) for c in controllers if c.raft.role is RaftRole.CANDIDATE
        ]
        voters = []
        for controller in controllers:
            epoch, vote = controller.raft.epoch, controller.raft.quorum_state.voted_for
            if vote is not None and vote.id != controller.id:
                others = [i for e, i in candidates if e == epoch and i != vote.id]
                voters += [controller] if others else []
        self._kill(self._choose_one(voters), _BLINK_MS)

    def _kill_writing_broker(self) -> None:
        """Let a broker die with what it writes next; half of them lead, and nobody else has it."""
        leader = self._any_leader() if self._random.random() < 0.5 else None
        node = leader.node if leader else self._choose_one(self._world.brokers.values())
        node.kill_after.writes_left = self._random.choice((1, 1, 2, 3))

    def _kill_writing_controller(self) -> None:
        node = self._choose_one(self._world.controllers.values())
        node.kill_after.writes_left = self._random.randint(1, 3)

    def _stop_broker(self) -> None:
        broker = self._any_broker()
        if broker is not None and not self._is_paused(broker):
            self._world.trace(broker.id, "is asked to stop")
            self._world.let(broker, broker.stop)

    def _pause(self, process: Process | None) -> None:
        if process is not None:
            self._world.counters["pauses"] += 1
            process.paused_until_ms = self._world.now_ms + self._some_ms()
            self._world.trace(process.id, f"pauses until {process.paused_until_ms}")

    def _isolate(self, process: Process | None) -> None:
        """Cut a node off from the others: what it says, what it hears, or both."""
        if process is None:
            return
        others = [i for i in (*self._world.brokers, *self._world.controllers) if i != process.id]
        others += self._world.producers
        links: list[tuple[int, int]] = []
        kind = self._random.choice(("says", "hears", "both"))
        if kind != "hears":
            links += [(process.id, other) for other in others]
        if kind != "says":
            links += [(other, process.id) for other in others]
        self._disconnect(links, f"{process.id} is cut off ({kind})")

    def _disconnect_link(self) -> None:
        nodes = [*self._world.brokers, *self._world.controllers]
        source, target = self._random.sample(nodes, 2)
        links = [(source, target)]
        if self._random.random() < 0.5:
            links.append((target, source))
        self._disconnect(
            links, f"{source} -> {target} is cut" + (", and back" if len(links) > 1 else "")
        )

    def _disconnect(self, links: Sequence[tuple[int, int]], what: str) -> None:
        self._world.counters["cuts"] += 1
        until_ms = self._world.now_ms + self._some_ms()
        self._world.trace(0, f"{what} until {until_ms}")
        self._world.network.disconnect(links, until_ms)

    def _resign_controller(self) -> None:
        active = self._world.active_controller()
        if active is not None and not self._is_paused(active):
            self._world.let(active, active.node.resign)

    def _alarm_controller(self) -> None:
        """A controller hears, rightly or not, that its leader's process has ended."""
        controller = self._choose_one(self._world.live_controllers())
        if controller is not None and not self._is_paused(controller):
            self._world.let(controller, controller.node.alarm)

    def _change_voters(self) -> None:
        """Someone gives a controller a vote, or takes it away."""
        active = self._world.active_controller()
        if active is None or self._is_paused(active):
            self._is_idle = True
            return
        key = self._choose_one(self._world.controllers.values()).key

        def on_reply(reply: Reply) -> None:
            outcome = "voter changes" if reply.refused is None else "voter changes refused"
            self._world.counters[outcome] += 1

        if active.raft.voters.has(key):
            self._world.let(active, active.node.remove_voter, key, on_reply)
        else:
            self._world.let(active, active.node.add_voter, Voter(*key), on_reply)

    # Power

    def _lose_power(self, broker_ids: Iterable[int]) -> None:
        for broker_id in broker_ids:
            node = self._world.brokers[broker_id]
            self._world.counters["power losses"] += 1
            if node.process is not None:
                self._world.end(node.process)
                self._world.after(self._some_ms(), self._world.restart, broker_id)
            node.lose_power(self._random)
            self._world.trace(broker_id, "loses its power")

    def _power_leader(self) -> None:
        leader = self._any_leader()
        if leader is not None:
            self._lose_power([leader.id])

    def _power_everything(self) -> None:
        """The power goes for all, and is back for all at about the same time."""
        for controller in self._world.live_controllers():
            self._kill(controller)
        self._lose_power(list(self._world.brokers))

    def _power_some(self) -> None:
        brokers = list(self._world.brokers)
        self._lose_power(self._random.sample(brokers, self._random.randint(1, len(brokers))))

    # Disks

    def _lose_disk(self) -> None:
        node = self._choose_one(self._world.brokers.values())
        self._rest(node)
        self._world.counters["disks lost"] += 1
        node.lose_disk()
        self._world.trace(node.id, "loses its disk")

    def _damage_log(self) -> None:
        """Damage the log of a stopped broker that may lead when it is back."""
        key, nodes = self._partition_with_candidates()
        node = self._choose_one(n for n in nodes if key in n.disk.logs)
        if node is None:
            self._is_idle = True
            return
        self._rest_among_others(node)
        node.disk.damage(key, self._random)
        self._world.counters["logs cut"] += 1
        log = node.disk.logs.get(key)
        what = "is gone" if log is None else f"is cut to {log.end_offset}"
        self._world.trace(node.id, f"its log of p{key[1]} {what}")

    def _restore_copy(self) -> None:
        """Give such a broker a folder as it was when an earlier process was killed."""
        key, nodes = self._partition_with_candidates()
        node = self._choose_one(n for n in nodes if n.has_older_copy(key))
        if node is None:
            self._is_idle = True
            return
        self._rest_among_others(node)
        node.restore_copy()
        self._world.counters["copies restored"] += 1
        self._world.trace(node.id, "gets an older copy of its folder")

    def _partition_with_candidates(self) -> tuple[Key, list[BrokerNode]]:
        """Some partition, and those who may lead it."""
        key, judge = self._choose_one(self._world.judge.partitions.items())
        return key, [self._world.brokers[broker_id] for broker_id in judge.candidates]

    def _rest_among_others(self, node: BrokerNode) -> None:
        """Often all brokers are down: else the others do without this one before it is back."""
        if self._random.random() < _ALL_DOWN:
            self._kill_all(self._world.live_brokers())
        self._rest(node)

    def _rest(self, node: BrokerNode) -> None:
        """See to it that a broker is down, for a while."""
        if node.process is not None:
            self._world.end(node.process)
            self._world.after(self._some_ms(), self._world.restart, node.id)
