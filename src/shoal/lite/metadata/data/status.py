"""Why a partition is offline, in words for users."""

from shoal.lite.metadata.data.records import NO_LEADER, PartitionRecord


def needs_unclean_election(partition: PartitionRecord) -> bool:
    """Whether a partition stays without a leader until somebody accepts the loss of records."""
    is_led = partition.leader != NO_LEADER or partition.recovering
    return not is_led and not partition.in_sync and not partition.eligible


def why_offline(partition: PartitionRecord) -> str | None:
    """Why a partition has no leader, and what to do about it; None if it has one."""
    if partition.leader != NO_LEADER:
        return None
    if partition.recovering:
        return "no replica that has everything is up; the one with the longest log will lead"
    awaited = sorted({*partition.in_sync, *partition.eligible})
    if awaited and set(awaited) <= set(partition.failed):
        return f"the log of broker {_all(awaited)} has failed; repair its disk and restart it"
    if awaited:
        return f"no replica that has everything is up; start broker {_either(awaited)}"
    return (
        f"broker {_all(sorted(partition.lost))} came back after a power loss or with an empty "
        "disk, and nobody is left that has everything; an unclean election would accept the loss: "
        "kafka-leader-election.sh --election-type unclean, or unclean.leader.election.enable=true "
        "for the topic"
    )


def _either(brokers: list[int]) -> str:
    return " or ".join(map(str, brokers))


def _all(brokers: list[int]) -> str:
    return " and ".join(map(str, brokers))
