"""Names under which fields are written: in files, on topics and between processes.

A class that is written declares the name of each field beside its type:

    leader_epoch: Annotated[int, "leader_epoch"]

Rules:
- The declared name is part of a format, the Python name is not: a field, a class or a module may
  be renamed, and no byte changes. `tests/formats/schemas.json` has every declared name.
- A class without a name for each of its fields cannot be written or read (`TypeError`).
- A reader refuses unknown, missing and mistyped fields (`FormatMismatch`, which says which). It
  never fills in a default, unless the version that wrote the value did not have the field:
  `Annotated[int, "generation", AbsentUpTo(1)]`.
- Dataclasses become objects by name. Tuples, named ones too, become lists by position.
- Pure. Versions are checked by those who own the format, with `check_version`.
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
# How values stand in JSON that JSON has no type for.
_TEXTS: Final[tuple[type, ...]] = (UUID, Path)
_LISTS: Final = (list, Sequence)
_MAPS: Final = (dict, Mapping)


class FormatMismatch(ValueError):
    """A value is not what its format says; the text says which field, and why."""

    def __init__(self, reason: str, where: str = "") -> None:
        super().__init__(f"{where.lstrip('.')} {reason}" if where else reason)
        self._reason = reason
        self._where = where

    def inside(self, place: str) -> "FormatMismatch":
        """The same, of a value that lies at `place` of another one."""
        return FormatMismatch(self._reason, place + self._where)


@dataclass(frozen=True, slots=True)
class AbsentUpTo:
    """Values of this version and below may lack the field, and then have its default."""

    version: int


@dataclass(frozen=True, slots=True)
class Name:
    """One field of a class: how it is written, how it is called here."""

    written: str
    attribute: str
    hint: Any
    absent_up_to: int | None


def names_of(cls: type[Any]) -> tuple[Name, ...]:
    """The fields of a class in the order in which they are written."""
    return _names(cast("Hashable", cls))


@functools.cache
def _names(cls: type) -> tuple[Name, ...]:
    hints = typing.get_type_hints(cls, include_extras=True)
    found = [_read_declaration(cls, item.name, hints[item.name]) for item in fields(cls)]
    if len({name.written for name in found}) < len(found):
        raise TypeError(f"{cls.__name__} writes two fields under one name")
    for name, item in zip(found, fields(cls), strict=True):
        if name.absent_up_to is not None and item.default is item.default_factory is MISSING:
            raise TypeError(f"{cls.__name__}.{item.name} may be absent and has no default")
    return tuple(found)


def _read_declaration(cls: type, attribute: str, hint: Any) -> Name:
    if typing.get_origin(hint) is not typing.Annotated:
        raise TypeError(f"{cls.__name__}.{attribute} is written and declares no name")
    plain, written, *marks = typing.get_args(hint)
    if not isinstance(written, str):
        raise TypeError(f"{cls.__name__}.{attribute} declares {written!r}, which is not a name")
    absent = [mark.version for mark in marks if isinstance(mark, AbsentUpTo)]
    return Name(written, attribute, plain, absent[0] if absent else None)


# Writing


def to_plain(value: Any) -> Any:
    """What JSON can hold of a value; objects have the declared names."""
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
    raise TypeError(f"a {kind.__name__} cannot be written")


@functools.cache
def _writer(cls: type) -> Encode:
    """How an object is written; made once for each class."""
    names = names_of(cls)
    written = tuple(name.written for name in names)
    attributes = tuple(name.attribute for name in names)
    get = operator.attrgetter(*attributes) if len(names) > 1 else None
    converted = [(n.written, one) for n in names if (one := _encoder(n.hint)) is not None]

    def write(value: Any) -> dict[str, Any]:
        values = get(value) if get else [getattr(value, name) for name in attributes]
        body = dict(zip(written, values, strict=False))
        for name, convert in converted:
            body[name] = convert(body[name])
        return body

    return write


def _encoder(hint: Any) -> Encode | None:
    """Most fields are numbers and texts: those are not looked at one by one."""
    inner = typing.get_args(hint)
    if hint in _SCALARS:
        return None
    if isinstance(hint, types.UnionType) and all(
        kind in (*_SCALARS, types.NoneType) for kind in inner
    ):
        return None
    if typing.get_origin(hint) is tuple and inner[0] in _SCALARS and inner[1:] == (Ellipsis,):
        return None  # which JSON writes as a list
    return str if hint in _TEXTS else to_plain


# Reading


def from_plain(cls: type[T], body: Any, *, version: int | None = None) -> T:
    """The value that `to_plain` made `body` of; `FormatMismatch` if it cannot be one.

    `version` is the one that the format says of itself; None for formats that have only one.
    """
    value: T = _decoder(cast("Hashable", cls))(body, version)
    return value


def arguments_of(cls: type, body: Mapping[str, Any]) -> dict[str, Any]:
    """Some fields by declared names, as arguments of the class; values stay as they are."""
    attributes = {name.written: name.attribute for name in names_of(cls)}
    if unknown := sorted(body.keys() - attributes.keys()):
        raise FormatMismatch(f"has the unknown field {unknown[0]!r:.60}")
    return {attributes[written]: value for written, value in body.items()}


def all_arguments_of(
    cls: type, body: Mapping[str, Any], *, version: int | None = None
) -> dict[str, Any]:
    """The same where nothing may be missing but what that version did not have."""
    for name in names_of(cls):
        if name.written not in body and not _may_lack(name.absent_up_to, version):
            raise FormatMismatch(f"lacks the field {name.written!r}")
    return arguments_of(cls, body)


def _may_lack(absent_up_to: int | None, version: int | None) -> bool:
    return absent_up_to is not None and version is not None and version <= absent_up_to


def check_version(said: object, known: Collection[int]) -> int:
    """The version that a value names, if it is one of those that can be read."""
    if type(said) is not int or said not in known:
        read = " and ".join(map(str, sorted(known)))
        raise FormatMismatch(f"has version {said!r:.40}; this version of shoal reads {read}")
    return said


@functools.cache
def _decoder(hint: Any) -> Decode:
    """How a value of a type is read; made once for each type."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return lambda value, _version: value
    if origin in (typing.Union, types.UnionType):
        return _union(inner)
    if origin is Literal:
        return _member(frozenset(inner), lambda value: value)
    if origin is tuple:
        return _tuple(hint, inner)
    if origin in _LISTS:
        return _list(_decoder(inner[0]))
    if origin in _MAPS:
        return _map(*inner)
    return _decoder_of_class(hint)


