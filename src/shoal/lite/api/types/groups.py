"""Requests and answers for groups: written by scripts/api_types.py.

Only the type checker uses this module. A decoded request is an instance of kio's class of its
version, and an answer is a dictionary that `ApiRequest.answer` encodes. A type has the fields of
all versions that are served; a comment names the versions of a field that not all of them have.
Times in answers are whole numbers of ms.
"""

import datetime as dt
from collections.abc import Collection
from typing import Required, TypedDict
from uuid import UUID


class OffsetCommitRequestPartition:
    partition_index: int
    committed_offset: int
    committed_metadata: str | None
    committed_leader_epoch: int  # versions 6 to 10


class OffsetCommitRequestTopic:
    name: str  # versions 2 to 9
    partitions: tuple[OffsetCommitRequestPartition, ...]
    topic_id: UUID | None  # version 10


class OffsetCommitRequest:
    group_id: str
    generation_id_or_member_epoch: int
    member_id: str
    retention_time: dt.timedelta  # versions 2 to 4
    topics: tuple[OffsetCommitRequestTopic, ...]
    group_instance_id: str | None  # versions 7 to 10


class OffsetCommitResponsePartition(TypedDict, total=False):
    partition_index: Required[int]
    error_code: Required[int]


class OffsetCommitResponseTopic(TypedDict, total=False):
    name: str  # versions 2 to 9
    partitions: Required[Collection[OffsetCommitResponsePartition]]
    topic_id: UUID | None  # version 10


class OffsetCommitResponse(TypedDict, total=False):
    topics: Required[Collection[OffsetCommitResponseTopic]]
    throttle_time: int  # versions 3 to 10


class OffsetFetchRequestTopic:
    name: str
    partition_indexes: tuple[int, ...]


class OffsetFetchRequestTopics:
    name: str  # versions 8 to 9
    partition_indexes: tuple[int, ...]
    topic_id: UUID | None  # version 10


class OffsetFetchRequestGroup:
    group_id: str
    topics: tuple[OffsetFetchRequestTopics, ...] | None
    member_id: str | None  # versions 9 to 10
    member_epoch: int  # versions 9 to 10


class OffsetFetchRequest:
    group_id: str  # versions 1 to 7
    topics: tuple[OffsetFetchRequestTopic, ...] | None  # versions 1 to 7
    require_stable: bool  # versions 7 to 10
    groups: tuple[OffsetFetchRequestGroup, ...]  # versions 8 to 10


class OffsetFetchResponsePartition(TypedDict, total=False):
    partition_index: Required[int]
    committed_offset: Required[int]
    metadata: Required[str | None]
    error_code: Required[int]
    committed_leader_epoch: int  # versions 5 to 7


class OffsetFetchResponseTopic(TypedDict, total=False):
    name: Required[str]
    partitions: Required[Collection[OffsetFetchResponsePartition]]


class OffsetFetchResponsePartitions(TypedDict, total=False):
    partition_index: Required[int]
    committed_offset: Required[int]
    committed_leader_epoch: int
    metadata: Required[str | None]
    error_code: Required[int]


class OffsetFetchResponseTopics(TypedDict, total=False):
    name: str  # versions 8 to 9
    partitions: Required[Collection[OffsetFetchResponsePartitions]]
    topic_id: UUID | None  # version 10


class OffsetFetchResponseGroup(TypedDict, total=False):
    group_id: Required[str]
    topics: Required[Collection[OffsetFetchResponseTopics]]
    error_code: int


class OffsetFetchResponse(TypedDict, total=False):
    topics: Collection[OffsetFetchResponseTopic]  # versions 1 to 7
    error_code: int  # versions 2 to 7
    throttle_time: int  # versions 3 to 10
    groups: Collection[OffsetFetchResponseGroup]  # versions 8 to 10


class FindCoordinatorRequest:
    key: str  # versions 0 to 3
    key_type: int  # versions 1 to 6
    coordinator_keys: tuple[str, ...]  # versions 4 to 6


class FindCoordinatorResponseCoordinator(TypedDict, total=False):
    key: Required[str]
    node_id: Required[int]
    host: Required[str]
    port: Required[int]
    error_code: Required[int]
    error_message: Required[str | None]


class FindCoordinatorResponse(TypedDict, total=False):
    error_code: int  # versions 0 to 3
    node_id: int  # versions 0 to 3
    host: str  # versions 0 to 3
    port: int  # versions 0 to 3
    throttle_time: int  # versions 1 to 6
    error_message: str | None  # versions 1 to 3
    coordinators: Collection[FindCoordinatorResponseCoordinator]  # versions 4 to 6


class JoinGroupRequestProtocol:
    name: str
    metadata: bytes


class JoinGroupRequest:
    group_id: str
    session_timeout: dt.timedelta
    member_id: str
    protocol_type: str
    protocols: tuple[JoinGroupRequestProtocol, ...]
    rebalance_timeout: dt.timedelta  # versions 1 to 9
    group_instance_id: str | None  # versions 5 to 9
    reason: str | None  # versions 8 to 9


