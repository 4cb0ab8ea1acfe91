"""What every API file uses: the request it is given, the answer it makes, its registration.

A handler gets the broker's core and the request. It returns the answer, or None if the client
expects none, or something to await for either. Errors that concern a part of a request go
into the answer; `HangUp`, or a wire error, costs the client its connection.
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

# Parts of a response without the frame's length; None where the client expects no response.
# A `LogSlice` among them is sent from its file.
Answer = list[Part | LogSlice] | None
Handler = Callable[[BrokerCore, "Request"], Answer | Awaitable[Answer]]

_NO_THROTTLE = {"throttle_time": 0}


class HangUp(ShoalError):
    """The only answer is to close the connection."""

    blame: Blame = "remote"


class Written(asyncio.Future[Answer]):
    """The answer to a request that has been written and only waits for other brokers."""


class Request(NamedTuple):
    """One request of a client."""

    frame: memoryview
    header: RequestFrame
    # Where the client is, as Apache Kafka writes it: "/127.0.0.1".
    client_host: str = ""

    @property
    def version(self) -> int:
        return self.header.api_version

    def body(self) -> Any:
        """The request as kio describes it."""
        cls = request_class(self.header.api_key, self.header.api_version)
        return decode_body(self.frame, cls, self.header.body_position)

    def answer(self, **values: Any) -> Answer:
        """A response of the request's version; what that version does not have is left out."""
        cls = response_class(self.header.api_key, self.header.api_version)
        response = build(cls, _NO_THROTTLE | values)
        return [encode_response(response, correlation_id=self.header.correlation_id)]


@dataclass(frozen=True, slots=True)
class Api:
    """A registration: the versions that are served, and by what."""

    key: ApiKey
    least: int
    most: int
    handle: Handler
    # Clients may be told of older versions than are served, if they rely on the number alone.
    advertised_from: int | None = None

    @property
    def advertised_least(self) -> int:
        return self.least if self.advertised_from is None else self.advertised_from


APIS: dict[int, Api] = {}


def register(
    key: ApiKey, least: int, most: int, handle: Handler, *, advertised_from: int | None = None
) -> Api:
    """The registration line of an API file: versions `least` to `most` are served."""
    api = APIS[key] = Api(key, least, most, handle, advertised_from)
    return api
