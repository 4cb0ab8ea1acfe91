"""Every version that ApiVersions announces is served; everything else gets what Kafka gives."""

import struct
from typing import Any
from uuid import UUID

import pytest

from shoal.lite.api.table import APIS
from shoal.wire.api_keys import OWN_KEYS, ApiKey
from shoal.wire.messages import decode_response, response_class
from support.lite.batches import batch_of
from support.lite.client import TIMEOUT_MS, PlainClient, at
from support.lite.clusters import eventually

ANY_ACL = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
}
# What a sound request gets where there is nothing to be had: no such group, no authorizer.
REFUSALS = {
    ApiKey.ADD_OFFSETS_TO_TXN: [42],
    ApiKey.END_TXN: [42],
    ApiKey.JOIN_GROUP: [26],
    ApiKey.HEARTBEAT: [25],
    ApiKey.LEAVE_GROUP: [25],
    ApiKey.SYNC_GROUP: [25],
    ApiKey.DESCRIBE_ACLS: [54],
    ApiKey.DELETE_GROUPS: [69],
    ApiKey.OFFSET_DELETE: [69],
    # There is no such broker, and a quorum of one has no other voter to lose or to double.
    ApiKey.UNREGISTER_BROKER: [102],
    ApiKey.ADD_RAFT_VOTER: [42],
    ApiKey.REMOVE_RAFT_VOTER: [42],
}
REQUESTS: dict[ApiKey, dict[str, Any]] = {
    ApiKey.LIST_OFFSETS: {
        "replica_id": -1,
        "isolation_level": 0,
        "topics": [{"name": "swept", "partitions": [{"partition_index": 0, "timestamp": -1}]}],
        "timeout": TIMEOUT_MS,
    },
    ApiKey.METADATA: {
        "topics": [{"name": "swept", "topic_id": None}],
        "allow_auto_topic_creation": False,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    },
    ApiKey.FIND_COORDINATOR: {"key": "g", "key_type": 0, "coordinator_keys": ["g"]},
    ApiKey.API_VERSIONS: {"client_software_name": "test", "client_software_version": "1"},
    ApiKey.CREATE_TOPICS: {"topics": [], "timeout": TIMEOUT_MS, "validate_only": True},
    ApiKey.DELETE_TOPICS: {"topics": [], "topic_names": [], "timeout": TIMEOUT_MS},
    ApiKey.DELETE_RECORDS: {
        "topics": [{"name": "swept", "partitions": [{"partition_index": 0, "offset": 0}]}],
        "timeout": TIMEOUT_MS,
    },
    ApiKey.INIT_PRODUCER_ID: {"transactional_id": None, "transaction_timeout": TIMEOUT_MS},
    ApiKey.OFFSET_FOR_LEADER_EPOCH: {
        "replica_id": -1,
        "topics": [{"topic": "swept", "partitions": [{"partition": 0, "leader_epoch": 0}]}],
    },
    ApiKey.DESCRIBE_CONFIGS: {
        "resources": [{"resource_type": 2, "resource_name": "swept", "configuration_keys": None}],
        "include_synonyms": True,
        "include_documentation": True,
    },
    ApiKey.CREATE_PARTITIONS: {
        "topics": [{"name": "swept", "count": 2, "assignments": None}],
        "timeout": TIMEOUT_MS,
        "validate_only": True,
    },
    ApiKey.INCREMENTAL_ALTER_CONFIGS: {
        "resources": [
            {
                "resource_type": 2,
                "resource_name": "swept",
                "configs": [{"name": "retention.ms", "config_operation": 0, "value": "5000"}],
            }
        ],
        "validate_only": False,
    },
    ApiKey.DESCRIBE_CLUSTER: {
        "include_cluster_authorized_operations": False,
        "include_fenced_brokers": False,
    },
    ApiKey.DESCRIBE_ACLS: ANY_ACL | {"operation": 1, "permission_type": 1},
    ApiKey.CREATE_ACLS: {"creations": []},
    ApiKey.DELETE_ACLS: {"filters": []},
    ApiKey.ALTER_CONFIGS: {"resources": [], "validate_only": True},
    ApiKey.ALTER_REPLICA_LOG_DIRS: {"dirs": []},
    ApiKey.DESCRIBE_LOG_DIRS: {"topics": None},
    ApiKey.ELECT_LEADERS: {"election_type": 0, "topic_partitions": None, "timeout": TIMEOUT_MS},
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: {
        "timeout": TIMEOUT_MS,
        "allow_replication_factor_change": True,
        "topics": [],
    },
    ApiKey.LIST_PARTITION_REASSIGNMENTS: {"timeout": TIMEOUT_MS, "topics": None},
    ApiKey.DESCRIBE_CLIENT_QUOTAS: {"components": [], "strict": False},
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: {"users": None},
    ApiKey.LIST_CONFIG_RESOURCES: {"resource_types": []},
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: {
        "topics": [{"name": "swept"}],
        "response_partition_limit": 10,
        "cursor": None,
    },
    ApiKey.ADD_PARTITIONS_TO_TXN: {
        "v3_and_below_transactional_id": "x",
        "v3_and_below_producer_id": 1,
        "v3_and_below_producer_epoch": 0,
        "v3_and_below_topics": [],
        "transactions": [],
    },
    ApiKey.ADD_OFFSETS_TO_TXN: {
        "transactional_id": "",
        "producer_id": 1,
        "producer_epoch": 0,
        "group_id": "g",
    },
    ApiKey.END_TXN: {
        "transactional_id": "",
        "producer_id": 1,
        "producer_epoch": 0,
        "committed": True,
    },
    ApiKey.TXN_OFFSET_COMMIT: {
        "transactional_id": "x",
        "group_id": "g",
        "producer_id": 1,
        "producer_epoch": 0,
        "generation_id": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": [],
    },
    ApiKey.WRITE_TXN_MARKERS: {"markers": []},
    ApiKey.UPDATE_FEATURES: {
        "timeout": TIMEOUT_MS,
        "feature_updates": [],
        "validate_only": True,
    },
    ApiKey.DESCRIBE_TRANSACTIONS: {"transactional_ids": []},
    ApiKey.LIST_TRANSACTIONS: {"state_filters": [], "producer_id_filters": []},
    ApiKey.OFFSET_COMMIT: {
        "group_id": "g",
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "retention_time": -1,
        "topics": [],
    },
    ApiKey.OFFSET_FETCH: {
        "group_id": "g",
        "topics": [{"name": "swept", "topic_id": None, "partition_indexes": [0]}],
        "groups": [{"group_id": "g", "member_id": None, "member_epoch": -1, "topics": None}],
        "require_stable": True,
    },
    ApiKey.JOIN_GROUP: {
        "group_id": "g",
        "session_timeout": TIMEOUT_MS,
        "rebalance_timeout": TIMEOUT_MS,
        "member_id": "",
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [],
        "reason": None,
    },
    ApiKey.HEARTBEAT: {
        "group_id": "g",
        "generation_id": 1,
        "member_id": "m",
        "group_instance_id": None,
    },
    ApiKey.LEAVE_GROUP: {
        "group_id": "g",
        "member_id": "m",
        "members": [{"member_id": "m", "group_instance_id": None, "reason": None}],
    },
    ApiKey.SYNC_GROUP: {
        "group_id": "g",
        "generation_id": 1,
        "member_id": "m",
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": [],
    },
    ApiKey.DESCRIBE_GROUPS: {"groups": [], "include_authorized_operations": False},
    ApiKey.LIST_GROUPS: {"states_filter": [], "types_filter": []},
    ApiKey.DELETE_GROUPS: {"groups_names": ["g"]},
    ApiKey.OFFSET_DELETE: {"group_id": "g", "topics": []},
    ApiKey.DESCRIBE_PRODUCERS: {"topics": [{"name": "swept", "partition_indexes": [0]}]},
    ApiKey.DESCRIBE_QUORUM: {
        "topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
    },
    ApiKey.UNREGISTER_BROKER: {"broker_id": 99},
    ApiKey.ADD_RAFT_VOTER: {
        "cluster_id": None,
        "timeout": TIMEOUT_MS,
        "voter_id": 100,
        "voter_directory_id": UUID(int=1),
        "listeners": [{"name": "CONTROLLER", "host": "localhost", "port": 1}],
    },
    ApiKey.REMOVE_RAFT_VOTER: {
        "cluster_id": None,
        "voter_id": 99,
        "voter_directory_id": UUID(int=1),
    },
}
HOT = {ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.COMPARE_AND_APPEND}


