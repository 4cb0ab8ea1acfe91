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
from typing import Any

from shoal.lite.api.group_requests import topic_entry, topic_of
from shoal.lite.base.codes import ApiError, Code
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, ApiRequest, register
from shoal.lite.coordinator.groups.records import NO_LEADER_EPOCH, CommittedOffset, OffsetKey
from shoal.lite.coordinator.groups.shard import GroupShard
from shoal.wire.api_keys import ApiKey

_FIRST_WITH_ERROR = 2
_FIRST_BATCHED = 8
_FIRST_BY_ID = 10
_NOTHING = CommittedOffset(-1, NO_LEADER_EPOCH, "", -1)


def handle(core: BrokerCore, request: ApiRequest) -> Answer:
    body = request.body()
    is_strict = getattr(body, "require_stable", False)
    by_id = request.version >= _FIRST_BY_ID
    if request.version >= _FIRST_BATCHED:
        groups = [
            _fetch_group(core, group, by_id=by_id, is_strict=is_strict) for group in body.groups
        ]
        return request.answer(groups=groups)
    fetched = _fetch_group(core, body, by_id=False, is_strict=is_strict)
    if request.version < _FIRST_WITH_ERROR and fetched["error_code"]:
        fetched["topics"] = _topic_errors(body, fetched["error_code"])
    return request.answer(**fetched)


def _fetch_group(core: BrokerCore, asked: Any, *, by_id: bool, is_strict: bool) -> dict[str, Any]:
    try:
        shard = core.groups.shard_for(asked.group_id)
    except ApiError as error:
        return {"group_id": asked.group_id, "topics": [], "error_code": error.code}
    if asked.topics is None:
        topics = _all_topics(core, shard, asked.group_id, by_id=by_id, is_strict=is_strict)
    else:
        topics = []
        for item in asked.topics:
            name, topic_id = topic_of(core, item)
            if name is None:
                partitions = _partition_errors(item.partition_indexes, Code.UNKNOWN_TOPIC_ID)
            else:
                keys = (OffsetKey(asked.group_id, name, index) for index in item.partition_indexes)
                partitions = [_describe_offset(shard, key, is_strict=is_strict) for key in keys]
            topics.append(topic_entry(name, topic_id, partitions))
    return {"group_id": asked.group_id, "topics": topics, "error_code": Code.NONE}


def _all_topics(
    core: BrokerCore, shard: GroupShard, group_id: str, *, by_id: bool, is_strict: bool
) -> list[Any]:
    places = set(shard.offsets.of_group(group_id))
    if is_strict:
        places |= shard.offsets.pending_of(group_id)
    topics: dict[str, list[Any]] = {}
    for name, index in sorted(places):
        key = OffsetKey(group_id, name, index)
        topics.setdefault(name, []).append(_describe_offset(shard, key, is_strict=is_strict))
    if not by_id:
        return [topic_entry(name, None, partitions) for name, partitions in topics.items()]
    return [
        topic_entry(name, core.state.topics[name].topic_id, partitions)
        for name, partitions in topics.items()
        if name in core.state.topics
    ]


def _describe_offset(shard: GroupShard, key: OffsetKey, *, is_strict: bool) -> dict[str, Any]:
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


def _partition_errors(indexes: Iterable[int], code: Code) -> list[dict[str, Any]]:
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


def _topic_errors(body: Any, code: Code) -> list[Any]:
    """Errors per partition: version 1 has no other place for them."""
    return [
        topic_entry(item.name, None, _partition_errors(item.partition_indexes, code))
        for item in body.topics
    ]


API = register(ApiKey.OFFSET_FETCH, 1, 10, handle)
