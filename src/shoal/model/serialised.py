"""The names of serialised fields: in files, on topics and between processes.

A class that is serialised declares the name of each field beside its type:

    leader_epoch: Annotated[int, "leader_epoch"]

Rules:
- The declared name is part of a format, the Python name is not: a field, a class or a module may
  be renamed, and no byte changes. `tests/formats/schemas.json` has every declared name.
- A class with a field that declares no name cannot be written or read (`TypeError`).
- A reader refuses unknown, missing and mistyped fields (`FormatMismatch`, which names the field).
  It uses a default only if the version that wrote the value did not have the field:
  `Annotated[int, "generation", AbsentUpTo(1)]`.
- Dataclasses become JSON objects. Tuples, named tuples too, become lists.
- Pure. The owner of a format checks its version with `check_version`.
"""

import functools
import operator
import types
import typing
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, cast
from uuid import UUID

T = TypeVar("T")
Encode = Callable[[Any], Any]
Decode = Callable[[Any, int | None], Any]

_SCALARS: Final = (bool, int, float, str)
# Types that JSON lacks, serialised as strings.
_TEXTS: Final[tuple[type, ...]] = (UUID, Path)
_LISTS: Final = (list, Sequence)
_MAPS: Final = (dict, Mapping)


class FormatMismatch(ValueError):
    """A value does not match its format; the message names the field and the reason."""

    def __init__(self, reason: str, where: str = "") -> None:
        super().__init__(f"{where.lstrip('.')} {reason}" if where else reason)
        self._reason = reason
        self._where = where

    def inside(self, place: str) -> "FormatMismatch":
        """The same error, for a value that is nested at `place` of another one."""
        return FormatMismatch(self._reason, place + self._where)


@dataclass(frozen=True, slots=True)
class AbsentUpTo:
    """Values of this version and below may lack the field; it then gets its default."""

    version: int


@dataclass(frozen=True, slots=True)
class SerialisedField:
    """One field of a class: its name in the format and its Python attribute."""

    serialised_name: str
    attribute: str
    hint: Any
    absent_up_to: int | None


def names_of(cls: type[Any]) -> tuple[SerialisedField, ...]:
    """The fields of a class, in the order in which they are serialised."""
    return _names(cast("Hashable", cls))


@functools.cache
def _names(cls: type) -> tuple[SerialisedField, ...]:
    hints = typing.get_type_hints(cls, include_extras=True)
    found = [_read_declaration(cls, item.name, hints[item.name]) for item in fields(cls)]
    if len({name.serialised_name for name in found}) < len(found):
        raise TypeError(f"{cls.__name__} declares one serialised name for two fields")
    for name, item in zip(found, fields(cls), strict=True):
        if name.absent_up_to is not None and item.default is item.default_factory is MISSING:
            raise TypeError(f"{cls.__name__}.{item.name} may be absent but has no default")
    return tuple(found)


def _read_declaration(cls: type, attribute: str, hint: Any) -> SerialisedField:
    if typing.get_origin(hint) is not typing.Annotated:
        raise TypeError(f"{cls.__name__}.{attribute} declares no serialised name")
    plain, field_name, *marks = typing.get_args(hint)
    if not isinstance(field_name, str):
        raise TypeError(f"{cls.__name__}.{attribute} declares {field_name!r}, which is not a name")
    absent = [mark.version for mark in marks if isinstance(mark, AbsentUpTo)]
    return SerialisedField(field_name, attribute, plain, absent[0] if absent else None)


# Writing


def to_plain(value: Any) -> Any:
    """Convert a value to JSON types; objects get the declared names."""
    kind = type(value)
    if value is None or kind in _SCALARS:
        return value
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, _TEXTS):
        return str(value)
    if is_dataclass(kind):
        return _writer(kind)(value)
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    raise TypeError(f"values of type {kind.__name__} cannot be serialised")


@functools.cache
def _writer(cls: type) -> Encode:
    """The function that serialises objects of a class; built once for each class."""
    names = names_of(cls)
    field_names = tuple(name.serialised_name for name in names)
    attributes = tuple(name.attribute for name in names)
    get = operator.attrgetter(*attributes) if len(names) > 1 else None
    converted = [(n.serialised_name, one) for n in names if (one := _encoder(n.hint)) is not None]

    def write(value: Any) -> dict[str, Any]:
        values = get(value) if get else [getattr(value, name) for name in attributes]
        body = dict(zip(field_names, values, strict=False))
        for name, convert in converted:
            body[name] = convert(body[name])
        return body

    return write


