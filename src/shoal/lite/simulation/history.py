"""One history, from a seed: a cluster comes up, things happen to it, and in the end it heals.

begin     controllers and brokers start, a topic is made; good weather, nothing is counted
happen    the steps of the seed, in its weather, until enough events have happened
heal      everyone runs, hears and is heard: everything must work again, and nothing that
          was acknowledged may be missing (Liveness, NoCommittedRecordLost)
"""

from collections.abc import Callable, Iterable
from typing import Any
from uuid import UUID

from shoal.lite.metadata.data import requests
from shoal.lite.metadata.data.records import NO_LEADER
from shoal.lite.simulation.brokers import BrokerProcess
from shoal.lite.simulation.errors import Violation
from shoal.lite.simulation.mischief import TOPIC, Mischief
from shoal.lite.simulation.outcome import HistoryOutcome
from shoal.lite.simulation.parts import Parts
from shoal.lite.simulation.setup import Setup, Step
from shoal.lite.simulation.world import World
from shoal.model.topics import TopicPartition

TOPIC_ID = UUID(int=0x70701C)
_BEGIN_MS = 20_000
_HEAL_MS = 40_000
_POLL_MS = 100


class History:
    """Plays one history."""

    def __init__(
        self,
        setup: Setup,
        steps: Iterable[Step],
        *,
        parts: Parts,
        trace: Callable[[str], None] | None = None,
    ) -> None:
        self._setup = setup
        self._steps = steps
        self._taken = 0
        self.world = World(setup, parts, trace)
        self._mischief = Mischief(self.world)

    def play(self, events: int) -> HistoryOutcome:
        """Play it until so many events have happened, and then heal."""
        world = self.world
        violation = None
        try:
            self._begin()
            self._happen(events)
            self._heal()
        except Violation as found:
            violation = found
        except Exception as error:  # noqa: BLE001 - any error of production is what we look for
            violation = Violation("NoException", f"{type(error).__name__}: {error}")
            violation.__cause__ = error
        return HistoryOutcome(
            self._setup.seed, world.events, world.counters, violation, self._taken
        )

    # Beginning

    def _begin(self) -> None:
        world, setup = self.world, self._setup
        for node_id in world.controllers:
            world.start(node_id)
        for broker_id in range(1, setup.brokers + 1):
            world.add_broker(broker_id)
            world.start(broker_id)
        self._until(lambda: self._active_brokers() == setup.brokers, _BEGIN_MS, "brokers")
        topic = requests.NewTopicSpec(
            TOPIC,
            setup.partitions,
            setup.replication_factor,
            configs={
                "min.insync.replicas": str(setup.min_insync),
                "unclean.leader.election.enable": str(setup.is_unclean).lower(),
            },
        )
        world.administrator.ask(requests.CreateTopic(topic, TOPIC_ID))
        keys = [(TOPIC_ID, index) for index in range(setup.partitions)]
        self._until(lambda: keys[0] in world.judge.partitions, _BEGIN_MS, "topic")
        for number, (acks, is_idempotent) in enumerate(setup.producers):
            world.add_producer(keys[number % len(keys)], acks, is_idempotent=is_idempotent)

    def _active_brokers(self) -> int:
        return len(self.world.judge.state.live_epochs())

    def _until(self, is_so: Callable[[], bool], patience_ms: int, what: str) -> None:
        world = self.world
        end_ms = world.now_ms + patience_ms
        while not is_so():
            if world.now_ms > end_ms:
                raise Violation("Liveness", f"{what}: not within {patience_ms} ms")
            world.next_event()

    # Happening

    def _happen(self, events: int) -> None:
        world = self.world
        world.network.weather = self._setup.weather
        begin_ms, last = world.now_ms, world.events + events
        world.counters.clear()
        steps = iter(self._steps)
        step = next(steps, None)
        while world.events < last:
            if step is not None and begin_ms + step.at_ms <= world.next_event_ms():
                world.now_ms = max(world.now_ms, begin_ms + step.at_ms)
                self._taken += 1
                world.events += self._mischief.take(step)
                step = next(steps, None)
            else:
                world.next_event()

    # Healing

    def _heal(self) -> None:
        world = self.world
        world.trace(0, "everything heals")
        world.network.heal()
        for node_id in (*world.controllers, *world.brokers):
            world.after(1, self._revive, node_id)
        self._until_well()
        self._check_all()

    def _revive(self, node_id: int, _: Any, __: Any) -> None:
        node: Any = self.world.controllers.get(node_id) or self.world.brokers.get(node_id)
        node.kill_after.writes_left = None
        if isinstance(node.process, BrokerProcess) and node.process.has_failed_logs:
            self.world.end(node.process)
        if node.process is None:
            self.world.start(node_id)
        else:
            node.process.paused_until_ms = 0

    def _until_well(self) -> None:
        world = self.world
        end_ms = world.now_ms + _HEAL_MS
        asked_ms = world.now_ms
        while (trouble := self._trouble()) is not None:
            if world.now_ms > end_ms:
                raise Violation("Liveness", trouble)
            if world.now_ms > asked_ms + 2000:
                asked_ms = world.now_ms
                self._give_up_what_is_lost()
            until_ms = world.now_ms + _POLL_MS
            while world.next_event_ms() <= until_ms:
                world.next_event()
            world.now_ms = until_ms

    def _give_up_what_is_lost(self) -> None:
        """Where all who could lead lost their data, someone must accept that."""
        world = self.world
        lost = [
            TopicPartition(TOPIC, index)
            for (_, index), judge in world.judge.partitions.items()
            if not judge.candidates
        ]
        if lost:
            request = requests.ElectLeaders(requests.Election.UNCLEAN, lost)
            world.administrator.ask(request)

    def _trouble(self) -> str | None:
        """What does not work yet."""
        world = self.world
        if world.active_controller() is None:
            return "no controller is active"
        if self._active_brokers() < len(world.brokers):
            return f"brokers count: {sorted(world.judge.state.live_epochs())}"
        for (_, index), judge in world.judge.partitions.items():
            record = judge.record
            if record is None or record.leader == NO_LEADER:
                return f"nobody leads partition {index}: {record}"
            if set(record.in_sync) != set(record.replicas) or record.adding or record.removing:
                return f"not all replicas of partition {index} are in sync: {record}"
        waiting = [producer.id for producer in world.producers.values() if not producer.is_done]
        if waiting:
            return f"producers wait: {waiting}"
        return self._unequal()

    def _unequal(self) -> str | None:
        for (topic_id, index), judge in self.world.judge.partitions.items():
            record = judge.record
            ends = [] if record is None else list(record.replicas)
            for broker_id in ends:
                log = self.world.brokers[broker_id].disk.logs.get((topic_id, index))
                if log is None or log.end_offset != len(judge.committed):
                    return f"broker {broker_id} has not all of partition {index}"
        return None

    def _check_all(self) -> None:
        """Everything that was acknowledged is in every log."""
        for key, judge in self.world.judge.partitions.items():
            record = judge.record
            for broker_id in () if record is None else record.replicas:
                log = self.world.brokers[broker_id].disk.logs[key]
                for batch in judge.acknowledged_batches.values():
                    is_there = log.at(batch.base_offset) is batch
                    if not is_there and batch.end_offset > log.start_offset:
                        raise Violation("NoCommittedRecordLost", f"{broker_id} has no {batch}")
