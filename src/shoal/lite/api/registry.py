"""What every API file uses: the request it is given, the answer it makes, its registration.

A handler gets the broker's core and the request. It returns the answer, or None if the client
expects none, or something to await for either. Errors that concern a part of a request go
into the answer; `HangUp`, or a wire error, costs the client its connection.
"""

import datetime as dt
import types
import typing
from collections.abc import Awaitable, Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any, NamedTuple

from shoal.lite.core import BrokerCore
from shoal.lite.log.slices import LogSlice
from shoal.model.errors import Blame, ShoalError
from shoal.wire.api_keys import ApiKey
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

_NO_TIME = dt.timedelta(0)


class HangUp(ShoalError):
    """The only answer is to close the connection."""

    blame: Blame = "remote"


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a client."""

    frame: memoryview
    header: RequestFrame

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
        response = build(cls, values)
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


class _Member(NamedTuple):
    name: str
    nested: type[Any] | None
    is_array: bool
    is_required: bool


def build(cls: type[Any], values: dict[str, Any]) -> Any:
    """A message from plain values: dictionaries for structures, lists of them for arrays.

    Fields that the class does not have are dropped, so that one call serves all versions.
    """
    arguments = {}
    for member in _members(cls):
        if member.name in values:
            value = values[member.name]
        elif member.name == "throttle_time":
            value = _NO_TIME
        elif member.is_required:
            raise TypeError(f"{cls.__name__} needs {member.name}")
        else:
            continue
        nested = member.nested
        if nested is not None and value is not None:
            value = (
                tuple(build(nested, item) for item in value)
                if member.is_array
                else (build(nested, value))
            )
        arguments[member.name] = value
    return cls(**arguments)


_MEMBERS: dict[type[Any], tuple[_Member, ...]] = {}


def _members(cls: type[Any]) -> tuple[_Member, ...]:
    known = _MEMBERS.get(cls)
    if known is None:
        known = _MEMBERS[cls] = tuple(
            _Member(field.name, *_nested(field.type), is_required=field.default is MISSING)
            for field in fields(cls)
        )
    return known


def _nested(annotation: Any) -> tuple[type[Any] | None, bool]:
    """The structure that a field holds, if any, and whether it holds many."""
    if isinstance(annotation, types.UnionType):
        annotation = next(
            member for member in typing.get_args(annotation) if member is not types.NoneType
        )
    is_array = typing.get_origin(annotation) is tuple
    if is_array:
        annotation = typing.get_args(annotation)[0]
    return (annotation if is_dataclass(annotation) else None), is_array  # type: ignore[return-value]
