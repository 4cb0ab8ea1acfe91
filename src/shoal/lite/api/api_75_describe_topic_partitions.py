"""DescribeTopicPartitions (75), version 0 (KIP-966).

Behaviour
- Topics and their partitions, sorted by name, as many as the client and
  `max.request.partition.size.limit` allow; a cursor says where the next request continues. Without
  names: all topics.
- Eligible leader replicas are those of Kafka Lite's own elections.
"""

from typing import TYPE_CHECKING

from shoal.lite.api.descriptions import TOPIC_OPERATIONS, describe_partition
from shoal.lite.base.codes import Code
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.registry import Answer, ApiRequest, register
from shoal.lite.coordinator.topics import INTERNAL_TOPICS
from shoal.lite.metadata.data.state import ClusterState
from shoal.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from shoal.lite.api.types.topics import (
        DescribeTopicPartitionsRequest,
        DescribeTopicPartitionsResponse,
        DescribeTopicPartitionsResponseCursor,
        DescribeTopicPartitionsResponsePartition,
        DescribeTopicPartitionsResponseTopic,
    )


def handle(
    core: BrokerCore,
    request: "ApiRequest[DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse]",
) -> Answer:
    body, state = request.body(), core.state
    limit = core.layers.integer("max.request.partition.size.limit")
    limit = max(1, min(body.response_partition_limit, limit))
    names = sorted({item.name for item in body.topics} or state.topics)
    first_index = 0
    if body.cursor is not None:
        names = [name for name in names if name >= body.cursor.topic_name]
        if not names or names[0] != body.cursor.topic_name or body.cursor.partition_index < 0:
            return request.answer({"topics": [_topic_error(item.name) for item in body.topics]})
        first_index = body.cursor.partition_index
    topics: list[DescribeTopicPartitionsResponseTopic] = []
    cursor: DescribeTopicPartitionsResponseCursor | None = None
    for name in names:
        topic, next_index = _describe_topic(state, name, first_index, limit)
        limit -= len(topic["partitions"])
        topics.append(topic)
        first_index = 0
        if next_index is not None:
            cursor = {"topic_name": name, "partition_index": next_index}
        elif limit == 0 and name != names[-1]:
            following = names[names.index(name) + 1]
            cursor = {"topic_name": following, "partition_index": 0}
        if cursor is not None:
            break
    return request.answer({"topics": topics, "next_cursor": cursor})


def _describe_topic(
    state: ClusterState, name: str, first_index: int, limit: int
) -> "tuple[DescribeTopicPartitionsResponseTopic, int | None]":
    """A topic, and the next partition if the limit did not allow all of them."""
    topic = state.topics.get(name)
    if topic is None:
        return _topic_error(name) | {"error_code": Code.UNKNOWN_TOPIC_OR_PARTITION}, None
    indexes = [index for index in sorted(topic.partitions) if index >= first_index]
    partitions: list[DescribeTopicPartitionsResponsePartition] = [
        {
            **describe_partition(state, topic.partitions[index]),
            "eligible_leader_replicas": topic.partitions[index].eligible,
            "last_known_elr": (),
        }
        for index in indexes[:limit]
    ]
    answer: DescribeTopicPartitionsResponseTopic = {
        "error_code": Code.NONE,
        "name": name,
        "topic_id": topic.topic_id,
        "is_internal": name in INTERNAL_TOPICS,
        "partitions": partitions,
        "topic_authorized_operations": TOPIC_OPERATIONS,
    }
    return answer, indexes[limit] if len(indexes) > limit else None


def _topic_error(name: str) -> "DescribeTopicPartitionsResponseTopic":
    return {
        "error_code": Code.INVALID_REQUEST,
        "name": name,
        "topic_id": None,
        "is_internal": False,
        "partitions": [],
        "topic_authorized_operations": TOPIC_OPERATIONS,
    }


API = register(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, 0, handle)
