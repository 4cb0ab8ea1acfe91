"""Fetch by hand against Fetch by kio: the same bytes, for every version, in both directions."""

import random
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from shoal.wire.api_keys import ApiKey
from shoal.wire.errors import Truncated, Unencodable, UnsupportedVersion
from shoal.wire.fetch import (
    FETCH_VERSIONS,
    AbortedTransaction,
    EpochEnd,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    ForgottenPartition,
    PartitionAnswer,
    SnapshotId,
    decode_fetch_request,
    decode_fetch_response,
    encode_fetch_request,
    encode_fetch_response,
)
from shoal.wire.messages import decode_request_header
from shoal.wire.record_messages import CurrentLeader, NodeEndpoint
from support.wire.messages import OUTCOMES, kio_bytes, read_or_error
from support.wire.record_messages import (
    ERROR_CODES,
    INT32,
    INT64,
    NAMES,
    OFFSETS,
    PARTITIONS,
    RECORDS,
    TOPICS,
    group_by_topic,
    kio_classes,
    milliseconds,
    name_topic,
    topic_id_of,
)

VERSIONS = list(FETCH_VERSIONS)
EPOCHS = st.integers(0, 1000)
REQUESTED = st.lists(
    st.builds(
        FetchPartition,
        topic=TOPICS,
        topic_id=st.none(),
        partition=PARTITIONS,
        offset=OFFSETS,
        max_bytes=INT32,
        leader_epoch=EPOCHS,
        last_fetched_epoch=EPOCHS,
        log_start_offset=OFFSETS,
        replica_directory_id=st.none() | st.builds(topic_id_of, TOPICS),
        high_watermark=st.none() | EPOCHS,
    ),
    max_size=5,
)
FORGOTTEN = st.lists(st.builds(ForgottenPartition, TOPICS, st.none(), PARTITIONS), max_size=3)
REQUESTS = st.builds(
    FetchRequest,
    replica_id=st.integers(-1, 5),
    max_wait_ms=INT32,
    min_bytes=INT32,
    max_bytes=INT32,
    isolation=st.integers(0, 1),
    session_id=INT32,
    session_epoch=INT32,
    partitions=REQUESTED,
    forgotten=FORGOTTEN,
    rack_id=st.sampled_from(["", "rack-1"]),
    cluster_id=NAMES,
    replica_epoch=st.integers(-1, 5),
)
FETCHED = st.lists(
    st.builds(
        FetchedPartition,
        topic=TOPICS,
        topic_id=st.none(),
        partition=PARTITIONS,
        error_code=ERROR_CODES,
        high_watermark=OFFSETS,
        last_stable_offset=OFFSETS,
        log_start_offset=OFFSETS,
        aborted=st.lists(st.builds(AbortedTransaction, INT64, INT64), max_size=3),
        preferred_read_replica=INT32,
        diverging_epoch=st.none() | st.builds(EpochEnd, EPOCHS, EPOCHS),
        current_leader=st.none() | st.builds(CurrentLeader, EPOCHS, EPOCHS),
        records=RECORDS.map(memoryview),
        snapshot_id=st.none() | st.builds(SnapshotId, EPOCHS, EPOCHS),
    ),
    max_size=5,
)
ENDPOINTS = st.lists(
    st.builds(NodeEndpoint, INT32, st.sampled_from(["", "host"]), INT32, NAMES), max_size=2
)


def with_ids(items: list[Any]) -> list[Any]:
    return [item._replace(topic_id=topic_id_of(item.topic)) for item in items]


def in_order(items: list[Any]) -> list[Any]:
    """As they come out: topic by topic."""
    return [
        item for _, members in group_by_topic(items, lambda item: item.topic) for item in members
    ]


def as_named(version: int, item: Any) -> Any:
    return item._replace(topic="") if version >= 13 else item._replace(topic_id=None)


def encode(version: int, request: FetchRequest) -> bytes:
    return encode_fetch_request(version, correlation_id=5, client_id=None, **request._asdict())


def simple_request(*partitions: FetchPartition) -> FetchRequest:
    return FetchRequest(-1, 500, 1, 2**20, 0, 0, -1, list(partitions), [])


