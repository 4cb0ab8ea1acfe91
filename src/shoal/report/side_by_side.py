"""Pages for runs side by side, and for what the parameters of a sweep do."""

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
    "Differs means: such a difference would come by the noise alone in fewer than 5 of 100 such "
    "pages (Holm's correction over all rows). "
)
HOW_COMPARED = (
    "Where a column has several runs, the noise is that between them (Welch's test of means); "
    "of single runs without faults it is that between stretches of seconds within each run, for "
    "latencies and throughput. Of everything else a single run does not tell the noise, and that "
    "is said. "
    "Latencies are compared by their logarithms."
)
HOW_SWEPT = (
    "The effect of each parameter on the mean, averaged over all values of the others, against "
    "the noise between repeats of one combination (F-test). Latencies are compared by their "
    "logarithms."
)


def render_comparison(comparison: Comparison) -> str:
    """The page of `shoal compare`."""
    panels = [
        Panel(
            title=row.measure.name,
            said=row.judged.shown,
            is_difference=row.judged.judgement == DIFFERS,
            levels=[column.label for column in comparison.columns],
            values=row.values,
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
            said=effect.judged.shown,
            is_difference=_differs(effect.judged.judgement),
            levels=effect.levels,
            values=effect.values,
            shown=effect.measure.brief,
        )
        for effect in effects
        if effect.judged.judgement != EQUAL
    ]


def _differs(judgement: str) -> bool:
    return judgement == DIFFERS
