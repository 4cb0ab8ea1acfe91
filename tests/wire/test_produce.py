"""Produce by hand against Produce by kio: the same bytes, for every version, in both directions."""

import random
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from shoal.wire.api_keys import ApiKey
from shoal.wire.errors import Truncated, Unencodable, UnsupportedVersion
from shoal.wire.framing import Part
from shoal.wire.messages import decode_request_header
from shoal.wire.produce import (
    PRODUCE_VERSIONS,
    ProduceAnswer,
    ProducePartition,
    RecordError,
    decode_produce_request,
    decode_produce_response,
    encode_produce_request,
    encode_produce_response,
)
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
    TIMES_MS,
    TOPICS,
    group_by_topic,
    kio_classes,
    milliseconds,
    moment,
    name_topic,
    topic_id_of,
)

VERSIONS = list(PRODUCE_VERSIONS)
REQUESTED = st.lists(
    st.builds(ProducePartition, TOPICS, PARTITIONS, RECORDS),
    unique_by=lambda item: (item.topic, item.partition),
    max_size=6,
)
ANSWERS = st.lists(
    st.builds(
        ProduceAnswer,
        topic=TOPICS,
        partition=PARTITIONS,
        error_code=ERROR_CODES,
        base_offset=OFFSETS,
        append_time_ms=TIMES_MS,
        log_start_offset=OFFSETS,
        error_message=NAMES,
        record_errors=st.lists(st.builds(RecordError, INT32, NAMES), max_size=2).map(tuple),
        current_leader=st.none() | st.builds(CurrentLeader, st.integers(0, 9), st.integers(0, 9)),
    ),
    max_size=5,
)
ENDPOINTS = st.lists(
    st.builds(NodeEndpoint, INT32, st.sampled_from(["", "host"]), INT32, NAMES), max_size=2
)


def with_ids(items: list[Any]) -> list[Any]:
    return [item._replace(topic_id=topic_id_of(item.topic)) for item in items]


def encode(version: int, partitions: list[ProducePartition], **changes: Any) -> list[Part]:
    fields: dict[str, Any] = {
        "correlation_id": 5,
        "client_id": "me",
        "transactional_id": None,
        "acks": -1,
        "timeout_ms": 30_000,
        "partitions": partitions,
    }
    return encode_produce_request(version, **(fields | changes))


def kio_request(version: int, partitions: list[ProducePartition], transactional_id: Any) -> Any:
    kio = kio_classes(ApiKey.PRODUCE, version, "request")
    return kio.ProduceRequest(
        transactional_id=transactional_id,
        acks=-1,
        timeout=milliseconds(30_000),
        topic_data=tuple(
            kio.TopicProduceData(
                **name_topic("name", topic, by_id=version >= 13),
                partition_data=tuple(
                    kio.PartitionProduceData(index=item.partition, records=item.records)
                    for item in items
                ),
            )
            for topic, items in group_by_topic(partitions, lambda item: item.topic)
        ),
    )


def kio_response(version: int, answers: list[ProduceAnswer], endpoints: list[NodeEndpoint]) -> Any:
    kio = kio_classes(ApiKey.PRODUCE, version, "response")

    def partition(answer: ProduceAnswer) -> Any:
        fields: dict[str, Any] = {}
        if version >= 5:
            fields["log_start_offset"] = answer.log_start_offset
        if version >= 8:
            fields["error_message"] = answer.error_message
            fields["record_errors"] = tuple(
                kio.BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=text)
                for index, text in answer.record_errors
            )
        if version >= 10 and answer.current_leader is not None:
            leader = answer.current_leader._asdict()
            fields["current_leader"] = kio.LeaderIdAndEpoch(**leader)
        return kio.PartitionProduceResponse(
            index=answer.partition,
            error_code=ErrorCode(answer.error_code),
            base_offset=answer.base_offset,
            log_append_time=moment(answer.append_time_ms),
            **fields,
        )

    fields: dict[str, Any] = {}
    if version >= 10:
        fields["node_endpoints"] = tuple(kio.NodeEndpoint(**node._asdict()) for node in endpoints)
    return kio.ProduceResponse(
        responses=tuple(
            kio.TopicProduceResponse(
                **name_topic("name", topic, by_id=version >= 13),
                partition_responses=tuple(map(partition, items)),
            )
            for topic, items in group_by_topic(answers, lambda answer: answer.topic)
        ),
        throttle_time=milliseconds(77),
        **fields,
    )