def kio_fetch_partition(kio: Any, version: int, item: FetchPartition) -> Any:
    fields: dict[str, Any] = {}
    if version >= 5:
        fields["log_start_offset"] = item.log_start_offset
    if version >= 9:
        fields["current_leader_epoch"] = item.leader_epoch
    if version >= 12:
        fields["last_fetched_epoch"] = item.last_fetched_epoch
    if version >= 17:
        fields["replica_directory_id"] = item.replica_directory_id
    if version >= 18 and item.high_watermark is not None:
        fields["high_watermark"] = item.high_watermark
    return kio.FetchPartition(
        partition=item.partition,
        fetch_offset=item.offset,
        partition_max_bytes=item.max_bytes,
        **fields,
    )


def kio_request(version: int, request: FetchRequest) -> Any:
    kio = kio_classes(ApiKey.FETCH, version, "request")

    fields: dict[str, Any] = {}
    if version >= 7:
        fields["session_id"] = request.session_id
        fields["session_epoch"] = request.session_epoch
        fields["forgotten_topics_data"] = tuple(
            kio.ForgottenTopic(
                **name_topic("topic", topic, by_id=version >= 13),
                partitions=tuple(item.partition for item in items),
            )
            for topic, items in group_by_topic(request.forgotten, lambda item: item.topic)
        )
    if version >= 11:
        fields["rack_id"] = request.rack_id
    if version >= 12:
        fields["cluster_id"] = request.cluster_id
    if version >= 15:
        state = {"replica_id": request.replica_id, "replica_epoch": request.replica_epoch}
        fields["replica_state"] = kio.ReplicaState(**state)
    else:
        fields["replica_id"] = request.replica_id
    return kio.FetchRequest(
        max_wait=milliseconds(request.max_wait_ms),
        min_bytes=request.min_bytes,
        max_bytes=request.max_bytes,
        isolation_level=request.isolation,
        topics=tuple(
            kio.FetchTopic(
                **name_topic("topic", topic, by_id=version >= 13),
                partitions=tuple(kio_fetch_partition(kio, version, item) for item in items),
            )
            for topic, items in group_by_topic(request.partitions, lambda item: item.topic)
        ),
        **fields,
    )


def kio_partition(kio: Any, version: int, item: FetchedPartition) -> Any:
    fields: dict[str, Any] = {}
    if version >= 5:
        fields["log_start_offset"] = item.log_start_offset
    if version >= 11:
        fields["preferred_read_replica"] = item.preferred_read_replica
    if version >= 12:
        tagged = {
            "diverging_epoch": (item.diverging_epoch, kio.EpochEndOffset),
            "current_leader": (item.current_leader, kio.LeaderIdAndEpoch),
            "snapshot_id": (item.snapshot_id, kio.SnapshotId),
        }
        for name, (value, structure) in tagged.items():
            if value is not None:
                fields[name] = structure(**value._asdict())
    return kio.PartitionData(
        partition_index=item.partition,
        error_code=ErrorCode(item.error_code),
        high_watermark=item.high_watermark,
        last_stable_offset=item.last_stable_offset,
        aborted_transactions=tuple(
            kio.AbortedTransaction(**transaction._asdict()) for transaction in item.aborted
        ),
        records=bytes(item.records),
        **fields,
    )


def kio_response(
    version: int, partitions: list[FetchedPartition], endpoints: list[NodeEndpoint]
) -> Any:
    kio = kio_classes(ApiKey.FETCH, version, "response")
    fields: dict[str, Any] = {}
    if version >= 7:
        fields |= {"error_code": ErrorCode(6), "session_id": 99}
    if version >= 16:
        fields["node_endpoints"] = tuple(kio.NodeEndpoint(**node._asdict()) for node in endpoints)
    return kio.FetchResponse(
        throttle_time=milliseconds(77),
        responses=tuple(
            kio.FetchableTopicResponse(
                **name_topic("topic", topic, by_id=version >= 13),
                partitions=tuple(kio_partition(kio, version, item) for item in items),
            )
            for topic, items in group_by_topic(partitions, lambda item: item.topic)
        ),
        **fields,
    )


@given(REQUESTS)
def test_a_request_is_what_the_oracle_writes(request: FetchRequest) -> None:
    request = request._replace(
        partitions=with_ids(request.partitions), forgotten=with_ids(request.forgotten)
    )
    for version in VERSIONS:
        frame = encode(version, request)
        header = decode_request_header(frame)
        assert header[:4] == (ApiKey.FETCH, version, 5, None)
        assert frame[header.body_position :] == kio_bytes(kio_request(version, request))
        decoded = decode_fetch_request(version, memoryview(frame), header.body_position)
        assert decoded == request_as_carried(version, request)


