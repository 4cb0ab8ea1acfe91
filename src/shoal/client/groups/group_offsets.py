"""Commits and fetches the offsets of a group, as a member or without membership.

- If the coordinator refuses a partition, the whole commit raises its error.
- Clients that assign partitions themselves commit with the default `GroupMember`.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from shoal.client.cluster.coordinators import Coordinator
from shoal.client.errors import UnsupportedByBroker
from shoal.model.topics import TopicPartition
from shoal.wire.api_keys import ApiKey

# Later versions identify topics by their ids.
_LAST_COMMIT_BY_NAME: Final = 9
_LAST_FETCH_OF_ONE_GROUP: Final = 7
_FIRST_WITH_REQUIRE_STABLE: Final = 7


class OffsetCommit(NamedTuple):
    """The committed offset of a group in one partition."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


class GroupMember(NamedTuple):
    """The member that commits; the defaults mean no group membership."""

    generation_id: int = -1
    member_id: str = ""
    instance_id: str | None = None


NO_MEMBER: Final = GroupMember()


def topics_to_commit(
    offsets: Mapping[TopicPartition, OffsetCommit | int],
) -> list[Mapping[str, Any]]:
    """The `topics` field of a request that commits offsets."""
    topics: dict[str, list[dict[str, Any]]] = {}
    for tp, given in offsets.items():
        commit = OffsetCommit(given) if isinstance(given, int) else given
        topics.setdefault(tp.topic, []).append(
            {
                "partition_index": tp.partition,
                "committed_offset": commit.offset,
                "committed_leader_epoch": commit.leader_epoch,
                "committed_metadata": commit.metadata,
            }
        )
    return [{"name": name, "partitions": parts} for name, parts in topics.items()]


async def commit_offsets(
    coordinator: Coordinator,
    group_id: str,
    offsets: Mapping[TopicPartition, OffsetCommit | int],
    *,
    member: GroupMember = NO_MEMBER,
) -> None:
    """Commit offsets; returns when the coordinator has them, raises if it refuses one."""
    values = {
        "group_id": group_id,
        "generation_id_or_member_epoch": member.generation_id,
        "member_id": member.member_id,
        "group_instance_id": member.instance_id,
        "retention_time": -1,
        "topics": topics_to_commit(offsets),
    }

    def check(response: Any) -> None:
        for topic in response.topics:
            for part in topic.partitions:
                coordinator.check(
                    int(part.error_code), topic=topic.name, partition=int(part.partition_index)
                )

    await coordinator.call(ApiKey.OFFSET_COMMIT, values, at_most=_LAST_COMMIT_BY_NAME, check=check)


async def fetch_committed_offsets(
    coordinator: Coordinator, group_id: str, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, OffsetCommit]:
    """The committed offsets; partitions without one are not included.

    Waits for pending transactional commits (`require_stable`).
    """
    topics: dict[str, list[int]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(index)
    values = {
        "group_id": group_id,
        "topics": [{"name": name, "partition_indexes": each} for name, each in topics.items()],
        "require_stable": True,
    }

    def check(response: Any) -> None:
        for topic in response.topics:
            for part in topic.partitions:
                coordinator.check(
                    int(part.error_code), topic=topic.name, partition=int(part.partition_index)
                )

    response = await _call_offset_fetch(coordinator, values, check)
    return {
        TopicPartition(topic.name, int(part.partition_index)): OffsetCommit(
            int(part.committed_offset),
            part.metadata or "",
            int(getattr(part, "committed_leader_epoch", -1)),
        )
        for topic in response.topics
        for part in topic.partitions
        if part.committed_offset >= 0
    }


async def _call_offset_fetch(
    coordinator: Coordinator, values: Mapping[str, Any], check: Any
) -> Any:
    try:
        return await coordinator.call(
            ApiKey.OFFSET_FETCH,
            values,
            at_least=_FIRST_WITH_REQUIRE_STABLE,
            at_most=_LAST_FETCH_OF_ONE_GROUP,
            check=check,
        )
    except UnsupportedByBroker:
        # An old broker, which does not support `require_stable`.
        return await coordinator.call(
            ApiKey.OFFSET_FETCH,
            values,
            at_least=1,
            at_most=_LAST_FETCH_OF_ONE_GROUP,
            check=check,
        )