@given(partitions=REQUESTED, transactional_id=NAMES)
def test_a_request_is_what_the_oracle_writes(
    partitions: list[ProducePartition], transactional_id: str | None
) -> None:
    for version in VERSIONS:
        check_request(version, with_ids(partitions), transactional_id)


def check_request(
    version: int, partitions: list[ProducePartition], transactional_id: str | None
) -> None:
    frame = b"".join(encode(version, partitions, transactional_id=transactional_id))
    header = decode_request_header(frame)
    assert header[:4] == (ApiKey.PRODUCE, version, 5, "me")
    oracle = kio_request(version, partitions, transactional_id)
    assert frame[header.body_position :] == kio_bytes(oracle)

    decoded = decode_produce_request(version, memoryview(frame), header.body_position)
    assert decoded[:3] == (transactional_id, -1, 30_000)
    expected = [
        item for _, items in group_by_topic(partitions, lambda item: item.topic) for item in items
    ]
    for item, original in zip(decoded.partitions, expected, strict=True):
        assert (item.partition, item.records) == (original.partition, original.records)
        assert item.topic == ("" if version >= 13 else original.topic)
        assert item.topic_id == (original.topic_id if version >= 13 else None)


@given(answers=ANSWERS, endpoints=ENDPOINTS)
def test_a_response_is_what_the_oracle_writes(
    answers: list[ProduceAnswer], endpoints: list[NodeEndpoint]
) -> None:
    for version in VERSIONS:
        check_response(version, with_ids(answers), endpoints)


def check_response(
    version: int, answers: list[ProduceAnswer], endpoints: list[NodeEndpoint]
) -> None:
    frame = encode_produce_response(
        version, correlation_id=5, answers=answers, throttle_ms=77, node_endpoints=endpoints
    )
    header = struct.pack(">i", 5) + (b"\x00" if version >= 9 else b"")
    assert frame == header + kio_bytes(kio_response(version, answers, endpoints))

    expected = [
        as_carried(version, item)
        for _, items in group_by_topic(answers, lambda answer: answer.topic)
        for item in items
    ]
    assert decode_produce_response(version, memoryview(frame)) == expected


def as_carried(version: int, answer: ProduceAnswer) -> ProduceAnswer:
    """What is left of an answer when a version has carried it."""
    if version < 5:
        answer = answer._replace(log_start_offset=-1)
    if version < 8:
        answer = answer._replace(error_message=None, record_errors=())
    if version < 10:
        answer = answer._replace(current_leader=None)
    return answer._replace(topic="") if version >= 13 else answer._replace(topic_id=None)


def test_records_are_neither_copied_nor_touched() -> None:
    pieces: list[Part] = [memoryview(bytearray(b"one")), bytearray(b"two"), b"three"]
    parts = encode(9, [ProducePartition("t", 0, pieces), ProducePartition("t", 1, b"four")])
    assert all(any(part is piece for part in parts) for piece in pieces)
    frame = bytearray(b"".join(parts))
    position = decode_request_header(frame).body_position
    first, second = decode_produce_request(9, frame, position).partitions
    assert [bytes(first.records), bytes(second.records)] == [b"onetwothree", b"four"]
    assert first.records.obj is frame
    assert not first.records.readonly


def test_null_records_are_no_records() -> None:
    body = struct.pack(">hhi", -1, 1, 5) + struct.pack(">ih1siii", 1, 1, b"t", 1, 0, -1)
    assert bytes(decode_produce_request(3, body, 0).partitions[0].records) == b""


