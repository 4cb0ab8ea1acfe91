"""Random histories of one partition: everything that can happen, in any order, by a seed.

Messages are delayed, lost, doubled and overtaken by others; brokers are killed, restarted, and
fenced while they live; metadata arrives late; leaders move; records are deleted. Proposals to
the controller are neither doubled nor older than their time-out: they travel on connections.
In the end everything heals, and must work again.
"""

from collections import Counter
from collections.abc import Callable
from random import Random

from shoal.lite.replication.leader import ALL_ACKS
from shoal.lite.replication.messages import NO_LEADER, ReplicationSettings
from shoal.lite.replication.replica import PartitionReplica
from support.replication.invariants import InvariantBroken, Invariants, require
from support.replication.world import (
    AlterSent,
    Broker,
    FetchAnswered,
    FetchSent,
    World,
)

MOST_MESSAGES = 12


class History:
    """One history; `counts` says which events it reached."""

    def __init__(self, seed: int, replica_type: type[PartitionReplica] = PartitionReplica) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.trace: list[str] = []
        self.counts: Counter[str] = Counter()
        broker_count = self.random.choice([3, 3, 4, 5])
        settings = ReplicationSettings(
            min_insync_replicas=self.random.randint(1, broker_count),
            replica_lag_time_max_ms=1000,
            controller_request_timeout_ms=self.random.choice([50, 300]),
            controller_retry_backoff_ms=20,
            replica_fetch_backoff_ms=50,
        )
        self.world = World(broker_count, settings, replica_type=replica_type, tell=self._tell)
        self.invariants = Invariants(self.world)
        self._alter_times: dict[AlterSent, int] = {}
        # Requests in flight, which may arrive after everything has changed.
        self._strays: list[FetchSent] = []
        self._produced = 0
        # How rough this history is: some are calm, so that much is committed between faults.
        rough = self.random.choice([0.3, 1.0, 3.0])
        self._steps: dict[Callable[[], None], float] = {
            self._produce: 16,
            self._fetch: 26,
            self._deliver: 40,
            self._learn: 14,
            self._read: 2,
            self._pass_little_time: 6,
            self._pass_much_time: 1,
            self._checkpoint: 1,
            self._delete: 0.5,
            self._unfence: 3 + 3 * rough,
            self._start: 2 + 2 * rough,
            self._lose: 4 * rough,
            self._double: 2 * rough,
            self._stray: 2,
            self._fence: 1.2 * rough,
            self._kill: 1.2 * rough,
            self._move_leader: 1 * rough,
        }

    def _tell(self, line: str) -> None:
        self.trace.append(line)
        for word in ("leads", "truncates", "throws", "proposes", "acknowledges", "fails"):
            if f" {word} " in line:
                self.counts[word] += 1

    def run(self, steps: int) -> None:
        """Raises `InvariantBroken` with the seed and the last of what happened."""
        choices, weights = list(self._steps), list(self._steps.values())
        try:
            for step in self.random.choices(choices, weights, k=steps):
                step()
                self._drop_old_proposals()
                self.invariants.check()
            self._heal()
        except InvariantBroken as broken:
            trace = "\n".join(self.trace[-60:])
            raise InvariantBroken(f"{broken}\nseed {self.seed}, the end of it:\n{trace}") from None

    # Steps

    def _any(self, brokers: list[Broker]) -> Broker | None:
        return self.random.choice(brokers) if brokers else None

    def _alive(self) -> list[Broker]:
        return [broker for broker in self.world.brokers.values() if broker.replica]

    def _produce(self) -> None:
        broker = self._any([broker for broker in self._alive() if broker.leader])
        if broker:
            self._produced += 1
            acks = ALL_ACKS if self.random.random() < 0.75 else 1
            self.world.produce(broker.broker_id, f"r{self._produced}", acks=acks)

    def _fetch(self) -> None:
        broker = self._any([broker for broker in self._alive() if not broker.leader])
        if broker and len(self.world.network) < MOST_MESSAGES:
            self.world.send_fetch(broker.broker_id)

    def _deliver(self) -> None:
        network = self.world.network
        if network:
            # Mostly in order, or little would ever come to an end.
            first = self.random.random() < 0.7
            message = network[0] if first else self.random.choice(network)
            self.world.deliver(message, max_records=self.random.randint(1, 3))

    def _double(self) -> None:
        fetches = [m for m in self.world.network if isinstance(m, FetchSent | FetchAnswered)]
        if fetches:
            self.world.deliver(self.random.choice(fetches), keep=True)

    def _stray(self) -> None:
        if self._strays and self.random.random() < 0.5:
            sent = self._strays.pop(self.random.randrange(len(self._strays)))
            if self.world.brokers[sent.target].replica:
                self.world.deliver(sent, keep=True)
        else:
            self._strays += [m for m in self.world.network if isinstance(m, FetchSent)][:1]

    def _lose(self) -> None:
        if self.world.network:
            message = self.random.choice(self.world.network)
            self.world.network.remove(message)
            self._on_lost(message)

    def _on_lost(self, message: object) -> None:
        if isinstance(message, FetchSent | FetchAnswered):
            follower_id = message.source if isinstance(message, FetchSent) else message.target
            replica = self.world.brokers[follower_id].replica
            if replica and replica.follower:
                replica.follower.on_fetch_failed(self.world.now_ms, message.fetch)

    def _drop_old_proposals(self) -> None:
        timeout_ms = self.world.settings.controller_request_timeout_ms
        for message in list(self.world.network):
            if isinstance(message, AlterSent):
                sent_ms = self._alter_times.setdefault(message, self.world.now_ms)
                if self.world.now_ms - sent_ms >= timeout_ms:
                    self.world.network.remove(message)

    def _learn(self) -> None:
        broker = self._any(self._alive())
        if broker:
            self.world.learn(broker.broker_id)

    def _read(self) -> None:
        broker = self._any(self._alive())
        if broker:
            start, end = broker.log.start_offset, broker.log.end_offset
            self.world.read(broker.broker_id, self.random.randint(start, end))

    def _pass_little_time(self) -> None:
        self.world.pass_time(self.random.randint(1, 60))

    def _pass_much_time(self) -> None:
        self.world.pass_time(self.random.randint(200, 1200))

    def _checkpoint(self) -> None:
        self.world.checkpoint(self.random.choice(list(self.world.brokers)))

    def _delete(self) -> None:
        broker = self._any([broker for broker in self._alive() if broker.leader])
        partition = broker.partition if broker else None
        if broker and partition and partition.high_watermark > broker.log.start_offset:
            start, end = broker.log.start_offset, partition.high_watermark
            partition.delete_before(self.random.randint(start, end), lambda _: None)
            self.trace.append(f"{broker.broker_id} deletes below {broker.log.start_offset}")

    def _fence(self) -> None:
        broker_id = self.random.choice(list(self.world.brokers))
        if broker_id not in self.world.controller.fenced:
            self.trace.append(f"controller fences {broker_id}")
            self.world.controller.fence(broker_id)

    def _unfence(self) -> None:
        fenced = [b for b in self._alive() if b.broker_id in self.world.controller.fenced]
        broker = self._any(fenced)
        if broker:
            self.trace.append(f"controller unfences {broker.broker_id}")
            self.world.controller.unfence(broker.broker_id)

    def _kill(self) -> None:
        broker = self._any(self._alive())
        if broker:
            self.trace.append(f"{broker.broker_id} is killed")
            self.world.kill(broker.broker_id)

    def _start(self) -> None:
        broker = self._any([b for b in self.world.brokers.values() if not b.replica])
        if broker:
            self.trace.append(f"{broker.broker_id} starts")
            self.world.start(broker.broker_id)

    def _move_leader(self) -> None:
        controller = self.world.controller
        others = set(controller.assignment.isr) - {controller.assignment.leader}
        if others and controller.assignment.leader != NO_LEADER:
            leader = self.random.choice(sorted(others))
            self.trace.append(f"controller moves the leader to {leader}")
            controller.move_leader(leader)

    # The end

    def _heal(self) -> None:
        """Without faults, the replicas must become equal and accept writes."""
        self.trace.append("everything heals")
        for broker in self.world.brokers.values():
            if broker.replica is None:
                self.world.start(broker.broker_id)
            self.world.controller.unfence(broker.broker_id)
        before = len(self.world.acknowledged)
        for _ in range(100):
            self._calm_round()
            leader_id = self.world.controller.assignment.leader
            require(leader_id != NO_LEADER, "Liveness", "no leader")
            if self._are_equal():
                if len(self.world.acknowledged) > before:
                    return
                self.world.produce(leader_id, "the last record")
        require(False, "Liveness", "the replicas did not become equal")

    def _calm_round(self) -> None:
        for broker in self._alive():
            while self.world.learn(broker.broker_id):
                self.invariants.check()
            self.world.send_fetch(broker.broker_id)
        for _ in range(2):
            for message in list(self.world.network):
                self.world.deliver(message)
                self.invariants.check()
        self.world.pass_time(60)
        self.invariants.check()

    def _is_whole(self) -> bool:
        now = self.world.controller.assignment
        return set(now.isr) == set(now.replicas)

    def _are_equal(self) -> bool:
        return self._is_whole() and all(
            broker.log.end_offset == len(self.invariants.committed)
            and broker.replica is not None
            and broker.replica.role.high_watermark == broker.log.end_offset
            for broker in self.world.brokers.values()
        )
