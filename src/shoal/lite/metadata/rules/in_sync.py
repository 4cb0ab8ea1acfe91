"""Changes of in-sync sets: proposals of leaders, reports of brokers, and commands of tests.

A proposal is compare-and-set (KIP-497): it names the leader epoch and the partition epoch that
it is based on, and one with other epochs is rejected, so that the leader learns what it missed.
Replicas that are fenced or shutting down are rejected (KIP-841), and so are those that have
registered again since the leader last saw them (KIP-903): they may have fewer records.

An accepted proposal gets a new partition epoch even if it changes nothing: a leader that withdraws
a proposal can be sure that no late copy of it is accepted afterwards.
"""

from collections.abc import Iterator
from dataclasses import replace

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.metadata.data.records import PartitionRecord
from shoal.lite.metadata.data.requests import (
    UNKNOWN_EPOCH,
    AlterPartitions,
    InSyncAnswer,
    InSyncChange,
    ReportFailures,
    ReportLosses,
    ShrinkInSync,
)
from shoal.lite.metadata.data.state import ClusterState
from shoal.lite.metadata.rules.changes import Changes
from shoal.lite.metadata.rules.lookup import require_partition
from shoal.lite.metadata.rules.partitions import (
    in_replica_order,
    update_partition,
    update_with_new_epoch,
    without_replica,
)


def alter_partitions(changes: Changes, request: AlterPartitions) -> list[InSyncAnswer]:
    """Apply each proposal, or reject it separately."""
    answers = []
    for change in request.changes:
        key = change.topic_id, change.partition
        try:
            partition = _validate_change(changes.state, request.broker_id, change)
        except ApiError as refused:
            answers.append(InSyncAnswer(*key, refused.code))
            continue
        wanted = _with_members(partition, {member for member, _ in change.in_sync})
        after = update_with_new_epoch(changes, wanted)
        # The end of a reassignment brings a new leader epoch, and maybe another leader.
        is_new_epoch = after.leader_epoch != partition.leader_epoch
        code = Code.NEW_LEADER_ELECTED if is_new_epoch else Code.NONE
        answers.append(InSyncAnswer(*key, code, after))
    return answers


def mark_failed(changes: Changes, report: ReportFailures) -> None:
    """Mark replicas whose logs cannot be written or read as failed."""
    for partition in _partitions_of_report(changes.state, report):
        update_partition(changes, replace(partition, failed=(*partition.failed, report.broker_id)))


def mark_lost(changes: Changes, report: ReportLosses) -> None:
    """Remove a broker that lost records from in-sync and eligible sets.

    It stays where it is the only member: no other replica is known to have more.
    """
    for partition in _partitions_of_report(changes.state, report):
        complete = {*partition.in_sync, *partition.eligible}
        if complete != {report.broker_id}:
            update_partition(changes, without_replica(partition, report.broker_id))


def _partitions_of_report(
    state: ClusterState, report: ReportFailures | ReportLosses
) -> Iterator[PartitionRecord]:
    """The partitions of a report of which the broker has a replica."""
    for topic_id, index in report.partitions:
        name = state.topic_names.get(topic_id)
        partition = None if name is None else state.topics[name].partitions.get(index)
        if partition is not None and report.broker_id in partition.replicas:
            yield partition


def shrink_in_sync(changes: Changes, request: ShrinkInSync) -> None:
    """Remove replicas from an in-sync set."""
    partition = require_partition(changes.state, request.partition)
    if unknown := sorted(set(request.broker_ids) - set(partition.replicas)):
        message = f"{request.partition} has no replica on broker {unknown[0]}"
        raise ApiError(Code.INVALID_REQUEST, message)
    members = set(partition.in_sync) - set(request.broker_ids)
    if partition.leader not in members:
        message = f"the leader of {request.partition} cannot be removed from the in-sync set"
        raise ApiError(Code.INVALID_REQUEST, message)
    update_partition(changes, _with_members(partition, members))


def _with_members(partition: PartitionRecord, members: set[int]) -> PartitionRecord:
    """Change the in-sync set; replicas that leave have everything committed so far."""
    complete = {*partition.eligible, *partition.in_sync}
    return replace(
        partition,
        in_sync=in_replica_order(members, partition.replicas),
        eligible=in_replica_order(complete - members, partition.replicas),
    )


def _validate_change(state: ClusterState, broker_id: int, change: InSyncChange) -> PartitionRecord:
    name = state.topic_names.get(change.topic_id)
    if name is None:
        raise ApiError(Code.UNKNOWN_TOPIC_ID, "unknown topic id")
    partition = state.topics[name].partitions.get(change.partition)
    if partition is None:
        raise ApiError(
            Code.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name} has no partition {change.partition}"
        )
    _check_epochs(partition, change)
    members = [member for member, _ in change.in_sync]
    if partition.leader != broker_id or broker_id not in members:
        raise ApiError(
            Code.INVALID_REQUEST, "only the leader can change the in-sync set, and must stay in it"
        )
    if len(set(members)) != len(members) or not set(members) <= set(partition.replicas):
        raise ApiError(Code.INVALID_REQUEST, f"{members} are not replicas of the partition")
    for member, epoch in change.in_sync:
        _check_member(state, partition, member, epoch)
    return partition


def _check_epochs(partition: PartitionRecord, change: InSyncChange) -> None:
    if change.leader_epoch < partition.leader_epoch:
        raise ApiError(Code.FENCED_LEADER_EPOCH, f"the leader epoch is {partition.leader_epoch}")
    if change.partition_epoch < partition.partition_epoch:
        raise ApiError(
            Code.INVALID_UPDATE_VERSION, f"the partition epoch is {partition.partition_epoch}"
        )
    is_known = change.leader_epoch == partition.leader_epoch
    if not is_known or change.partition_epoch > partition.partition_epoch:
        # The leader has a newer epoch than this controller: another controller is active.
        raise ApiError(Code.NOT_CONTROLLER, "this controller is behind the leader's metadata")


def _check_member(state: ClusterState, partition: PartitionRecord, member: int, epoch: int) -> None:
    if not state.can_serve(partition, member):
        message = f"broker {member} is fenced or shutting down, or its log has failed"
        raise ApiError(Code.INELIGIBLE_REPLICA, message)
    is_unheard = epoch == UNKNOWN_EPOCH and member in partition.in_sync
    if not is_unheard and epoch != state.brokers[member].epoch:
        raise ApiError(Code.INELIGIBLE_REPLICA, f"broker {member} has registered again")
