"""Reads TOML files key by key, with errors that name the line.

Rules:
- A reader of a table takes each key that it knows and then calls `refuse_unknown_keys`: for any
  other key the error names the line and the nearest valid key.
- A value is checked when it is taken, so a wrong file gives one error: its first mistake.
- Quantities are numbers in the unit that ends the key (`duration_s = 10`), or strings with a
  unit under the same key or the key without the unit (`duration = "10s"`, `size = "1KiB"`).
- A file is at most 1 MB, because it is external input.
"""

import difflib
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from shoal.model.errors import ConfigError, UsageError
from shoal.model.units import parse_bytes, parse_count, parse_duration_s

FILE_LIMIT_BYTES: Final = 1_000_000

# Units at the end of a key, and how many of them are one second.
_PER_SECOND: Final = {"_us": 1_000_000, "_ms": 1_000, "_s": 1}
_UNITS: Final = ("_per_s", "_bytes", *_PER_SECOND)
_HEADER: Final = re.compile(r"\s*(\[\[?)\s*([^\[\]#]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY: Final = re.compile(r"""\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"))*)\s*=""")

_Value = TypeVar("_Value")
_Missing = object()
Place = tuple[str | int, ...]


class Origin:
    """Where a table comes from: the name of its file, and the line of each of its keys."""

    def __init__(self, name: str, text: str = "") -> None:
        self.name = name
        self._sites = {place: f"{name}, line {number}" for place, number in _lines_of(text).items()}

    def at(self, place: Place) -> str:
        """The file and, if it is known, the line of a key or of the table that should hold it."""
        for length in range(len(place), 0, -1):
            if place[:length] in self._sites:
                return self._sites[place[:length]]
        return self.name

    def set_site(self, place: Place, site: str) -> None:
        """Record that a key was set elsewhere, for instance on the command line."""
        self._sites[place] = site


