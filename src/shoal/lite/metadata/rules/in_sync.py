"""In-sync sets change: by their leaders' proposals, or because a test wants it.

A proposal is compare-and-set (KIP-497): it names the leader epoch and the partition epoch that
it is based on, and one that is based on anything else is refused, so that the leader finds out
what it missed. Replicas that are fenced or shut down are refused (KIP-841), and so are those
who have been registered again since the leader heard of them (KIP-903): they may have less.

What is granted has a new partition epoch even if it changes nothing: a leader that takes back a
proposal can be sure that no late copy of it is granted any more.
"""

from collections.abc import Iterator
from dataclasses import replace

from shoal.lite.base.codes import Code, Refused
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
from shoal.lite.metadata.rules.lookup import existing_partition
from shoal.lite.metadata.rules.partitions import ordered, renew, settle, without


def alter_partitions(changes: Changes, request: AlterPartitions) -> list[InSyncAnswer]:
    """Grant each proposal, or refuse it by itself."""
    answers = []
    for change in request.changes:
        key = change.topic_id, change.partition
        try:
            partition = _checked(changes.state, request.broker_id, change)
        except Refused as refused:
            answers.append(InSyncAnswer(*key, refused.code))
            continue
        wanted = _with_members(partition, {member for member, _ in change.in_sync})
        after = renew(changes, wanted)
        # With the end of a reassignment comes a new leader epoch, and maybe another leader.
        is_new_epoch = after.leader_epoch != partition.leader_epoch
        code = Code.NEW_LEADER_ELECTED if is_new_epoch else Code.NONE
        answers.append(InSyncAnswer(*key, code, after))
    return answers


def fail(changes: Changes, report: ReportFailures) -> None:
    """Rely no longer on logs that cannot be written or read."""
    for partition in _reported(changes.state, report):
        settle(changes, replace(partition, failed=(*partition.failed, report.broker_id)))


def lose(changes: Changes, report: ReportLosses) -> None:
    """Rely on others where a broker's log is shorter than it was.

    Where there are none it is relied on: nobody is known to have more.
    """
    for partition in _reported(changes.state, report):
        complete = {*partition.in_sync, *partition.eligible}
        if complete != {report.broker_id}:
            settle(changes, without(partition, report.broker_id))


def _reported(
    state: ClusterState, report: ReportFailures | ReportLosses
) -> Iterator[PartitionRecord]:
    """What a broker tells of that it has a replica of."""
    for topic_id, index in report.partitions:
        name = state.topic_names.get(topic_id)
        partition = None if name is None else state.topics[name].partitions.get(index)
        if partition is not None and report.broker_id in partition.replicas:
            yield partition


def shrink(changes: Changes, request: ShrinkInSync) -> None:
    """Take replicas out of an in-sync set."""
    partition = existing_partition(changes.state, request.partition)
    if strangers := sorted(set(request.broker_ids) - set(partition.replicas)):
        message = f"{request.partition} has no replica at broker {strangers[0]}"
        raise Refused(Code.INVALID_REQUEST, message)
    members = set(partition.in_sync) - set(request.broker_ids)
    if partition.leader not in members:
        message = f"{request.partition}: the leader cannot leave the in-sync set"
        raise Refused(Code.INVALID_REQUEST, message)
    settle(changes, _with_members(partition, members))


def _with_members(partition: PartitionRecord, members: set[int]) -> PartitionRecord:
    """Whoever leaves has everything that was committed so far."""
    complete = {*partition.eligible, *partition.in_sync}
    return replace(
        partition,
        in_sync=ordered(members, partition.replicas),
        eligible=ordered(complete - members, partition.replicas),
    )


def _checked(state: ClusterState, broker_id: int, change: InSyncChange) -> PartitionRecord:
    name = state.topic_names.get(change.topic_id)
    if name is None:
        raise Refused(Code.UNKNOWN_TOPIC_ID, "there is no topic with this id")
    partition = state.topics[name].partitions.get(change.partition)
    if partition is None:
        raise Refused(Code.UNKNOWN_TOPIC_OR_PARTITION, f"{name} has no such partition")
    _check_epochs(partition, change)
    members = [member for member, _ in change.in_sync]
    if partition.leader != broker_id or broker_id not in members:
        raise Refused(Code.INVALID_REQUEST, "only the leader can propose, and stays in sync")
    if len(set(members)) != len(members) or not set(members) <= set(partition.replicas):
        raise Refused(Code.INVALID_REQUEST, f"{members} are not replicas of the partition")
    for member, epoch in change.in_sync:
        _check_member(state, partition, member, epoch)
    return partition


def _check_epochs(partition: PartitionRecord, change: InSyncChange) -> None:
    if change.leader_epoch < partition.leader_epoch:
        raise Refused(Code.FENCED_LEADER_EPOCH, f"the epoch is {partition.leader_epoch}")
    if change.partition_epoch < partition.partition_epoch:
        raise Refused(Code.INVALID_UPDATE_VERSION, f"the epoch is {partition.partition_epoch}")
    is_known = change.leader_epoch == partition.leader_epoch
    if not is_known or change.partition_epoch > partition.partition_epoch:
        # The leader knows of a change that is not known here: another controller made it.
        raise Refused(Code.NOT_CONTROLLER, "this controller is behind")


def _check_member(state: ClusterState, partition: PartitionRecord, member: int, epoch: int) -> None:
    if not state.can_serve(partition, member):
        message = f"broker {member} is fenced or shutting down, or its log has failed"
        raise Refused(Code.INELIGIBLE_REPLICA, message)
    is_unheard = epoch == UNKNOWN_EPOCH and member in partition.in_sync
    if not is_unheard and epoch != state.brokers[member].epoch:
        raise Refused(Code.INELIGIBLE_REPLICA, f"broker {member} was registered again")
