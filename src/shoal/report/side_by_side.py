"""Pages that compare runs, and pages with the effects of the parameters of a sweep."""

import math
from collections.abc import Sequence

from shoal.model.comparison import (
    DIFFERS,
    EQUAL,
    NOISE_UNKNOWN,
    WITHIN_NOISE,
    Comparison,
    ParameterEffect,
    SweepResult,
)
from shoal.report.panels import Panel, panels_picture
from shoal.report.templates import template

HOW_TESTED = (
    "Differs means: if nothing differed, fewer than 5 of 100 such pages would report a difference "
    "(Holm's correction over all rows that could show one). A run is one observation; the noise is "
    "that between the runs of one column, and fewer than three runs a side do not show it. "
    "Counts and shares of rare events are compared by an exact test over runs (Kruskal and "
    "Wallis, by permutation), because losses come in bursts and not one by one. In latencies, lost "
    "and pending messages count as infinitely late. "
)
HOW_COMPARED = (
    "Latencies, rates and usage are compared by the means of their logarithms (Welch's test)."
)
HOW_SWEPT = (
    "Latencies, rates and usage: the effect of each parameter on the mean of logarithms, averaged "
    "over all values of the others, against the noise between repeats of one combination "
    "(F-test). Counts are permuted within each combination of the other parameters."
)


def render_comparison(comparison: Comparison) -> str:
    """Return the page of `shoal compare`."""
    panels = [
        Panel(
            title=row.measure.name,
            judgement=row.judged.text + _never(row.values),
            is_difference=row.judged.judgement == DIFFERS,
            levels=[column.label for column in comparison.columns],
            values=_finite(row.values),
            format_value=row.measure.brief,
        )
        for row in comparison.rows
        if row.judged.judgement != EQUAL
    ]
    names = dict.fromkeys(name for column in comparison.columns for name in column.settings)
    settings = [(n, [column.settings.get(n, "-") for column in comparison.columns]) for n in names]
    return template("comparison.html.j2").render(
        columns=comparison.columns,
        rows=comparison.rows,
        differing=comparison.measures_judged(DIFFERS),
        unknown=comparison.measures_judged(NOISE_UNKNOWN),
        verdicts=comparison.verdicts(),
        settings=[(name, values) for name, values in settings if len(set(values)) > 1],
        picture=panels_picture("every measure, run by run", panels),
        how=HOW_TESTED + HOW_COMPARED,
        differs=DIFFERS,
    )


def render_sweep(sweep: SweepResult) -> str:
    """Return the page of `shoal sweep`."""
    sections = []
    for parameter in sweep.parameters:
        effects = [effect for effect in sweep.effects if effect.parameter == parameter]
        sections.append((parameter, effects, panels_picture(parameter, _panels(effects))))
    return template("sweep.html.j2").render(
        sweep=sweep,
        sections=sections,
        sentences=sentences(sweep),
        columns=sweep.comparison.columns,
        rows=[row for row in sweep.comparison.rows if row.judged.judgement != EQUAL],
        equal=sweep.comparison.measures_judged(EQUAL),
        how=HOW_TESTED + HOW_SWEPT,
        differs=DIFFERS,
    )


def sentences(sweep: SweepResult) -> list[str]:
    """Return the effects of each parameter, as sentences."""
    texts = []
    for parameter in sweep.parameters:
        effects = [effect for effect in sweep.effects if effect.parameter == parameter]
        words = {
            "differs in": DIFFERS,
            "within noise in": WITHIN_NOISE,
            "equal in": EQUAL,
            "noise unknown of": NOISE_UNKNOWN,
        }
        parts = []
        for words_for, judgement in words.items():
            names = [e.measure.name for e in effects if e.judged.judgement == judgement]
            if names:
                parts.append(f"{words_for} {', '.join(names)}")
        texts.append(f"{parameter}: {'; '.join(parts) or 'no results yet'}.")
    return texts


def _panels(effects: Sequence[ParameterEffect]) -> list[Panel]:
    return [
        Panel(
            title=effect.measure.name,
            judgement=effect.judged.text + _never(effect.values),
            is_difference=_differs(effect.judged.judgement),
            levels=effect.levels,
            values=_finite(effect.values),
            format_value=effect.measure.brief,
        )
        for effect in effects
        if effect.judged.judgement != EQUAL
    ]


def _finite(values: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return the values that a picture can show."""
    return [[value for value in column if math.isfinite(value)] for column in values]


def _never(values: Sequence[Sequence[float]]) -> str:
    count = sum(math.isinf(value) for column in values for value in column)
    return f"; never in {count} runs" if count else ""


def _differs(judgement: str) -> bool:
    return judgement == DIFFERS
