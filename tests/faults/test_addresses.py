"""Addresses in answers: every version of every answer that carries one, in pieces of any size."""

import random
from dataclasses import is_dataclass
from typing import Any

import pytest

from shoal.faults.addresses import AddressRewriter, NodeIdentifier, node_of
from shoal.wire.api_keys import ApiKey
from shoal.wire.building import build
from shoal.wire.errors import Malformed
from shoal.wire.messages import (
    decode_response,
    encode_request,
    encode_response,
    request_class,
    response_class,
    schema_versions,
)
from support.wire.messages import random_message

APIS = (ApiKey.METADATA, ApiKey.FIND_COORDINATOR, ApiKey.DESCRIBE_CLUSTER, ApiKey.PRODUCE)
CASES = [
    (key, version)
    for key in APIS
    for version in range(schema_versions(key)[0], schema_versions(key)[1] + 1)
    if key != ApiKey.PRODUCE or version >= 10
]


def add_length(frame: bytes) -> bytes:
    return len(frame).to_bytes(4, "big") + frame


def in_pieces(data: bytes, source: random.Random) -> list[bytes]:
    pieces = []
    while data:
        size = source.choice([1, 3, 7, 100, 10_000])
        pieces.append(data[:size])
        data = data[size:]
    return pieces


def request(key: ApiKey, version: int, correlation_id: int) -> bytes:
    head = int(key).to_bytes(2, "big") + version.to_bytes(2, "big")
    return add_length(head + correlation_id.to_bytes(4, "big") + b"\0\1x and the rest")


def move_address(_node: int, host: str, port: int) -> tuple[str, int]:
    return f"proxy-of-{host}", (port + 1) % 1000


def addresses_in(message: Any) -> list[tuple[str, int]]:
    """Every address that a client might use, wherever it stands."""
    found = []
    if hasattr(message, "host"):
        found.append((message.host, message.port))
    for name in getattr(message, "__dataclass_fields__", {}):
        value = getattr(message, name)
        for item in value if isinstance(value, tuple) else (value,):
            if is_dataclass(item):
                found += addresses_in(item)
    return found


@pytest.mark.parametrize(("key", "version"), CASES)
def test_every_address_is_moved_and_nothing_else(key: ApiKey, version: int) -> None:
    source = random.Random(version * 100 + key)
    for number in range(20):
        rewriter = AddressRewriter(move_address)
        answer = random_message(response_class(key, version), source)
        other = b"\0\0\0\x63" + source.randbytes(5000)  # to a request that is of no interest
        frame = encode_response(answer, correlation_id=number)
        asked = request(ApiKey.FETCH, 4, 0x63) + request(key, version, number)
        passed = b"".join(
            piece for part in in_pieces(asked, source) for piece in rewriter.rewrite_request(part)
        )
        assert passed == asked
        stream = add_length(other) + add_length(frame) + add_length(other)
        out = b"".join(
            bytes(piece)
            for part in in_pieces(stream, source)
            for piece in rewriter.rewrite_response(part)
        )
        assert out.startswith(add_length(other))
        assert out.endswith(add_length(other))
        middle = out[len(add_length(other)) + 4 : -len(add_length(other))]
        correlation_id, changed = decode_response(middle, response_class(key, version))
        assert correlation_id == number
        before, after = addresses_in(answer), addresses_in(changed)
        assert len(before) == len(after)
        for (host, port), (new_host, new_port) in zip(before, after, strict=True):
            assert (new_host, new_port) in [(f"proxy-of-{host}", (port + 1) % 1000), (host, port)]
            assert new_host != host or not host or new_port == port
        restored = AddressRewriter(lambda _node, host, port: (host, port))
        list(restored.rewrite_request(request(key, version, number)))
        assert b"".join(map(bytes, restored.rewrite_response(add_length(frame)))) == add_length(
            frame
        )


def test_versions_that_could_not_be_followed_are_not_offered() -> None:
    offered = {ApiKey.FETCH: 99, ApiKey.METADATA: 99, ApiKey.PRODUCE: 99, ApiKey.JOIN_GROUP: 99}
    answer = build(
        response_class(ApiKey.API_VERSIONS, 3),
        {
            "error_code": 0,
            "throttle_time": 0,
            "api_keys": [
                {"api_key": int(key), "min_version": 0, "max_version": most}
                for key, most in (*offered.items(), (78, 1))
            ],
        },
    )
    rewriter = AddressRewriter(move_address)
    list(rewriter.rewrite_request(request(ApiKey.API_VERSIONS, 3, 1)))
    out = b"".join(
        map(bytes, rewriter.rewrite_response(add_length(encode_response(answer, correlation_id=1))))
    )
    _, changed = decode_response(out[4:], response_class(ApiKey.API_VERSIONS, 3))
    assert {api.api_key: api.max_version for api in changed.api_keys} == {
        ApiKey.FETCH: 15,
        ApiKey.METADATA: schema_versions(ApiKey.METADATA)[1],
        ApiKey.PRODUCE: schema_versions(ApiKey.PRODUCE)[1],
        ApiKey.JOIN_GROUP: 99,
    }


def test_a_frame_that_cannot_be_is_refused() -> None:
    with pytest.raises(Malformed):
        list(AddressRewriter(move_address).rewrite_response(b"\xff\xff\xff\xff\0\0\0\1"))


def test_brokers_are_known_by_their_client_ids() -> None:
    assert [node_of(name) for name in ("broker-12-fetcher-0", "3", "raft-client-7")] == [12, 3, 7]
    assert [node_of(name) for name in ("", "rdkafka", "broker-", "99999999999", "shoal")] == [
        None
    ] * 5
    caller_identifier = NodeIdentifier(
        lambda node: frozenset({f"node {node}"}), frozenset({"unknown"})
    )
    for client_id, expected in (("broker-2-fetcher-1", "node 2"), ("console", "unknown")):
        for version in (0, 3):
            body = build(
                request_class(ApiKey.API_VERSIONS, version),
                {"client_software_name": "x", "client_software_version": "1"} if version else {},
            )
            data = add_length(encode_request(body, correlation_id=1, client_id=client_id))
            heard = [
                caller_identifier.identify_caller(data[:size]) for size in range(len(data) + 1)
            ]
            assert heard[-1] == frozenset({expected})
            assert set(heard) == {None, frozenset({expected})}
