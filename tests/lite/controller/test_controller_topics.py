"""Topics and settings: wishes become records, records become state, and survive the process."""

from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.metadata.data import requests
from shoal.lite.metadata.data.records import (
    BrokerRecord,
    BrokerRemovedRecord,
    ClusterRecord,
    ConfigRecord,
    PartitionRecord,
    ProducerIdsRecord,
    Record,
    SnapshotEndRecord,
    TopicRecord,
    TopicRemovedRecord,
    UnknownRecord,
    decode_record,
    encode_record,
)
from shoal.lite.metadata.data.requests import ConfigEdit, NewTopicSpec
from shoal.lite.metadata.data.state import ClusterState
from shoal.lite.metadata.rules import commands

TOPIC_ID = UUID(int=7)
RECORDS: list[Record] = [
    ClusterRecord("c"),
    BrokerRecord(1, "incarnation", "localhost", 9092),
    TopicRecord(TOPIC_ID, "t"),
    PartitionRecord(TOPIC_ID, 0, (1, 2), (1,), 1, 3, 4),
    TopicRemovedRecord(TOPIC_ID),
    ConfigRecord("topic", "t", "retention.ms", "5"),
    ConfigRecord("topic", "t", "retention.ms", None),
    ProducerIdsRecord(1000),
    BrokerRecord(2, "x", "h", 1, 5, "rack", "boot", "folder", fenced=True, shutting_down=True),
    BrokerRemovedRecord(2),
    PartitionRecord(
        TOPIC_ID, 1, (1, 2, 3), (), -1, 3, 4, (2,), (3,), (1,), (3,), (1, 3), recovering=True
    ),
    SnapshotEndRecord(77),
]


def state_of(*records: Record) -> ClusterState:
    state = ClusterState()
    for record in records:
        state.apply(record)
    return state


def cluster_of(brokers: int) -> ClusterState:
    return state_of(*[BrokerRecord(i, "x", "localhost", 9000 + i) for i in range(1, brokers + 1)])


def refusal(wanted: NewTopicSpec, *, brokers: int = 1) -> Code:
    with pytest.raises(ApiError) as refused:
        commands.create_topic(cluster_of(brokers), wanted, uuid4())
    return refused.value.code


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.type)
def test_records_survive_their_bytes(record: Record) -> None:
    assert decode_record(encode_record(record)) == record


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"type":"news","version":1}',
        b'{"type":"cluster","version":2,"cluster_id":"c"}',
        b'{"type":"cluster","version":1}',
    ],
)
def test_unknown_records_are_refused(data: bytes) -> None:
    with pytest.raises(UnknownRecord):
        decode_record(data)


def test_a_record_with_more_or_less_than_its_version_has_is_refused() -> None:
    with pytest.raises(UnknownRecord, match=r"'cluster' record .* has the unknown field 'colour'"):
        decode_record(b'{"type":"cluster","version":1,"cluster_id":"c","colour":"blue"}')
    with pytest.raises(UnknownRecord, match=r"'cluster' record .* lacks the field 'cluster_id'"):
        decode_record(b'{"type":"cluster","version":1}')