def _decoder_of_class(cls: type) -> Decode:
    if cls in _SCALARS:
        return _scalar(cls)
    if issubclass(cls, tuple):
        return _tuple(cls, ())
    if issubclass(cls, Enum):
        return _member(frozenset(member.value for member in cls), cls)
    if cls in _TEXTS:
        return _made(cls)
    if is_dataclass(cls):
        return _object(cls)
    raise TypeError(f"a {cls.__name__} cannot be read")


def _scalar(kind: type) -> Decode:
    def decode(value: Any, _version: int | None) -> Any:
        # In Python a bool is an int; here it is not.
        if type(value) is kind:
            return value
        # JSON may say 1 for 1.0.
        if kind is float and type(value) is int:
            return float(value)
        raise _refuse_type(value, kind.__name__)

    return decode


def _made(kind: Callable[[str], Any]) -> Decode:
    def decode(value: Any, _version: int | None) -> Any:
        try:
            return kind(value)
        except (TypeError, ValueError, AttributeError) as error:
            raise _refuse_type(value, getattr(kind, "__name__", str(kind))) from error

    return decode


def _member(legal: frozenset[Any], make: Callable[[Any], Any]) -> Decode:
    def decode(value: Any, _version: int | None) -> Any:
        if type(value) not in (str, int) or value not in legal:
            raise FormatMismatch(f"is {value!r:.80}, not one of {sorted(legal)!r:.300}")
        return make(value)

    return decode


def _union(inner: tuple[Any, ...]) -> Decode:
    kinds = [kind for kind in inner if kind is not types.NoneType]
    if len(kinds) != 1:
        raise TypeError(f"a union of {inner!r} cannot be read")
    only = _decoder(kinds[0])
    return lambda value, version: None if value is None else only(value, version)


def _list(item: Decode) -> Decode:
    def decode(value: Any, version: int | None) -> list[Any]:
        if not isinstance(value, list | tuple):
            raise _refuse_type(value, "list")
        found: list[Any] = []
        try:
            for each in value:
                found.append(item(each, version))  # noqa: PERF401 - its length tells where it ends
        except FormatMismatch as error:
            raise error.inside(f"[{len(found)}]") from error
        return found

    return decode


def _tuple(hint: Any, inner: tuple[Any, ...]) -> Decode:
    if len(inner) == 2 and inner[1] is Ellipsis:
        several = _list(_decoder(inner[0]))
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


def _map(key_hint: Any, item_hint: Any) -> Decode:
    item = _decoder(item_hint)

    def decode(value: Any, version: int | None) -> dict[Any, Any]:
        if not isinstance(value, dict):
            raise _refuse_type(value, "object")
        found = {}
        for key, each in value.items():
            try:
                # JSON's keys are texts.
                found[int(key) if key_hint is int else str(key)] = item(each, version)
            except FormatMismatch as error:
                raise error.inside(f".{key}") from error
            except ValueError as error:
                raise FormatMismatch(f"has the name {key!r:.60}, not a number") from error
        return found

    return decode


def _object(cls: type) -> Decode:
    parts = [(n.written, n.attribute, _decoder(n.hint), n.absent_up_to) for n in names_of(cls)]
    known = {written for written, *_ in parts}

    def decode(value: Any, version: int | None) -> Any:
        if type(value) is not dict:
            raise _refuse_type(value, "object")
        found = {}
        for written, attribute, one, absent_up_to in parts:
            if written in value:
                try:
                    found[attribute] = one(value[written], version)
                except FormatMismatch as error:
                    raise error.inside(f".{written}") from error
            elif not _may_lack(absent_up_to, version):
                raise FormatMismatch(f"lacks the field {written!r}")
        if len(value) > len(found):
            unknown = min(value.keys() - known)
            raise FormatMismatch(f"has the unknown field {unknown!r:.60}")
        return cls(**found)

    return decode


def _refuse_type(value: Any, kind: str) -> FormatMismatch:
    return FormatMismatch(f"is {value!r:.80}, not a {kind}")


# Describing


def schema_of(cls: type) -> dict[str, Any]:
    """The declared names of a class with their types; nested ones inside."""
    return {
        name.written: {"absent up to version": name.absent_up_to, "type": _describe(name.hint)}
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