def errors_in(message: object) -> list[int]:
    """All error codes anywhere in a message."""
    if isinstance(message, tuple):
        return [code for item in message for code in errors_in(item)]
    if not hasattr(message, "__dataclass_fields__"):
        return []
    found = [
        code for name in message.__dataclass_fields__ for code in errors_in(getattr(message, name))
    ]
    code = getattr(message, "error_code", 0)
    return [*found, int(code)] if code else found


@pytest.fixture
def swept(client: PlainClient) -> None:
    known = client.request(ApiKey.METADATA, 4, topics=None, allow_auto_topic_creation=False)
    if "swept" not in {topic.name for topic in known.topics}:
        client.create_topic("swept")
    client.request(ApiKey.FIND_COORDINATOR, 0, key="g")
    eventually(lambda: client.request(ApiKey.LIST_GROUPS, 0).error_code == 0)


def test_the_sweep_covers_every_registered_api() -> None:
    assert REQUESTS.keys() | HOT == APIS.keys()


@pytest.mark.parametrize(
    ("key", "version"),
    [
        pytest.param(key, version, id=f"{key.name}-{version}")
        for key in REQUESTS
        for version in range(APIS[key].least, APIS[key].most + 1)
    ],
)
@pytest.mark.usefixtures("swept")
def test_every_version_is_served(client: PlainClient, key: ApiKey, version: int) -> None:
    response = client.request(key, version, **REQUESTS[key])
    assert errors_in(response) == REFUSALS.get(key, [])


