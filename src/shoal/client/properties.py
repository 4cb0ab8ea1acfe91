"""From text to values: how one property is declared, read, checked and printed.

Rules of this file:
- A property is declared once, as a dataclass field made by `prop`: Kafka's name, default,
  range or choices, what it is for. Parsing, checks, warnings and the reference page all read
  that declaration.
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
    """One key: what it is called, what it may be, what it is for."""

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
    """A dataclass field that is the property `name`."""
    declared = Property(name, doc, default, low, high, choices, aliases, is_secret)
    return dataclasses.field(default=default, metadata={_METADATA_KEY: declared})


def declared_properties(cls: type) -> dict[str, Property]:
    """Field name → property, in the order of declaration."""
    return {
        field.name: field.metadata[_METADATA_KEY]
        for field in dataclasses.fields(cls)
        if _METADATA_KEY in field.metadata
    }


def load_properties(path: str | Path) -> dict[str, str]:
    """The pairs of a Java `.properties` file, with references to config providers resolved."""
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
    """Field values for the keys of `source`; unknown keys are warned about and left out."""
    by_key: dict[str, tuple[str, Property]] = {}
    for field_name, declared in declared_properties(cls).items():
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
            raise ConfigError(f"{key} and {given_as[field_name]} are the same property; give one")
        given_as[field_name] = key
        values[field_name] = _parsed(key, declared, raw)
    return values


def redacted(config: Any) -> dict[str, Any]:
    """Property name → value for all that differ from their default, secrets hidden."""
    shown = {}
    for field_name, declared in declared_properties(type(config)).items():
        value = getattr(config, field_name)
        if value != declared.default:
            shown[declared.name] = _HIDDEN if declared.is_secret else value
    return shown


def _warn_unknown(key: str, known: Iterable[str]) -> None:
    from difflib import get_close_matches

    nearest = get_close_matches(key, known, n=1, cutoff=0.6)
    if nearest:
        log.warning("unknown property %s is ignored; did you mean %s?", key, nearest[0])
    else:
        log.warning("unknown property %s is ignored", key)


def _parsed(key: str, declared: Property, raw: Any) -> Any:
    if raw is None:
        return declared.default
    if isinstance(declared.default, bool):
        return _parsed_bool(key, raw)
    if isinstance(declared.default, int):
        return _parsed_int(key, declared, raw)
    if isinstance(declared.default, tuple):
        items = raw.split(",") if isinstance(raw, str) else list(raw)
        return tuple(text for item in items if (text := str(item).strip()))
    text = str(raw).strip() if not declared.is_secret else str(raw)
    return _chosen(key, declared, text) if declared.choices else text


def _parsed_bool(key: str, raw: Any) -> bool:
    text = str(raw).strip().lower()
    if text not in _TRUE | _FALSE:
        raise ConfigError(f"{key} must be true or false, not {raw!r}")
    return text in _TRUE


def _parsed_int(key: str, declared: Property, raw: Any) -> int:
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


def _chosen(key: str, declared: Property, text: str) -> str:
    for choice in declared.choices:
        if text.lower() == choice.lower():
            return choice
    raise ConfigError(f"{key} must be one of {', '.join(declared.choices)}, not {text!r}")
