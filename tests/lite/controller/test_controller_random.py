"""Random histories: whatever happens, who may lead has what was committed.

`support.controller.rules` is checked after every call of the controller, and
LeaderCandidateCompleteness after every step. At the end everything is mended, and then every
partition has a leader and all its replicas in sync, unless it says what was lost.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random

import pytest

from shoal.lite.base.codes import ApiError
from shoal.lite.metadata.data.records import PartitionRecord
from shoal.lite.metadata.data.requests import (
    SET,
    AlterConfigs,
    ConfigEdit,
    MoveLeader,
    Reassign,
    ReportFailures,
    ShrinkInSync,
)
from shoal.lite.metadata.data.state import TOPIC, ClusterState
from shoal.lite.metadata.data.status import why_offline
from shoal.lite.metadata.rules.partitions import choose_leader, in_replica_order
from shoal.model.topics import TopicPartition
from support.controller.data import DataCluster

STEPS = 250
HISTORIES = 40
TOPICS = ("a", "b")


class History:
    """A cluster to which things happen by chance."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.brokers = self.random.choice((2, 3, 3, 4, 5))
        self.cluster = DataCluster(self.brokers, min_insync=self.random.choice((1, 2, 3)))
        self.boots = 0
        self.boot_ids = dict.fromkeys(range(1, self.brokers + 1), "monday")
        self.counts: Counter[str] = Counter()
        for name in TOPICS:
            factor = min(self.random.choice((1, 2, 2, 3, 3, 3)), self.brokers)
            self.cluster.create(name, partitions=2, factor=factor)
        usual = [self.learn, self.append, self.fetch, self.propose, self.wait, self.start]
        rare = [
            self.kill,
            self.pause,
            self.resume,
            self.stop,
            self.flush,
            self.shrink,
            self.configure,
            self.move,
            self.reassign,
            self.fail,
            self.cluster.fail_over,
        ]
        # Losses of data end most stories: many histories are without.
        losses = [self.lose] * self.random.choice((0, 0, 1))
        self.steps: list[Callable[[], None]] = [*usual * 4, *rare, *losses]

    def play(self, steps: int) -> None:
        for _ in range(steps):
            step = self.random.choice(self.steps)
            try:
                step()
            except ApiError as refused:
                self.counts[f"refused with {refused.code.name}"] += 1
            self.counts[step.__name__] += 1
            self.cluster.check_candidates()
        for partition in self.cluster.state.partitions():
            self.counts["elections"] += partition.leader_epoch
            self.counts["changes"] += partition.partition_epoch

    # Brokers

    def living(self) -> int:
        return self.random.choice(list(self.cluster.processes) or [0])

    def start(self) -> None:
        for broker_id in sorted(set(self.boot_ids) - set(self.cluster.processes)):
            if self.random.random() < 0.7:
                self.cluster.register(broker_id, self.boot_ids[broker_id])

    def kill(self) -> None:
        count = self.random.choice((1, 1, 1, 2, self.brokers))
        doomed = self.random.sample(sorted(self.cluster.processes), len(self.cluster.processes))
        doomed = doomed[:count]
        self.cluster.kill(*doomed)
        for broker_id in doomed:
            self.cluster.forget_process(broker_id)

    def stop(self) -> None:
        if broker_id := self.living():
            self.cluster.flush(broker_id)
            self.cluster.stop(broker_id)
            self.cluster.forget_process(broker_id)

    def lose(self) -> None:
        """A machine loses power or its disk; the controller hears of it now or never."""
        if broker_id := self.living():
            if self.random.random() < 0.5:
                self.cluster.kill(broker_id)
            else:
                del self.cluster.processes[broker_id]
            self.cluster.forget_process(broker_id)
            if self.random.random() < 0.7:
                self.boots += 1
                self.boot_ids[broker_id] = f"boot-{self.boots}"
                self.cluster.lose_power(broker_id)
            else:
                self.cluster.lose_disk(broker_id)

    def pause(self) -> None:
        if broker_id := self.living():
            self.cluster.processes[broker_id].is_heard = False

    def resume(self) -> None:
        if broker_id := self.living():
            self.cluster.processes[broker_id].is_heard = True

    def wait(self) -> None:
        self.cluster.wait(self.random.choice((10, 100, 500, 1500)))

    def learn(self) -> None:
        for broker_id in self.cluster.processes:
            self.cluster.learn(broker_id, self.random.choice((0, 1, 3, None)))

    # Data

    def append(self) -> None:
        for broker_id in self.cluster.processes:
            for partition in self.cluster.led_by(broker_id):
                if self.random.random() < 0.5:
                    self.cluster.append(broker_id, partition)

    def fetch(self) -> None:
        for broker_id in self.cluster.processes:
            for partition in list(self.cluster.views[broker_id].partitions()):
                if broker_id in partition.replicas and broker_id != partition.leader:
                    limit = self.random.choice((0, 1, None, None))
                    self.cluster.fetch(broker_id, partition, limit)

    def propose(self) -> None:
        for broker_id in self.cluster.processes:
            for partition in self.cluster.led_by(broker_id):
                is_answered = self.random.random() < 0.7
                self.cluster.propose_caught_up(broker_id, partition, is_answered=is_answered)

    def shrink(self) -> None:
        if broker_id := self.living():
            for partition in self.cluster.led_by(broker_id):
                late = self.random.randint(1, self.brokers)
                is_answered = self.random.random() < 0.7
                self.cluster.propose_without(broker_id, partition, late, is_answered=is_answered)

    def flush(self) -> None:
        if broker_id := self.living():
            self.cluster.flush(broker_id)

    # Wishes

    def partition(self) -> TopicPartition:
        return TopicPartition(self.random.choice(TOPICS), self.random.randrange(2))

    def some_brokers(self) -> list[int]:
        count = self.random.randint(1, min(3, self.brokers))
        return self.random.sample(range(1, self.brokers + 1), count)

    def configure(self) -> None:
        change = ConfigEdit("min.insync.replicas", SET, self.random.choice("123"))
        self.cluster.ask(AlterConfigs(TOPIC, self.random.choice(TOPICS), [change]))

    def move(self) -> None:
        broker_id = self.random.randint(1, self.brokers)
        if self.random.random() < 0.5:
            self.cluster.ask(MoveLeader(self.partition(), broker_id))
        else:
            self.cluster.ask(ShrinkInSync(self.partition(), (broker_id,)))

    def reassign(self) -> None:
        target = None if self.random.random() < 0.2 else self.some_brokers()
        self.cluster.ask(Reassign({self.partition(): target}))

    def fail(self) -> None:
        if broker_id := self.living():
            epoch = self.cluster.processes[broker_id].epoch
            key = self.cluster.partition(*self.partition()).key
            self.cluster.ask(ReportFailures(broker_id, epoch, [key]))

    # The end

    def mend(self) -> None:
        """Let everything work, long enough for what is left to be done."""
        cluster = self.cluster
        # Logs that have failed are mended by a new start.
        doomed = sorted(cluster.processes)
        cluster.kill(*doomed)
        for broker_id in doomed:
            cluster.forget_process(broker_id)
        cluster.wait(4_000)
        for broker_id, boot_id in self.boot_ids.items():
            cluster.start(broker_id, boot_id)
        for _ in range(4):
            for broker_id in self.boot_ids:
                cluster.learn(broker_id)
                for partition in list(cluster.views[broker_id].partitions()):
                    if broker_id in partition.replicas and partition.leader not in {-1, broker_id}:
                        cluster.fetch(broker_id, partition)
            for broker_id in self.boot_ids:
                for partition in cluster.led_by(broker_id):
                    cluster.propose_caught_up(broker_id, partition, is_answered=True)
            cluster.wait(1_500)
            cluster.check_candidates()


