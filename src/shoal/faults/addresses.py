"""Rewrites broker addresses in responses, so that clients keep using the proxy.

Rules of this file:
- Only the headers of frames are read. Only responses that carry addresses are decoded: Metadata,
  FindCoordinator, DescribeCluster and, from version 10 on, Produce.
- ApiVersions responses are changed too: they offer no version that cannot be decoded here, no
  Fetch above version 15 and no share groups, whose responses carry addresses beside records.
- Plain text only: encrypted connections cannot be rewritten.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from struct import Struct
from typing import Any, Final

from shoal.net.link_faults import Bytes, EndpointNames
from shoal.wire.api_keys import ApiKey
from shoal.wire.errors import LimitExceeded, Malformed
from shoal.wire.messages import (
    decode_response,
    encode_response,
    response_class,
    schema_versions,
)

RESPONSE_LIMIT_BYTES: Final = 64 * 1024 * 1024
# The most requests that may wait for a response on one connection.
UNANSWERED_LIMIT: Final = 10_000

_REQUEST: Final = Struct(">ihhi")  # length, key, version, correlation id
# The client id follows the frame length, key, version, correlation id and its own length.
_CLIENT_ID_AT: Final = 14
_RESPONSE: Final = Struct(">ii")  # length, correlation id
_FETCH_LIMIT: Final = 15
_FIRST_PRODUCE: Final = 10
_REWRITTEN_APIS: Final = (
    ApiKey.API_VERSIONS,
    ApiKey.METADATA,
    ApiKey.FIND_COORDINATOR,
    ApiKey.DESCRIBE_CLUSTER,
)
_HIDDEN: Final = frozenset({76, 77, 78, 79})  # share groups

# Maps (node id, host, port) of a broker to the proxy address for this client.
ReplaceAddress = Callable[[int, str, int], tuple[str, int]]


class AddressRewriter:
    """Rewrites the responses on one connection of a client to a broker."""

    def __init__(self, replace_address: ReplaceAddress) -> None:
        self._replace = replace_address
        self._head = b""
        self._left_bytes = 0  # of the request that passes now
        self._expected: dict[int, tuple[ApiKey, int]] = {}
        self._response_head = b""
        self._response_left_bytes = 0
        self._held_response: bytearray | None = (
            None  # a response that is decoded once it is complete
        )

    def rewrite_request(self, data: bytes) -> tuple[bytes]:
        """Requests pass unchanged; the keys of those whose response is rewritten are recorded."""
        position = 0
        while position < len(data):
            if self._left_bytes:
                step = min(self._left_bytes, len(data) - position)
                self._left_bytes -= step
                position += step
                continue
            missing = _REQUEST.size - len(self._head)
            self._head += data[position : position + missing]
            position = min(len(data), position + missing)
            if len(self._head) == _REQUEST.size:
                length, key, version, correlation_id = _REQUEST.unpack(self._head)
                self._left_bytes = _check_length(length) - (_REQUEST.size - 4)
                self._head = b""
                self._remember(key, version, correlation_id)
        return (data,)

    def _remember(self, key: int, version: int, correlation_id: int) -> None:
        is_produce = key == ApiKey.PRODUCE and version >= _FIRST_PRODUCE
        if key not in _REWRITTEN_APIS and not is_produce:
            return
        if len(self._expected) >= UNANSWERED_LIMIT:
            raise LimitExceeded(f"more than {UNANSWERED_LIMIT} requests wait for a response")
        self._expected[correlation_id] = (ApiKey(key), version)

    def rewrite_response(self, data: bytes) -> Iterator[Bytes]:
        """The bytes that the client gets instead of `data`."""
        view, position = memoryview(data), 0
        while position < len(data):
            if self._response_left_bytes:
                step = min(self._response_left_bytes, len(data) - position)
                self._response_left_bytes -= step
                yield from self._rewrite_body(view[position : position + step])
                position += step
                continue
            missing = _RESPONSE.size - len(self._response_head)
            self._response_head += data[position : position + missing]
            position = min(len(data), position + missing)
            if len(self._response_head) == _RESPONSE.size:
                yield from self._begin_response()

    def _begin_response(self) -> Iterator[Bytes]:
        head, self._response_head = self._response_head, b""
        length, correlation_id = _RESPONSE.unpack(head)
        self._response_left_bytes = _check_length(length) - (_RESPONSE.size - 4)
        if correlation_id not in self._expected:
            yield head
            return
        if length > RESPONSE_LIMIT_BYTES:
            raise LimitExceeded(
                f"a response of {length} bytes is too large to rewrite; the limit is"
                f" {RESPONSE_LIMIT_BYTES}"
            )
        self._held_response = bytearray(head[4:])
        if not self._response_left_bytes:
            yield from self._rewrite_body(memoryview(b""))

    def _rewrite_body(self, data: memoryview) -> Iterator[Bytes]:
        if self._held_response is None:
            yield data
            return
        self._held_response += data
        if not self._response_left_bytes:
            frame, self._held_response = bytes(self._held_response), None
            rewritten = self._rewrite_frame(frame)
            yield len(rewritten).to_bytes(4, "big") + rewritten

    def _rewrite_frame(self, frame: bytes) -> bytes:
        key, version = self._expected.pop(int.from_bytes(frame[:4], "big", signed=True))
        if key == ApiKey.API_VERSIONS and frame[4:6] != b"\0\0":
            return frame  # an error, encoded in version 0
        correlation_id, response = decode_response(frame, response_class(key, version))
        if key == ApiKey.API_VERSIONS:
            changed = replace(response, api_keys=tuple(_limit_versions(response.api_keys)))
        else:
            changed = self._replace_addresses(response)
        return encode_response(changed, correlation_id=correlation_id)

    def _replace_addresses(self, response: Any) -> Any:
        """The response with each address in it, or in its arrays, replaced."""
        if hasattr(response, "host"):
            return self._replace_address(response)
        for name in ("brokers", "coordinators", "node_endpoints"):
            items = getattr(response, name, None)
            if items:
                response = replace(response, **{name: tuple(map(self._replace_address, items))})
        return response

    def _replace_address(self, item: Any) -> Any:
        node_id = item.broker_id if hasattr(item, "broker_id") else item.node_id
        if node_id < 0 or not item.host:
            return item
        host, port = self._replace(int(node_id), item.host, int(item.port))
        return replace(item, host=host, port=type(item.port)(port))


def _limit_versions(api_keys: tuple[Any, ...]) -> Iterator[Any]:
    """The APIs and versions of a broker that can be proxied."""
    for api in api_keys:
        if api.api_key in _HIDDEN:
            continue
        limit = api.max_version
        if api.api_key == ApiKey.FETCH:
            limit = min(limit, _FETCH_LIMIT)
        elif api.api_key in {*_REWRITTEN_APIS, ApiKey.PRODUCE}:
            limit = min(limit, schema_versions(api.api_key)[1])
        if limit >= api.min_version:
            yield replace(api, max_version=type(api.max_version)(limit))


def _check_length(length: int) -> int:
    if length < _RESPONSE.size - 4:
        raise Malformed(f"a frame announces a length of {length} bytes")
    return length


class NodeIdentifier:
    """Identifies a calling broker by the client id of its first request."""

    def __init__(
        self, names_of: Callable[[int], EndpointNames], unknown_caller: EndpointNames
    ) -> None:
        self._names_of = names_of
        self._stranger = unknown_caller

    def identify_caller(self, data: bytes) -> EndpointNames | None:
        if len(data) < _CLIENT_ID_AT:
            return None
        length = int.from_bytes(data[_CLIENT_ID_AT - 2 : _CLIENT_ID_AT], "big", signed=True)
        end = _CLIENT_ID_AT + max(0, length)
        if len(data) < end:
            return None
        node_id = node_of(data[_CLIENT_ID_AT:end].decode(errors="replace"))
        return self._stranger if node_id is None else self._names_of(node_id)


def node_of(client_id: str) -> int | None:
    """The broker that uses this client id: `broker-2-fetcher-0`, `raft-client-2`, `2`."""
    digits = client_id.removeprefix("broker-").removeprefix("raft-client-").partition("-")[0]
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 10 else None
