"""Declares, parses, checks and prints configuration properties.

Rules of this file:
- A property is declared once, as a dataclass field made by `prop`: Kafka's name, the default, the
  range or choices, the documentation. Parsing, checks, warnings and the reference page use it.
- Messages name the key as the user wrote it, and never the value of a secret.
"""

import dataclasses
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from shoal.client.config_providers import resolve_references
from shoal.model.errors import ConfigError

_METADATA_KEY = "property"
_HIDDEN = "[hidden]"
_TRUE = {"true", "1", "yes", "on"}
_FALSE = {"false", "0", "no", "off"}

log = logging.getLogger("shoal.client")


class Property(NamedTuple):
    """One property: its name, its valid values and its documentation."""

    name: str
    doc: str
    default: Any
    low: int | None = None
    high: int | None = None
    choices: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    is_secret: bool = False


def prop(
    name: str,
    default: Any,
    doc: str,
    *,
    low: int | None = None,
    high: int | None = None,
    choices: tuple[str, ...] = (),
    aliases: tuple[str, ...] = (),
    is_secret: bool = False,
) -> Any:
    """A dataclass field for the property `name`."""
    declared = Property(name, doc, default, low, high, choices, aliases, is_secret)
    return dataclasses.field(default=default, metadata={_METADATA_KEY: declared})


def properties_of(cls: type) -> dict[str, Property]:
    """Field name → property, in the order of declaration."""
    return {
        field.name: field.metadata[_METADATA_KEY]
        for field in dataclasses.fields(cls)
        if _METADATA_KEY in field.metadata
    }


def load_properties(path: str | Path) -> dict[str, str]:
    """Read a Java `.properties` file and resolve references to config providers."""
    return resolve_references(_load_pairs(path), _load_pairs)


def _load_pairs(path: str | Path) -> dict[str, str]:
    import javaproperties

    try:
        with Path(path).open("rb") as file:
            return dict(javaproperties.load(file))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not a .properties file: {error}") from error


def read_fields(cls: type, source: Mapping[str, Any]) -> dict[str, Any]:
    """Field values for the keys of `source`; unknown keys are ignored with a warning."""
    by_key: dict[str, tuple[str, Property]] = {}
    for field_name, declared in properties_of(cls).items():
        for key in (declared.name, *declared.aliases):
            by_key[key] = (field_name, declared)
    values: dict[str, Any] = {}
    given_as: dict[str, str] = {}
    for key, raw in source.items():
        if key not in by_key:
            _warn_unknown(key, by_key)
            continue
        field_name, declared = by_key[key]
        if field_name in given_as:
            raise ConfigError(
                f"{key} and {given_as[field_name]} are the same property; remove one of them"
            )
        given_as[field_name] = key
        values[field_name] = _parse_value(key, declared, raw)
    return values


def redact_config(config: Any) -> dict[str, Any]:
    """Property name → value for all non-default properties, with secrets hidden."""
    shown = {}
    for field_name, declared in properties_of(type(config)).items():
        value = getattr(config, field_name)
        if value != declared.default:
            shown[declared.name] = _HIDDEN if declared.is_secret else value
    return shown


def _warn_unknown(key: str, known: Iterable[str]) -> None:
    from difflib import get_close_matches

    nearest = get_close_matches(key, known, n=1, cutoff=0.6)
    if nearest:
        log.warning("ignoring the unknown property %s; did you mean %s?", key, nearest[0])
    else:
        log.warning("ignoring the unknown property %s", key)


def _parse_value(key: str, declared: Property, raw: Any) -> Any:
    if raw is None:
        return declared.default
    if isinstance(declared.default, bool):
        return _parse_bool(key, raw)
    if isinstance(declared.default, int):
        return _parse_int(key, declared, raw)
    if isinstance(declared.default, tuple):
        items = raw.split(",") if isinstance(raw, str) else list(raw)
        return tuple(text for item in items if (text := str(item).strip()))
    text = str(raw).strip() if not declared.is_secret else str(raw)
    return _parse_choice(key, declared, text) if declared.choices else text


def _parse_bool(key: str, raw: Any) -> bool:
    text = str(raw).strip().lower()
    if text not in _TRUE | _FALSE:
        raise ConfigError(f"{key} must be true or false, not {raw!r}")
    return text in _TRUE


def _parse_int(key: str, declared: Property, raw: Any) -> int:
    text = str(raw).strip()
    if declared.choices:
        text = {"all": "-1"}.get(text.lower(), text)
    try:
        number = int(text)
    except ValueError:
        raise ConfigError(f"{key} must be a whole number, not {raw!r}") from None
    if declared.choices and str(number) not in declared.choices:
        raise ConfigError(f"{key} must be one of all, {', '.join(declared.choices)}, not {raw!r}")
    low, high = declared.low, declared.high
    if (low is not None and number < low) or (high is not None and number > high):
        span = f"between {low} and {high}" if high is not None else f"at least {low}"
        raise ConfigError(f"{key} must be {span}, not {number}")
    return number


def _parse_choice(key: str, declared: Property, text: str) -> str:
    for choice in declared.choices:
        if text.lower() == choice.lower():
            return choice
    raise ConfigError(f"{key} must be one of {', '.join(declared.choices)}, not {text!r}")
