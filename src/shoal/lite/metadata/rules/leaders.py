"""Moving leaderships: on request, and to balance them.

Balancing moves leaderships to in-sync replicas on brokers that lead fewer partitions. A move must
be an improvement: the new leader leads at least two partitions fewer, so leaders never move back
and forth. Moves to preferred leaders come first.
"""

from collections.abc import Sequence
from dataclasses import replace

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.metadata.data.records import NO_LEADER, PartitionRecord
from shoal.lite.metadata.data.requests import Election, ElectLeaders, MoveLeader, PartitionResult
from shoal.lite.metadata.data.state import ClusterState
from shoal.lite.metadata.rules.changes import Changes
from shoal.lite.metadata.rules.lookup import require_partition
from shoal.lite.metadata.rules.partitions import choose_leader, update_partition
from shoal.model.topics import TopicPartition

_MIN_GAIN = 2


def move_leader(changes: Changes, request: MoveLeader) -> None:
    """Make an in-sync replica the leader."""
    partition = require_partition(changes.state, request.partition)
    _check_candidate(changes.state, partition, request.broker_id, Code.INELIGIBLE_REPLICA)
    update_partition(changes, replace(partition, leader=request.broker_id))


def elect_leaders(changes: Changes, request: ElectLeaders) -> list[PartitionResult]:
    """Elect each leader, or fail separately; ELECTION_NOT_NEEDED only for named partitions."""
    elect = _elect_preferred if request.election is Election.PREFERRED else _elect_uncleanly
    named = request.partitions is not None
    answers = []
    for partition in (
        _all_partitions(changes.state) if request.partitions is None else request.partitions
    ):
        try:
            elect(changes, require_partition(changes.state, partition))
        except ApiError as refused:
            if named or refused.code is not Code.ELECTION_NOT_NEEDED:
                answers.append(PartitionResult(partition, refused.code, str(refused)))
        else:
            answers.append(PartitionResult(partition, Code.NONE))
    return answers


def balance(changes: Changes) -> None:
    """Balance leaderships, as far as in-sync sets allow."""
    for only_preferred in (True, False):
        while _balance_once(changes, only_preferred=only_preferred):
            pass


def _balance_once(changes: Changes, *, only_preferred: bool) -> bool:
    """Visit each partition once; whether a leader was moved."""
    state = changes.state
    moved = False
    for partition in state.partitions():
        candidates: Sequence[int] = partition.in_sync
        if only_preferred:
            candidates = [b for b in candidates if b == partition.target_replicas[0]]
        if partition.leader == NO_LEADER or not candidates:
            continue
        target = choose_leader(state, candidates)
        if state.leader_counts[partition.leader] - state.leader_counts[target] >= _MIN_GAIN:
            update_partition(changes, replace(partition, leader=target))
            moved = True
    return moved


def _all_partitions(state: ClusterState) -> list[TopicPartition]:
    return [
        TopicPartition(topic.name, index)
        for topic in state.topics.values()
        for index in topic.partitions
    ]


def _elect_preferred(changes: Changes, partition: PartitionRecord) -> None:
    preferred = partition.target_replicas[0]
    if partition.leader == preferred:
        raise ApiError(Code.ELECTION_NOT_NEEDED, f"broker {preferred} is already the leader")
    _check_candidate(changes.state, partition, preferred, Code.PREFERRED_LEADER_NOT_AVAILABLE)
    update_partition(changes, replace(partition, leader=preferred))


def _elect_uncleanly(changes: Changes, partition: PartitionRecord) -> None:
    if partition.leader != NO_LEADER:
        raise ApiError(Code.ELECTION_NOT_NEEDED, f"broker {partition.leader} is already the leader")
    if not any(changes.state.can_serve(partition, broker) for broker in partition.replicas):
        raise ApiError(
            Code.ELIGIBLE_LEADERS_NOT_AVAILABLE, "none of the replicas is on an active broker"
        )
    update_partition(changes, replace(partition, recovering=True))


def _check_candidate(
    state: ClusterState, partition: PartitionRecord, broker_id: int, code: Code
) -> None:
    if broker_id not in partition.in_sync or not state.can_serve(partition, broker_id):
        raise ApiError(code, f"broker {broker_id} is not in sync")
