"""What must be true of the metadata, whatever happens. Named as in the TLA+ models of KIP-966.

- SingleLeaderPerEpoch: a leader epoch has one leader, and epochs do not go back.
- LeaderInSync: the leader is in the in-sync set, and so are active brokers only.
- ElectedFromCandidates: a clean election takes someone who was in sync or eligible before.
- NoCandidateForgotten: the in-sync set becomes empty only by the boot rule.
- EligibleOnlyBelowMinInsync: who is eligible got there because nothing is committed now.
"""

from shoal.lite.metadata.data.records import NO_LEADER, PartitionRecord
from shoal.lite.metadata.data.state import ClusterState


def check_change(
    state: ClusterState, before: PartitionRecord | None, after: PartitionRecord
) -> None:
    """One step of one partition; `state` is that before the step."""
    if before is None:
        return
    assert after.partition_epoch == before.partition_epoch + 1, "every change has its own epoch"
    if after.leader != before.leader:
        assert after.leader_epoch == before.leader_epoch + 1, "a leader has its own epoch"
    assert before.leader_epoch <= after.leader_epoch <= before.leader_epoch + 1
    if not after.in_sync:
        assert after.lost, "nobody is in sync, and nobody lost anything"
    candidates = {*before.in_sync, *before.eligible}
    is_elected = after.leader not in {before.leader, NO_LEADER}
    # Whoever a leader proposes has everything; with the last of them a reassignment may end.
    has_ended = bool(before.adding or before.removing) and not (after.adding or after.removing)
    is_handed_over = has_ended and before.leader != NO_LEADER
    if is_elected and not before.recovering and not is_handed_over:
        assert after.leader in candidates, "the new leader may lack what was committed"
    if not set(after.eligible) <= candidates:
        raise AssertionError("someone became eligible who was neither in sync nor eligible")
    if before.leader == NO_LEADER and not is_elected:
        assert set(after.in_sync) <= candidates, "someone came in sync with nobody"


def check_state(state: ClusterState) -> None:
    """All partitions as they are."""
    led = dict.fromkeys(state.brokers, 0)
    for partition in state.partitions():
        replicas = set(partition.replicas)
        assert len(replicas) == len(partition.replicas) > 0
        assert replicas >= {*partition.in_sync, *partition.eligible, *partition.lost}
        assert set(partition.in_sync).isdisjoint(partition.eligible)
        assert replicas >= set(partition.failed)
        assert set(partition.adding) <= replicas >= set(partition.removing)
        if partition.eligible:
            assert len(partition.in_sync) < state.min_insync(partition)
        if partition.leader == NO_LEADER:
            candidates = {*partition.in_sync, *partition.eligible}
            can_lead = [b for b in candidates if state.can_serve(partition, b)]
            assert not can_lead, "someone could lead"
            assert candidates or partition.lost
            continue
        assert partition.leader in partition.in_sync
        assert all(state.can_serve(partition, member) for member in partition.in_sync)
        assert not partition.lost
        assert not partition.recovering
        led[partition.leader] += 1
    assert led == {broker: state.leader_counts[broker] for broker in state.brokers}
