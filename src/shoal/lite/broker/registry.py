"""What every API file uses: the request, the answer, and the registration.

A handler takes the broker's core and the request. It returns the answer, or None if the client
expects none, or an awaitable of either. Errors of a part of a request are returned in the answer;
`CloseConnection` or a wire error closes the client's connection.

The type parameters of a request are those of its body and of its answer: they let the type checker
know the fields of both, and cost nothing at run time. `scripts/api_types.py` writes these types.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Never, TypeVar

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
Handler = Callable[[BrokerCore, "ApiRequest[Any, Any]"], Answer | Awaitable[Answer]]

BodyT = TypeVar("BodyT")
ValuesT = TypeVar("ValuesT", bound=Mapping[str, object])

_NO_THROTTLE = {"throttle_time": 0}


class CloseConnection(ShoalError):
    """The request cannot be answered; its connection must be closed."""

    blame: Blame = "remote"


class PendingAck(asyncio.Future[Answer]):
    """The answer to a Produce request that is written and waits for followers only."""


class ApiRequest(NamedTuple, Generic[BodyT, ValuesT]):
    """One request of a client."""

    frame: memoryview
    header: RequestFrame
    # The client's address in Apache Kafka's notation: "/127.0.0.1".
    client_host: str = ""

    @property
    def version(self) -> int:
        return self.header.api_version

    def body(self) -> BodyT:
        """Decode the request into its kio class, which has the fields of the request's version."""
        cls: type[BodyT] = request_class(self.header.api_key, self.header.api_version)
        return decode_body(self.frame, cls, self.header.body_position)

    def answer(self, values: ValuesT) -> Answer:
        """Encode a response of the request's version; fields that it lacks are omitted."""
        cls = response_class(self.header.api_key, self.header.api_version)
        response = build(cls, {**_NO_THROTTLE, **values})
        return [encode_response(response, correlation_id=self.header.correlation_id)]


# A request that its handler decodes and answers with a codec of its own.
RawRequest = ApiRequest[Never, Never]


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
