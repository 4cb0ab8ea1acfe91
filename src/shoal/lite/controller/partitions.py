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

from shoal.lite.controller.changes import Changes
from shoal.lite.controller.records import NO_LEADER, PartitionRecord
from shoal.lite.controller.state import ClusterState


def settle(changes: Changes, wanted: PartitionRecord) -> PartitionRecord:
    """Make a partition what is wanted, as far as the rules allow. Returns what it is now.

    Epochs are not the caller's business. Whoever takes a replica out of the in-sync set that
    still has everything puts it among the eligible.
    """
    state = changes.state
    before = state.partition(*wanted.key)
    after = _led(state, _reassigned(state, wanted))
    after = _with_eligible(state, wanted, after)
    after = _with_recovery(state, after)
    after = replace(
        after,
        in_sync=ordered(after.in_sync, after.replicas),
        failed=ordered(after.failed, after.replicas),
    )
    if after == before:
        return before
    is_new_epoch = after.leader != before.leader or not set(before.replicas) <= set(after.replicas)
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


def _led(state: ClusterState, partition: PartitionRecord) -> PartitionRecord:
    in_sync = tuple(b for b in partition.in_sync if state.can_serve(partition, b))
    if in_sync:
        is_led = partition.leader in in_sync
        leader = partition.leader if is_led else choose(state, in_sync)
        return replace(partition, in_sync=in_sync, leader=leader)
    eligible = [b for b in partition.eligible if state.can_serve(partition, b)]
    if eligible:
        leader = choose(state, eligible)
        return replace(partition, in_sync=(leader,), leader=leader)
    return replace(partition, leader=NO_LEADER)


def _with_eligible(
    state: ClusterState, wanted: PartitionRecord, after: PartitionRecord
) -> PartitionRecord:
    if len(after.in_sync) >= state.min_insync(after):
        return replace(after, eligible=())
    complete = {*wanted.in_sync, *wanted.eligible} - set(after.in_sync)
    return replace(after, eligible=ordered(complete, after.replicas))


def _with_recovery(state: ClusterState, after: PartitionRecord) -> PartitionRecord:
    if after.leader != NO_LEADER:
        return replace(after, recovering=False, lost=())
    recovering = after.recovering or state.allows_unclean_election(after)
    return replace(after, recovering=recovering)
