"""Requests and answers for cluster: written by scripts/api_types.py.

Only the type checker uses this module. A decoded request is an instance of kio's class of its
version, and an answer is a dictionary that `ApiRequest.answer` encodes. A type has the fields of
all versions that are served; a comment names the versions of a field that not all of them have.
Times in answers are whole numbers of ms.
"""

import datetime as dt
from collections.abc import Collection
from typing import Required, TypedDict
from uuid import UUID


class ApiVersionsRequest:
    client_software_name: str  # versions 3 to 4
    client_software_version: str  # versions 3 to 4


class ApiVersionsResponseVersion(TypedDict, total=False):
    api_key: Required[int]
    min_version: Required[int]
    max_version: Required[int]


class ApiVersionsResponseSupportedFeatureKey(TypedDict, total=False):
    name: Required[str]
    min_version: Required[int]
    max_version: Required[int]


class ApiVersionsResponseFinalizedFeatureKey(TypedDict, total=False):
    name: Required[str]
    max_version_level: Required[int]
    min_version_level: Required[int]


class ApiVersionsResponse(TypedDict, total=False):
    error_code: Required[int]
    api_keys: Required[Collection[ApiVersionsResponseVersion]]
    throttle_time: int  # versions 1 to 4
    supported_features: Collection[ApiVersionsResponseSupportedFeatureKey]  # versions 3 to 4
    finalized_features_epoch: int  # versions 3 to 4
    finalized_features: Collection[ApiVersionsResponseFinalizedFeatureKey]  # versions 3 to 4
    zk_migration_ready: bool  # versions 3 to 4


class DescribeAclsRequest:
    resource_type_filter: int
    resource_name_filter: str | None
    pattern_type_filter: int
    principal_filter: str | None
    host_filter: str | None
    operation: int
    permission_type: int


class DescribeAclsResponseAclDescription(TypedDict, total=False):
    principal: Required[str]
    host: Required[str]
    operation: Required[int]
    permission_type: Required[int]


class DescribeAclsResponseResource(TypedDict, total=False):
    resource_type: Required[int]
    resource_name: Required[str]
    pattern_type: int
    acls: Required[Collection[DescribeAclsResponseAclDescription]]


class DescribeAclsResponse(TypedDict, total=False):
    throttle_time: int
    error_code: Required[int]
    error_message: Required[str | None]
    resources: Required[Collection[DescribeAclsResponseResource]]


class CreateAclsRequestAclCreation:
    resource_type: int
    resource_name: str
    resource_pattern_type: int
    principal: str
    host: str
    operation: int
    permission_type: int


class CreateAclsRequest:
    creations: tuple[CreateAclsRequestAclCreation, ...]


class CreateAclsResponseAclCreation(TypedDict, total=False):
    error_code: Required[int]
    error_message: Required[str | None]


class CreateAclsResponse(TypedDict, total=False):
    throttle_time: int
    results: Required[Collection[CreateAclsResponseAclCreation]]


class DeleteAclsRequestFilter:
    resource_type_filter: int
    resource_name_filter: str | None
    pattern_type_filter: int
    principal_filter: str | None
    host_filter: str | None
    operation: int
    permission_type: int


class DeleteAclsRequest:
    filters: tuple[DeleteAclsRequestFilter, ...]


class DeleteAclsResponseMatchingAcl(TypedDict, total=False):
    error_code: Required[int]
    error_message: Required[str | None]
    resource_type: Required[int]
    resource_name: Required[str]
    pattern_type: int
    principal: Required[str]
    host: Required[str]
    operation: Required[int]
    permission_type: Required[int]


class DeleteAclsResponseFilter(TypedDict, total=False):
    error_code: Required[int]
    error_message: Required[str | None]
    matching_acls: Required[Collection[DeleteAclsResponseMatchingAcl]]


class DeleteAclsResponse(TypedDict, total=False):
    throttle_time: int
    filter_results: Required[Collection[DeleteAclsResponseFilter]]


class DescribeConfigsRequestResource:
    resource_type: int
    resource_name: str
    configuration_keys: tuple[str, ...] | None


class DescribeConfigsRequest:
    resources: tuple[DescribeConfigsRequestResource, ...]
    include_synonyms: bool
    include_documentation: bool  # versions 3 to 4


class DescribeConfigsResponseSynonym(TypedDict, total=False):
    name: Required[str]
    value: Required[str | None]
    source: Required[int]


