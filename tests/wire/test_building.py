"""One description in plain values makes a message of every version."""

import datetime as dt
from typing import Any

import pytest

from shoal.wire.api_keys import ApiKey
from shoal.wire.building import build
from shoal.wire.messages import decode_body, encode_response, request_class, response_class


def test_each_version_takes_the_fields_that_it_knows() -> None:
    values = {"key": "k", "coordinator_keys": ["k"], "key_type": 1}
    classes = [request_class(ApiKey.FIND_COORDINATOR, version) for version in range(7)]
    requests = [build(cls, values) for cls in classes]
    assert [type(request) for request in requests] == classes
    assert requests[0].key == "k"
    assert requests[4].coordinator_keys == ("k",)
    assert not hasattr(requests[4], "key")


def test_times_are_whole_milliseconds() -> None:
    cls = request_class(ApiKey.INIT_PRODUCER_ID, 2)
    request = build(cls, {"transactional_id": None, "transaction_timeout": 1500})
    assert request.transaction_timeout == dt.timedelta(seconds=1.5)


@pytest.mark.parametrize("version", [1, 8, 12])
def test_structures_and_arrays_of_them_are_built_too(version: int) -> None:
    partition: dict[str, Any] = {"partition_index": 3, "leader_id": 1, "replica_nodes": [1, 2]}
    partition |= {"error_code": 0, "isr_nodes": [], "offline_replicas": [], "leader_epoch": 7}
    topic = {"name": "t", "topic_id": None, "is_internal": False, "partitions": [partition]}
    values = {
        "throttle_time": 0,
        "brokers": [{"node_id": 1, "host": "h", "port": 9, "rack": None}],
        "cluster_id": None,
        "controller_id": 1,
        "topics": [topic | {"error_code": 0}],
        "cluster_authorized_operations": 0,
    }
    cls = response_class(ApiKey.METADATA, version)
    data = encode_response(build(cls, values), correlation_id=1)
    read = decode_body(data, cls, 4 + (version >= 9))
    assert (read.topics[0].name, read.brokers[0].host) == ("t", "h")
    assert read.topics[0].partitions[0].replica_nodes == (1, 2)


def test_null_stays_null_and_a_missing_field_is_said() -> None:
    cls = request_class(ApiKey.METADATA, 4)
    assert build(cls, {"topics": None, "allow_auto_topic_creation": True}).topics is None
    with pytest.raises(TypeError, match="member_id"):
        build(request_class(ApiKey.HEARTBEAT, 0), {"group_id": "g", "generation_id": 1})