class Table:
    """One table of a file; every key is taken at most once."""

    def __init__(self, values: Mapping[str, Any], origin: Origin, place: Place = ()) -> None:
        self._values = dict(values)
        self._origin = origin
        self._place = place
        self._known: dict[str, None] = {}
        self._names_in_file: dict[str, str] = {}  # the key of a quantity in the file, by its field

    @property
    def name(self) -> str:
        """The name of this table in messages; "" for the file itself."""
        return ".".join(str(part) for part in self._place if isinstance(part, str))

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def __bool__(self) -> bool:
        return bool(self._values)

    def set_value(self, path: Sequence[str], value: Any, *, site: str) -> None:
        """Set a key of this table, or of a table in it, before it is taken."""
        here = self._values
        for step, part in enumerate(path[:-1], start=1):
            inner = here.get(part, {})
            if not isinstance(inner, dict):
                raise ConfigError(f"{site}: {'.'.join(path[:step])} is not a table")
            here[part] = dict(inner)
            here = here[part]
        here[path[-1]] = value
        self._origin.set_site((*self._place, *path), site)

    def error(self, key: str, why: str, *, remedy: str | None = None) -> ConfigError:
        """The error about one key, with its file and line."""
        key = self._names_in_file.get(key, key)
        called = f"{self.name}.{key}" if self.name else key
        return ConfigError(f"{self.site(key)}: {called.rstrip('.')} {why}", remedy=remedy)

    def site(self, key: str = "") -> str:
        """File and line of a key, or of the table."""
        return self._origin.at((*self._place, key) if key else self._place)

    def refuse_unknown_keys(self) -> None:
        """Raise `ConfigError` for a key that was not taken."""
        for key in self._values:
            if key not in self._known:
                near = difflib.get_close_matches(key, self._known, n=1, cutoff=0.5)
                known = ", ".join(self._known) or "none"
                raise self.error(
                    key,
                    "is not a key of this file" if not self.name else "is not known",
                    remedy=f"did you mean {near[0]}?" if near else f"valid keys: {known}",
                )

    def text(self, key: str, default: str | None = None, *, choices: Iterable[str] = ()) -> str:
        """A string, one of `choices` if given; required if it has no default."""
        found: str = self._take(key, default, str, "a string")
        allowed = list(choices)
        if allowed and found not in allowed and not (found == default and key not in self):
            near = difflib.get_close_matches(found, allowed, n=1, cutoff=0.5)
            remedy = f"did you mean {near[0]}?" if near else f"use one of {', '.join(allowed)}"
            raise self.error(key, f"has the unknown value {found!r:.60}", remedy=remedy)
        return found

    def flag(self, key: str, default: bool) -> bool:
        found: bool = self._take(key, default, bool, "true or false")
        return found

    def count(self, key: str, default: int | None = None, *, least: int = 0) -> int:
        """A whole number, or a string such as `10k`."""
        found = self._take(key, default, (int, str), "a whole number")
        value: int = self._parse(key, found, parse_count) if isinstance(found, str) else found
        if value < least:
            raise self.error(key, f"is {value}, but must be {least} or more")
        return value

    def seconds(self, key: str, default: float | None = None) -> float:
        """A duration: a number of seconds, or a string such as `250ms`."""
        found = self._take(key, default, (int, float, str), "a duration such as 30s")
        value = self._parse(key, found, parse_duration_s) if isinstance(found, str) else found
        if value < 0:
            raise self.error(key, f"is {value}, but must not be negative")
        return float(value)

    def number(self, key: str, default: float | None = None) -> float:
        return float(self._take(key, default, (int, float), "a number"))

    def texts(self, key: str, default: Iterable[str] = ()) -> tuple[str, ...]:
        """A list of strings; a single string stands for a list of one."""
        found = self._take(key, list(default), (list, str), "a list of strings")
        listed = [found] if isinstance(found, str) else found
        if not all(isinstance(item, str) for item in listed):
            raise self.error(key, "must be a list of strings")
        return tuple(listed)

    def mapping(self, key: str) -> dict[str, Any]:
        """A table whose keys may have dots, with values of any kind."""
        return dict(_flat(self._take(key, {}, dict, "a table")))

    def properties(self, key: str) -> dict[str, str]:
        """A table of Kafka properties: names with dots, values as strings."""
        found = self._take(key, {}, dict, "a table of settings")
        settings: dict[str, str] = {}
        for name, value in _flat(found):
            if not isinstance(value, str | int | float | bool):
                raise self.error(key, f"has {name}, which must be a string, a number or a boolean")
            settings[name] = str(value).lower() if isinstance(value, bool) else str(value)
        return settings

    def table(self, key: str) -> "Table":
        """A table inside this one; empty if it is missing."""
        return Table(self._take(key, {}, dict, "a table"), self._origin, (*self._place, key))

    def tables(self, key: str) -> "list[Table]":
        """The tables of an array, `[[key]]`."""
        found = self._take(key, [], list, f"written as [[{key}]]")
        if not all(isinstance(item, dict) for item in found):
            raise self.error(key, f"must be written as [[{key}]]")
        return [
            Table(item, self._origin, (*self._place, key, number))
            for number, item in enumerate(found)
        ]

    def quantity(self, key: str, kind: type, *, aliases: Iterable[str] = ()) -> Any:
        """A value for a field such as `linger_us` or `codec`; `None` if it is missing.

        Its key is the field's name, the name without the unit, or an alias.
        """
        unit = next((unit for unit in _UNITS if key.endswith(unit)), "")
        names = list(dict.fromkeys([key, key.removesuffix(unit), *aliases]))
        self._known |= dict.fromkeys(names)
        given = [name for name in names if name in self._values]
        if len(given) > 1:
            raise self.error(
                given[1], f"is the same setting as {given[0]}", remedy="remove one of them"
            )
        if not given:
            return None
        self._names_in_file[key] = given[0]
        value = self._values[given[0]]
        if isinstance(value, str) and kind is not str:
            return self._parse(given[0], value, lambda text: _parse_with_unit(text, unit, kind))
        if unit in _PER_SECOND and given[0] != key and type(value) in (int, float):
            value = kind(value * _PER_SECOND[unit])  # a bare number without a unit is seconds
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            raise self.error(given[0], f"is {value!r:.60}, but must be {_TYPE_NAMES[kind]}")
        return value

    def _take(
        self, key: str, default: Any, kind: type[_Value] | tuple[type, ...], expected: str
    ) -> Any:
        self._known[key] = None
        value = self._values.get(key, _Missing)
        if value is _Missing:
            if default is None:
                raise self.error(key, "is missing", remedy=f"it must be {expected}")
            return default
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if type(value) not in kinds:
            raise self.error(key, f"is {value!r:.60}, but must be {expected}")
        return value

    def _parse(self, key: str, text: str, parse: Callable[[str], Any]) -> Any:
        try:
            return parse(text)
        except UsageError as error:
            raise self.error(key, f"is invalid: {error.message}", remedy=error.remedy) from None


