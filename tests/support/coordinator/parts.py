"""A partition whose followers a test controls, and a shard that records every replay."""

from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

from shoal.lite.base.configs import Layers, resolve_topic_config
from shoal.lite.base.scheduler import EventLoopScheduler, monotonic_ms
from shoal.lite.coordinator import LoadedShard
from shoal.lite.metadata.data.records import PartitionRecord
from shoal.lite.partitions.partition import Partition
from shoal.lite.replication.leader import LeaderPartition
from shoal.lite.replication.messages import AlterIsr, ReplicaFetch, ReplicationSettings
from shoal.lite.storage.header import BatchHeader
from shoal.lite.storage.partition_log import PartitionLog
from shoal.lite.storage.recovery.last_shutdown import LastShutdown
from shoal.wire.records.records import Record, decode_control

NAME = "__consumer_offsets"
LIVE = {1: 11, 2: 12, 3: 13}
RULES = resolve_topic_config(Layers({}, {}, {}), {})


class QuietHost:
    """The broker of a partition; it ignores all calls."""

    broker_id = 1
    live_epochs = LIVE

    def __init__(self) -> None:
        self.scheduler = EventLoopScheduler()

    def propose(
        self, partition: Partition, leader: LeaderPartition, proposal: AlterIsr
    ) -> None: ...
    def on_became_follower(self, partition: Partition) -> None: ...
    def on_log_failed(self, partition: Partition) -> None: ...


class Ledger:
    """A shard that records the replayed keys and values, and the types of markers."""

    def __init__(self) -> None:
        self.seen: list[tuple[bytes | None, bytes | None] | str] = []
        self.is_started = False
        self.is_stopped = False

    def replay(self, header: BatchHeader, records: Sequence[Record]) -> None:
        if header.is_control:
            self.seen += [f"marker {decode_control(record).type}" for record in records]
        else:
            self.seen += [(record.key, record.value) for record in records]

    def start(self) -> None:
        self.is_started = True

    def stop(self) -> None:
        self.is_stopped = True


class Stage:
    """One replica of three, or of one."""

    def __init__(self, folder: Path, *, replicas: tuple[int, ...] = (1, 2, 3)) -> None:
        self.log = PartitionLog(folder, RULES.log, last_shutdown=LastShutdown.CLEANLY)
        self.replicas = replicas
        self.epoch = 0
        self._partition_epoch = 0
        self.partition = Partition(
            QuietHost(),
            NAME,
            self.log,
            record=self._record(leader=-1),
            rules=RULES,
            settings=ReplicationSettings(min_insync_replicas=min(2, len(replicas))),
            high_watermark=0,
        )

    def _record(self, leader: int, in_sync: tuple[int, ...] | None = None) -> PartitionRecord:
        self._partition_epoch += 1
        return PartitionRecord(
            UUID(int=1),
            0,
            replicas=self.replicas,
            in_sync=in_sync or self.replicas,
            leader=leader,
            leader_epoch=self.epoch,
            partition_epoch=self._partition_epoch,
        )

    def assign(self, leader: int, in_sync: tuple[int, ...] | None = None) -> None:
        self.epoch += 1
        record = self._record(leader, in_sync)
        insync = ReplicationSettings(min_insync_replicas=min(2, len(self.replicas)))
        self.partition.assign(record, insync)

    def lead(self) -> LoadedShard[Ledger]:
        """Become the leader; return a shard that is not loaded yet."""
        self.assign(leader=1)
        role = self.partition.replica.leader
        assert role is not None
        return LoadedShard(self.partition, role)

    def followers_fetch(self) -> None:
        """Both followers fetch at the log end offset."""
        for replica in self.replicas[1:]:
            fetch = ReplicaFetch(self.log.end_offset, self.epoch, self.log.epochs.latest, 0)
            self.partition.leader.on_follower_fetch(
                monotonic_ms(), replica, fetch, broker_epoch=LIVE[replica]
            )
        self.partition.settle()

    def close(self) -> None:
        self.partition.stop_serving()
        self.log.close()
