"""Every message of every version, judged by kio's own codec; and bytes that mean no good."""

import random
import struct
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.wire import codec
from shoal.wire.api_keys import OWN_KEYS, ApiKey, is_flexible
from shoal.wire.errors import (
    LimitExceeded,
    Malformed,
    Truncated,
    Unencodable,
    UnsupportedVersion,
    WireError,
)
from shoal.wire.messages import (
    decode_body,
    decode_request_header,
    decode_response,
    encode_request,
    encode_response,
    request_class,
    response_class,
    schema_versions,
)
from shoal.wire.primitives import put_varint
from support.wire.messages import (
    OUTCOMES,
    classes_of,
    kio_bytes,
    kio_message,
    random_message,
    read_or_error,
)

API_KEYS = [key for key in ApiKey if key not in OWN_KEYS]
HUGE = [b"\xff\xff\xff\xff\x0f", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x7f", b"\x80\x00\x00\x00"]


def all_classes() -> list[type[Any]]:
    return [message_type for api_key in API_KEYS for message_type in classes_of(api_key)]


def body_of(message: Any) -> bytes:
    output = bytearray()
    codec.put_entity(output, message)
    return bytes(output)


def metadata_request(topics: Any = None) -> Any:
    return request_class(ApiKey.METADATA, 12)(
        topics=topics, allow_auto_topic_creation=True, include_topic_authorized_operations=False
    )


def test_every_version_agrees_with_the_oracle() -> None:
    source = random.Random(1)
    for message_type in all_classes():
        for _ in range(2):
            message = random_message(message_type, source)
            data = body_of(message)
            assert data == kio_bytes(message)
            decoded = decode_body(data, message_type, 0)
            assert decoded == kio_message(message_type, data)
            assert decoded == message
            if data:
                with pytest.raises(Truncated):
                    decode_body(data[:-1], message_type, 0)


@given(st.sampled_from(API_KEYS), st.integers(0, 2**64))
def test_any_message_agrees_with_the_oracle(api_key: ApiKey, seed: int) -> None:
    source = random.Random(seed)
    message = random_message(source.choice(classes_of(api_key)), source)
    data = body_of(message)
    assert data == kio_bytes(message)
    assert decode_body(data, type(message), 0) == kio_message(type(message), data)


@given(st.sampled_from(API_KEYS), st.integers(0, 2**64), st.binary(min_size=1))
def test_bytes_behind_a_message_are_passed_over(api_key: ApiKey, seed: int, surplus: bytes) -> None:
    source = random.Random(seed)
    message = random_message(source.choice(classes_of(api_key)), source)
    assert decode_body(b"head" + body_of(message) + surplus, type(message), 4) == message


def test_librdkafkas_request_for_all_metadata_has_three_bytes_too_many() -> None:
    """As version 2.16.0 sends it."""
    data = bytes.fromhex("0003000c00000003000772646b61666b610000000000010000")
    header = decode_request_header(data)
    request = decode_body(data, request_class(ApiKey.METADATA, 12), header.body_position)
    assert (header.client_id, request.topics) == ("rdkafka", None)
    assert len(data) - header.body_position - len(body_of(request)) == 3


@given(st.sampled_from(API_KEYS), st.integers(0, 2**64))
def test_damaged_bytes_give_a_message_or_a_wire_error(api_key: ApiKey, seed: int) -> None:
    source = random.Random(seed)
    message = random_message(source.choice(classes_of(api_key)), source)
    data = bytearray(body_of(message))
    for _ in range(source.randint(1, 4)):
        position = source.randrange(len(data) + 1)
        match source.randrange(4):
            case 0:
                data = data[:position]
            case 1:
                data[position:position] = source.choice(HUGE)
            case 2:
                data[position : position + 4] = source.choice(HUGE)
            case _:
                data[position : position + 1] = source.randbytes(1)
    assert read_or_error(decode_body, data, type(message), 0) in OUTCOMES


def test_no_class_allocates_for_what_is_merely_announced() -> None:
    """The same bytes make kio's own reader abort the process."""
    for message_type in all_classes():
        for announcement in HUGE:
            for padding in range(0, 40, 3):
                assert (
                    read_or_error(
                        decode_body, bytes(padding) + announcement + bytes(3), message_type, 0
                    )
                    in OUTCOMES
                )


def test_the_table_of_flexible_versions_and_headers() -> None:
    for message_type in all_classes():
        api_key = ApiKey(message_type.__api_key__)
        flexible = is_flexible(api_key, message_type.__version__)
        assert message_type.__flexible__ == flexible
        header_version = message_type.__header_schema__.__version__
        if message_type.__type__.name == "request":
            assert header_version == (2 if flexible else 1)
        else:
            assert header_version == (1 if flexible and api_key != ApiKey.API_VERSIONS else 0)


@pytest.mark.parametrize("client_id", [None, "", "shoal-ü"])
@pytest.mark.parametrize("version", [1, 8, 9, 12])
def test_a_request_with_its_header(version: int, client_id: str | None) -> None:
    request = random_message(request_class(ApiKey.METADATA, version), random.Random(version))
    data = encode_request(request, correlation_id=77, client_id=client_id)
    header = decode_request_header(memoryview(bytearray(data)))
    assert header[:4] == (ApiKey.METADATA, version, 77, client_id)
    assert decode_body(data, type(request), header.body_position) == request


def test_the_header_of_a_version_that_nobody_knows_yet() -> None:
    data = struct.pack(">hhih", 18, 99, 5, -1) + b"\x00" + b"rest"
    assert decode_request_header(data) == (ApiKey.API_VERSIONS, 99, 5, None, 11)


def test_the_header_of_api_versions_never_grows() -> None:
    for version, extra_bytes in ((2, 0), (4, 0)):
        response_type = response_class(ApiKey.API_VERSIONS, version)
        response = random_message(response_type, random.Random(1))
        data = encode_response(response, correlation_id=9)
        assert data == struct.pack(">i", 9) + bytes(extra_bytes) + kio_bytes(response)
        assert decode_response(data, response_type) == (9, response)


@pytest.mark.parametrize("version", [8, 9])
def test_a_response_with_its_header(version: int) -> None:
    response = random_message(response_class(ApiKey.METADATA, version), random.Random(2))
    data = encode_response(response, correlation_id=-3)
    assert len(data) == 4 + (version >= 9) + len(kio_bytes(response))
    assert decode_response(data, type(response)) == (-3, response)


def test_tagged_fields_of_newer_peers_are_skipped() -> None:
    request = metadata_request()
    known = body_of(request)
    assert known.endswith(b"\x00")
    unknown = known[:-1] + b"\x02\x63\x03abc\xe7\x07\x00"
    assert decode_body(unknown, type(request), 0) == request


def test_a_tagged_field_must_fill_its_size() -> None:
    response_type = response_class(ApiKey.API_VERSIONS, 3)
    empty = struct.pack(">h", 0) + b"\x01" + struct.pack(">i", 0)
    epoch = struct.pack(">q", 4)
    for size in (7, 9):
        tagged = b"\x01\x01" + bytes([size]) + epoch + b"\x00"
        with pytest.raises(WireError):
            decode_body(empty + tagged, response_type, 0)
    decoded = decode_body(empty + b"\x01\x01\x08" + epoch, response_type, 0)
    assert decoded.finalized_features_epoch == 4


def test_an_error_code_of_the_future_is_an_unknown_server_error() -> None:
    response_type = response_class(ApiKey.HEARTBEAT, 0)
    decoded = decode_body(struct.pack(">h", 9999), response_type, 0)
    assert decoded.error_code.name == "unknown_server_error"


@pytest.mark.parametrize(
    ("data", "error", "words", "position"),
    [
        (b"", Truncated, "MetadataRequest.topics: 4 bytes expected, 0 left", 0),
        (struct.pack(">i", -2), Malformed, "invalid length -2", 0),
        (struct.pack(">i", 2**31 - 1), Truncated, "2147483647 items do not fit in 0 bytes", 0),
        (struct.pack(">ih", 1, -1), Malformed, "MetadataRequest.topics.name: must not be null", 6),
        (struct.pack(">ih", 1, 9) + b"abc", Truncated, "9 bytes expected, 3 left", 6),
        (struct.pack(">ih", 1, 3) + b"ab\xff", Malformed, "not UTF-8", 8),
    ],
)
def test_an_error_says_what_and_where(
    data: bytes, error: type[WireError], words: str, position: int
) -> None:
    with pytest.raises(error, match=words) as caught:
        decode_body(b"head" + data, request_class(ApiKey.METADATA, 1), 4)
    assert caught.value.position == 4 + position
    assert caught.value.blame == "remote"


def test_items_of_one_message_are_limited() -> None:
    count = 1_000_001
    least_topic = bytes(16) + b"\x00\x00"
    varint = bytearray()
    put_varint(varint, count + 1)
    with pytest.raises(LimitExceeded, match="1000001 items"):
        decode_body(varint + least_topic * count, request_class(ApiKey.METADATA, 12), 0)


@pytest.mark.parametrize("topics", [5, (1,), ("not a structure",)])
def test_what_has_no_form_on_the_wire_is_our_fault(topics: Any) -> None:
    with pytest.raises(Unencodable, match="MetadataRequest") as caught:
        body_of(metadata_request(topics=topics))
    assert caught.value.blame == "local"


def test_values_out_of_range_are_refused() -> None:
    request_type = request_class(ApiKey.HEARTBEAT, 0)
    for fields in (
        {"group_id": "g", "generation_id": 2**31, "member_id": "m"},
        {"group_id": "g" * 40_000, "generation_id": 1, "member_id": "m"},
        {"group_id": None, "generation_id": 1, "member_id": "m"},
        {"group_id": "\ud800", "generation_id": 1, "member_id": "m"},
    ):
        with pytest.raises(Unencodable):
            body_of(request_type(**fields))


def test_a_duration_beyond_measure_is_malformed() -> None:
    request_type = request_class(ApiKey.OFFSET_COMMIT, 2)
    data = struct.pack(">hihqi", 0, 1, 0, 2**63 - 1, 0)
    with pytest.raises(Malformed, match="retention_time"):
        decode_body(data, request_type, 0)


@pytest.mark.parametrize(("api_key", "version"), [(3, 99), (3, -1), (4, 0), (999, 0), (-1, 0)])
def test_unknown_keys_and_versions(api_key: int, version: int) -> None:
    for class_of in (request_class, response_class):
        with pytest.raises(UnsupportedVersion):
            class_of(api_key, version)


def test_known_versions() -> None:
    assert schema_versions(ApiKey.METADATA) == (0, 13)
    assert schema_versions(ApiKey.SASL_HANDSHAKE) == (0, 1)
    with pytest.raises(UnsupportedVersion):
        schema_versions(4)


def test_headers_cut_short() -> None:
    whole = encode_request(metadata_request(), correlation_id=1, client_id="abc")
    header = decode_request_header(whole)
    for size in range(header.body_position):
        with pytest.raises(Truncated):
            decode_request_header(whole[:size])


def test_importing_messages_is_cheap() -> None:
    """Neither all of kio nor, where a development environment has it, hypothesis is loaded."""
    program = (
        "import sys; from shoal.wire.messages import *; from shoal.wire.produce import *;"
        "from shoal.wire.fetch import *; assert not any(m.startswith('kio') for m in sys.modules);"
        "c = request_class(3, 12);"
        "encode_request(c(topics=None, allow_auto_topic_creation=True,"
        " include_topic_authorized_operations=False), correlation_id=1, client_id=None);"
        "loaded = {m for m in sys.modules if m.startswith('kio.schema.')};"
        "assert len(loaded) < 30, loaded; assert 'hypothesis' not in sys.modules;"
        "import hypothesis; print('ok')"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert result.stdout == "ok\n"
