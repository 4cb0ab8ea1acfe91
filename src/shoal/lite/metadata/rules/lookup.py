"""Finds the topic or partition of a request; `ApiError` with Apache Kafka's code if missing."""

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.metadata.data.records import PartitionRecord
from shoal.lite.metadata.data.state import ClusterState, Topic
from shoal.model.topics import TopicPartition

_UNKNOWN = "This server does not host this topic-partition."


def require_topic(state: ClusterState, name: str) -> Topic:
    topic = state.topics.get(name)
    if topic is None:
        raise ApiError(Code.UNKNOWN_TOPIC_OR_PARTITION, _UNKNOWN)
    return topic


def require_partition(state: ClusterState, partition: TopicPartition) -> PartitionRecord:
    record = require_topic(state, partition.topic).partitions.get(partition.partition)
    if record is None:
        raise ApiError(Code.UNKNOWN_TOPIC_OR_PARTITION, _UNKNOWN)
    return record