class JoinGroupResponseMember(TypedDict, total=False):
    member_id: Required[str]
    metadata: Required[bytes]
    group_instance_id: str | None  # versions 5 to 9


class JoinGroupResponse(TypedDict, total=False):
    error_code: Required[int]
    generation_id: int
    protocol_name: Required[str | None]
    leader: Required[str]
    member_id: Required[str]
    members: Required[Collection[JoinGroupResponseMember]]
    throttle_time: int  # versions 2 to 9
    protocol_type: str | None  # versions 7 to 9
    skip_assignment: bool  # version 9


class HeartbeatRequest:
    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None  # versions 3 to 4


class HeartbeatResponse(TypedDict, total=False):
    error_code: Required[int]
    throttle_time: int  # versions 1 to 4


class LeaveGroupRequestMemberIdentity:
    member_id: str
    group_instance_id: str | None
    reason: str | None  # version 5


class LeaveGroupRequest:
    group_id: str
    member_id: str  # versions 0 to 2
    members: tuple[LeaveGroupRequestMemberIdentity, ...]  # versions 3 to 5


class LeaveGroupResponseMember(TypedDict, total=False):
    member_id: Required[str]
    group_instance_id: Required[str | None]
    error_code: Required[int]


class LeaveGroupResponse(TypedDict, total=False):
    error_code: Required[int]
    throttle_time: int  # versions 1 to 5
    members: Collection[LeaveGroupResponseMember]  # versions 3 to 5


class SyncGroupRequestAssignment:
    member_id: str
    assignment: bytes


class SyncGroupRequest:
    group_id: str
    generation_id: int
    member_id: str
    assignments: tuple[SyncGroupRequestAssignment, ...]
    group_instance_id: str | None  # versions 3 to 5
    protocol_type: str | None  # version 5
    protocol_name: str | None  # version 5


class SyncGroupResponse(TypedDict, total=False):
    error_code: Required[int]
    assignment: Required[bytes]
    throttle_time: int  # versions 1 to 5
    protocol_type: str | None  # version 5
    protocol_name: str | None  # version 5


class DescribeGroupsRequest:
    groups: tuple[str, ...]
    include_authorized_operations: bool  # versions 3 to 6


class DescribeGroupsResponseDescribedGroupMember(TypedDict, total=False):
    member_id: Required[str]
    client_id: Required[str]
    client_host: Required[str]
    member_metadata: Required[bytes]
    member_assignment: Required[bytes]
    group_instance_id: str | None  # versions 4 to 6


class DescribeGroupsResponseDescribedGroup(TypedDict, total=False):
    error_code: Required[int]
    group_id: Required[str]
    group_state: Required[str]
    protocol_type: Required[str]
    protocol_data: Required[str]
    members: Required[Collection[DescribeGroupsResponseDescribedGroupMember]]
    authorized_operations: int  # versions 3 to 6
    error_message: str | None  # version 6


class DescribeGroupsResponse(TypedDict, total=False):
    groups: Required[Collection[DescribeGroupsResponseDescribedGroup]]
    throttle_time: int  # versions 1 to 6


class ListGroupsRequest:
    states_filter: tuple[str, ...]  # versions 4 to 5
    types_filter: tuple[str, ...]  # version 5


class ListGroupsResponseListedGroup(TypedDict, total=False):
    group_id: Required[str]
    protocol_type: Required[str]
    group_state: str  # versions 4 to 5
    group_type: str  # version 5


class ListGroupsResponse(TypedDict, total=False):
    error_code: Required[int]
    groups: Required[Collection[ListGroupsResponseListedGroup]]
    throttle_time: int  # versions 1 to 5


class DeleteGroupsRequest:
    groups_names: tuple[str, ...]


class DeleteGroupsResponseDeletableGroup(TypedDict, total=False):
    group_id: Required[str]
    error_code: Required[int]


class DeleteGroupsResponse(TypedDict, total=False):
    throttle_time: int
    results: Required[Collection[DeleteGroupsResponseDeletableGroup]]


class OffsetDeleteRequestPartition:
    partition_index: int


class OffsetDeleteRequestTopic:
    name: str
    partitions: tuple[OffsetDeleteRequestPartition, ...]


class OffsetDeleteRequest:
    group_id: str
    topics: tuple[OffsetDeleteRequestTopic, ...]


class OffsetDeleteResponsePartition(TypedDict, total=False):
    partition_index: Required[int]
    error_code: Required[int]


class OffsetDeleteResponseTopic(TypedDict, total=False):
    name: Required[str]
    partitions: Required[Collection[OffsetDeleteResponsePartition]]


class OffsetDeleteResponse(TypedDict, total=False):
    error_code: Required[int]
    throttle_time: int
    topics: Required[Collection[OffsetDeleteResponseTopic]]
