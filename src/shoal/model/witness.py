"""A witness as text, the same on the terminal and in the report."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any


def witness_text(witness: Mapping[str, Any] | None) -> str:
    """One line; times of day are in UTC, and an empty list is "nowhere"."""
    if not witness:
        return ""
    parts = (f"{name.removesuffix('_us')} {_value(name, value)}" for name, value in witness.items())
    return ", ".join(parts)


def _value(name: str, value: object) -> str:
    if name.endswith("_us") and isinstance(value, int):
        if value < 0:
            return "never"
        return f"{datetime.fromtimestamp(value / 1e6, UTC):%H:%M:%S.%f}"
    if isinstance(value, list):
        return " and ".join(_value("", item) for item in value) or "nowhere"
    if isinstance(value, Mapping):
        return " ".join(f"{key} {item}" for key, item in value.items())
    return "none" if value is None else str(value)
