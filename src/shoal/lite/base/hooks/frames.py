"""Vector clocks in the headers of requests and answers between nodes, as a tagged field.

Flexible versions of Kafka's messages can carry tagged fields that a reader may not know; nodes that
are not traced skip them. Versions that are not flexible carry no clock.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar, cast

from shoal.lite.base.hooks import tracer
from shoal.lite.base.hooks.held_answers import HeldAnswer
from shoal.lite.base.hooks.tracer import Tracer
from shoal.runtime.tasks import run_awaited
from shoal.wire.api_keys import ApiKey, is_flexible
from shoal.wire.errors import WireError
from shoal.wire.framing import Part
from shoal.wire.messages import (
    decode_request_header,
    request_header_tag,
    response_header_tag,
)
from shoal.wire.primitives import INT32, Cursor, put_varint

CLOCK_TAG = 10_001
# API key, version and correlation id; then the length of the client's id.
_CLIENT_ID_AT = 8
_TAGS_OF_ANSWER_AT = INT32.size
AnswerT = TypeVar("AnswerT")
# Longer stamps are ignored: no cluster has so many nodes.
_MAX_STAMP_BYTES = 16 * 1024


class ClockCarrier:
    """Adds this node's clock to the requests of one connection, and merges those of the answers."""

    def __init__(self, own: Tracer) -> None:
        self._tracer = own
        self._flexible: set[int] = set()

    def outgoing(self, parts: Sequence[Part]) -> list[Part]:
        """The request with this node's clock, if its version can carry one."""
        first = memoryview(parts[0])
        header = decode_request_header(first)
        if not _carries(header.api_key, header.api_version):
            return list(parts)
        self._flexible.add(header.correlation_id)
        name_bytes = int.from_bytes(first[_CLIENT_ID_AT : _CLIENT_ID_AT + 2], "big", signed=True)
        tags_at = _CLIENT_ID_AT + 2 + max(0, name_bytes)
        return [_add_tag(first, tags_at, self._tracer.stamp()), *parts[1:]]

    def incoming(self, answer: memoryview) -> None:
        """Merge the clock of an answer into this node's clock."""
        correlation_id = INT32.unpack_from(answer)[0]
        if correlation_id in self._flexible:
            self._flexible.discard(correlation_id)
            _merge(self._tracer, response_header_tag(answer, CLOCK_TAG))


def merge_request_clock(request: memoryview) -> bool:
    """Merge the clock of a request; whether it has one, so that its answer carries ours too."""
    own = tracer.current
    if own is None:
        return False
    try:
        header = decode_request_header(request)
        if not _carries(header.api_key, header.api_version):
            return False
        return _merge(own, request_header_tag(request, CLOCK_TAG))
    except WireError:
        # The handler of the request reports what is wrong with it.
        return False


def stamp_answer(answer: AnswerT) -> AnswerT:
    """Add this node's clock, as of when it is sent, to the answer to a request with a clock."""
    if answer is None or tracer.current is None:
        return answer
    result: Any
    if isinstance(answer, Sequence):
        first = _add_tag(memoryview(answer[0]), _TAGS_OF_ANSWER_AT, tracer.current.stamp())
        result = [first, *answer[1:]]
    elif isinstance(answer, HeldAnswer):
        result = _stamp_held(answer)
    else:
        result = run_awaited("answer", _stamp_when_done(cast("Awaitable[Any]", answer)))
    return cast("AnswerT", result)


def _stamp_held(answer: HeldAnswer[Any]) -> HeldAnswer[Any]:
    """A held answer with this node's clock; cancelling either cancels the other."""
    result: HeldAnswer[Any] = HeldAnswer(answer.release)

    def on_answer(_: "asyncio.Future[Any]") -> None:
        if answer.cancelled():
            result.cancel()
        elif not result.done():
            result.set_result(stamp_answer(answer.result()))

    def on_result(_: "asyncio.Future[Any]") -> None:
        if result.cancelled():
            answer.cancel()

    answer.add_done_callback(on_answer)
    result.add_done_callback(on_result)
    return result


async def _stamp_when_done(answer: Awaitable[Any]) -> Any:
    return stamp_answer(await answer)


def _carries(api_key: ApiKey, version: int) -> bool:
    return api_key != ApiKey.API_VERSIONS and is_flexible(api_key, version)


def _merge(own: Tracer, stamp: bytes | None) -> bool:
    if stamp is None or len(stamp) > _MAX_STAMP_BYTES:
        return False
    try:
        own.merge(stamp)
    except ValueError:
        return False
    return True


def _add_tag(first: memoryview, tags_at: int, stamp: bytes) -> bytes:
    """The header with one more tagged field, after its own."""
    cursor = Cursor(first, tags_at, flexible=True)
    count = cursor.varint("tagged fields")
    fields_at = cursor.position
    cursor.position = tags_at
    cursor.tags("header")
    output = bytearray(first[:tags_at])
    put_varint(output, count + 1)
    output += first[fields_at : cursor.position]
    put_varint(output, CLOCK_TAG)
    put_varint(output, len(stamp))
    output += stamp
    output += first[cursor.position :]
    return bytes(output)
