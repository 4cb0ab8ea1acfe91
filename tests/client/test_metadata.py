"""The metadata cache and version negotiation, without a socket."""

import uuid
from typing import Any

import pytest

from shoal.client.cluster.metadata import (
    RECENT_ANSWERS,
    BrokerAddress,
    ClusterMetadata,
    MetadataCache,
    MetadataReader,
    PartitionMetadata,
    TopicMetadata,
    from_response,
)
from shoal.client.codes import Code
from shoal.client.errors import KafkaError, UnsupportedByBroker
from shoal.client.transport.versions import BrokerVersions, Negotiation
from shoal.model.topics import TopicPartition
from shoal.wire.api_keys import ApiKey
from shoal.wire.building import build
from shoal.wire.errors import Truncated
from shoal.wire.messages import encode_response, response_class, schema_versions

TP = TopicPartition("t", 0)
ID, OTHER_ID = uuid.UUID(int=1), uuid.UUID(int=2)
BROKERS = {1: BrokerAddress(1, "a", 1), 2: BrokerAddress(2, "b", 2)}


def cluster(leader: int, epoch: int = 0, topic_id: uuid.UUID | None = ID) -> ClusterMetadata:
    topic = TopicMetadata("t", topic_id, partitions={0: PartitionMetadata(leader, epoch)})
    return ClusterMetadata("c", 1, BROKERS, {"t": topic})


def test_a_leader_is_one_whose_address_is_known() -> None:
    assert cluster(leader=2).leader(TP) == 2
    assert cluster(leader=3).leader(TP) is None
    assert cluster(leader=-1).leader(TP) is None
    assert cluster(leader=1).leader(TopicPartition("t", 1)) is None


def test_why_there_is_no_leader() -> None:
    assert cluster(leader=-1).leader_error(TP) == Code.LEADER_NOT_AVAILABLE
    assert cluster(leader=1).leader_error(TopicPartition("t", 9)) == Code.UNKNOWN_TOPIC_OR_PARTITION
    refused = TopicMetadata("t", error=Code.TOPIC_AUTHORIZATION_FAILED)
    assert (
        ClusterMetadata(topics={"t": refused}).leader_error(TP) == Code.TOPIC_AUTHORIZATION_FAILED
    )


def test_a_broker_that_lags_behind_takes_no_leader_back() -> None:
    cache = MetadataCache(max_age_s=300)
    cache.update(cluster(leader=2, epoch=5), now=0)
    cache.update(cluster(leader=1, epoch=4), now=1)
    assert cache.current.leader(TP) == 2
    cache.update(cluster(leader=1, epoch=6), now=2)
    assert cache.current.leader(TP) == 1


def test_a_topic_made_again_is_another_topic() -> None:
    cache = MetadataCache(max_age_s=300)
    cache.update(cluster(leader=2, epoch=5), now=0)
    cache.update(cluster(leader=1, epoch=0, topic_id=OTHER_ID), now=1)
    assert cache.current.leader(TP) == 1


def test_what_is_covered_by_age_and_trust() -> None:
    cache = MetadataCache(max_age_s=10)
    assert not cache.covers([], now=0)
    cache.update(cluster(leader=1), now=100)
    assert cache.covers(["t"], now=109)
    assert not cache.covers(["t"], now=111)
    assert not cache.covers(["other"], now=101)
    cache.invalidate()
    assert not cache.covers([], now=101)
    cache.update(ClusterMetadata("c", 1, BROKERS), now=102)
    assert cache.covers(["t"], now=103), "topics that an answer leaves out stay known"


@pytest.mark.parametrize("now", [1, 299, 300, 301, 1e6])
def test_a_topic_never_asked_for_is_not_covered_however_young_the_clock(now: float) -> None:
    # The clock of a machine begins when the machine does.
    cache = MetadataCache(max_age_s=300)
    cache.update(cluster(leader=1), now=now)
    assert cache.covers(["t"], now)
    assert not cache.covers(["other"], now)
    cache.forget(["t"])
    assert not cache.covers(["t"], now), "what was forgotten is asked for again"


def test_forgotten_topics_are_not_asked_for() -> None:
    cache = MetadataCache(max_age_s=10)
    cache.add_topics(["t", "u"])
    cache.update(cluster(leader=1), now=0)
    cache.forget(["t"])
    assert cache.wanted == {"u"}
    assert "t" not in cache.current.topics


@pytest.mark.parametrize("version", range(1, 14))
def test_a_response_of_every_version_is_read(version: int) -> None:
    cls = response_class(ApiKey.METADATA, version)
    partition = {
        "error_code": Code.NONE,
        "partition_index": 3,
        "leader_id": 2,
        "leader_epoch": 7,
        "replica_nodes": (2, 1),
        "isr_nodes": (2,),
        "offline_replicas": (1,),
    }
    topic = {
        "error_code": Code.NONE,
        "name": "t",
        "topic_id": ID,
        "is_internal": True,
        "partitions": [partition],
    }
    values = {
        "throttle_time": 0,
        "brokers": [{"node_id": 2, "host": "b", "port": 99, "rack": None}],
        "cluster_id": "c",
        "controller_id": 2,
        "topics": [topic],
        "error_code": Code.NONE,
    }
    read = from_response(build(cls, values))
    assert read.brokers == {2: BrokerAddress(2, "b", 99)}
    assert read.controller_id == 2
    known = read.topics["t"]
    assert known.topic_id == (ID if version >= 10 else None)
    assert known.partitions[3].replicas == (2, 1)
    assert known.partitions[3].isr == (2,)
    assert known.partitions[3].leader_epoch == (7 if version >= 7 else -1)
    assert read.leader(TopicPartition("t", 3)) == 2


