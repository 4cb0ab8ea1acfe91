"""Requests and answers for topics: written by scripts/api_types.py.

Only the type checker uses this module. A decoded request is an instance of kio's class of its
version, and an answer is a dictionary that `ApiRequest.answer` encodes. A type has the fields of
all versions that are served; a comment names the versions of a field that not all of them have.
Times in answers are whole numbers of ms.
"""

import datetime as dt
from collections.abc import Collection
from typing import Required, TypedDict
from uuid import UUID


class ListOffsetsRequestPartition:
    partition_index: int
    timestamp: int
    current_leader_epoch: int  # versions 4 to 11


class ListOffsetsRequestTopic:
    name: str
    partitions: tuple[ListOffsetsRequestPartition, ...]


class ListOffsetsRequest:
    replica_id: int
    topics: tuple[ListOffsetsRequestTopic, ...]
    isolation_level: int  # versions 2 to 11
    timeout: dt.timedelta  # versions 10 to 11


class ListOffsetsResponsePartition(TypedDict, total=False):
    partition_index: Required[int]
    error_code: Required[int]
    timestamp: int
    offset: int
    leader_epoch: int  # versions 4 to 11


class ListOffsetsResponseTopic(TypedDict, total=False):
    name: Required[str]
    partitions: Required[Collection[ListOffsetsResponsePartition]]


class ListOffsetsResponse(TypedDict, total=False):
    topics: Required[Collection[ListOffsetsResponseTopic]]
    throttle_time: int  # versions 2 to 11


class MetadataRequestTopic:
    name: str | None
    topic_id: UUID | None  # versions 10 to 13


class MetadataRequest:
    topics: tuple[MetadataRequestTopic, ...] | None
    allow_auto_topic_creation: bool  # versions 4 to 13
    include_cluster_authorized_operations: bool  # versions 8 to 10
    include_topic_authorized_operations: bool  # versions 8 to 13


class MetadataResponseBroker(TypedDict, total=False):
    node_id: Required[int]
    host: Required[str]
    port: Required[int]
    rack: str | None  # versions 1 to 13


class MetadataResponsePartition(TypedDict, total=False):
    error_code: Required[int]
    partition_index: Required[int]
    leader_id: Required[int]
    replica_nodes: Collection[int]
    isr_nodes: Collection[int]
    offline_replicas: Collection[int]  # versions 5 to 13
    leader_epoch: int  # versions 7 to 13


class MetadataResponseTopic(TypedDict, total=False):
    error_code: Required[int]
    name: Required[str | None]
    partitions: Required[Collection[MetadataResponsePartition]]
    is_internal: bool  # versions 1 to 13
    topic_authorized_operations: int  # versions 8 to 13
    topic_id: UUID | None  # versions 10 to 13


class MetadataResponse(TypedDict, total=False):
    brokers: Required[Collection[MetadataResponseBroker]]
    topics: Required[Collection[MetadataResponseTopic]]
    controller_id: int  # versions 1 to 13
    cluster_id: str | None  # versions 2 to 13
    throttle_time: int  # versions 3 to 13
    cluster_authorized_operations: int  # versions 8 to 10
    error_code: int  # version 13


class CreateTopicsRequestCreatableReplicaAssignment:
    partition_index: int
    broker_ids: tuple[int, ...]


class CreateTopicsRequestCreatableTopicConfig:
    name: str
    value: str | None


class CreateTopicsRequestCreatableTopic:
    name: str
    num_partitions: int
    replication_factor: int
    assignments: tuple[CreateTopicsRequestCreatableReplicaAssignment, ...]
    configs: tuple[CreateTopicsRequestCreatableTopicConfig, ...]


class CreateTopicsRequest:
    topics: tuple[CreateTopicsRequestCreatableTopic, ...]
    timeout: dt.timedelta
    validate_only: bool


class CreateTopicsResponseCreatableTopicConfigs(TypedDict, total=False):
    name: Required[str]
    value: Required[str | None]
    read_only: Required[bool]
    config_source: int
    is_sensitive: Required[bool]


class CreateTopicsResponseCreatableTopic(TypedDict, total=False):
    name: Required[str]
    error_code: Required[int]
    error_message: Required[str | None]
    topic_config_error_code: int  # versions 5 to 7
    num_partitions: int  # versions 5 to 7
    replication_factor: int  # versions 5 to 7
    configs: Collection[CreateTopicsResponseCreatableTopicConfigs] | None  # versions 5 to 7
    topic_id: UUID | None  # version 7


class CreateTopicsResponse(TypedDict, total=False):
    throttle_time: int
    topics: Required[Collection[CreateTopicsResponseCreatableTopic]]


class DeleteTopicsRequestTopicState:
    name: str | None
    topic_id: UUID | None


