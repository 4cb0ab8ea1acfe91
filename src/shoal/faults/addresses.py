"""Brokers' addresses in answers, rewritten so that clients stay on the proxy's links.

Rules of this file:
- Frames are followed both ways by their headers alone; only answers that carry addresses are
  taken apart: Metadata, FindCoordinator, DescribeCluster and, from version 10 on, Produce.
- ApiVersions answers are changed too: no version that we cannot take apart, and none of Fetch
  above 15 or of share groups, whose answers carry addresses beside records.
- Plain text only: what a client encrypts cannot be followed.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from struct import Struct
from typing import Any, Final

from shoal.net.ways import Bytes, Names
from shoal.wire.api_keys import ApiKey
from shoal.wire.errors import LimitExceeded, Malformed
from shoal.wire.messages import (
    decode_response,
    encode_response,
    known_versions,
    response_class,
)

ANSWER_LIMIT_BYTES: Final = 64 * 1024 * 1024
# Answers to this many requests may be outstanding on one connection.
UNANSWERED_LIMIT: Final = 10_000

_REQUEST: Final = Struct(">ihhi")  # length, key, version, correlation id
# Behind the length of the frame and the header up to the length of the client id.
_CLIENT_ID_AT: Final = 14
_ANSWER: Final = Struct(">ii")  # length, correlation id
_FETCH_LIMIT: Final = 15
_FIRST_PRODUCE: Final = 10
_REWRITTEN: Final = (
    ApiKey.API_VERSIONS,
    ApiKey.METADATA,
    ApiKey.FIND_COORDINATOR,
    ApiKey.DESCRIBE_CLUSTER,
)
_HIDDEN: Final = frozenset({76, 77, 78, 79})  # share groups

# From (node id, host, port) of a broker to where this client finds it.
Readdress = Callable[[int, str, int], tuple[str, int]]


class AddressTranslator:
    """Follows one connection of a client to a broker."""

    def __init__(self, readdress: Readdress) -> None:
        self._readdress = readdress
        self._head = b""
        self._left_bytes = 0  # of the request that is passing
        self._expected: dict[int, tuple[ApiKey, int]] = {}
        self._answer_head = b""
        self._answer_left_bytes = 0
        self._kept: bytearray | None = None  # an answer that is taken apart once it is whole

    def asked(self, data: bytes) -> tuple[bytes]:
        """Requests pass as they are; what they ask for is remembered."""
        position = 0
        while position < len(data):
            if self._left_bytes:
                step = min(self._left_bytes, len(data) - position)
                self._left_bytes -= step
                position += step
                continue
            wanted = _REQUEST.size - len(self._head)
            self._head += data[position : position + wanted]
            position = min(len(data), position + wanted)
            if len(self._head) == _REQUEST.size:
                length, key, version, correlation_id = _REQUEST.unpack(self._head)
                self._left_bytes = _checked(length) - (_REQUEST.size - 4)
                self._head = b""
                self._remember(key, version, correlation_id)
        return (data,)

    def _remember(self, key: int, version: int, correlation_id: int) -> None:
        is_produce = key == ApiKey.PRODUCE and version >= _FIRST_PRODUCE
        if key not in _REWRITTEN and not is_produce:
            return
        if len(self._expected) >= UNANSWERED_LIMIT:
            raise LimitExceeded(f"more than {UNANSWERED_LIMIT} requests without an answer")
        self._expected[correlation_id] = (ApiKey(key), version)

    def answered(self, data: bytes) -> Iterator[Bytes]:
        """What the client gets in place of `data`."""
        view, position = memoryview(data), 0
        while position < len(data):
            if self._answer_left_bytes:
                step = min(self._answer_left_bytes, len(data) - position)
                self._answer_left_bytes -= step
                yield from self._passing(view[position : position + step])
                position += step
                continue
            wanted = _ANSWER.size - len(self._answer_head)
            self._answer_head += data[position : position + wanted]
            position = min(len(data), position + wanted)
            if len(self._answer_head) == _ANSWER.size:
                yield from self._begin_answer()

    def _begin_answer(self) -> Iterator[Bytes]:
        head, self._answer_head = self._answer_head, b""
        length, correlation_id = _ANSWER.unpack(head)
        self._answer_left_bytes = _checked(length) - (_ANSWER.size - 4)
        if correlation_id not in self._expected:
            yield head
            return
        if length > ANSWER_LIMIT_BYTES:
            raise LimitExceeded(f"an answer of {length} bytes cannot be rewritten")
        self._kept = bytearray(head[4:])
        if not self._answer_left_bytes:
            yield from self._passing(memoryview(b""))

    def _passing(self, data: memoryview) -> Iterator[Bytes]:
        if self._kept is None:
            yield data
            return
        self._kept += data
        if not self._answer_left_bytes:
            frame, self._kept = bytes(self._kept), None
            rewritten = self._rewritten(frame)
            yield len(rewritten).to_bytes(4, "big") + rewritten

    def _rewritten(self, frame: bytes) -> bytes:
        key, version = self._expected.pop(int.from_bytes(frame[:4], "big", signed=True))
        if key == ApiKey.API_VERSIONS and frame[4:6] != b"\0\0":
            return frame  # a refusal, in the oldest version
        correlation_id, answer = decode_response(frame, response_class(key, version))
        if key == ApiKey.API_VERSIONS:
            changed = replace(answer, api_keys=tuple(_offered(answer.api_keys)))
        else:
            changed = self._readdressed(answer)
        return encode_response(changed, correlation_id=correlation_id)

    def _readdressed(self, answer: Any) -> Any:
        """The answer, with each address in it (or in its arrays) replaced."""
        if hasattr(answer, "host"):
            return self._at_proxy(answer)
        for name in ("brokers", "coordinators", "node_endpoints"):
            items = getattr(answer, name, None)
            if items:
                answer = replace(answer, **{name: tuple(map(self._at_proxy, items))})
        return answer

    def _at_proxy(self, item: Any) -> Any:
        node_id = item.broker_id if hasattr(item, "broker_id") else item.node_id
        if node_id < 0 or not item.host:
            return item
        host, port = self._readdress(int(node_id), item.host, int(item.port))
        return replace(item, host=host, port=type(item.port)(port))


def _offered(api_keys: tuple[Any, ...]) -> Iterator[Any]:
    """What a broker serves, as far as it can be followed."""
    for api in api_keys:
        if api.api_key in _HIDDEN:
            continue
        limit = api.max_version
        if api.api_key == ApiKey.FETCH:
            limit = min(limit, _FETCH_LIMIT)
        elif api.api_key in {*_REWRITTEN, ApiKey.PRODUCE}:
            limit = min(limit, known_versions(api.api_key)[1])
        if limit >= api.min_version:
            yield replace(api, max_version=type(api.max_version)(limit))


def _checked(length: int) -> int:
    if length < _ANSWER.size - 4:
        raise Malformed(f"a frame of {length} bytes")
    return length


class NodeGreeter:
    """Knows a broker that calls another by the client id of its first request."""

    def __init__(self, names_of: Callable[[int], Names], stranger: Names) -> None:
        self._names_of = names_of
        self._stranger = stranger

    def hear(self, data: bytes) -> Names | None:
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
