"""Reassignment of partitions to other replicas (KIP-455).

While a reassignment is under way the partition has its old replicas and its new ones. When the
new ones are in sync the old ones are removed; `partitions.update_partition` decides when. A
cancellation removes the new ones, unless they are needed to keep committed records.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.metadata.data.records import NO_LEADER, PartitionRecord
from shoal.lite.metadata.data.requests import PartitionResult
from shoal.lite.metadata.data.state import ClusterState
from shoal.lite.metadata.rules.changes import Changes
from shoal.lite.metadata.rules.lookup import require_partition
from shoal.lite.metadata.rules.partitions import update_partition
from shoal.lite.metadata.rules.placement import validate_replicas
from shoal.model.topics import TopicPartition


def reassign(
    changes: Changes, targets: Mapping[TopicPartition, Sequence[int] | None]
) -> list[PartitionResult]:
    """Begin or cancel each reassignment, or reject it separately."""
    answers = []
    for key, target in targets.items():
        try:
            partition = require_partition(changes.state, key)
            if target is None:
                wanted = _cancel_reassignment(changes.state, partition)
            else:
                wanted = _begin_reassignment(changes.state, partition, target)
        except ApiError as refused:
            answers.append(PartitionResult(key, refused.code, str(refused)))
        else:
            update_partition(changes, wanted)
            answers.append(PartitionResult(key, Code.NONE))
    return answers


def _begin_reassignment(
    state: ClusterState, partition: PartitionRecord, target: Sequence[int]
) -> PartitionRecord:
    """The partition at the start of a reassignment. A new target replaces the previous one."""
    replicas = validate_replicas(state, target)
    # Replicas that an earlier reassignment added, and that the new target does not have, may be
    # needed until the new ones are in sync: they are removed with the others, at the end.
    settled = [broker for broker in partition.replicas if broker not in partition.adding]
    leaving = tuple(broker for broker in partition.replicas if broker not in replicas)
    return replace(
        partition,
        replicas=replicas + leaving,
        adding=tuple(broker for broker in replicas if broker not in settled),
        removing=leaving,
    )


def _cancel_reassignment(state: ClusterState, partition: PartitionRecord) -> PartitionRecord:
    if not partition.adding and not partition.removing:
        message = "no reassignment of this partition is in progress"
        raise ApiError(Code.NO_REASSIGNMENT_IN_PROGRESS, message)
    if partition.leader == NO_LEADER:
        message = "the partition has no leader, so it is unknown which replicas are needed"
        raise ApiError(Code.LEADER_NOT_AVAILABLE, message)
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
        message = f"of the original replicas, only {sorted(remaining)} have all committed records"
        raise ApiError(Code.INVALID_REPLICA_ASSIGNMENT, message)
    return back