def test_the_same_partition_twice_is_refused() -> None:
    twice = [ProducePartition("t", 1, b"a"), ProducePartition("t", 1, b"b")]
    with pytest.raises(Unencodable, match="twice"):
        encode(9, twice)
    identifier = topic_id_of("t")
    aliases = [item._replace(topic=str(i), topic_id=identifier) for i, item in enumerate(twice)]
    with pytest.raises(Unencodable, match="twice"):
        encode(13, aliases)


def test_a_version_by_id_needs_ids() -> None:
    with pytest.raises(Unencodable, match="has no id"):
        encode(13, [ProducePartition("t", 1, b"a")])


@pytest.mark.parametrize("version", [0, 2, 14, -1])
def test_unknown_versions(version: int) -> None:
    with pytest.raises(UnsupportedVersion):
        encode(version, [])
    with pytest.raises(UnsupportedVersion):
        decode_produce_request(version, b"", 0)
    with pytest.raises(UnsupportedVersion):
        encode_produce_response(version, correlation_id=1, answers=[])
    with pytest.raises(UnsupportedVersion):
        decode_produce_response(version, b"")


def test_numbers_that_do_not_fit() -> None:
    with pytest.raises(Unencodable):
        encode(9, [], acks=2**15)
    with pytest.raises(Unencodable):
        encode_produce_response(
            9, correlation_id=1, answers=[ProduceAnswer("t", 0, base_offset=2**63)]
        )


@pytest.mark.parametrize("version", [3, 9, 13])
def test_every_cut_is_found_and_surplus_bytes_are_passed_over(version: int) -> None:
    partitions = with_ids([ProducePartition("t", 1, b"abc"), ProducePartition("u", 2, b"")])
    frame = b"".join(encode(version, partitions))
    position = decode_request_header(frame).body_position
    for size in range(position, len(frame)):
        with pytest.raises(Truncated):
            decode_produce_request(version, frame[:size], position)
    whole = decode_produce_request(version, frame, position)
    assert decode_produce_request(version, frame + b"\x00?", position) == whole


@given(version=st.sampled_from(VERSIONS), answers=ANSWERS, seed=st.integers(0, 2**64))
def test_damaged_bytes_give_a_message_or_a_wire_error(
    version: int, answers: list[ProduceAnswer], seed: int
) -> None:
    source = random.Random(seed)
    partitions = with_ids([ProducePartition("topic", number, bytes(30)) for number in range(3)])
    request = bytearray(b"".join(encode(version, partitions)))
    response = bytearray(
        encode_produce_response(version, correlation_id=1, answers=with_ids(answers))
    )
    for data in (request, response):
        for _ in range(source.randint(1, 5)):
            data[source.randrange(len(data))] = source.choice([0, 1, 127, 128, 255])
    assert read_or_error(decode_produce_request, version, request, 12) in OUTCOMES
    assert read_or_error(decode_produce_response, version, response) in OUTCOMES


@given(st.binary(max_size=60), st.sampled_from(VERSIONS))
def test_noise_gives_a_message_or_a_wire_error(noise: bytes, version: int) -> None:
    assert read_or_error(decode_produce_request, version, noise, 0) in OUTCOMES
    assert read_or_error(decode_produce_response, version, noise) in OUTCOMES


@given(st.lists(INT64, max_size=3))
def test_unknown_tagged_fields_are_skipped(values: list[int]) -> None:
    tags = bytes([len(values)]) + b"".join(
        bytes([50 + index, 8]) + struct.pack(">q", value) for index, value in enumerate(values)
    )
    topic = b"\x02t\x02" + struct.pack(">i", 3) + b"\x04abc" + tags + tags
    body = b"\x00" + struct.pack(">hi", 1, 5) + b"\x02" + topic + tags
    (partition,) = decode_produce_request(9, body, 0).partitions
    assert (partition.topic, partition.partition) == ("t", 3)
    assert bytes(partition.records) == b"abc"
