"""Parses and prints quantities as people write them: `30s`, `1h30m`, `10k`, `1KiB`."""

import math
import re

from shoal.model.errors import UsageError

_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_COUNTS = {"": 1, "k": 1_000, "m": 1_000_000, "g": 1_000_000_000}
_BYTES = {"": 1, "b": 1} | {
    f"{letter}{suffix}": base**power
    for power, letter in enumerate("kmg", start=1)
    for suffix, base in (("b", 1000), ("", 1024), ("ib", 1024))
}


def parse_duration_s(text: str) -> float:
    """Seconds in a duration such as `250ms`, `30s`, `1h30m`; a bare number is seconds."""
    cleaned = text.strip().lower()
    if re.fullmatch(r"\d+(\.\d+)?", cleaned):
        return float(cleaned)
    parts = re.findall(r"(\d+(?:\.\d+)?)(us|ms|s|m|h|d)", cleaned)
    if not parts or "".join(number + unit for number, unit in parts) != cleaned:
        raise UsageError(f"{text!r} is not a duration", remedy="write it like 250ms, 30s or 1h30m")
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def parse_count(text: str) -> int:
    """A count such as `500`, `10k` or `1.5m` (million)."""
    return _parse_scaled(text, _COUNTS, "a count", "write it like 500, 10k or 1.5m")


def parse_bytes(text: str) -> int:
    """A size in bytes such as `100`, `64KiB`, `1MB`; `k`, `m`, `g` alone are binary."""
    return _parse_scaled(text, _BYTES, "a size", "write it like 700, 64KiB or 1MB")


def _parse_scaled(text: str, scales: dict[str, int], what: str, remedy: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip().lower())
    if match is None or match[2] not in scales:
        raise UsageError(f"{text!r} is not {what}", remedy=remedy)
    value = float(match[1]) * scales[match[2]]
    if value != int(value):
        raise UsageError(f"{text!r} is not a whole number", remedy=remedy)
    return int(value)


def format_bytes(count: float) -> str:
    """A size for people, in decimal units."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def format_us(microseconds: float) -> str:
    """A duration for people; an infinite one is "never"."""
    if math.isinf(microseconds):
        return "never"
    if microseconds < 1000:
        return f"{microseconds:.0f} µs"
    if microseconds < 1_000_000:
        return f"{microseconds / 1000:.2f} ms"
    return f"{microseconds / 1_000_000:.2f} s"