@pytest.mark.parametrize("version", range(3, 13))
def test_every_version_of_produce(client: PlainClient, topic: str, version: int) -> None:
    answer = client.produce(topic, batch_of(b"a", b"b"), version=version)
    assert (answer.error_code, answer.base_offset) == (0, 0)
    assert answer.log_start_offset == (0 if version >= 5 else -1)


@pytest.mark.parametrize("version", range(4, 19))
def test_every_version_of_fetch(client: PlainClient, topic: str, version: int) -> None:
    batch = batch_of(b"a", b"b")
    client.produce(topic, batch)
    described = client.request(
        ApiKey.METADATA,
        12,
        topics=[{"name": topic, "topic_id": None}],
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    ).topics[0]
    wanted = at(topic, 0)._replace(topic_id=described.topic_id)
    response = client.fetch(wanted, version=version)
    [fetched] = response.partitions
    assert (response.error_code, response.session_id) == (0, 0)
    assert (fetched.error_code, fetched.high_watermark, fetched.last_stable_offset) == (0, 2, 2)
    assert fetched.records[21:] == batch[21:]


def test_api_versions_tells_what_is_registered(client: PlainClient) -> None:
    response = client.request(
        ApiKey.API_VERSIONS, 3, client_software_name="test", client_software_version="1"
    )
    ranges = {key.api_key: (key.min_version, key.max_version) for key in response.api_keys}
    assert ranges[ApiKey.PRODUCE] == (0, 12)
    assert ranges[ApiKey.FETCH] == (4, 18)
    assert ranges.keys() == APIS.keys() - OWN_KEYS


@pytest.mark.parametrize("version", [5, 99, 32767])
def test_an_unknown_version_of_api_versions_gets_a_response_of_version_0(
    client: PlainClient, version: int
) -> None:
    client.send_frame(struct.pack(">hhih", 18, version, 7, -1), b"\x00rubbish of the future")
    correlation_id, response = decode_response(
        client.receive_frame(), response_class(ApiKey.API_VERSIONS, 0)
    )
    assert correlation_id == 7
    assert response.error_code == 35
    [itself] = response.api_keys
    assert (itself.api_key, itself.min_version, itself.max_version) == (18, 0, 4)
    # The connection is still good for a version that is served.
    assert client.request(ApiKey.API_VERSIONS, 0).error_code == 0


def test_a_client_with_an_illegal_name_is_told(client: PlainClient) -> None:
    response = client.request(
        ApiKey.API_VERSIONS, 3, client_software_name="no spaces", client_software_version="1"
    )
    assert response.error_code == 42


@pytest.mark.parametrize(
    ("key", "version"), [(999, 0), (-1, 0), (16, 6), (4, 1), (0, 2), (0, 12), (1, 3), (3, 14)]
)
def test_an_unknown_api_or_version_costs_the_connection(
    client: PlainClient, key: int, version: int
) -> None:
    client.send_frame(struct.pack(">hhih", key, version, 1, -1), b"\x00" * 20)
    assert client.is_hung_up()