class DeleteTopicsRequest:
    topic_names: tuple[str, ...]  # versions 1 to 5
    timeout: dt.timedelta
    topics: tuple[DeleteTopicsRequestTopicState, ...]  # version 6


class DeleteTopicsResponseDeletableTopic(TypedDict, total=False):
    name: Required[str | None]
    error_code: Required[int]
    error_message: str | None  # versions 5 to 6
    topic_id: UUID | None  # version 6


class DeleteTopicsResponse(TypedDict, total=False):
    throttle_time: int
    responses: Required[Collection[DeleteTopicsResponseDeletableTopic]]


class DeleteRecordsRequestPartition:
    partition_index: int
    offset: int


class DeleteRecordsRequestTopic:
    name: str
    partitions: tuple[DeleteRecordsRequestPartition, ...]


class DeleteRecordsRequest:
    topics: tuple[DeleteRecordsRequestTopic, ...]
    timeout: dt.timedelta


class DeleteRecordsResponsePartition(TypedDict, total=False):
    partition_index: Required[int]
    low_watermark: Required[int]
    error_code: Required[int]


class DeleteRecordsResponseTopic(TypedDict, total=False):
    name: Required[str]
    partitions: Required[Collection[DeleteRecordsResponsePartition]]


class DeleteRecordsResponse(TypedDict, total=False):
    throttle_time: int
    topics: Required[Collection[DeleteRecordsResponseTopic]]


class OffsetForLeaderEpochRequestPartition:
    partition: int
    current_leader_epoch: int
    leader_epoch: int


class OffsetForLeaderEpochRequestTopic:
    topic: str
    partitions: tuple[OffsetForLeaderEpochRequestPartition, ...]


class OffsetForLeaderEpochRequest:
    topics: tuple[OffsetForLeaderEpochRequestTopic, ...]
    replica_id: int  # versions 3 to 4


class OffsetForLeaderEpochResponseEndOffset(TypedDict, total=False):
    error_code: Required[int]
    partition: Required[int]
    leader_epoch: int
    end_offset: int


class OffsetForLeaderEpochResponseTopic(TypedDict, total=False):
    topic: Required[str]
    partitions: Required[Collection[OffsetForLeaderEpochResponseEndOffset]]


class OffsetForLeaderEpochResponse(TypedDict, total=False):
    throttle_time: int
    topics: Required[Collection[OffsetForLeaderEpochResponseTopic]]


class AlterReplicaLogDirsRequestDirTopic:
    name: str
    partitions: tuple[int, ...]


class AlterReplicaLogDirsRequestDir:
    path: str
    topics: tuple[AlterReplicaLogDirsRequestDirTopic, ...]


class AlterReplicaLogDirsRequest:
    dirs: tuple[AlterReplicaLogDirsRequestDir, ...]


class AlterReplicaLogDirsResponseDirPartition(TypedDict, total=False):
    partition_index: Required[int]
    error_code: Required[int]


class AlterReplicaLogDirsResponseDirTopic(TypedDict, total=False):
    topic_name: Required[str]
    partitions: Required[Collection[AlterReplicaLogDirsResponseDirPartition]]


class AlterReplicaLogDirsResponse(TypedDict, total=False):
    throttle_time: int
    results: Required[Collection[AlterReplicaLogDirsResponseDirTopic]]


class DescribeLogDirsRequestDescribableLogDirTopic:
    topic: str
    partitions: tuple[int, ...]


class DescribeLogDirsRequest:
    topics: tuple[DescribeLogDirsRequestDescribableLogDirTopic, ...] | None


class DescribeLogDirsResponsePartition(TypedDict, total=False):
    partition_index: Required[int]
    partition_size: Required[int]
    offset_lag: Required[int]
    is_future_key: Required[bool]


class DescribeLogDirsResponseTopic(TypedDict, total=False):
    name: Required[str]
    partitions: Required[Collection[DescribeLogDirsResponsePartition]]


class DescribeLogDirsResponseResult(TypedDict, total=False):
    error_code: Required[int]
    log_dir: Required[str]
    topics: Required[Collection[DescribeLogDirsResponseTopic]]
    total_bytes: int  # versions 4 to 5
    usable_bytes: int  # versions 4 to 5
    is_cordoned: bool  # version 5


class DescribeLogDirsResponse(TypedDict, total=False):
    throttle_time: int
    results: Required[Collection[DescribeLogDirsResponseResult]]
    error_code: int  # versions 3 to 5


class CreatePartitionsRequestAssignment:
    broker_ids: tuple[int, ...]


class CreatePartitionsRequestTopic:
    name: str
    count: int
    assignments: tuple[CreatePartitionsRequestAssignment, ...] | None


class CreatePartitionsRequest:
    topics: tuple[CreatePartitionsRequestTopic, ...]
    timeout: dt.timedelta
    validate_only: bool


