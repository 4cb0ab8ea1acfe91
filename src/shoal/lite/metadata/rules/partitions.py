"""Who leads a partition, who is in sync with it, and who may lead when nobody in sync is left.

`settle` is the one way by which a partition changes. It takes a partition as someone wants it,
and makes it agree with these rules:

- The leader is a member of the in-sync set that can serve: its broker is active, and its log has
  not failed. A leader that may stay stays. Others are chosen by the fewest partitions led, then
  by the smallest id.
- Who cannot serve leaves the in-sync set, as long as one is left. If none is, nothing can be
  committed, so all who were in it stay: each of them has everything, and may lead again.
- Below min.insync.replicas nothing is committed (leaders see to it). Whoever leaves the in-sync
  set then becomes eligible, and may lead when nobody in sync can; once enough are in sync nobody
  is eligible any more (KIP-966).
- If nobody can the partition has no leader. Only where the topic's settings allow it, or
  someone asked for it, is another replica elected, uncleanly: the one with the longest log.
- A change of the leader has a higher leader epoch; so has the end of a reassignment, which
  leaves some replicas without a task. Every change has a higher partition epoch.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from shoal.lite.metadata.data.records import NO_LEADER, PartitionRecord
from shoal.lite.metadata.data.state import ClusterState
from shoal.lite.metadata.rules.changes import Changes


def settle(changes: Changes, wanted: PartitionRecord) -> PartitionRecord:
    """Make a partition what is wanted, as far as the rules allow. Returns what it is now.

    Epochs are not the caller's business. Whoever takes a replica out of the in-sync set that
    still has everything puts it among the eligible.
    """
    state = changes.state
    before = state.partition(*wanted.key)
    wanted = _reassigned(state, wanted)
    in_sync, leader = _elected(state, wanted)
    is_led = leader != NO_LEADER
    after = replace(
        wanted,
        in_sync=ordered(in_sync, wanted.replicas),
        leader=leader,
        eligible=_eligible(state, wanted, in_sync),
        failed=ordered(wanted.failed, wanted.replicas),
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


def renew(changes: Changes, wanted: PartitionRecord) -> PartitionRecord:
    """Settle a partition, and give it a higher partition epoch even if nothing else changes."""
    before = changes.state.partition(*wanted.key)
    after = settle(changes, wanted)
    if after is before:
        after = replace(before, partition_epoch=before.partition_epoch + 1)
        changes.emit(after)
    return after


def choose(state: ClusterState, candidates: Iterable[int]) -> int:
    """Who leads, of several who may."""
    return min(candidates, key=lambda broker_id: (state.led[broker_id], broker_id))


def lead_uncleanly(changes: Changes, partition: PartitionRecord, leader: int) -> None:
    """Let a replica lead that may lack what was committed."""
    settle(changes, replace(partition, in_sync=(leader,), eligible=(), leader=leader))


def ordered(members: Iterable[int], replicas: Sequence[int]) -> tuple[int, ...]:
    """A set of replicas in the order in which the partition has them."""
    members = set(members)
    return tuple(broker_id for broker_id in replicas if broker_id in members)


def without(partition: PartitionRecord, broker_id: int) -> PartitionRecord:
    """A partition that relies no longer on what a broker has of it."""
    gone = {broker_id}
    return replace(
        partition,
        in_sync=ordered(set(partition.in_sync) - gone, partition.replicas),
        eligible=ordered(set(partition.eligible) - gone, partition.replicas),
    )


def _reassigned(state: ClusterState, wanted: PartitionRecord) -> PartitionRecord:
    """Ends a reassignment as soon as what it leaves can be relied on.

    Whoever is new must be in sync. And as many of the remaining must be as the topic asks for:
    those who go may be the ones that have what was committed.
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


def _elected(state: ClusterState, partition: PartitionRecord) -> tuple[Sequence[int], int]:
    """Who is in sync, and who leads."""
    in_sync = [b for b in partition.in_sync if state.can_serve(partition, b)]
    if partition.leader in in_sync:
        return in_sync, partition.leader
    if in_sync:
        return in_sync, choose(state, in_sync)
    eligible = [b for b in partition.eligible if state.can_serve(partition, b)]
    if eligible:
        leader = choose(state, eligible)
        return [leader], leader
    return partition.in_sync, NO_LEADER


def _eligible(
    state: ClusterState, partition: PartitionRecord, in_sync: Sequence[int]
) -> tuple[int, ...]:
    if len(in_sync) >= state.min_insync(partition):
        return ()
    complete = {*partition.in_sync, *partition.eligible}
    return ordered(complete.difference(in_sync), partition.replicas)
