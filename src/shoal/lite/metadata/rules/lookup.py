"""Finding what a request names; `Refused` with Apache Kafka's code if it is not there."""

from shoal.lite.base.codes import Code, Refused
from shoal.lite.metadata.data.records import PartitionRecord
from shoal.lite.metadata.data.state import ClusterState, Topic
from shoal.model.topics import TopicPartition

_UNKNOWN = "This server does not host this topic-partition."


def existing_topic(state: ClusterState, name: str) -> Topic:
    topic = state.topics.get(name)
    if topic is None:
        raise Refused(Code.UNKNOWN_TOPIC_OR_PARTITION, _UNKNOWN)
    return topic


def existing_partition(state: ClusterState, partition: TopicPartition) -> PartitionRecord:
    record = existing_topic(state, partition.topic).partitions.get(partition.partition)
    if record is None:
        raise Refused(Code.UNKNOWN_TOPIC_OR_PARTITION, _UNKNOWN)
    return record
