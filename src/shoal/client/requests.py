"""Requests of any version from one description.

kio has a class for each version of each message. A caller here writes all fields that it has
something to say about, as plain values and dictionaries; each version takes those that it
knows. Where a field must not be lost, the caller asks for a version that has it (`low`).

Values: whole numbers for times in ms, dictionaries (or a list of them) for nested messages.
"""

import datetime as dt
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

from shoal.wire.messages import request_class

Convert = Callable[[Any], Any]


def build_request(api_key: int, version: int, values: Mapping[str, Any]) -> Any:
    """The request of this version; fields that it does not have are left out."""
    return _build(request_class(api_key, version), values)


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
