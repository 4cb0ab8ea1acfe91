"""Pages that compare runs, and pages with the effects of the parameters of a sweep."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from shoal.model.comparison import (
    DIFFERS,
    EQUAL,
    NOISE_UNKNOWN,
    WITHIN_NOISE,
    Comparison,
    SweepResult,
)
from shoal.report.document import render_document

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


def render_comparison(comparison: Comparison, links: Mapping[str, str] | None = None) -> str:
    """Return the page of `shoal compare`; `links` are the reports of runs, by name."""
    content = {
        "kind": "comparison",
        "comparison": comparison.to_json(),
        "links": dict(links or {}),
        "how": HOW_TESTED + HOW_COMPARED,
    }
    verdicts = "; ".join(
        f"{column.label}: {', '.join(dict.fromkeys(column.verdicts))}"
        for column in comparison.columns
    )
    return render_document(f"{len(comparison.columns)} side by side", verdicts, content)


def render_sweep(sweep: SweepResult, links: Mapping[str, str] | None = None) -> str:
    """Return the page of `shoal sweep`; `links` are the reports of runs, by name."""
    content = {"kind": "sweep", **describe_result(sweep.to_json()), "links": dict(links or {})}
    return render_document(f"sweep of {sweep.name}", " ".join(content["sentences"]), content)


def describe_result(sweep: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a page shows of the `result.json` of a sweep."""
    effects = [
        (each["parameter"], each["measure"]["name"], each["judged"]["judgement"])
        for each in sweep["effects"]
    ]
    return {
        "sweep": sweep,
        "sentences": _describe_effects(sweep["parameters"], effects),
        "how": HOW_TESTED + HOW_SWEPT,
    }


def link_reports(page: Path, run_dirs: Mapping[str, Path]) -> dict[str, str]:
    """Return addresses of the reports of runs, relative to a page; of those that have one."""
    found = {}
    for run, folder in run_dirs.items():
        report = folder / "report.html"
        if report.is_file():
            path = Path(os.path.relpath(report, page.parent))
            found[run] = "./" + quote(path.as_posix())
    return found


def sentences(sweep: SweepResult) -> list[str]:
    """Return the effects of each parameter, as sentences."""
    effects = [(e.parameter, e.measure.name, e.judged.judgement) for e in sweep.effects]
    return _describe_effects(sweep.parameters, effects)


def _describe_effects(
    parameters: Iterable[str], effects: Sequence[tuple[str, str, str]]
) -> list[str]:
    """Return a sentence for each parameter; an effect is its parameter, measure and judgement."""
    words = {
        "differs in": DIFFERS,
        "within noise in": WITHIN_NOISE,
        "equal in": EQUAL,
        "noise unknown of": NOISE_UNKNOWN,
    }
    texts = []
    for parameter in parameters:
        parts = []
        for words_for, judgement in words.items():
            names = [name for of, name, judged in effects if (of, judged) == (parameter, judgement)]
            if names:
                parts.append(f"{words_for} {', '.join(names)}")
        texts.append(f"{parameter}: {'; '.join(parts) or 'no results yet'}.")
    return texts
