"""Comparisons of runs: the format of `comparison.json` and `sweep.json`, and of their pages.

Rules:
- A `Measure` is a number that a run may have; `None` means "not known", never 0.
- The judgement on a difference is one of `JUDGEMENTS`, in these words. "Differs" is used only
  where the error rate of the test is known.
- `to_json` returns plain dictionaries and lists, with the names that are declared beside the types
  (`shoal.model.serialised`). They are for report pages and external programs; no code here reads
  them back.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

from shoal.model.serialised import to_plain
from shoal.model.units import format_bytes, format_us

Json = dict[str, Any]
FORMAT: Final = 1
Unit = Literal["ratio", "count", "us", "per_s", "s", "bytes"]

DIFFERS: Final = "differs"
WITHIN_NOISE: Final = "within noise"
NOISE_UNKNOWN: Final = "noise unknown"
EQUAL: Final = "equal"  # all values are the same
NEVER: Final = "never"
NOT_TESTED: Final = "not tested"  # only displayed: the page tests another measure
JUDGEMENTS: Final = (DIFFERS, WITHIN_NOISE, NOISE_UNKNOWN, EQUAL, NOT_TESTED)


@dataclass(frozen=True, slots=True)
class Measure:
    """One number of a run.

    `is_log`: its noise is proportional to its value. `is_event`: it is a number or share of rare
    events, whose noise is not normally distributed.
    """

    name: Annotated[str, "name"]
    unit: Annotated[Unit, "unit"]
    is_log: Annotated[bool, "is_log"] = False
    is_event: Annotated[bool, "is_event"] = False

    def format_value(self, value: float | None) -> str:
        """The value with its unit, for display."""
        if value is None:
            return "-"
        if math.isinf(value):
            return NEVER
        match self.unit:
            case "us":
                return format_us(value)
            case "bytes":
                return format_bytes(value)
            case "count":
                return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"
            case "per_s":
                return f"{value:,.1f}/s"
            case "s":
                return f"{value:.2f} s"
        return f"{value:.6g}"

    def brief(self, value: float) -> str:
        """A short form, for the axis of a small chart."""
        return f"{value:.3g}" if self.unit == "ratio" else self.format_value(value)


@dataclass(frozen=True, slots=True)
class MeasureJudgement:
    """The judgement on the differences in one measure; `chance` is the corrected p-value."""

    judgement: Annotated[str, "judgement"]
    chance: Annotated[float | None, "chance"] = None
    basis: Annotated[str, "basis"] = ""  # which runs the noise was estimated from
    smallest: Annotated[str, "smallest"] = (
        ""  # the smallest effect that these runs could have detected
    )

    @property
    def text(self) -> str:
        if self.chance is None:
            return self.judgement
        chance = "p < 0.001" if self.chance < 0.001 else f"p = {self.chance:.2g}"
        return f"{self.judgement} ({chance})"


@dataclass(frozen=True, slots=True)
class Column:
    """One run, or several runs with the same settings."""

    label: Annotated[str, "label"]
    runs: Annotated[tuple[str, ...], "runs"]
    verdicts: Annotated[tuple[str, ...], "verdicts"]
    sentence: Annotated[str, "sentence"] = ""
    settings: Annotated[Mapping[str, str], "settings"] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Row:
    """One measure, its values by column, and the judgement on them."""

    measure: Annotated[Measure, "measure"]
    values: Annotated[tuple[tuple[float, ...], ...], "values"]
    judged: Annotated[MeasureJudgement, "judged"]

    def cell(self, place: int) -> str:
        """The mean of a column's runs, and their range."""
        values = self.values[place]
        if not values:
            return self.measure.format_value(None)
        mean = self.measure.format_value(sum(values) / len(values))
        if len(values) == 1 or min(values) == max(values):
            return mean
        low, high = self.measure.format_value(min(values)), self.measure.format_value(max(values))
        return f"{mean} ({low} … {high})"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Columns of runs, rows of measures."""

    columns: Annotated[tuple[Column, ...], "columns"]
    rows: Annotated[tuple[Row, ...], "rows"]

    def measures_judged(self, judgement: str) -> list[str]:
        """The names of the measures with this judgement."""
        return [row.measure.name for row in self.rows if row.judged.judgement == judgement]

    def verdicts(self) -> list[str]:
        """The distinct verdicts of all columns."""
        return list(dict.fromkeys(v for column in self.columns for v in column.verdicts))

    def to_json(self) -> Json:
        plain: Json = _without_infinity({"format": FORMAT, **to_plain(self)})
        return plain


@dataclass(frozen=True, slots=True)
class ParameterEffect:
    """The effect of one parameter on one measure: all values by level, and the judgement."""

    parameter: Annotated[str, "parameter"]
    measure: Annotated[Measure, "measure"]
    levels: Annotated[tuple[str, ...], "levels"]
    values: Annotated[tuple[tuple[float, ...], ...], "values"]
    judged: Annotated[MeasureJudgement, "judged"]

    def means(self) -> list[float | None]:
        return [sum(found) / len(found) if found else None for found in self.values]


@dataclass(frozen=True, slots=True)
class SweepResult:
    """The result of a sweep, which may be incomplete."""

    name: Annotated[str, "name"]
    parameters: Annotated[Mapping[str, Sequence[str]], "parameters"]
    repeats: Annotated[int, "repeats"]
    seed: Annotated[int, "seed"]
    planned: Annotated[int, "planned"]
    done: Annotated[int, "done"]
    effects: Annotated[tuple[ParameterEffect, ...], "effects"]
    comparison: Annotated[Comparison, "comparison"]  # one column for each combination

    def to_json(self) -> Json:
        plain: Json = _without_infinity({"format": FORMAT, **to_plain(self)})
        return plain


def _without_infinity(value: Any) -> Any:
    """Replace infinity, which JSON lacks: a latency that is never reached becomes "never"."""
    if isinstance(value, dict):
        return {key: _without_infinity(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without_infinity(inner) for inner in value]
    return NEVER if isinstance(value, float) and math.isinf(value) else value
