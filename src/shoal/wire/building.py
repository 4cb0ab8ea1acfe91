"""Builds messages of any version from one description.

kio has a class for each version of each message. A caller here passes all fields that it knows, as
plain values; each version takes those that it has. If a field must not be lost, the caller asks for
a version that has it.

Values: whole numbers for times in ms, dictionaries (or a list of them) for inner structures,
any sequence for arrays.

Nothing of kio is imported here: its classes come from the caller and describe themselves.
"""

import datetime as dt
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, fields, is_dataclass
from functools import cache, partial
from typing import Any

Convert = Callable[[Any], Any]
_EPOCH = dt.datetime.fromtimestamp(0, dt.UTC)


@dataclass(frozen=True, slots=True)
class Shape:
    """The type of a field, from its annotation."""

    item_type: type[Any]
    is_array: bool
    is_nullable: bool

    @property
    def is_structure(self) -> bool:
        """Whether it is, or contains, inner structures instead of primitives."""
        return is_dataclass(self.item_type)


def shape_of(field: "Field[Any]") -> Shape:
    """The shape of a field of a message or of an inner structure."""
    annotation: Any = field.type
    is_nullable = False
    if isinstance(annotation, types.UnionType):
        is_nullable = True
        annotation = _without_none(annotation)
    if typing.get_origin(annotation) is not tuple:
        return Shape(annotation, False, is_nullable)
    item_type = typing.get_args(annotation)[0]
    if isinstance(item_type, types.UnionType):
        item_type = _without_none(item_type)  # UUIDs, of which zero stands for null
    return Shape(item_type, True, is_nullable)


def build(cls: Any, values: Mapping[str, Any]) -> Any:
    """A message of this class; values for fields that it does not have are ignored."""
    return cls(**{name: convert(values[name]) for name, convert in _plan(cls) if name in values})


@cache
def _plan(cls: Any) -> tuple[tuple[str, Convert], ...]:
    """The field names of a class, each with the function that converts a plain value."""
    return tuple((field.name, _converter(field)) for field in fields(cls))


def _converter(field: "Field[Any]") -> Convert:
    shape = shape_of(field)
    if shape.is_structure:
        return partial(_structures if shape.is_array else _structure, shape.item_type)
    if shape.is_array:
        return lambda value: None if value is None else tuple(value)
    kafka_type = field.metadata.get("kafka_type", "")
    if kafka_type.startswith("timedelta"):
        return lambda value: dt.timedelta(milliseconds=value)
    if kafka_type.startswith("datetime"):
        return lambda value: None if value is None else _EPOCH + dt.timedelta(milliseconds=value)
    return lambda value: value


def _structure(cls: type[Any], value: Mapping[str, Any] | None) -> Any:
    return None if value is None else build(cls, value)


def _structures(cls: type[Any], value: Iterable[Mapping[str, Any]] | None) -> Any:
    return None if value is None else tuple(build(cls, item) for item in value)


def _without_none(union: types.UnionType) -> Any:
    return next(member for member in typing.get_args(union) if member is not types.NoneType)