def partition_as_carried(version: int, item: FetchPartition) -> Any:
    """What is left of a partition of a request when a version has carried it."""
    since = (
        (5, "log_start_offset", -1),
        (9, "leader_epoch", -1),
        (12, "last_fetched_epoch", -1),
        (17, "replica_directory_id", None),
        (18, "high_watermark", None),
    )
    absent: dict[str, Any] = {name: value for first, name, value in since if version < first}
    return as_named(version, item._replace(**absent))


def request_as_carried(version: int, request: FetchRequest) -> FetchRequest:
    """What is left of a request when a version has carried it."""
    if version < 7:
        request = request._replace(session_id=0, session_epoch=-1, forgotten=[])
    if version < 11:
        request = request._replace(rack_id="")
    if version < 12:
        request = request._replace(cluster_id=None)
    if version < 15:
        request = request._replace(replica_epoch=-1)
    return request._replace(
        partitions=[partition_as_carried(version, item) for item in in_order(request.partitions)],
        forgotten=[as_named(version, item) for item in in_order(request.forgotten)],
    )


@given(FETCHED, ENDPOINTS)
def test_a_response_is_what_the_oracle_writes(
    partitions: list[FetchedPartition], endpoints: list[NodeEndpoint]
) -> None:
    partitions = with_ids(partitions)
    for version in VERSIONS:
        frame = b"".join(response_parts(version, partitions, endpoints))
        header = struct.pack(">i", 5) + (b"\x00" if version >= 12 else b"")
        assert frame == header + kio_bytes(kio_response(version, partitions, endpoints))
        decoded = decode_fetch_response(version, memoryview(frame))
        assert decoded.throttle_ms == 77
        assert decoded[:2] == ((99, 6) if version >= 7 else (0, 0))
        assert decoded.partitions == [carry_answer(version, item) for item in in_order(partitions)]
        assert decoded.node_endpoints == (tuple(endpoints) if version >= 16 else ())


def response_parts(
    version: int, partitions: list[FetchedPartition], endpoints: list[NodeEndpoint]
) -> list[Any]:
    return list(
        encode_fetch_response(
            version,
            correlation_id=5,
            session_id=99,
            error_code=6,
            partitions=partitions,
            throttle_ms=77,
            node_endpoints=endpoints,
        )
    )


def carry_answer(version: int, item: FetchedPartition) -> Any:
    """What is left of an answer when a version has carried it."""
    if version < 5:
        item = item._replace(log_start_offset=-1)
    if version < 11:
        item = item._replace(preferred_read_replica=-1)
    if version < 12:
        item = item._replace(diverging_epoch=None, current_leader=None, snapshot_id=None)
    item = item._replace(aborted=tuple(item.aborted))
    return as_named(version, item)


def test_records_are_neither_copied_nor_touched() -> None:
    records = memoryview(bytearray(b"records"))
    parts = response_parts(12, [FetchedPartition("t", None, 0, records=records)], [])
    assert any(part is records for part in parts)
    frame = bytearray(b"".join(parts))
    (partition,) = decode_fetch_response(12, frame).partitions
    assert bytes(partition.records) == b"records"
    assert partition.records.obj is frame
    assert not partition.records.readonly


class InAFile:
    """Records of which no more is known than their length."""

    def __len__(self) -> int:
        return 7


@pytest.mark.parametrize("version", [4, 13])
def test_records_need_not_be_in_memory(version: int) -> None:
    records = InAFile()
    item = PartitionAnswer("t", topic_id_of("t"), 0, high_watermark=9, records=records)
    parts = encode_fetch_response(
        version, correlation_id=1, session_id=0, error_code=0, partitions=[item]
    )
    frame = b"".join(b"records" if isinstance(part, InAFile) else part for part in parts)
    (partition,) = decode_fetch_response(version, frame).partitions
    assert (partition.high_watermark, bytes(partition.records)) == (9, b"records")


@pytest.mark.parametrize("version", [4, 11, 12])
def test_null_arrays_and_records_are_empty(version: int) -> None:
    null_array, null_records = (b"\x00", b"\x00") if version >= 12 else (b"\xff" * 4, b"\xff" * 4)
    fixed = struct.pack(">ihqq", 3, 0, 10, 10) + (bytes(8) if version >= 5 else b"")
    preferred = struct.pack(">i", -1) if version >= 11 else b""
    partition = fixed + null_array + preferred + null_records + bytes(version >= 12)
    if version >= 12:
        body = bytes(5) + bytes(10) + b"\x02\x02t\x02" + partition + b"\x00\x00"
    else:
        head = bytes(4) + bytes(10 if version >= 7 else 4)
        body = head + struct.pack(">ih1si", 1, 1, b"t", 1) + partition
    (fetched,) = decode_fetch_response(version, body).partitions
    assert (fetched.partition, list(fetched.aborted), bytes(fetched.records)) == (3, [], b"")


