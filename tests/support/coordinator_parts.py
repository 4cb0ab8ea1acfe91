"""A partition whose followers do what a test says, and a shard that remembers everything."""

from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

from shoal.lite.base.configs import Layers, topic_rules
from shoal.lite.coordinator import Seat
from shoal.lite.metadata.data.records import PartitionRecord
from shoal.lite.partitions.partition import Partition, monotonic_ms
from shoal.lite.replication.leader import LeaderPartition
from shoal.lite.replication.messages import AlterIsr, ReplicaFetch, ReplicationSettings
from shoal.lite.storage.header import BatchHeader
from shoal.lite.storage.partition_log import PartitionLog
from shoal.lite.storage.recovery.last_shutdown import Ended
from shoal.wire.records.records import Record, decode_control

NAME = "__consumer_offsets"
LIVE = {1: 11, 2: 12, 3: 13}
RULES = topic_rules(Layers({}, {}, {}), {})


class QuietHost:
    """The broker of a partition: nothing that it is told matters here."""

    broker_id = 1
    live_epochs = LIVE

    def propose(self, partition: Partition, leader: LeaderPartition, wish: AlterIsr) -> None: ...
    def on_follower(self, partition: Partition) -> None: ...
    def on_failed(self, partition: Partition) -> None: ...


class Ledger:
    """A shard: the keys and values that were replayed, or what a marker said."""

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
        self.log = PartitionLog(folder, RULES.log, ended=Ended.CLEANLY)
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

    def lead(self) -> Seat[Ledger]:
        """Become the leader, with a seat that is not loaded."""
        self.assign(leader=1)
        role = self.partition.replica.leader
        assert role is not None
        return Seat(self.partition, role)

    def followers_fetch(self) -> None:
        """Both followers say that they have everything."""
        for replica in self.replicas[1:]:
            fetch = ReplicaFetch(self.log.end_offset, self.epoch, self.log.epochs.latest, 0)
            self.partition.leader.follower_fetched(
                monotonic_ms(), replica, fetch, broker_epoch=LIVE[replica]
            )
        self.partition.settle()

    def close(self) -> None:
        self.partition.leave()
        self.log.close()
