"""Partitions get other replicas, step by step (KIP-455).

While a reassignment is under way the partition has its old replicas and its new ones. When the
new ones are in sync the others go; `partitions.settle` decides when. Calling it off takes the
new ones away again, unless they are needed to keep what was committed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from shoal.lite.base.codes import Code, Refused
from shoal.lite.metadata.data.records import NO_LEADER, PartitionRecord
from shoal.lite.metadata.data.requests import PartitionAnswer
from shoal.lite.metadata.data.state import ClusterState
from shoal.lite.metadata.rules.changes import Changes
from shoal.lite.metadata.rules.lookup import existing_partition
from shoal.lite.metadata.rules.partitions import settle
from shoal.lite.metadata.rules.placement import checked_replicas
from shoal.model.topics import TopicPartition


def reassign(
    changes: Changes, targets: Mapping[TopicPartition, Sequence[int] | None]
) -> list[PartitionAnswer]:
    """Begin or call off each reassignment, or refuse it by itself."""
    answers = []
    for key, target in targets.items():
        try:
            partition = existing_partition(changes.state, key)
            if target is None:
                wanted = _called_off(changes.state, partition)
            else:
                wanted = _towards(changes.state, partition, target)
        except Refused as refused:
            answers.append(PartitionAnswer(key, refused.code, str(refused)))
        else:
            settle(changes, wanted)
            answers.append(PartitionAnswer(key, Code.NONE))
    return answers


def _towards(
    state: ClusterState, partition: PartitionRecord, target: Sequence[int]
) -> PartitionRecord:
    """The partition at the start of a reassignment. A new target replaces the one before."""
    replicas = checked_replicas(state, target)
    # Replicas that an earlier reassignment added, and that are not wanted any more, may be
    # needed until the new ones are there: they go with the others, at the end.
    settled = [broker for broker in partition.replicas if broker not in partition.adding]
    leaving = tuple(broker for broker in partition.replicas if broker not in replicas)
    return replace(
        partition,
        replicas=replicas + leaving,
        adding=tuple(broker for broker in replicas if broker not in settled),
        removing=leaving,
    )


def _called_off(state: ClusterState, partition: PartitionRecord) -> PartitionRecord:
    if not partition.adding and not partition.removing:
        message = "there is no reassignment of this partition"
        raise Refused(Code.NO_REASSIGNMENT_IN_PROGRESS, message)
    if partition.leader == NO_LEADER:
        message = "nobody leads the partition, so nobody knows which replicas are needed"
        raise Refused(Code.LEADER_NOT_AVAILABLE, message)
    complete = {*partition.in_sync, *partition.eligible}
    back = replace(
        partition,
        replicas=tuple(b for b in partition.replicas if b not in partition.adding),
        in_sync=tuple(b for b in partition.in_sync if b not in partition.adding),
        adding=(),
        removing=(),
    )
    remaining = complete - set(partition.adding)
    if remaining != complete and len(remaining) < state.min_insync(back):
        message = f"of the replicas before, only {sorted(remaining)} have what was committed"
        raise Refused(Code.INVALID_REPLICA_ASSIGNMENT, message)
    return back