def metadata_frame(leader_epoch: int, *, correlation_id: int, version: int = 9) -> memoryview:
    partition = {
        "error_code": Code.NONE,
        "partition_index": 0,
        "leader_id": 1,
        "leader_epoch": leader_epoch,
        "replica_nodes": (1,),
        "isr_nodes": (1,),
        "offline_replicas": (),
    }
    topic = {"error_code": Code.NONE, "name": "t", "is_internal": False, "partitions": [partition]}
    values = {
        "throttle_time": 0,
        "brokers": [{"node_id": 1, "host": "b", "port": 9, "rack": None}],
        "cluster_id": "c",
        "controller_id": 1,
        "topics": [topic],
    }
    cls = response_class(ApiKey.METADATA, version)
    return memoryview(encode_response(build(cls, values), correlation_id=correlation_id))


def test_an_unchanged_response_is_not_decoded_again() -> None:
    reader = MetadataReader()
    first = reader.read(metadata_frame(1, correlation_id=1), 9)
    assert reader.read(metadata_frame(1, correlation_id=2), 9) is first
    changed = reader.read(metadata_frame(2, correlation_id=3), 9)
    assert changed.topics["t"].partitions[0].leader_epoch == 2
    other_version = metadata_frame(2, correlation_id=3, version=8)
    assert reader.read(other_version, 8) == changed


def test_an_old_response_that_is_repeated_replaces_no_newer_leader() -> None:
    reader, cache = MetadataReader(), MetadataCache(300)
    old = metadata_frame(1, correlation_id=1)
    for frame in (old, metadata_frame(2, correlation_id=2), old):
        cache.update(reader.read(frame, 9), 0.0)
    assert cache.current.topics["t"].partitions[0].leader_epoch == 2


def test_only_recent_responses_are_kept() -> None:
    reader = MetadataReader()
    first = reader.read(metadata_frame(0, correlation_id=0), 9)
    for epoch in range(1, RECENT_ANSWERS + 1):
        reader.read(metadata_frame(epoch, correlation_id=epoch), 9)
    again = reader.read(metadata_frame(0, correlation_id=9), 9)
    assert again is not first
    assert again == first


def api_versions(
    version: int, code: int, ranges: dict[int, tuple[int, int]], **more: Any
) -> memoryview:
    cls = response_class(ApiKey.API_VERSIONS, version)
    keys = [
        {"api_key": key, "min_version": low, "max_version": high}
        for key, (low, high) in ranges.items()
    ]
    from kio.schema.errors import ErrorCode

    values = {"error_code": ErrorCode(code), "api_keys": keys, "throttle_time": 0} | more
    return memoryview(encode_response(build(cls, values), correlation_id=1))


def test_a_modern_broker_is_asked_once() -> None:
    negotiation = Negotiation()
    assert negotiation.request_version == 4
    features = [{"name": "transaction.version", "max_version_level": 2, "min_version_level": 0}]
    negotiation.on_response(
        api_versions(4, 0, {0: (0, 13), 3: (0, 13)}, finalized_features=features)
    )
    assert negotiation.result is not None
    assert negotiation.result.ranges[0] == (0, 13)
    assert negotiation.result.transaction_version == 2


def test_an_older_broker_answers_in_version_0_and_is_asked_again() -> None:
    negotiation = Negotiation()
    negotiation.on_response(api_versions(0, 35, {18: (0, 2)}))
    assert negotiation.result is None
    assert negotiation.request_version == 2
    negotiation.on_response(api_versions(2, 0, {18: (0, 2), 1: (0, 10)}))
    assert negotiation.result == BrokerVersions({18: (0, 2), 1: (0, 10)})


@pytest.mark.parametrize("refusal", [api_versions(0, 35, {}), api_versions(3, 35, {18: (0, 2)})])
def test_a_refusal_that_lists_nothing_readable_means_version_0(refusal: memoryview) -> None:
    negotiation = Negotiation()
    negotiation.on_response(refusal)
    assert negotiation.request_version == 0


def test_a_broker_that_refuses_twice_is_an_error() -> None:
    negotiation = Negotiation()
    negotiation.on_response(api_versions(0, 35, {}))
    with pytest.raises(KafkaError, match="refuses the ApiVersions request"):
        negotiation.on_response(api_versions(0, 35, {}))


def test_an_answer_without_a_code_is_an_error() -> None:
    with pytest.raises(Truncated):
        Negotiation().on_response(memoryview(b"\0\0\0\1\0"))


def test_the_newest_version_of_both_within_bounds() -> None:
    versions = BrokerVersions({1: (4, 17), 3: (0, 99), 26: (9, 9)})
    assert versions.newest(ApiKey.FETCH) == 17
    assert versions.newest(ApiKey.FETCH, at_most=12) == 12
    assert versions.newest(ApiKey.METADATA) == schema_versions(ApiKey.METADATA)[1]
    with pytest.raises(UnsupportedByBroker, match="does not serve PRODUCE"):
        versions.newest(ApiKey.PRODUCE)
    with pytest.raises(UnsupportedByBroker, match="versions 9 to 9, this client needs 0 to 5"):
        versions.newest(ApiKey.END_TXN)
