"""Requests of any version from one description, and their answers.

kio has a class for each version of each message. A caller here writes all fields that it has
something to say about, as plain values and dictionaries; each version takes those that it
knows. Where a field must not be lost, the caller asks for a version that has it (`low`).

Answers are read generously: bytes behind a complete message are ignored, as Java's client and
librdkafka do, so brokers exist that send some (librdkafka's mock cluster is one).

Values: whole numbers for times in ms, dictionaries (or a list of them) for nested messages.
"""

import datetime as dt
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, TypeVar

from shoal.wire.errors import Malformed
from shoal.wire.messages import request_class

T = TypeVar("T")
Convert = Callable[[Any], Any]


def build_request(api_key: int, version: int, values: Mapping[str, Any]) -> Any:
    """The request of this version; fields that it does not have are left out."""
    return _build(request_class(api_key, version), values)


def read_answer(read: Callable[[memoryview], T], answer: memoryview) -> T:
    """What `read` makes of an answer, or of the part of it that is a complete message."""
    try:
        return read(answer)
    except Malformed as error:
        if error.position is None or not 0 < error.position < len(answer):
            raise
        # The strict reader says where the surplus begins; anything else fails there again.
        return read(answer[: error.position])


def _build(cls: Any, values: Mapping[str, Any]) -> Any:
    return cls(**{name: convert(values[name]) for name, convert in _plan(cls) if name in values})


@cache
def _plan(cls: Any) -> tuple[tuple[str, Convert], ...]:
    """Field names of a message class, each with what makes its value from a plain one."""
    hints = typing.get_type_hints(cls)
    return tuple(
        (field.name, _converter(hints[field.name], field.metadata.get("kafka_type", "")))
        for field in fields(cls)
    )


def _converter(hint: Any, kafka_type: str) -> Convert:
    if kafka_type.startswith("timedelta"):
        return lambda value: dt.timedelta(milliseconds=value)
    nested = _nested_class(hint)
    if nested is not None:
        return lambda value: None if value is None else _nested(nested, value)
    if typing.get_origin(_without_none(hint)) is tuple:
        return lambda value: None if value is None else tuple(value)
    return lambda value: value


def _nested(cls: type[Any], value: Any) -> Any:
    if isinstance(value, Mapping):
        return _build(cls, value)
    return tuple(_build(cls, item) for item in value)


def _nested_class(hint: Any) -> type[Any] | None:
    """The message class inside `X`, `X | None`, `tuple[X, ...]` or `tuple[X, ...] | None`."""
    inner = _without_none(hint)
    if typing.get_origin(inner) is tuple:
        inner = typing.get_args(inner)[0]
    return inner if isinstance(inner, type) and is_dataclass(inner) else None


def _without_none(hint: Any) -> Any:
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return next(item for item in typing.get_args(hint) if item is not types.NoneType)
    return hint
