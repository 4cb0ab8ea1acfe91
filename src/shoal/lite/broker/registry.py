"""What every API file uses: the request, the answer, and the registration.

A handler takes the broker's core and the request. It returns the answer, or None if the client
expects none, or an awaitable of either. Errors of a part of a request are returned in the answer;
`CloseConnection` or a wire error closes the client's connection.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from shoal.lite.broker.core import BrokerCore
from shoal.lite.storage.slices import LogSlice
from shoal.model.errors import Blame, ShoalError
from shoal.wire.api_keys import ApiKey
from shoal.wire.building import build
from shoal.wire.framing import Part
from shoal.wire.messages import (
    RequestFrame,
    decode_body,
    encode_response,
    request_class,
    response_class,
)

# The parts of a response without the frame's length; None if the client expects no response.
# A `LogSlice` is sent directly from its file.
Answer = list[Part | LogSlice] | None
Handler = Callable[[BrokerCore, "ApiRequest"], Answer | Awaitable[Answer]]

_NO_THROTTLE = {"throttle_time": 0}


class CloseConnection(ShoalError):
    """The request cannot be answered; its connection must be closed."""

    blame: Blame = "remote"


class PendingAck(asyncio.Future[Answer]):
    """The answer to a Produce request that is written and waits for followers only."""


class ApiRequest(NamedTuple):
    """One request of a client."""

    frame: memoryview
    header: RequestFrame
    # The client's address in Apache Kafka's notation: "/127.0.0.1".
    client_host: str = ""

    @property
    def version(self) -> int:
        return self.header.api_version

    def body(self) -> Any:
        """Decode the request into its kio class."""
        cls = request_class(self.header.api_key, self.header.api_version)
        return decode_body(self.frame, cls, self.header.body_position)

    def answer(self, **values: Any) -> Answer:
        """Encode a response of the request's version; fields that it lacks are omitted."""
        cls = response_class(self.header.api_key, self.header.api_version)
        response = build(cls, _NO_THROTTLE | values)
        return [encode_response(response, correlation_id=self.header.correlation_id)]


@dataclass(frozen=True, slots=True)
class Api:
    """A registration: the supported versions and their handler."""

    key: ApiKey
    least: int
    most: int
    handle: Handler
    # ApiVersions may advertise older versions than are served, for clients that need the number.
    advertised_from: int | None = None

    @property
    def advertised_least(self) -> int:
        return self.least if self.advertised_from is None else self.advertised_from


APIS: dict[int, Api] = {}


def register(
    key: ApiKey, least: int, most: int, handle: Handler, *, advertised_from: int | None = None
) -> Api:
    """Register a handler for the versions `least` to `most` of an API."""
    api = APIS[key] = Api(key, least, most, handle, advertised_from)
    return api