class DescribeConfigsResponseResource(TypedDict, total=False):
    name: Required[str]
    value: Required[str | None]
    read_only: Required[bool]
    config_source: int
    is_sensitive: Required[bool]
    synonyms: Required[Collection[DescribeConfigsResponseSynonym]]
    config_type: int  # versions 3 to 4
    documentation: str | None  # versions 3 to 4


class DescribeConfigsResponseResult(TypedDict, total=False):
    error_code: Required[int]
    error_message: Required[str | None]
    resource_type: Required[int]
    resource_name: Required[str]
    configs: Required[Collection[DescribeConfigsResponseResource]]


class DescribeConfigsResponse(TypedDict, total=False):
    throttle_time: int
    results: Required[Collection[DescribeConfigsResponseResult]]


class AlterConfigsRequestAlterableConfig:
    name: str
    value: str | None


class AlterConfigsRequestResource:
    resource_type: int
    resource_name: str
    configs: tuple[AlterConfigsRequestAlterableConfig, ...]


class AlterConfigsRequest:
    resources: tuple[AlterConfigsRequestResource, ...]
    validate_only: bool


class AlterConfigsResponseResource(TypedDict, total=False):
    error_code: Required[int]
    error_message: Required[str | None]
    resource_type: Required[int]
    resource_name: Required[str]


class AlterConfigsResponse(TypedDict, total=False):
    throttle_time: int
    responses: Required[Collection[AlterConfigsResponseResource]]


class IncrementalAlterConfigsRequestAlterableConfig:
    name: str
    config_operation: int
    value: str | None


class IncrementalAlterConfigsRequestResource:
    resource_type: int
    resource_name: str
    configs: tuple[IncrementalAlterConfigsRequestAlterableConfig, ...]


class IncrementalAlterConfigsRequest:
    resources: tuple[IncrementalAlterConfigsRequestResource, ...]
    validate_only: bool


class IncrementalAlterConfigsResponseResource(TypedDict, total=False):
    error_code: Required[int]
    error_message: Required[str | None]
    resource_type: Required[int]
    resource_name: Required[str]


class IncrementalAlterConfigsResponse(TypedDict, total=False):
    throttle_time: int
    responses: Required[Collection[IncrementalAlterConfigsResponseResource]]


class DescribeClientQuotasRequestComponentData:
    entity_type: str
    match_type: int
    match: str | None


class DescribeClientQuotasRequest:
    components: tuple[DescribeClientQuotasRequestComponentData, ...]
    strict: bool


class DescribeClientQuotasResponseEntityData(TypedDict, total=False):
    entity_type: Required[str]
    entity_name: Required[str | None]


class DescribeClientQuotasResponseValueData(TypedDict, total=False):
    key: Required[str]
    value: Required[float]


class DescribeClientQuotasResponseEntryData(TypedDict, total=False):
    entity: Required[Collection[DescribeClientQuotasResponseEntityData]]
    values: Required[Collection[DescribeClientQuotasResponseValueData]]


class DescribeClientQuotasResponse(TypedDict, total=False):
    throttle_time: int
    error_code: Required[int]
    error_message: Required[str | None]
    entries: Required[Collection[DescribeClientQuotasResponseEntryData] | None]


class DescribeUserScramCredentialsRequestName:
    name: str


class DescribeUserScramCredentialsRequest:
    users: tuple[DescribeUserScramCredentialsRequestName, ...] | None


class DescribeUserScramCredentialsResponseCredentialInfo(TypedDict, total=False):
    mechanism: Required[int]
    iterations: Required[int]


class DescribeUserScramCredentialsResponseResult(TypedDict, total=False):
    user: Required[str]
    error_code: Required[int]
    error_message: Required[str | None]
    credential_infos: Required[Collection[DescribeUserScramCredentialsResponseCredentialInfo]]


class DescribeUserScramCredentialsResponse(TypedDict, total=False):
    throttle_time: int
    error_code: Required[int]
    error_message: Required[str | None]
    results: Required[Collection[DescribeUserScramCredentialsResponseResult]]


class DescribeQuorumRequestPartitionData:
    partition_index: int


class DescribeQuorumRequestTopicData:
    topic_name: str
    partitions: tuple[DescribeQuorumRequestPartitionData, ...]


class DescribeQuorumRequest:
    topics: tuple[DescribeQuorumRequestTopicData, ...]


