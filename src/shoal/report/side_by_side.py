"""Pages for runs side by side, and for what the parameters of a sweep do."""

import math
from collections.abc import Sequence

from shoal.model.comparison import (
    DIFFERS,
    EQUAL,
    NOISE_UNKNOWN,
    WITHIN_NOISE,
    Comparison,
    Effect,
    SweepResult,
)
from shoal.report.panels import Panel, panels_picture
from shoal.report.templates import template

HOW_TESTED = (
    "Differs means: where nothing differs, fewer than 5 of 100 such pages say so of anything "
    "(Holm's correction over all rows that could show something). A run is one observation; the "
    "noise is that between runs of one column, and fewer than three a side tell nothing of it. "
    "Counts and shares of rare events are compared by an exact test over runs (Kruskal and "
    "Wallis, by permutation), because losses come in bursts and not one by one. Latencies are "
    "those of the messages owed; lost and pending ones are infinitely late. "
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
    """The page of `shoal compare`."""
    panels = [
        Panel(
            title=row.measure.name,
            said=row.judged.shown + _never(row.values),
            is_difference=row.judged.judgement == DIFFERS,
            levels=[column.label for column in comparison.columns],
            values=_finite(row.values),
            shown=row.measure.brief,
        )
        for row in comparison.rows
        if row.judged.judgement != EQUAL
    ]
    names = dict.fromkeys(name for column in comparison.columns for name in column.settings)
    settings = [(n, [column.settings.get(n, "-") for column in comparison.columns]) for n in names]
    return template("comparison.html.j2").render(
        columns=comparison.columns,
        rows=comparison.rows,
        differing=comparison.named(DIFFERS),
        unknown=comparison.named(NOISE_UNKNOWN),
        verdicts=comparison.verdicts(),
        settings=[(name, values) for name, values in settings if len(set(values)) > 1],
        picture=panels_picture("every measure, run by run", panels),
        how=HOW_TESTED + HOW_COMPARED,
        differs=DIFFERS,
    )


def render_sweep(sweep: SweepResult) -> str:
    """The page of `shoal sweep`."""
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
        equal=sweep.comparison.named(EQUAL),
        how=HOW_TESTED + HOW_SWEPT,
        differs=DIFFERS,
    )


def sentences(sweep: SweepResult) -> list[str]:
    """What each parameter does, said plainly."""
    said = []
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
        said.append(f"{parameter}: {'; '.join(parts) or 'nothing is known yet'}.")
    return said


def _panels(effects: Sequence[Effect]) -> list[Panel]:
    return [
        Panel(
            title=effect.measure.name,
            said=effect.judged.shown + _never(effect.values),
            is_difference=_differs(effect.judged.judgement),
            levels=effect.levels,
            values=_finite(effect.values),
            shown=effect.measure.brief,
        )
        for effect in effects
        if effect.judged.judgement != EQUAL
    ]


def _finite(values: Sequence[Sequence[float]]) -> list[list[float]]:
    """What has a place in a picture."""
    return [[value for value in column if math.isfinite(value)] for column in values]


def _never(values: Sequence[Sequence[float]]) -> str:
    count = sum(math.isinf(value) for column in values for value in column)
    return f"; never in {count} runs" if count else ""


def _differs(judgement: str) -> bool:
    return judgement == DIFFERS
