"""Well-formed requests that ask for something absent, forbidden or twice.

Every expected answer is that of Apache Kafka 4.3.1 to the same request.
"""

from typing import Any
from uuid import UUID

import pytest

from shoal.wire.api_keys import ApiKey
from shoal.wire.error_codes import Code
from shoal.wire.fetch import FetchPartition
from support.lite.batches import batch_of
from support.lite.client import TIMEOUT_MS, PlainClient
from support.lite.clusters import eventually

GROUP = "group"
NO_PARTITION = pytest.mark.parametrize("index", [-1, 1, 2**31 - 1])


@pytest.fixture
def coordinator(client: PlainClient) -> PlainClient:
    """The client, once the broker coordinates groups."""

    def is_loaded() -> bool:
        client.request(ApiKey.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=[GROUP])
        answer = client.request(
            ApiKey.OFFSET_FETCH, 7, group_id=GROUP, topics=None, require_stable=False
        )
        return bool(answer.error_code == Code.NONE)

    eventually(is_loaded)
    return client


def commit(client: PlainClient, topic: str, *indexes: int) -> list[int]:
    answer = client.request(
        ApiKey.OFFSET_COMMIT,
        8,
        group_id=GROUP,
        generation_id_or_member_epoch=-1,
        member_id="",
        group_instance_id=None,
        topics=[
            {
                "name": topic,
                "partitions": [
                    {
                        "partition_index": index,
                        "committed_offset": 5,
                        "committed_leader_epoch": -1,
                        "committed_metadata": "",
                    }
                    for index in indexes
                ],
            }
        ],
    )
    return [partition.error_code for partition in answer.topics[0].partitions]


def committed(client: PlainClient) -> set[tuple[str, int]]:
    answer = client.request(
        ApiKey.OFFSET_FETCH, 7, group_id=GROUP, topics=None, require_stable=False
    )
    return {
        (topic.name, partition.partition_index)
        for topic in answer.topics
        for partition in topic.partitions
    }


# Groups


@NO_PARTITION
def test_no_offset_is_committed_for_a_partition_that_does_not_exist(
    coordinator: PlainClient, topic: str, index: int
) -> None:
    codes = commit(coordinator, topic, index, 0)
    assert codes == [Code.UNKNOWN_TOPIC_OR_PARTITION, Code.NONE]
    assert (topic, 0) in committed(coordinator)
    assert (topic, index) not in committed(coordinator)


@NO_PARTITION
def test_nor_in_a_transaction(coordinator: PlainClient, topic: str, index: int) -> None:
    partition = {
        "partition_index": index,
        "committed_offset": 5,
        "committed_leader_epoch": -1,
        "committed_metadata": "",
    }
    answer = coordinator.request(
        ApiKey.TXN_OFFSET_COMMIT,
        2,
        transactional_id="id",
        group_id=GROUP,
        producer_id=1,
        producer_epoch=0,
        topics=[{"name": topic, "partitions": [partition]}],
    )
    code = answer.topics[0].partitions[0].error_code
    assert code == Code.UNKNOWN_TOPIC_OR_PARTITION


@NO_PARTITION
def test_its_offset_cannot_be_deleted(coordinator: PlainClient, topic: str, index: int) -> None:
    commit(coordinator, topic, 0)
    assert delete_offsets(coordinator, GROUP, topic, index) == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert delete_offsets(coordinator, GROUP, topic, 0) == Code.NONE


def test_a_group_without_a_name_has_no_offsets(coordinator: PlainClient, topic: str) -> None:
    assert delete_offsets(coordinator, "", topic, 0) == Code.INVALID_GROUP_ID


@pytest.mark.parametrize(
    ("protocol_type", "code"),
    [("consumer", Code.GROUP_SUBSCRIBED_TO_TOPIC), ("connect", Code.NON_EMPTY_GROUP)],
)
def test_unreadable_subscriptions_are_to_every_topic(
    coordinator: PlainClient, topic: str, protocol_type: str, code: Code
) -> None:
    group = f"{protocol_type}-{topic}"
    answer = coordinator.request(
        ApiKey.JOIN_GROUP,
        3,
        group_id=group,
        session_timeout=10_000,
        rebalance_timeout=10_000,
        member_id="",
        protocol_type=protocol_type,
        protocols=[{"name": "any", "metadata": b"?"}],
    )
    assert answer.error_code == Code.NONE
    assert delete_offsets(coordinator, group, topic, 0) == code