class DescribeQuorumResponseReplicaState(TypedDict, total=False):
    replica_id: Required[int]
    log_end_offset: Required[int]
    last_fetch_timestamp: int  # versions 1 to 2
    last_caught_up_timestamp: int  # versions 1 to 2
    replica_directory_id: UUID | None  # version 2


class DescribeQuorumResponsePartitionData(TypedDict, total=False):
    partition_index: Required[int]
    error_code: Required[int]
    leader_id: Required[int]
    leader_epoch: Required[int]
    high_watermark: Required[int]
    current_voters: Required[Collection[DescribeQuorumResponseReplicaState]]
    observers: Required[Collection[DescribeQuorumResponseReplicaState]]
    error_message: str | None  # version 2


class DescribeQuorumResponseTopicData(TypedDict, total=False):
    topic_name: Required[str]
    partitions: Required[Collection[DescribeQuorumResponsePartitionData]]


class DescribeQuorumResponseListener(TypedDict, total=False):
    name: Required[str]
    host: Required[str]
    port: Required[int]


class DescribeQuorumResponseNode(TypedDict, total=False):
    node_id: Required[int]
    listeners: Required[Collection[DescribeQuorumResponseListener]]


class DescribeQuorumResponse(TypedDict, total=False):
    error_code: Required[int]
    topics: Required[Collection[DescribeQuorumResponseTopicData]]
    error_message: str | None  # version 2
    nodes: Collection[DescribeQuorumResponseNode]  # version 2


class UpdateFeaturesRequestFeatureUpdateKey:
    feature: str
    max_version_level: int
    allow_downgrade: bool  # version 0
    upgrade_type: int  # versions 1 to 2


class UpdateFeaturesRequest:
    timeout: dt.timedelta
    feature_updates: tuple[UpdateFeaturesRequestFeatureUpdateKey, ...]
    validate_only: bool  # versions 1 to 2


class UpdateFeaturesResponseUpdatableFeature(TypedDict, total=False):
    feature: Required[str]
    error_code: Required[int]
    error_message: Required[str | None]


class UpdateFeaturesResponse(TypedDict, total=False):
    throttle_time: int
    error_code: Required[int]
    error_message: Required[str | None]
    results: Collection[UpdateFeaturesResponseUpdatableFeature]  # versions 0 to 1


class DescribeClusterRequest:
    include_cluster_authorized_operations: bool
    endpoint_type: int  # versions 1 to 2
    include_fenced_brokers: bool  # version 2


class DescribeClusterResponseBroker(TypedDict, total=False):
    broker_id: Required[int]
    host: Required[str]
    port: Required[int]
    rack: str | None
    is_fenced: bool  # version 2


class DescribeClusterResponse(TypedDict, total=False):
    throttle_time: int
    error_code: Required[int]
    error_message: str | None
    cluster_id: Required[str]
    controller_id: int
    brokers: Required[Collection[DescribeClusterResponseBroker]]
    cluster_authorized_operations: int
    endpoint_type: int  # versions 1 to 2


class UnregisterBrokerRequest:
    broker_id: int


class UnregisterBrokerResponse(TypedDict, total=False):
    throttle_time: int
    error_code: Required[int]
    error_message: Required[str | None]


class ListConfigResourcesRequest:
    resource_types: tuple[int, ...]  # version 1


class ListConfigResourcesResponseResource(TypedDict, total=False):
    resource_name: Required[str]
    resource_type: int  # version 1


class ListConfigResourcesResponse(TypedDict, total=False):
    throttle_time: int
    error_code: Required[int]
    config_resources: Required[Collection[ListConfigResourcesResponseResource]]


class AddRaftVoterRequestListener:
    name: str
    host: str
    port: int


class AddRaftVoterRequest:
    cluster_id: str | None
    timeout: dt.timedelta
    voter_id: int
    voter_directory_id: UUID | None
    listeners: tuple[AddRaftVoterRequestListener, ...]
    ack_when_committed: bool  # version 1


class AddRaftVoterResponse(TypedDict, total=False):
    throttle_time: int
    error_code: Required[int]
    error_message: Required[str | None]


class RemoveRaftVoterRequest:
    cluster_id: str | None
    voter_id: int
    voter_directory_id: UUID | None


class RemoveRaftVoterResponse(TypedDict, total=False):
    throttle_time: int
    error_code: Required[int]
    error_message: Required[str | None]
