"""The leader of a partition, its in-sync replicas, and its eligible leader replicas.

`update_partition` is the only way to change a partition. It takes the wanted partition, and
adjusts it to these rules:

- The leader is a member of the in-sync set that can serve: its broker is active, and its log has
  not failed. The current leader stays if it can. Otherwise the broker that leads the fewest
  partitions is chosen, then the one with the smallest id.
- A replica that cannot serve leaves the in-sync set, as long as one member is left. If none is,
  nothing can be committed, so all members stay: each has everything, and may lead again.
- Below min.insync.replicas nothing is committed (leaders enforce it). A replica that leaves the
  in-sync set then becomes eligible, and may lead when no in-sync replica can; once enough are in
  sync, no replica remains eligible (KIP-966).
- If no replica can lead, the partition has no leader. Only if the topic's settings allow it, or
  on request, another replica is elected uncleanly: the one with the longest log.
- A change of the leader bumps the leader epoch; so does the end of a reassignment, which removes
  replicas. Every change bumps the partition epoch.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from shoal.lite.metadata.data.records import NO_LEADER, PartitionRecord
from shoal.lite.metadata.data.state import ClusterState
from shoal.lite.metadata.rules.changes import Changes


def update_partition(changes: Changes, wanted: PartitionRecord) -> PartitionRecord:
    """Change a partition to what is wanted, as far as the rules allow. Returns its new state.

    This function sets the epochs. A caller that removes a complete replica from the in-sync set
    adds it to the eligible ones.
    """
    state = changes.state
    before = state.partition(*wanted.key)
    wanted = _finish_reassignment_if_ready(state, wanted)
    in_sync, leader = _elect(state, wanted)
    is_led = leader != NO_LEADER
    after = replace(
        wanted,
        in_sync=in_replica_order(in_sync, wanted.replicas),
        leader=leader,
        eligible=_eligible(state, wanted, in_sync),
        failed=in_replica_order(wanted.failed, wanted.replicas),
        lost=() if is_led else wanted.lost,
        recovering=not is_led and (wanted.recovering or state.allows_unclean_election(wanted)),
    )
    if after == before:
        return before
    is_new_epoch = leader != before.leader or not set(before.replicas) <= set(after.replicas)
    after = replace(
        after,
        leader_epoch=before.leader_epoch + is_new_epoch,
        partition_epoch=before.partition_epoch + 1,
    )
    changes.emit(after)
    return after


def update_with_new_epoch(changes: Changes, wanted: PartitionRecord) -> PartitionRecord:
    """Update a partition, and bump its partition epoch even if nothing else changes."""
    before = changes.state.partition(*wanted.key)
    after = update_partition(changes, wanted)
    if after is before:
        after = replace(before, partition_epoch=before.partition_epoch + 1)
        changes.emit(after)
    return after


def choose_leader(state: ClusterState, candidates: Iterable[int]) -> int:
    """The leader among several candidates."""
    return min(candidates, key=lambda broker_id: (state.leader_counts[broker_id], broker_id))


def elect_uncleanly(changes: Changes, partition: PartitionRecord, leader: int) -> None:
    """Elect a replica that may lack committed records."""
    update_partition(changes, replace(partition, in_sync=(leader,), eligible=(), leader=leader))


def in_replica_order(members: Iterable[int], replicas: Sequence[int]) -> tuple[int, ...]:
    """A set of replicas in the order in which the partition has them."""
    members = set(members)
    return tuple(broker_id for broker_id in replicas if broker_id in members)


def without_replica(partition: PartitionRecord, broker_id: int) -> PartitionRecord:
    """The partition with a broker removed from the in-sync and eligible sets."""
    gone = {broker_id}
    return replace(
        partition,
        in_sync=in_replica_order(set(partition.in_sync) - gone, partition.replicas),
        eligible=in_replica_order(set(partition.eligible) - gone, partition.replicas),
    )


def _finish_reassignment_if_ready(state: ClusterState, wanted: PartitionRecord) -> PartitionRecord:
    """End a reassignment as soon as the target replicas suffice.

    All added replicas must be in sync, and of the target replicas at least min.insync.replicas:
    the removed ones may be the only ones that have the committed records.
    """
    if not wanted.adding and not wanted.removing:
        return wanted
    done = replace(
        wanted,
        replicas=wanted.target_replicas,
        in_sync=tuple(broker for broker in wanted.in_sync if broker not in wanted.removing),
        adding=(),
        removing=(),
    )
    ready = {broker for broker in done.in_sync if state.can_serve(done, broker)}
    if ready >= set(wanted.adding) and len(ready) >= state.min_insync(done):
        return done
    return wanted


def _elect(state: ClusterState, partition: PartitionRecord) -> tuple[Sequence[int], int]:
    """The in-sync set and the leader of a partition."""
    in_sync = [b for b in partition.in_sync if state.can_serve(partition, b)]
    if partition.leader in in_sync:
        return in_sync, partition.leader
    if in_sync:
        return in_sync, choose_leader(state, in_sync)
    eligible = [b for b in partition.eligible if state.can_serve(partition, b)]
    if eligible:
        leader = choose_leader(state, eligible)
        return [leader], leader
    return partition.in_sync, NO_LEADER


def _eligible(
    state: ClusterState, partition: PartitionRecord, in_sync: Sequence[int]
) -> tuple[int, ...]:
    if len(in_sync) >= state.min_insync(partition):
        return ()
    complete = {*partition.in_sync, *partition.eligible}
    return in_replica_order(complete.difference(in_sync), partition.replicas)
