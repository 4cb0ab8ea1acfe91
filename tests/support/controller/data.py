"""Replicas with data, as simple as they can be, to see what the controller's decisions cost.

Brokers follow the metadata log with a delay of their own, so leaders may be out of date. A log
is a list of records; a leader appends, followers copy from it what they lack and cut off what
it does not have. A record is committed when all in the leader's in-sync set, and all whom it
has proposed for it, have fetched it in the leader's epoch, and the set is large enough.

Then the names of the TLA+ model of KIP-966: whoever is in sync or eligible has everything that
was committed, in its order (LeaderCandidateCompleteness), and so nothing committed is lost as
long as there is such a replica, or someone accepts the loss.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from uuid import UUID

from shoal.lite.base.codes import Code
from shoal.lite.metadata.data.records import PartitionRecord
from shoal.lite.metadata.data.requests import AlterPartitions, InSyncChange
from shoal.lite.metadata.data.state import ClusterState
from support.controller.cluster import ControllerCluster, Process

Key = tuple[UUID, int]


@dataclass
class Leadership:
    """What a leader knows of its followers, in one epoch of one process."""

    epoch: int
    start: int
    fetched: dict[int, int] = field(default_factory=dict)
    # Broker epochs of those who fetched.
    epochs: dict[int, int] = field(default_factory=dict)
    # The set that was proposed, and on which partition epoch it was based.
    proposed: set[int] = field(default_factory=set)
    proposed_at: int = -1
    # What the controller answered: known before it comes with the metadata.
    answered: PartitionRecord | None = None


class DataCluster(ControllerCluster):
    """A cluster whose replicas have records."""

    def __init__(self, brokers: int, *, min_insync: int) -> None:
        self.views: dict[int, ClusterState] = {}
        self._seen: dict[int, int] = {}
        self.logs: dict[tuple[int, Key], list[int]] = defaultdict(list)
        self.flushed: dict[tuple[int, Key], int] = defaultdict(int)
        self.committed: dict[Key, list[int]] = defaultdict(list)
        # Brokers that lost data since they were registered.
        self.damaged: set[int] = set()
        self._leaderships: dict[tuple[int, Key], Leadership] = {}
        self._next_record = 0
        super().__init__(brokers, properties={"min.insync.replicas": str(min_insync)})

    # Following the metadata

    def register(self, broker_id: int, boot_id: str = "monday") -> Process:
        process = super().register(broker_id, boot_id)
        self.damaged.discard(broker_id)
        if broker_id not in self.views:
            self.views[broker_id], self._seen[broker_id] = ClusterState(), 0
        return process

    def start(self, broker_id: int, boot_id: str = "monday") -> None:
        self.register(broker_id, boot_id)
        self.learn(broker_id)
        self.beat(broker_id)

    def known_count(self, broker_id: int) -> int:
        return self.views[broker_id].applied_count

    def learn(self, broker_id: int, entries: int | None = None) -> None:
        """A broker hears of some entries of the log, or of all."""
        seen = self._seen[broker_id]
        for entry in self.entries[seen:] if entries is None else self.entries[seen:][:entries]:
            self._seen[broker_id] += 1
            for record in entry:
                self.views[broker_id].apply(record)

    # Leading and following

    def led_by(self, broker_id: int) -> list[PartitionRecord]:
        """What a broker leads, as far as it knows.

        What was before its registration was said of another process, which had other data.
        """
        if self.known_count(broker_id) <= self.processes[broker_id].epoch:
            return []
        led = [p for p in self.views[broker_id].partitions() if p.leader == broker_id]
        return [self._newest(broker_id, partition) for partition in led]

    def _newest(self, leader: int, partition: PartitionRecord) -> PartitionRecord:
        answered = self._leadership(leader, partition).answered
        if answered is None or answered.partition_epoch <= partition.partition_epoch:
            return partition
        return answered

    def append(self, broker_id: int, partition: PartitionRecord) -> None:
        self._leadership(broker_id, partition)
        self._next_record += 1
        self.logs[broker_id, partition.key].append(self._next_record)
        self._commit(broker_id, partition)

    def fetch(self, follower: int, partition: PartitionRecord, limit: int | None = None) -> None:
        """A follower copies from the leader that it knows, if that one agrees that it leads."""
        leader, key = partition.leader, partition.key
        if leader not in self.processes or follower not in self.processes:
            return
        theirs = next((p for p in self.led_by(leader) if p.key == key), None)
        if theirs is None or theirs.leader_epoch != partition.leader_epoch:
            return
        if follower not in theirs.replicas:
            return
        source, log = self.logs[leader, key], self.logs[follower, key]
        common = 0
        while common < min(len(source), len(log)) and source[common] == log[common]:
            common += 1
        end = len(source) if limit is None else min(common + limit, len(source))
        log[common:] = source[common:end]
        self.flushed[follower, key] = min(self.flushed[follower, key], common)
        leadership = self._leadership(leader, theirs)
        leadership.fetched[follower] = len(log)
        leadership.epochs[follower] = self.processes[follower].epoch
        self._commit(leader, theirs)

    def propose_caught_up(
        self, leader: int, partition: PartitionRecord, *, is_answered: bool
    ) -> None:
        """A leader proposes who has caught up, by what it knows; the answer may be lost."""
        leadership = self._leadership(leader, partition)
        least = max(leadership.start, len(self.committed[partition.key]))
        caught_up = {b for b, end in leadership.fetched.items() if end >= least}
        members = {*partition.in_sync, *caught_up}
        self._propose(leader, partition, members, is_answered=is_answered)

    def propose_without(
        self, leader: int, partition: PartitionRecord, late: int, *, is_answered: bool
    ) -> None:
        members = {leader, *(set(partition.in_sync) - {late})}
        self._propose(leader, partition, members, is_answered=is_answered)

    def _propose(
        self, leader: int, partition: PartitionRecord, members: set[int], *, is_answered: bool
    ) -> None:
        leadership = self._leadership(leader, partition)
        is_pending = leadership.proposed_at == partition.partition_epoch
        if is_pending or members == set(partition.in_sync):
            return
        leadership.proposed, leadership.proposed_at = members, partition.partition_epoch
        in_sync = tuple(
            (b, self.processes[leader].epoch if b == leader else leadership.epochs.get(b, -1))
            for b in sorted(members)
        )
        epochs = partition.leader_epoch, partition.partition_epoch
        change = InSyncChange(*partition.key, *epochs, in_sync)
        request = AlterPartitions(leader, self.processes[leader].epoch, [change])
        [answer] = self.ask(request)
        if is_answered and answer.code is Code.NONE:
            leadership.answered = answer.partition
        # Else the proposal stays until the metadata tells.

    def _leadership(self, leader: int, partition: PartitionRecord) -> Leadership:
        known = self._leaderships.get((leader, partition.key))
        if known is None or known.epoch != partition.leader_epoch:
            start = len(self.logs[leader, partition.key])
            known = Leadership(partition.leader_epoch, start)
            self._leaderships[leader, partition.key] = known
        return known

    def _commit(self, leader: int, partition: PartitionRecord) -> None:
        """Move the high watermark, by what this leader believes."""
        if len(partition.in_sync) < self.views[leader].min_insync(partition):
            return
        leadership = self._leadership(leader, partition)
        members = set(partition.in_sync)
        if leadership.proposed_at == partition.partition_epoch:
            members |= leadership.proposed
        log = self.logs[leader, partition.key]
        ends = [leadership.fetched.get(b, 0) for b in members if b != leader]
        high = min([len(log), *ends])
        committed = self.committed[partition.key]
        assert log[: len(committed)][:high] == committed[:high], "committed records were replaced"
        if high > len(committed):
            committed[:] = log[:high]

    # Ends of processes

    def forget_process(self, broker_id: int) -> None:
        """What was in the memory of a process is gone."""
        for key in [key for key in self._leaderships if key[0] == broker_id]:
            del self._leaderships[key]
        del self.views[broker_id], self._seen[broker_id]

    def lose_power(self, broker_id: int) -> None:
        """What was not flushed is gone."""
        self.damaged.add(broker_id)
        for (broker, key), log in self.logs.items():
            if broker == broker_id:
                del log[self.flushed[broker, key] :]

    def lose_disk(self, broker_id: int) -> None:
        self.damaged.add(broker_id)
        del self.folders[broker_id]
        for (broker, key), log in self.logs.items():
            if broker == broker_id:
                log.clear()
                self.flushed[broker, key] = 0

    def flush(self, broker_id: int) -> None:
        for (broker, key), log in self.logs.items():
            if broker == broker_id:
                self.flushed[broker, key] = len(log)

    # What must be so

    def check_candidates(self) -> None:
        """LeaderCandidateCompleteness: who may lead has all that was committed."""
        for partition in self.state.partitions():
            committed = self.committed[partition.key]
            for member in {*partition.in_sync, *partition.eligible} - self.damaged:
                log = self.logs[member, partition.key]
                assert log[: len(committed)] == committed, (
                    f"broker {member} may lead {partition} and lacks what was committed"
                )
