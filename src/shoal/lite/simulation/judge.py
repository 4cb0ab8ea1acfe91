"""Checks the invariants after every event.

What it knows no node knows: everything that was ever committed, in the metadata and in each
partition, as the first node reported it. The invariants have the names of the published
specifications of Kafka and of Raft; `quorum_judge` and `partition_judge` say what each means.
"""

from typing import TYPE_CHECKING, Any

from shoal.lite.metadata.data.records import BrokerRecord, PartitionRecord
from shoal.lite.metadata.data.state import ClusterState
from shoal.lite.raft.actions import Action
from shoal.lite.raft.model import EntryKind, RaftEntry
from shoal.lite.replication.messages import EpochEndOffset
from shoal.lite.simulation.brokers import BrokerProcess
from shoal.lite.simulation.controllers import ControllerProcess
from shoal.lite.simulation.disk import Key
from shoal.lite.simulation.errors import Violation
from shoal.lite.simulation.log import SimulatedBatch
from shoal.lite.simulation.partition import SimulatedPartition
from shoal.lite.simulation.partition_judge import PartitionJudge
from shoal.lite.simulation.process import Process
from shoal.lite.simulation.quorum_judge import QuorumJudge
from shoal.lite.storage.header import BatchHeader

if TYPE_CHECKING:
    from shoal.lite.simulation.clients import SimulatedProducer
    from shoal.lite.simulation.world import World


class Judge:
    """Raises `Violation` when an invariant does not hold."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.quorum = QuorumJudge(world)
        # The metadata as far as it is committed.
        self.state = ClusterState()
        self.partitions: dict[Key, PartitionJudge] = {}

    def check_process(self, process: Process) -> None:
        """A process has done something."""
        if isinstance(process, BrokerProcess):
            for hosted in process.hosted.values():
                if hosted.is_touched:
                    hosted.is_touched = False
                    self.partitions[hosted.key].check_replica(hosted)
        elif isinstance(process, ControllerProcess):
            self.quorum.check(process)

    def check_disk(self, node_id: int) -> None:
        """A process has ended: what it believed does not matter, what it wrote does."""
        for judge in self.partitions.values():
            if node_id in judge.candidates:
                judge.check_candidate(node_id)

    # The metadata

    def on_committed(
        self,
        process: BrokerProcess | ControllerProcess,
        base_offset: int,
        entries: tuple[RaftEntry, ...],
    ) -> None:
        """A member of the quorum, or an observer, got committed entries."""
        for entry in self.quorum.on_committed(process, base_offset, entries):
            if entry.kind is EntryKind.DATA:
                self._apply(entry)

    def _apply(self, entry: RaftEntry) -> None:
        """An entry counts as a whole."""
        changed: dict[Key, None] = {}
        before = {key: judge.record for key, judge in self.partitions.items()}
        registered: list[BrokerRecord] = []
        for data in entry.records:
            record = self._world.decode_record(data)
            self.state.apply(record)
            if isinstance(record, PartitionRecord):
                changed[record.key] = None
            elif isinstance(record, BrokerRecord):
                registered.append(record)
        for broker in registered:
            self._on_broker_registered(broker)
        for key in changed:
            judge = self.partitions.get(key)
            if judge is None:
                judge = self.partitions[key] = PartitionJudge(self._world, key)
            after = self.state.partition(*key)
            judge.on_changed(before.get(key), after, self.state.min_insync(after))

    def _on_broker_registered(self, broker: BrokerRecord) -> None:
        node = self._world.brokers[broker.broker_id]
        if node.on_registered(broker.incarnation):
            for judge in self.partitions.values():
                judge.on_replica_lost(broker.broker_id)

    def on_damage_reported(self, process: BrokerProcess) -> None:
        """A process has reported all damage of its logs that it knows of."""
        damaged, process.disk.damaged = process.disk.damaged, set()
        for key in damaged:
            self.partitions[key].on_damage_reported(process.id)

    def will_store(self, process: ControllerProcess, action: Any) -> None:
        self.quorum.will_store(process, action)

    def on_controller_active(self, process: ControllerProcess) -> None:
        """A controller became active."""
        self._world.counters["controllers"] += 1
        self._world.trace(process.id, f"is the active controller of epoch {process.raft.epoch}")
        if process.raft.epoch < self.quorum.latest_epoch:
            # What made it active was late: the next one is at work already, and has committed.
            return
        if process.state.applied_count != self.state.applied_count:
            detail = (
                f"controller {process.id} begins with {process.state.applied_count} of "
                f"{self.state.applied_count} records"
            )
            raise Violation("LeaderCompleteness", detail)

    def on_unexpected_action(self, process: Process, action: Action) -> None:
        raise Violation("MembersAreKnown", f"{process.id} got an unexpected action: {action}")

    # Partitions

    def will_write(self, hosted: SimulatedPartition, batch: SimulatedBatch) -> None:
        self.partitions[hosted.key].will_write(hosted, batch)

    def on_follower_fetched(self, hosted: SimulatedPartition, follower_id: int) -> None:
        """A leader got a fetch that it answers with records or with its high watermark."""
        self.partitions[hosted.key].on_follower_fetched(hosted, follower_id)

    def on_high_watermark_sent(
        self, hosted: SimulatedPartition, follower_id: int, high_watermark: int
    ) -> None:
        """A leader sends a high watermark to a follower."""
        self.partitions[hosted.key].on_high_watermark_sent(hosted, follower_id, high_watermark)

    def on_acknowledged(self, hosted: SimulatedPartition, batch: SimulatedBatch) -> None:
        """A leader acknowledges a batch for all in-sync replicas."""
        self.partitions[hosted.key].on_acknowledged(hosted, batch)

    def on_producer_acknowledged(
        self, producer: "SimulatedProducer", batch: SimulatedBatch | None
    ) -> None:
        """A producer has heard of an acknowledgement."""
        if producer.acks == -1 and batch is not None:
            self.partitions[producer.key].on_producer_acknowledged(batch)

    def on_sequence_refused(self, hosted: SimulatedPartition, header: BatchHeader) -> None:
        self.partitions[hosted.key].on_sequence_refused(hosted, header)

    def may_have_forgotten(self, key: Key) -> bool:
        """Whether a leader may know nothing of a producer that it should know."""
        return self.partitions[key].may_have_forgotten

    def is_aligned(self, hosted: SimulatedPartition) -> bool:
        return self.partitions[hosted.key].is_aligned(hosted)

    def on_consumed(self, hosted: SimulatedPartition, batch: SimulatedBatch) -> None:
        self.partitions[hosted.key].on_consumed(hosted, batch)

    def on_consumer_out_of_range(self, hosted: SimulatedPartition, offset: int) -> None:
        self.partitions[hosted.key].on_consumer_out_of_range(hosted, offset)

    def on_consumer_diverged(
        self, hosted: SimulatedPartition, offset: int, diverging: EpochEndOffset
    ) -> None:
        self.partitions[hosted.key].on_consumer_diverged(hosted, offset, diverging)

    def check_latest_offset(self, hosted: SimulatedPartition) -> None:
        self.partitions[hosted.key].check_latest_offset(hosted)