def check_mended(cluster: DataCluster) -> None:
    for partition in cluster.state.partitions():
        reason = why_offline(partition)
        if reason is not None:
            assert partition.lost, reason
            continue
        assert set(partition.in_sync) == set(partition.replicas)
        assert not partition.adding
        assert not partition.removing
        log = cluster.logs[partition.leader, partition.key]
        committed = cluster.committed[partition.key]
        assert log[: len(committed)] == committed


def play(seed: int) -> History:
    history = History(seed)
    history.play(STEPS)
    history.mend()
    check_mended(history.cluster)
    return history


def test_who_may_lead_has_what_was_committed() -> None:
    total: Counter[str] = Counter()
    for seed in range(HISTORIES):
        try:
            history = play(seed)
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise
        total += history.counts
        total["committed"] += sum(map(len, history.cluster.committed.values()))
        total["offline"] += sum(1 for p in history.cluster.state.partitions() if p.lost)
    # Histories in which nothing happens prove nothing; nor do those that soon end.
    assert total["elections"] > HISTORIES * 10
    assert total["changes"] > HISTORIES * 25
    assert total["committed"] > HISTORIES * 5
    assert total["offline"] < HISTORIES * 2


def elect_anyone(state: ClusterState, partition: PartitionRecord) -> tuple[Sequence[int], int]:
    live = [b for b in partition.replicas if state.can_serve(partition, b)]
    if partition.leader in live or not live:
        return partition.in_sync, partition.leader
    leader = choose_leader(state, live)
    return [leader], leader


def keep_eligible(
    _: ClusterState, partition: PartitionRecord, in_sync: Sequence[int]
) -> tuple[int, ...]:
    complete = {*partition.in_sync, *partition.eligible}
    return in_replica_order(complete.difference(in_sync), partition.replicas)


@pytest.mark.parametrize(
    ("target", "sabotage"),
    [
        ("brokers._has_its_data", lambda _before, _request: True),
        ("partitions._elect", elect_anyone),
        ("partitions._eligible", keep_eligible),
    ],
    ids=["trust after power losses", "elect anyone", "stay eligible"],
)
def test_sabotage_is_found(
    target: str, sabotage: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    # What the rules of the metadata alone see is too easy: here the data must show it.
    monkeypatch.setattr("support.controller.cluster.check_change", lambda *_: None)
    monkeypatch.setattr("support.controller.cluster.check_state", lambda *_: None)
    monkeypatch.setattr(f"shoal.lite.metadata.rules.{target}", sabotage)

    def search() -> None:
        for seed in range(HISTORIES):
            History(seed).play(STEPS)

    with pytest.raises(AssertionError, match=r"lacks what was committed|were replaced"):
        search()