def _encoder(hint: Any) -> Encode | None:
    """The function that converts a field, or None for numbers and strings, which need none."""
    inner = typing.get_args(hint)
    if hint in _SCALARS:
        return None
    if isinstance(hint, types.UnionType) and all(
        kind in (*_SCALARS, types.NoneType) for kind in inner
    ):
        return None
    if typing.get_origin(hint) is tuple and inner[0] in _SCALARS and inner[1:] == (Ellipsis,):
        return None  # JSON writes a tuple as a list
    return str if hint in _TEXTS else to_plain


# Reading


def from_plain(cls: type[T], body: Any, *, version: int | None = None) -> T:
    """The inverse of `to_plain`; `FormatMismatch` if `body` does not match the class.

    `version` is the version that the serialised value names; None for formats with one version.
    """
    value: T = _decoder(cast("Hashable", cls))(body, version)
    return value


def arguments_of(cls: type, body: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments for the class from fields by declared names; values stay unchanged."""
    attributes = {name.serialised_name: name.attribute for name in names_of(cls)}
    if unknown := sorted(body.keys() - attributes.keys()):
        raise FormatMismatch(f"has the unknown field {unknown[0]!r:.60}")
    return {attributes[field_name]: value for field_name, value in body.items()}


def all_arguments_of(
    cls: type, body: Mapping[str, Any], *, version: int | None = None
) -> dict[str, Any]:
    """As `arguments_of`, but only fields that `version` did not have may be missing."""
    for name in names_of(cls):
        if name.serialised_name not in body and not _may_be_absent(name.absent_up_to, version):
            raise FormatMismatch(f"lacks the field {name.serialised_name!r}")
    return arguments_of(cls, body)


def _may_be_absent(absent_up_to: int | None, version: int | None) -> bool:
    return absent_up_to is not None and version is not None and version <= absent_up_to


def check_version(version: object, known: Collection[int]) -> int:
    """Return `version` if it can be read; otherwise raise `FormatMismatch`."""
    if type(version) is not int or version not in known:
        read = " and ".join(map(str, sorted(known)))
        raise FormatMismatch(f"has version {version!r:.40}; this version of shoal reads {read}")
    return version


@functools.cache
def _decoder(hint: Any) -> Decode:
    """The function that reads values of a type; built once for each type."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return lambda value, _version: value
    if origin in (typing.Union, types.UnionType):
        return _union_decoder(inner)
    if origin is Literal:
        return _member_decoder(frozenset(inner), lambda value: value)
    if origin is tuple:
        return _tuple_decoder(hint, inner)
    if origin in _LISTS:
        return _list_decoder(_decoder(inner[0]))
    if origin in _MAPS:
        return _map_decoder(*inner)
    return _decoder_of_class(hint)


def _decoder_of_class(cls: type) -> Decode:
    if cls in _SCALARS:
        return _scalar_decoder(cls)
    if issubclass(cls, tuple):
        return _tuple_decoder(cls, ())
    if issubclass(cls, Enum):
        return _member_decoder(frozenset(member.value for member in cls), cls)
    if cls in _TEXTS:
        return _text_decoder(cls)
    if is_dataclass(cls):
        return _object_decoder(cls)
    raise TypeError(f"values of type {cls.__name__} cannot be read")


def _scalar_decoder(kind: type) -> Decode:
    def decode(value: Any, _version: int | None) -> Any:
        # In Python a bool is an int; here it is not.
        if type(value) is kind:
            return value
        # JSON may contain 1 for 1.0.
        if kind is float and type(value) is int:
            return float(value)
        raise _refuse_type(value, kind.__name__)

    return decode


def _text_decoder(kind: Callable[[str], Any]) -> Decode:
    def decode(value: Any, _version: int | None) -> Any:
        try:
            return kind(value)
        except (TypeError, ValueError, AttributeError) as error:
            raise _refuse_type(value, getattr(kind, "__name__", str(kind))) from error

    return decode


def _member_decoder(legal: frozenset[Any], make: Callable[[Any], Any]) -> Decode:
    def decode(value: Any, _version: int | None) -> Any:
        if type(value) not in (str, int) or value not in legal:
            raise FormatMismatch(f"is {value!r:.80}, not one of {sorted(legal)!r:.300}")
        return make(value)

    return decode


def _union_decoder(inner: tuple[Any, ...]) -> Decode:
    kinds = [kind for kind in inner if kind is not types.NoneType]
    if len(kinds) != 1:
        raise TypeError(f"a union of {inner!r} cannot be read")
    only = _decoder(kinds[0])
    return lambda value, version: None if value is None else only(value, version)


def _list_decoder(item: Decode) -> Decode:
    def decode(value: Any, version: int | None) -> list[Any]:
        if not isinstance(value, list | tuple):
            raise _refuse_type(value, "list")
        found: list[Any] = []
        try:
            for each in value:
                found.append(item(each, version))  # noqa: PERF401 - its length is the index of a bad item
        except FormatMismatch as error:
            raise error.inside(f"[{len(found)}]") from error
        return found

    return decode


def _tuple_decoder(hint: Any, inner: tuple[Any, ...]) -> Decode:
    if len(inner) == 2 and inner[1] is Ellipsis:
        several = _list_decoder(_decoder(inner[0]))
        return lambda value, version: tuple(several(value, version))
    is_named = not inner and hasattr(hint, "_fields")
    kinds = tuple(typing.get_type_hints(hint).values()) if is_named else inner
    decoders = [_decoder(kind) for kind in kinds]

    def decode(value: Any, version: int | None) -> Any:
        if not isinstance(value, list | tuple) or len(value) != len(decoders):
            raise _refuse_type(value, f"list of {len(decoders)}")
        items = [one(each, version) for one, each in zip(decoders, value, strict=True)]
        return hint(*items) if is_named else tuple(items)

    return decode


def _map_decoder(key_hint: Any, item_hint: Any) -> Decode:
    item = _decoder(item_hint)

    def decode(value: Any, version: int | None) -> dict[Any, Any]:
        if not isinstance(value, dict):
            raise _refuse_type(value, "object")
        found = {}
        for key, each in value.items():
            try:
                # Keys in JSON are strings.
                found[int(key) if key_hint is int else str(key)] = item(each, version)
            except FormatMismatch as error:
                raise error.inside(f".{key}") from error
            except ValueError as error:
                raise FormatMismatch(f"has the name {key!r:.60}, not a number") from error
        return found

    return decode


def _object_decoder(cls: type) -> Decode:
    parts = [
        (n.serialised_name, n.attribute, _decoder(n.hint), n.absent_up_to) for n in names_of(cls)
    ]
    known = {field_name for field_name, *_ in parts}

    def decode(value: Any, version: int | None) -> Any:
        if type(value) is not dict:
            raise _refuse_type(value, "object")
        found = {}
        for field_name, attribute, one, absent_up_to in parts:
            if field_name in value:
                try:
                    found[attribute] = one(value[field_name], version)
                except FormatMismatch as error:
                    raise error.inside(f".{field_name}") from error
            elif not _may_be_absent(absent_up_to, version):
                raise FormatMismatch(f"lacks the field {field_name!r}")
        if len(value) > len(found):
            unknown = min(value.keys() - known)
            raise FormatMismatch(f"has the unknown field {unknown!r:.60}")
        return cls(**found)

    return decode


def _refuse_type(value: Any, kind: str) -> FormatMismatch:
    return FormatMismatch(f"is {value!r:.80}, not a {kind}")


# Describing


def schema_of(cls: type) -> dict[str, Any]:
    """The declared names of a class with their types, nested classes included."""
    return {
        name.serialised_name: {
            "absent up to version": name.absent_up_to,
            "type": _describe(name.hint),
        }
        if name.absent_up_to is not None
        else _describe(name.hint)
        for name in names_of(cls)
    }


def _describe(hint: Any) -> Any:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _phrase("null or", next(kind for kind in inner if kind is not types.NoneType))
    if origin is Literal:
        return f"one of {', '.join(map(str, inner))}"
    if origin is tuple and inner[1:] != (Ellipsis,):
        return ["list", *map(_describe, inner)]
    if origin is tuple or origin in _LISTS:
        return _phrase("list of", inner[0])
    if origin in _MAPS:
        return _phrase(f"object by {_describe(inner[0])} of", inner[1])
    return "any" if hint is Any else _describe_class(hint)


def _describe_class(cls: type) -> Any:
    if issubclass(cls, tuple):
        return ["list", *map(_describe, typing.get_type_hints(cls).values())]
    if issubclass(cls, Enum):
        return f"one of {', '.join(str(member.value) for member in cls)}"
    return schema_of(cls) if is_dataclass(cls) else cls.__name__.lower()


def _phrase(words: str, hint: Any) -> Any:
    inner = _describe(hint)
    return f"{words} {inner}" if isinstance(inner, str) else [words, inner]
