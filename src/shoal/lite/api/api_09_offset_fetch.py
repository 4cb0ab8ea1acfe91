"""OffsetFetch (9), versions 1 to 10.

Behaviour
- Committed offsets; -1 if none was committed, if the group does not exist, or if the topic was
  deleted or created again since the commit.
- Without topics: everything that the group has committed.
- With `require_stable`, UNSTABLE_OFFSET_COMMIT for partitions for which an open transaction may
  commit another offset (KIP-447). Without it, the offset committed before.
- A group that another broker coordinates: NOT_COORDINATOR for that group.

Versions
- 2 all topics, a top-level error. 5 leader epochs (KIP-320). 6 flexible. 7 require_stable.
  8 many groups at once (KIP-709). 9 members of the consumer protocol (KIP-848): ignored, because
  that protocol is not served. 10 topic ids.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from shoal.lite.api.group_requests import NO_TOPIC_ID
from shoal.lite.base.codes import ApiError, Code
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, ApiRequest, register
from shoal.lite.coordinator.groups.records import NO_LEADER_EPOCH, CommittedOffset, OffsetKey
from shoal.lite.coordinator.groups.shard import GroupShard
from shoal.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from shoal.lite.api.types.groups import (
        OffsetFetchRequest,
        OffsetFetchRequestGroup,
        OffsetFetchResponse,
        OffsetFetchResponseGroup,
        OffsetFetchResponsePartitions,
        OffsetFetchResponseTopics,
    )

_FIRST_WITH_ERROR = 2
_FIRST_WITH_STABLE = 7
_FIRST_BATCHED = 8
_FIRST_BY_ID = 10
_NOTHING = CommittedOffset(-1, NO_LEADER_EPOCH, "", -1)


class _AskedTopic(NamedTuple):
    """A topic of a request, which has either its name or its id."""

    # None if the id is unknown.
    name: str | None
    topic_id: UUID | None
    indexes: tuple[int, ...]


def handle(
    core: BrokerCore, request: "ApiRequest[OffsetFetchRequest, OffsetFetchResponse]"
) -> Answer:
    body = request.body()
    is_strict = request.version >= _FIRST_WITH_STABLE and body.require_stable
    by_id = request.version >= _FIRST_BY_ID
    if request.version >= _FIRST_BATCHED:
        groups = [
            _fetch_group(
                core,
                group.group_id,
                _list_topics(core, group, by_id=by_id),
                by_id=by_id,
                is_strict=is_strict,
            )
            for group in body.groups
        ]
        return request.answer({"groups": groups})
    asked = None
    if body.topics is not None:
        asked = [_AskedTopic(item.name, None, item.partition_indexes) for item in body.topics]
    fetched = _fetch_group(core, body.group_id, asked, by_id=False, is_strict=is_strict)
    code = fetched["error_code"]
    topics = fetched["topics"]
    if request.version < _FIRST_WITH_ERROR and code:
        topics = _topic_errors(asked or (), code)
    return request.answer(
        {
            "topics": [
                {"name": topic["name"], "partitions": topic["partitions"]} for topic in topics
            ],
            "error_code": code,
        }
    )


def _list_topics(
    core: BrokerCore, group: "OffsetFetchRequestGroup", *, by_id: bool
) -> list[_AskedTopic] | None:
    if group.topics is None:
        return None
    if not by_id:
        return [_AskedTopic(item.name, None, item.partition_indexes) for item in group.topics]
    names = core.state.topic_names
    return [
        _AskedTopic(names.get(item.topic_id or NO_TOPIC_ID), item.topic_id, item.partition_indexes)
        for item in group.topics
    ]


def _fetch_group(
    core: BrokerCore,
    group_id: str,
    asked: Iterable[_AskedTopic] | None,
    *,
    by_id: bool,
    is_strict: bool,
) -> "OffsetFetchResponseGroup":
    try:
        shard = core.groups.shard_for(group_id)
    except ApiError as error:
        return {"group_id": group_id, "topics": [], "error_code": error.code}
    if asked is None:
        topics = _all_topics(core, shard, group_id, by_id=by_id, is_strict=is_strict)
    else:
        topics = []
        for name, topic_id, indexes in asked:
            if name is None:
                partitions = _partition_errors(indexes, Code.UNKNOWN_TOPIC_ID)
            else:
                keys = (OffsetKey(group_id, name, index) for index in indexes)
                partitions = [_describe_offset(shard, key, is_strict=is_strict) for key in keys]
            topics.append(_topic_entry(name, topic_id, partitions))
    return {"group_id": group_id, "topics": topics, "error_code": Code.NONE}


def _topic_entry(
    name: str | None, topic_id: UUID | None, partitions: "list[OffsetFetchResponsePartitions]"
) -> "OffsetFetchResponseTopics":
    """The entry of a topic; the version decides whether name or id is sent."""
    return {"name": name or "", "topic_id": topic_id, "partitions": partitions}


def _all_topics(
    core: BrokerCore, shard: GroupShard, group_id: str, *, by_id: bool, is_strict: bool
) -> "list[OffsetFetchResponseTopics]":
    places = set(shard.offsets.of_group(group_id))
    if is_strict:
        places |= shard.offsets.pending_of(group_id)
    topics: dict[str, list[OffsetFetchResponsePartitions]] = {}
    for name, index in sorted(places):
        key = OffsetKey(group_id, name, index)
        topics.setdefault(name, []).append(_describe_offset(shard, key, is_strict=is_strict))
    if not by_id:
        return [_topic_entry(name, None, partitions) for name, partitions in topics.items()]
    return [
        _topic_entry(name, core.state.topics[name].topic_id, partitions)
        for name, partitions in topics.items()
        if name in core.state.topics
    ]


def _describe_offset(
    shard: GroupShard, key: OffsetKey, *, is_strict: bool
) -> "OffsetFetchResponsePartitions":
    if is_strict and shard.is_unstable(key):
        return _partition_errors([key.partition], Code.UNSTABLE_OFFSET_COMMIT)[0]
    committed = shard.offsets.get(*key) or _NOTHING
    return {
        "partition_index": key.partition,
        "committed_offset": committed.offset,
        "committed_leader_epoch": committed.leader_epoch,
        "metadata": committed.metadata,
        "error_code": Code.NONE,
    }


def _partition_errors(indexes: Iterable[int], code: int) -> "list[OffsetFetchResponsePartitions]":
    return [
        {
            "partition_index": index,
            "committed_offset": -1,
            "committed_leader_epoch": NO_LEADER_EPOCH,
            "metadata": "",
            "error_code": code,
        }
        for index in indexes
    ]


def _topic_errors(asked: Iterable[_AskedTopic], code: int) -> "list[OffsetFetchResponseTopics]":
    """Errors per partition: version 1 has no other place for them."""
    return [_topic_entry(item.name, None, _partition_errors(item.indexes, code)) for item in asked]


API = register(ApiKey.OFFSET_FETCH, 1, 10, handle)