_TYPE_NAMES: Final[dict[type, str]] = {
    int: "a whole number",
    float: "a number",
    str: "a string",
    bool: "true or false",
}


def read_toml(path: Path) -> Table:
    """Read a file as a table; a `ConfigError` says what is wrong and where."""
    try:
        with path.open("rb") as file:
            content = file.read(FILE_LIMIT_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    if len(content) > FILE_LIMIT_BYTES:
        raise ConfigError(f"{path} is larger than 1 MB", remedy="check that it is the right file")
    try:
        return parse_toml(content.decode("utf-8"), name=str(path))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text (byte {error.start})") from error


def parse_toml(text: str, *, name: str) -> Table:
    """Parse a string as a table; `name` is its name in messages."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        where = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
        line = f", line {where[1]}" if where else ""
        why = str(error).partition(" (at ")[0]
        raise ConfigError(
            f"{name}{line}: not valid TOML: {why}",
            remedy='a line is key = value, with strings in quotes: acks = "all"',
        ) from error
    except RecursionError as error:
        raise ConfigError(f"{name} is nested too deeply") from error
    return Table(values, Origin(name, text))


def _parse_with_unit(text: str, unit: str, kind: type) -> Any:
    """Parse a string with a unit into the unit of the field."""
    if unit in _PER_SECOND:
        value: float = parse_duration_s(text) * _PER_SECOND[unit]
        return round(value) if kind is int else value
    if unit == "_bytes":
        return parse_bytes(text)
    if kind not in (int, float):
        raise UsageError(f"it must be {_TYPE_NAMES[kind]}, not {text!r:.60}")
    return kind(parse_count(text.removesuffix("/s") if unit == "_per_s" else text))


def _flat(values: Mapping[str, Any], before: str = "") -> Iterable[tuple[str, Any]]:
    """Join nested keys: `a.b = 1` is a nested table in TOML, but one property of Kafka."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def _lines_of(text: str) -> dict[Place, int]:
    """The line of each key and header, found without a full parse."""
    lines: dict[Place, int] = {}
    counts: dict[Place, int] = {}
    here: Place = ()
    quoted = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if quoted:
            quoted = "" if quoted in line else quoted
            continue
        header, key = _HEADER.match(line), _KEY.match(line)
        if header:
            here = tuple(_parts(header[2]))
            if header[1] == "[[":
                counts[here] = counts.get(here, -1) + 1
                here = (*here, counts[here])
            elif here[:1] in counts and len(here) > 1:
                here = (here[0], counts[here[:1]], *here[1:])
            lines.setdefault(here, number)
        elif key:
            lines.setdefault((*here, *_parts(key[1])), number)
            lines.setdefault((*here, _parts(key[1])[0]), number)
            opened = [mark for mark in ('"""', "'''") if line.count(mark) == 1]
            quoted = opened[0] if opened else ""
    return lines


def _parts(dotted: str) -> list[str]:
    found = re.findall(r"""[\w-]+|"[^"]*"|'[^']*'""", dotted)
    return [part.strip("\"'") for part in found]