class CreatePartitionsResponseTopic(TypedDict, total=False):
    name: Required[str]
    error_code: Required[int]
    error_message: str | None


class CreatePartitionsResponse(TypedDict, total=False):
    throttle_time: int
    results: Required[Collection[CreatePartitionsResponseTopic]]


class ElectLeadersRequestTopicPartitions:
    topic: str
    partitions: tuple[int, ...]


class ElectLeadersRequest:
    topic_partitions: tuple[ElectLeadersRequestTopicPartitions, ...] | None
    timeout: dt.timedelta
    election_type: int  # versions 1 to 2


class ElectLeadersResponsePartition(TypedDict, total=False):
    partition_id: Required[int]
    error_code: Required[int]
    error_message: Required[str | None]


class ElectLeadersResponseReplicaElection(TypedDict, total=False):
    topic: Required[str]
    partition_result: Required[Collection[ElectLeadersResponsePartition]]


class ElectLeadersResponse(TypedDict, total=False):
    throttle_time: int
    replica_election_results: Required[Collection[ElectLeadersResponseReplicaElection]]
    error_code: int  # versions 1 to 2


class AlterPartitionReassignmentsRequestReassignablePartition:
    partition_index: int
    replicas: tuple[int, ...] | None


class AlterPartitionReassignmentsRequestReassignableTopic:
    name: str
    partitions: tuple[AlterPartitionReassignmentsRequestReassignablePartition, ...]


class AlterPartitionReassignmentsRequest:
    timeout: dt.timedelta
    topics: tuple[AlterPartitionReassignmentsRequestReassignableTopic, ...]
    allow_replication_factor_change: bool  # version 1


class AlterPartitionReassignmentsResponseReassignablePartition(TypedDict, total=False):
    partition_index: Required[int]
    error_code: Required[int]
    error_message: Required[str | None]


class AlterPartitionReassignmentsResponseReassignableTopic(TypedDict, total=False):
    name: Required[str]
    partitions: Required[Collection[AlterPartitionReassignmentsResponseReassignablePartition]]


class AlterPartitionReassignmentsResponse(TypedDict, total=False):
    throttle_time: int
    error_code: Required[int]
    error_message: Required[str | None]
    responses: Required[Collection[AlterPartitionReassignmentsResponseReassignableTopic]]
    allow_replication_factor_change: bool  # version 1


class ListPartitionReassignmentsRequestTopics:
    name: str
    partition_indexes: tuple[int, ...]


class ListPartitionReassignmentsRequest:
    timeout: dt.timedelta
    topics: tuple[ListPartitionReassignmentsRequestTopics, ...] | None


class ListPartitionReassignmentsResponseOngoingPartitionReassignment(TypedDict, total=False):
    partition_index: Required[int]
    replicas: Collection[int]
    adding_replicas: Collection[int]
    removing_replicas: Collection[int]


class ListPartitionReassignmentsResponseOngoingTopicReassignment(TypedDict, total=False):
    name: Required[str]
    partitions: Required[Collection[ListPartitionReassignmentsResponseOngoingPartitionReassignment]]


class ListPartitionReassignmentsResponse(TypedDict, total=False):
    throttle_time: int
    error_code: Required[int]
    error_message: Required[str | None]
    topics: Required[Collection[ListPartitionReassignmentsResponseOngoingTopicReassignment]]


class DescribeTopicPartitionsRequestTopic:
    name: str


class DescribeTopicPartitionsRequestCursor:
    topic_name: str
    partition_index: int


class DescribeTopicPartitionsRequest:
    topics: tuple[DescribeTopicPartitionsRequestTopic, ...]
    response_partition_limit: int
    cursor: DescribeTopicPartitionsRequestCursor | None


class DescribeTopicPartitionsResponsePartition(TypedDict, total=False):
    error_code: Required[int]
    partition_index: Required[int]
    leader_id: Required[int]
    leader_epoch: int
    replica_nodes: Collection[int]
    isr_nodes: Collection[int]
    eligible_leader_replicas: Collection[int] | None
    last_known_elr: Collection[int] | None
    offline_replicas: Collection[int]


class DescribeTopicPartitionsResponseTopic(TypedDict, total=False):
    error_code: Required[int]
    name: Required[str | None]
    topic_id: Required[UUID | None]
    is_internal: bool
    partitions: Required[Collection[DescribeTopicPartitionsResponsePartition]]
    topic_authorized_operations: int


class DescribeTopicPartitionsResponseCursor(TypedDict, total=False):
    topic_name: Required[str]
    partition_index: Required[int]


class DescribeTopicPartitionsResponse(TypedDict, total=False):
    throttle_time: int
    topics: Required[Collection[DescribeTopicPartitionsResponseTopic]]
    next_cursor: DescribeTopicPartitionsResponseCursor | None
