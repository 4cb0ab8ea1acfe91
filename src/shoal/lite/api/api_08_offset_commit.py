"""OffsetCommit (8), versions 2 to 10.

Behaviour
- Members commit with their generation; whoever manages its partitions itself, or administers a
  group, commits without one (-1) as long as the group has no members: else UNKNOWN_MEMBER_ID.
- The answer is sent when the offsets are on all in-sync replicas. Below `min.insync.replicas`
  and after `offsets.commit.timeout.ms`: COORDINATOR_NOT_AVAILABLE.
- UNKNOWN_TOPIC_OR_PARTITION for topics that there are not (UNKNOWN_TOPIC_ID by id),
  OFFSET_METADATA_TOO_LARGE above `offset.metadata.max.bytes`; the other partitions are committed.
- An offset is stored with the id of its topic: one that is created again under the same name
  begins without offsets.
- Versions 2 to 4 may name a time to keep the offsets for.

Versions
- 5 no retention time. 6 leader epochs (KIP-320). 7 static members (KIP-345). 8 flexible.
  9 GROUP_ID_NOT_FOUND and STALE_MEMBER_EPOCH (KIP-848). 10 topic ids (KIP-848).
"""

import time
from typing import Any

from shoal.lite.api.group_requests import described_topic, identity_in, milliseconds, topic_of
from shoal.lite.base.codes import Code, Refused
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, Request, register
from shoal.lite.coordinator.groups.records import NO_LEADER_EPOCH, CommittedOffset
from shoal.wire.api_keys import ApiKey

_FIRST_WITH_NOT_FOUND = 9


async def handle(core: BrokerCore, request: Request) -> Answer:
    body = request.body()
    commits, codes = judge_offsets(core, body)
    code = Code.NONE
    try:
        if commits:
            await _commit(core, request, body, commits)
    except Refused as refused:
        code = refused.code
    return request.answer(topics=commit_answers(core, body, codes, code))


async def _commit(core: BrokerCore, request: Request, body: Any, commits: Any) -> None:
    shard = core.groups.shard_for(body.group_id)
    identity = identity_in(body, "generation_id_or_member_epoch")
    if (
        identity.generation >= 0
        and request.version >= _FIRST_WITH_NOT_FOUND
        and shard.group(body.group_id) is None
    ):
        raise Refused(Code.GROUP_ID_NOT_FOUND, f"there is no group {body.group_id!r}")
    await shard.commit(body.group_id, identity, commits)


def judge_offsets(
    core: BrokerCore, body: Any
) -> tuple[dict[tuple[str, int], CommittedOffset], dict[tuple[int, int], Code]]:
    """What can be committed, and why the rest cannot, by its place in the request."""
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
    """All partitions with what was wrong with each, or with all that were judged well."""
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
        answers.append(described_topic(name, topic_id, partitions))
    return answers


API = register(ApiKey.OFFSET_COMMIT, 2, 10, handle)