def test_topics_come_and_go() -> None:
    state = cluster_of(1)
    wanted = NewTopicSpec("t", 2, 1, configs={"retention.ms": "5"})
    for record in commands.create_topic(state, wanted, TOPIC_ID):
        state.apply(record)
    assert state.topics["t"].partitions.keys() == {0, 1}
    assert state.topic_configs("t") == {"retention.ms": "5"}
    for record in commands.create_partitions(state, "t", 3, None):
        state.apply(record)
    assert state.topics["t"].partitions.keys() == {0, 1, 2}
    for record in commands.delete_topic(state, TOPIC_ID):
        state.apply(record)
    assert not state.topics
    assert not state.topic_names
    assert state.topic_configs("t") == {}


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        (NewTopicSpec("", 1, 1), Code.INVALID_TOPIC_EXCEPTION),
        (NewTopicSpec("..", 1, 1), Code.INVALID_TOPIC_EXCEPTION),
        (NewTopicSpec("a/b", 1, 1), Code.INVALID_TOPIC_EXCEPTION),
        (NewTopicSpec("x" * 250, 1, 1), Code.INVALID_TOPIC_EXCEPTION),
        (NewTopicSpec("t", 0, 1), Code.INVALID_PARTITIONS),
        (NewTopicSpec("t", -5, 1), Code.INVALID_PARTITIONS),
        (NewTopicSpec("t", 10_001, 1), Code.POLICY_VIOLATION),
        (NewTopicSpec("t", 1, 2), Code.INVALID_REPLICATION_FACTOR),
        (NewTopicSpec("t", 1, 0), Code.INVALID_REPLICATION_FACTOR),
        (NewTopicSpec("t", -1, -1, {0: [2]}), Code.INVALID_REPLICA_ASSIGNMENT),
        (NewTopicSpec("t", -1, -1, {0: [1, 1]}), Code.INVALID_REPLICA_ASSIGNMENT),
        (NewTopicSpec("t", -1, -1, {1: [1]}), Code.INVALID_REPLICA_ASSIGNMENT),
        (NewTopicSpec("t", -1, -1, {0: []}), Code.INVALID_REPLICA_ASSIGNMENT),
        (NewTopicSpec("t", 1, 1, configs={"no.such": "1"}), Code.INVALID_CONFIG),
        (NewTopicSpec("t", 1, 1, configs={"retention.ms": "long"}), Code.INVALID_CONFIG),
        (NewTopicSpec("t", 1, 1, configs={"retention.ms": None}), Code.INVALID_CONFIG),
        (NewTopicSpec("t", 1, 1, configs={"min.insync.replicas": "0"}), Code.INVALID_CONFIG),
        (NewTopicSpec("t", 1, 1, configs={"cleanup.policy": "shred"}), Code.INVALID_CONFIG),
        (NewTopicSpec("t", 1, 1, configs={"preallocate": "yes"}), Code.INVALID_CONFIG),
        (NewTopicSpec("t", 1, 1, configs={"min.cleanable.dirty.ratio": "2"}), Code.INVALID_CONFIG),
        (NewTopicSpec("t", 1, 1, configs={"segment.bytes": "2147483648"}), Code.INVALID_CONFIG),
    ],
)
def test_wishes_that_cannot_be(wanted: NewTopicSpec, code: Code) -> None:
    assert refusal(wanted) is code


def test_names_that_differ_only_in_dots_and_underscores_collide() -> None:
    state = state_of(BrokerRecord(1, "x", "h", 1), TopicRecord(TOPIC_ID, "a.b"))
    for name, code in (
        ("a.b", Code.TOPIC_ALREADY_EXISTS),
        ("a_b", Code.INVALID_TOPIC_EXCEPTION),
    ):
        with pytest.raises(ApiError) as refused:
            commands.create_topic(state, NewTopicSpec(name, 1, 1), uuid4())
        assert refused.value.code is code


@given(brokers=st.integers(1, 6), partitions=st.integers(1, 30), factor=st.integers(1, 6))
def test_partitions_are_spread_evenly(brokers: int, partitions: int, factor: int) -> None:
    wanted = NewTopicSpec("t", partitions, factor)
    if factor > brokers:
        assert refusal(wanted, brokers=brokers) is Code.INVALID_REPLICATION_FACTOR
        return
    records = commands.create_topic(
        cluster_of(brokers), NewTopicSpec("t", partitions, factor), TOPIC_ID
    )
    made = [record for record in records if isinstance(record, PartitionRecord)]
    assert [record.partition for record in made] == list(range(partitions))
    assert all(len(set(record.replicas)) == factor for record in made)
    led = [sum(record.leader == broker for record in made) for broker in range(1, brokers + 1)]
    assert max(led) - min(led) <= 1


def test_settings_are_changed_all_or_none() -> None:
    state = state_of(*RECORDS[:4])

    def changed(*changes: ConfigEdit) -> dict[str, str]:
        for record in commands.alter_configs(state, "topic", "t", changes):
            state.apply(record)
        return state.topic_configs("t")

    assert changed(ConfigEdit("cleanup.policy", requests.APPEND, "compact")) == {
        "cleanup.policy": "delete,compact"
    }
    assert changed(ConfigEdit("cleanup.policy", requests.SUBTRACT, "delete")) == {
        "cleanup.policy": "compact"
    }
    bad = [
        [ConfigEdit("retention.ms", requests.SET, "5"), ConfigEdit("x", requests.SET, "5")],
        [ConfigEdit("retention.ms", requests.APPEND, "5")],
        [ConfigEdit("retention.ms", 9, "5")],
        [ConfigEdit("retention.ms", requests.SET, None)],
        [ConfigEdit("retention.ms", requests.SET, "5")] * 2,
    ]
    for changes in bad:
        with pytest.raises(ApiError):
            changed(*changes)
    assert state.topic_configs("t") == {"cleanup.policy": "compact"}
    assert changed(ConfigEdit("cleanup.policy", requests.DELETE, None)) == {}
