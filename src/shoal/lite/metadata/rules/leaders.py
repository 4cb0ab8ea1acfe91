"""Leaderships are moved: because someone asks, or because they are spread unevenly.

Whoever leads more than its share hands some over to replicas that are in sync. A move must
make things better: it goes to a broker that leads at least two partitions fewer, so leaders
are never moved back and forth. First those go back who are the first of their replicas.
"""

from collections.abc import Sequence
from dataclasses import replace

from shoal.lite.base.codes import Code, Refused
from shoal.lite.metadata.data.records import NO_LEADER, PartitionRecord
from shoal.lite.metadata.data.requests import Election, ElectLeaders, MoveLeader, PartitionAnswer
from shoal.lite.metadata.data.state import ClusterState
from shoal.lite.metadata.rules.changes import Changes
from shoal.lite.metadata.rules.lookup import existing_partition
from shoal.lite.metadata.rules.partitions import choose, settle
from shoal.model.topics import TopicPartition

_LEAST_GAIN = 2


def move_leader(changes: Changes, request: MoveLeader) -> None:
    """Let a replica lead that is in sync."""
    partition = existing_partition(changes.state, request.partition)
    _check_candidate(changes.state, partition, request.broker_id, Code.INELIGIBLE_REPLICA)
    settle(changes, replace(partition, leader=request.broker_id))


def elect_leaders(changes: Changes, request: ElectLeaders) -> list[PartitionAnswer]:
    """Elect each leader, or refuse by itself; only who named a partition hears of needless ones."""
    elect = _elect_preferred if request.election is Election.PREFERRED else _elect_uncleanly
    named = request.partitions is not None
    answers = []
    for partition in _all(changes.state) if request.partitions is None else request.partitions:
        try:
            elect(changes, existing_partition(changes.state, partition))
        except Refused as refused:
            if named or refused.code is not Code.ELECTION_NOT_NEEDED:
                answers.append(PartitionAnswer(partition, refused.code, str(refused)))
        else:
            answers.append(PartitionAnswer(partition, Code.NONE))
    return answers


def balance(changes: Changes) -> None:
    """Spread the leaderships, as far as in-sync sets allow."""
    for only_preferred in (True, False):
        while _balance_once(changes, only_preferred=only_preferred):
            pass


def _balance_once(changes: Changes, *, only_preferred: bool) -> bool:
    """Look at each partition once; whether anything was moved."""
    state = changes.state
    moved = False
    for partition in state.partitions():
        candidates: Sequence[int] = partition.in_sync
        if only_preferred:
            candidates = [b for b in candidates if b == partition.target_replicas[0]]
        if partition.leader == NO_LEADER or not candidates:
            continue
        target = choose(state, candidates)
        if state.led[partition.leader] - state.led[target] >= _LEAST_GAIN:
            settle(changes, replace(partition, leader=target))
            moved = True
    return moved


def _all(state: ClusterState) -> list[TopicPartition]:
    return [
        TopicPartition(topic.name, index)
        for topic in state.topics.values()
        for index in topic.partitions
    ]


def _elect_preferred(changes: Changes, partition: PartitionRecord) -> None:
    preferred = partition.target_replicas[0]
    if partition.leader == preferred:
        raise Refused(Code.ELECTION_NOT_NEEDED, f"broker {preferred} leads already")
    _check_candidate(changes.state, partition, preferred, Code.PREFERRED_LEADER_NOT_AVAILABLE)
    settle(changes, replace(partition, leader=preferred))


def _elect_uncleanly(changes: Changes, partition: PartitionRecord) -> None:
    if partition.leader != NO_LEADER:
        raise Refused(Code.ELECTION_NOT_NEEDED, f"broker {partition.leader} leads already")
    if not any(changes.state.can_serve(partition, broker) for broker in partition.replicas):
        raise Refused(Code.ELIGIBLE_LEADERS_NOT_AVAILABLE, "none of the replicas is up")
    settle(changes, replace(partition, recovering=True))


def _check_candidate(
    state: ClusterState, partition: PartitionRecord, broker_id: int, code: Code
) -> None:
    if broker_id not in partition.in_sync or not state.can_serve(partition, broker_id):
        raise Refused(code, f"broker {broker_id} is not in sync")
