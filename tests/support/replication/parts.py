"""Leaders and followers to be asked one by one, without a world around them."""

from shoal.lite.replication.follower import FollowerPartition
from shoal.lite.replication.leader import LeaderPartition
from shoal.lite.replication.messages import PartitionState, ReplicaFetch, ReplicationSettings
from support.replication.world import Entry, MemoryLog

LIVE = {1: 11, 2: 12, 3: 13}


def log_of(*epochs: int) -> MemoryLog:
    """A log with a record for each of the epochs."""
    log = MemoryLog()
    log.append_fetched(Entry(epoch, f"{offset}") for offset, epoch in enumerate(epochs))
    return log


def assignment(
    *,
    isr: tuple[int, ...] = (1, 2, 3),
    leader: int = 1,
    leader_epoch: int = 5,
    partition_epoch: int = 0,
    failed: tuple[int, ...] = (),
) -> PartitionState:
    return PartitionState((1, 2, 3), isr, leader, leader_epoch, partition_epoch, failed)


def leader_of(
    log: MemoryLog,
    *,
    isr: tuple[int, ...] = (1, 2, 3),
    min_insync_replicas: int = 1,
    high_watermark: int = 0,
    live_epochs: dict[int, int] | None = None,
) -> LeaderPartition:
    """Broker 1 leads 2 and 3 in epoch 5, from the time 0 on."""
    return LeaderPartition(
        1,
        assignment(isr=isr),
        log,
        settings=ReplicationSettings(
            min_insync_replicas=min_insync_replicas, replica_lag_time_max_ms=1000
        ),
        live_epochs=LIVE if live_epochs is None else live_epochs,
        high_watermark=high_watermark,
        now_ms=0,
    )


def follower_of(log: MemoryLog, *, high_watermark: int = 0) -> FollowerPartition:
    """A follower of broker 1 in epoch 5."""
    return FollowerPartition(
        assignment(), log, settings=ReplicationSettings(), high_watermark=high_watermark
    )


def fetch_at(
    offset: int, *, last_fetched_epoch: int = -1, leader_epoch: int = 5, log_start_offset: int = 0
) -> ReplicaFetch:
    return ReplicaFetch(offset, leader_epoch, last_fetched_epoch, log_start_offset)
