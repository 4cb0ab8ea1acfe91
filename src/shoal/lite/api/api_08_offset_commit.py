"""OffsetCommit (8), versions 2 to 10.

Behaviour
- Members commit with their generation. Consumers with manual assignment, and administrators, commit
  without one (-1) while the group has no members; otherwise they get UNKNOWN_MEMBER_ID.
- The response is sent when the offsets are on all in-sync replicas. Below `min.insync.replicas`
  and after `offsets.commit.timeout.ms`: COORDINATOR_NOT_AVAILABLE.
- UNKNOWN_TOPIC_OR_PARTITION for topics and partitions that do not exist (UNKNOWN_TOPIC_ID for an
  unknown id), OFFSET_METADATA_TOO_LARGE above `offset.metadata.max.bytes`; the other partitions
  are committed.
- An offset is stored with the id of its topic: a topic that is created again under the same name
  begins without offsets.
- Versions 2 to 4 may set a retention time for the offsets.

Versions
- 5 no retention time. 6 leader epochs (KIP-320). 7 static members (KIP-345). 8 flexible.
  9 GROUP_ID_NOT_FOUND and STALE_MEMBER_EPOCH (KIP-848). 10 topic ids (KIP-848).
"""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from shoal.lite.api.group_requests import NO_TOPIC_ID, milliseconds
from shoal.lite.base.codes import ApiError, Code
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, ApiRequest, register
from shoal.lite.coordinator.groups.messages import MemberIdentity
from shoal.lite.coordinator.groups.records import NO_LEADER_EPOCH, CommittedOffset
from shoal.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from shoal.lite.api.types.groups import (
        OffsetCommitRequest,
        OffsetCommitRequestPartition,
        OffsetCommitRequestTopic,
        OffsetCommitResponse,
        OffsetCommitResponsePartition,
    )
    from shoal.lite.api.types.transactions import TxnOffsetCommitRequestPartition

_LAST_WITH_RETENTION = 4
_FIRST_WITH_LEADER_EPOCH = 6
_FIRST_WITH_STATIC_MEMBERS = 7
_FIRST_WITH_NOT_FOUND = 9
_FIRST_BY_ID = 10

# By topic and partition.
Commits = dict[tuple[str, int], CommittedOffset]


async def handle(
    core: BrokerCore, request: "ApiRequest[OffsetCommitRequest, OffsetCommitResponse]"
) -> Answer:
    body = request.body()
    topics = [_topic(core, item, request.version) for item in body.topics]
    kept_ms = milliseconds(body.retention_time) if request.version <= _LAST_WITH_RETENTION else -1
    has_epochs = request.version >= _FIRST_WITH_LEADER_EPOCH
    commits, codes = check_offsets(core, topics, has_epochs=has_epochs, kept_ms=kept_ms)
    code = Code.NONE
    try:
        if commits:
            await _commit(core, request.version, body, commits)
    except ApiError as error:
        code = error.code
    return request.answer(
        {
            "topics": [
                {
                    "name": topic.name or "",
                    "topic_id": topic.topic_id,
                    "partitions": partition_results(topic, place, codes, code),
                }
                for place, topic in enumerate(topics)
            ]
        }
    )


class CommittedTopic(NamedTuple):
    """A topic of a request, which has either its name or its id."""

    # None if the id is unknown.
    name: str | None
    topic_id: UUID | None
    partitions: "Sequence[OffsetCommitRequestPartition | TxnOffsetCommitRequestPartition]"


def _topic(core: BrokerCore, item: "OffsetCommitRequestTopic", version: int) -> CommittedTopic:
    if version < _FIRST_BY_ID:
        return CommittedTopic(item.name, None, item.partitions)
    name = core.state.topic_names.get(item.topic_id or NO_TOPIC_ID)
    return CommittedTopic(name, item.topic_id, item.partitions)


async def _commit(
    core: BrokerCore, version: int, body: "OffsetCommitRequest", commits: Commits
) -> None:
    shard = core.groups.shard_for(body.group_id)
    instance_id = body.group_instance_id if version >= _FIRST_WITH_STATIC_MEMBERS else None
    identity = MemberIdentity(body.member_id, body.generation_id_or_member_epoch, instance_id)
    if (
        identity.generation >= 0
        and version >= _FIRST_WITH_NOT_FOUND
        and shard.group(body.group_id) is None
    ):
        raise ApiError(Code.GROUP_ID_NOT_FOUND, f"group {body.group_id!r} does not exist")
    await shard.commit(body.group_id, identity, commits)


def check_offsets(
    core: BrokerCore, topics: Sequence[CommittedTopic], *, has_epochs: bool, kept_ms: int = -1
) -> tuple[Commits, dict[tuple[int, int], Code]]:
    """The offsets to commit, and the error codes of the others by position in the request."""
    now_ms = time.time_ns() // 1_000_000
    most_bytes = core.layers.integer("offset.metadata.max.bytes")
    commits: Commits = {}
    codes: dict[tuple[int, int], Code] = {}
    for place, (name, topic_id, partitions) in enumerate(topics):
        for inner, partition in enumerate(partitions):
            metadata = partition.committed_metadata or ""
            topic = None if name is None else core.state.topics.get(name)
            if name is None or topic is None:
                unknown_name, unknown_id = Code.UNKNOWN_TOPIC_OR_PARTITION, Code.UNKNOWN_TOPIC_ID
                codes[place, inner] = unknown_name if topic_id is None else unknown_id
            elif partition.partition_index not in topic.partitions:
                codes[place, inner] = Code.UNKNOWN_TOPIC_OR_PARTITION
            elif len(metadata) > most_bytes:
                codes[place, inner] = Code.OFFSET_METADATA_TOO_LARGE
            else:
                commits[name, partition.partition_index] = CommittedOffset(
                    partition.committed_offset,
                    partition.committed_leader_epoch if has_epochs else NO_LEADER_EPOCH,
                    metadata,
                    now_ms,
                    now_ms + kept_ms if kept_ms >= 0 else None,
                    topic.topic_id,
                )
    return commits, codes


def partition_results(
    topic: CommittedTopic, place: int, codes: dict[tuple[int, int], Code], code: Code
) -> "list[OffsetCommitResponsePartition]":
    """Every partition with its own error code, or with `code`, the result of the commit."""
    return [
        {
            "partition_index": partition.partition_index,
            "error_code": codes.get((place, inner), code),
        }
        for inner, partition in enumerate(topic.partitions)
    ]


API = register(ApiKey.OFFSET_COMMIT, 2, 10, handle)