def delete_offsets(client: PlainClient, group: str, topic: str, index: int) -> int:
    """The error code of the request, or else of the partition."""
    answer = client.request(
        ApiKey.OFFSET_DELETE,
        0,
        group_id=group,
        topics=[{"name": topic, "partitions": [{"partition_index": index}]}],
    )
    if answer.error_code or not answer.topics:
        return int(answer.error_code)
    return int(answer.topics[0].partitions[0].error_code)


# Transactions


def test_clients_add_no_internal_topics_to_transactions(
    coordinator: PlainClient, topic: str
) -> None:
    answer = coordinator.request(
        ApiKey.ADD_PARTITIONS_TO_TXN,
        3,
        v3_and_below_transactional_id="id",
        v3_and_below_producer_id=1,
        v3_and_below_producer_epoch=0,
        v3_and_below_topics=[
            {"name": "__consumer_offsets", "partitions": [0]},
            {"name": topic, "partitions": [0]},
        ],
    )
    codes = {
        one.name: one.results_by_partition[0].partition_error_code
        for one in answer.results_by_topic_v3_and_below
    }
    assert codes == {
        "__consumer_offsets": Code.TOPIC_AUTHORIZATION_FAILED,
        topic: Code.OPERATION_NOT_ATTEMPTED,
    }


# Topics and configs


def test_the_replicas_of_a_partition_are_assigned_once(client: PlainClient) -> None:
    topic = {
        "name": "assigned",
        "num_partitions": -1,
        "replication_factor": -1,
        "assignments": [{"partition_index": 0, "broker_ids": [1]}] * 2,
        "configs": [],
    }
    answer = client.request(ApiKey.CREATE_TOPICS, 5, topics=[topic], timeout=TIMEOUT_MS)
    assert answer.topics[0].error_code == Code.INVALID_REPLICA_ASSIGNMENT


def test_an_empty_list_of_names_means_all_configs(client: PlainClient, topic: str) -> None:
    def count(keys: list[str] | None) -> int:
        resource = {"resource_type": 2, "resource_name": topic, "configuration_keys": keys}
        answer = client.request(ApiKey.DESCRIBE_CONFIGS, 1, resources=[resource])
        return len(answer.results[0].configs)

    assert count([]) == count(None) > 1
    assert count(["retention.ms"]) == 1


@pytest.mark.parametrize("key", [ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS])
def test_a_resource_is_named_once(client: PlainClient, topic: str, key: ApiKey) -> None:
    config: dict[str, Any] = {"name": "retention.ms", "value": "5"}
    if key == ApiKey.INCREMENTAL_ALTER_CONFIGS:
        config["config_operation"] = 0
    resource = {"resource_type": 2, "resource_name": topic, "configs": [config]}
    answer = client.request(key, 1, resources=[resource, resource], validate_only=False)
    assert {one.error_code for one in answer.responses} == {Code.INVALID_REQUEST}


def test_policies_may_be_separated_by_blanks(client: PlainClient) -> None:
    client.create_topic("blanks", cleanup_policy="delete, compact")
    assert client.produce("blanks", batch_of(b"no key")).error_code == Code.INVALID_RECORD


# Positions


def test_a_topic_is_described_once(client: PlainClient, topic: str) -> None:
    answer = client.request(
        ApiKey.METADATA, 4, topics=[{"name": topic}] * 2, allow_auto_topic_creation=False
    )
    assert [one.name for one in answer.topics] == [topic]


def test_an_offset_is_listed_once(client: PlainClient, topic: str) -> None:
    wanted = [{"partition_index": 0, "timestamp": time} for time in (-1, -2)]
    answer = client.request(
        ApiKey.LIST_OFFSETS, 1, replica_id=-1, topics=[{"name": topic, "partitions": wanted}]
    )
    codes = {partition.error_code for partition in answer.topics[0].partitions}
    assert codes == {Code.INVALID_REQUEST}


def test_a_fetch_without_a_topic_id_is_answered(client: PlainClient) -> None:
    answer = client.fetch(FetchPartition("", UUID(int=0), 0, 0, 1 << 20), version=13)
    assert [one.error_code for one in answer.partitions] == [Code.UNKNOWN_TOPIC_ID]
