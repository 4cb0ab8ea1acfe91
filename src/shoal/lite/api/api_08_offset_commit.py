"""OffsetCommit (8), versions 2 to 10.

Behaviour
- Members commit with their generation. Consumers with manual assignment, and administrators, commit
  without one (-1) while the group has no members; otherwise they get UNKNOWN_MEMBER_ID.
- The response is sent when the offsets are on all in-sync replicas. Below `min.insync.replicas`
  and after `offsets.commit.timeout.ms`: COORDINATOR_NOT_AVAILABLE.
- UNKNOWN_TOPIC_OR_PARTITION for topics that do not exist (UNKNOWN_TOPIC_ID by id),
  OFFSET_METADATA_TOO_LARGE above `offset.metadata.max.bytes`; the other partitions are committed.
- An offset is stored with the id of its topic: a topic that is created again under the same name
  begins without offsets.
- Versions 2 to 4 may set a retention time for the offsets.

Versions
- 5 no retention time. 6 leader epochs (KIP-320). 7 static members (KIP-345). 8 flexible.
  9 GROUP_ID_NOT_FOUND and STALE_MEMBER_EPOCH (KIP-848). 10 topic ids (KIP-848).
"""

import time
from typing import Any

from shoal.lite.api.group_requests import identity_in, milliseconds, topic_entry, topic_of
from shoal.lite.base.codes import ApiError, Code
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, ApiRequest, register
from shoal.lite.coordinator.groups.records import NO_LEADER_EPOCH, CommittedOffset
from shoal.wire.api_keys import ApiKey

_FIRST_WITH_NOT_FOUND = 9


async def handle(core: BrokerCore, request: ApiRequest) -> Answer:
    body = request.body()
    commits, codes = check_offsets(core, body)
    code = Code.NONE
    try:
        if commits:
            await _commit(core, request, body, commits)
    except ApiError as error:
        code = error.code
    return request.answer(topics=commit_answers(core, body, codes, code))


async def _commit(core: BrokerCore, request: ApiRequest, body: Any, commits: Any) -> None:
    shard = core.groups.shard_for(body.group_id)
    identity = identity_in(body, "generation_id_or_member_epoch")
    if (
        identity.generation >= 0
        and request.version >= _FIRST_WITH_NOT_FOUND
        and shard.group(body.group_id) is None
    ):
        raise ApiError(Code.GROUP_ID_NOT_FOUND, f"group {body.group_id!r} does not exist")
    await shard.commit(body.group_id, identity, commits)


def check_offsets(
    core: BrokerCore, body: Any
) -> tuple[dict[tuple[str, int], CommittedOffset], dict[tuple[int, int], Code]]:
    """The offsets to commit, and the error codes of the others by position in the request."""
    now_ms = time.time_ns() // 1_000_000
    most_bytes = core.layers.integer("offset.metadata.max.bytes")
    kept_ms = milliseconds(body.retention_time) if hasattr(body, "retention_time") else -1
    commits: dict[tuple[str, int], CommittedOffset] = {}
    codes: dict[tuple[int, int], Code] = {}
    for place, item in enumerate(body.topics):
        name, topic_id = topic_of(core, item)
        for inner, partition in enumerate(item.partitions):
            metadata = partition.committed_metadata or ""
            if name is None or name not in core.state.topics:
                unknown_name, unknown_id = Code.UNKNOWN_TOPIC_OR_PARTITION, Code.UNKNOWN_TOPIC_ID
                codes[place, inner] = unknown_name if topic_id is None else unknown_id
            elif len(metadata) > most_bytes:
                codes[place, inner] = Code.OFFSET_METADATA_TOO_LARGE
            else:
                commits[name, partition.partition_index] = CommittedOffset(
                    partition.committed_offset,
                    getattr(partition, "committed_leader_epoch", NO_LEADER_EPOCH),
                    metadata,
                    now_ms,
                    now_ms + kept_ms if kept_ms >= 0 else None,
                    core.state.topics[name].topic_id,
                )
    return commits, codes


def commit_answers(
    core: BrokerCore, body: Any, codes: dict[tuple[int, int], Code], code: Code
) -> list[Any]:
    """Every partition with its own error code, or with `code`, the result of the commit."""
    answers = []
    for place, item in enumerate(body.topics):
        name, topic_id = topic_of(core, item)
        partitions = (
            {
                "partition_index": partition.partition_index,
                "error_code": codes.get((place, inner), code),
            }
            for inner, partition in enumerate(item.partitions)
        )
        answers.append(topic_entry(name, topic_id, partitions))
    return answers


API = register(ApiKey.OFFSET_COMMIT, 2, 10, handle)