def test_many_aborted_transactions() -> None:
    aborted = tuple(AbortedTransaction(number, number * 7) for number in range(300))
    item = FetchedPartition("t", None, 0, aborted=aborted, preferred_read_replica=4)
    (decoded,) = decode_fetch_response(12, b"".join(response_parts(12, [item], []))).partitions
    assert (decoded.aborted, decoded.preferred_read_replica) == (aborted, 4)


@pytest.mark.parametrize("version", [0, 3, 19, -1])
def test_unknown_versions(version: int) -> None:
    with pytest.raises(UnsupportedVersion):
        encode(version, simple_request())
    with pytest.raises(UnsupportedVersion):
        decode_fetch_request(version, b"", 0)
    with pytest.raises(UnsupportedVersion):
        response_parts(version, [], [])
    with pytest.raises(UnsupportedVersion):
        decode_fetch_response(version, b"")


def test_what_cannot_be_written() -> None:
    with pytest.raises(Unencodable, match="has no id"):
        encode(13, simple_request(FetchPartition("t", None, 0, 0, 1)))
    with pytest.raises(Unencodable):
        encode(12, simple_request(FetchPartition("t", None, 0, 2**63, 1)))
    with pytest.raises(Unencodable):
        response_parts(12, [FetchedPartition("t", None, 0, error_code=2**15)], [])


@pytest.mark.parametrize("version", [4, 7, 11, 12, 15, 17])
def test_every_cut_is_found_and_surplus_bytes_are_passed_over(version: int) -> None:
    request = simple_request(FetchPartition("t", topic_id_of("t"), 1, 2, 3))
    frame = encode(version, request._replace(cluster_id="c", replica_id=4))
    position = decode_request_header(frame).body_position
    for size in range(position, len(frame)):
        with pytest.raises(Truncated):
            decode_fetch_request(version, frame[:size], position)
    whole = decode_fetch_request(version, frame, position)
    assert decode_fetch_request(version, frame + b"\x00?", position) == whole
    item = FetchedPartition("t", topic_id_of("t"), 1, aborted=[AbortedTransaction(1, 2)])
    item = item._replace(records=memoryview(b"abc"), diverging_epoch=EpochEnd(1, 2))
    response = b"".join(response_parts(version, [item, item], []))
    for size in range(len(response)):
        with pytest.raises(Truncated):
            decode_fetch_response(version, response[:size])
    assert decode_fetch_response(version, response + b"\x00?") == decode_fetch_response(
        version, response
    )


@given(
    version=st.sampled_from(VERSIONS),
    request=REQUESTS,
    fetched=FETCHED,
    seed=st.integers(0, 2**64),
)
def test_damaged_bytes_give_a_message_or_a_wire_error(
    version: int, request: FetchRequest, fetched: list[FetchedPartition], seed: int
) -> None:
    source = random.Random(seed)
    request = request._replace(
        partitions=with_ids(request.partitions), forgotten=with_ids(request.forgotten)
    )
    messages = (
        bytearray(encode(version, request)),
        bytearray().join(response_parts(version, with_ids(fetched), [])),
    )
    for data in messages:
        for _ in range(source.randint(1, 5)):
            data[source.randrange(len(data))] = source.choice([0, 1, 127, 128, 255])
    assert read_or_error(decode_fetch_request, version, messages[0], 10) in OUTCOMES
    assert read_or_error(decode_fetch_response, version, messages[1]) in OUTCOMES


@given(st.binary(max_size=80), st.sampled_from(VERSIONS))
def test_noise_gives_a_message_or_a_wire_error(noise: bytes, version: int) -> None:
    assert read_or_error(decode_fetch_request, version, noise, 0) in OUTCOMES
    assert read_or_error(decode_fetch_response, version, noise) in OUTCOMES


def test_tagged_fields_of_newer_peers_are_skipped() -> None:
    frame = b"".join(response_parts(12, [FetchedPartition("t", None, 3)], []))
    assert frame.endswith(bytes(3))
    longer = frame[:-3] + b"\x01\x63\x02zz" + b"\x01\x00\x01z" + b"\x01\x09\x00"
    assert decode_fetch_response(12, longer).partitions[0].partition == 3
