"""Axes: the mapping from values to places in a picture, and the ticks (pure)."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Axis:
    """A mapping from values to pixels with its labelled ticks."""

    place: Callable[[float], float]
    ticks: Sequence[tuple[float, str]]


def linear_axis(
    low: float, high: float, *, pixels: tuple[float, float], label: Callable[[float], str]
) -> Axis:
    """Return a linear axis with ticks at round numbers (1, 2 or 5 times a power of ten)."""
    if high <= low:
        high = low + 1
    start, end = pixels
    step = _round_step((high - low) / 5)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    values = [index * step for index in range(first, last + 1)]

    def place(value: float) -> float:
        return start + (value - low) / (high - low) * (end - start)

    return Axis(place, [(value, label(value)) for value in values])


def log_axis(
    low: float, high: float, *, pixels: tuple[float, float], label: Callable[[float], str]
) -> Axis:
    """Return a logarithmic axis with ticks at powers of ten."""
    bottom = math.floor(math.log10(max(low, 1e-9)))
    top = max(math.ceil(math.log10(max(high, 1e-9))), bottom + 1)
    start, end = pixels

    def place(value: float) -> float:
        power = math.log10(max(value, 10.0**bottom))
        return start + (power - bottom) / (top - bottom) * (end - start)

    return Axis(place, [(10.0**power, label(10.0**power)) for power in range(bottom, top + 1)])


def percentile_axis(*, pixels: tuple[float, float]) -> Axis:
    """Return an axis from 0 to nearly 100 % on which each further nine takes the same width."""
    start, end = pixels
    nines = 4.5

    def place(fraction: float) -> float:
        distance = -math.log10(max(1 - fraction, 10**-nines))
        return start + distance / nines * (end - start)

    ticks = [(0.0, "0"), (0.5, "50 %"), (0.9, "90 %"), (0.99, "99 %"), (0.999, "99.9 %")]
    return Axis(place, [*ticks, (0.9999, "99.99 %")])


def _round_step(rough: float) -> float:
    power: float = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
