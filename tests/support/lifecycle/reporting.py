"""The report of the matrix: docs/proofs/lifecycle.md, with one section for each engine.

A section is replaced by a later run on the same engine; the other one stays.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from support.lifecycle.cells import ENGINES, EVENTS, Delivery, Outcome, When
from support.lifecycle.planting import Planted
from support.lifecycle.plays import Result

_HEAD: Final = """# Proof: the lifecycle of topics and clusters under a mirror

`make prove-lifecycle` plays the lifecycle matrix: every event below, with the mirror running,
stopped, or the whole event between two refreshes of its topics; the topic given by name or matched
by a pattern; and every delivery. A healthy topic in the same mirror must be copied in every cell.
Afterwards the mirror is stopped and started with more records, and the outcome must stand. Judges:
`shoal mirror verify`, and a reader that is confluent-kafka alone and knows what was sent.

- **copied**: the target has what the source has, in order, once where the delivery promises it
- **announced**: copied, and what the source lost, or somebody else wrote, is counted in the status
- **parked**: the status shows a reason and a remedy for the partition
- **refused**: the topic, or the start, with a message and a remedy

Anything else fails the run. On Apache Kafka a selection is played that has every pair of event,
time, match and delivery.
"""
_TITLES: Final = {"lite": "Kafka Lite", "apache": "Apache Kafka"}


@dataclass(frozen=True)
class Section:
    """One run on one engine."""

    engine: str
    results: Sequence[Result]
    planned: int
    code: str
    conditions: str
    planted: Planted | None = None
    # Failures of cells that were played again, each with the code that failed.
    replayed: Sequence[tuple[Result, str]] = ()


def write_report(path: Path, section: Section) -> None:
    """Put a section into the report, in the place of an older one of the same engine."""
    text = path.read_text() if path.exists() else ""
    sections = {
        engine: found[0].strip()
        for engine in ENGINES
        if (found := re.findall(rf"(?ms)^## {_TITLES[engine]}$.*?(?=^## |\Z)", text))
    }
    sections[section.engine] = format_section(section)
    body = "\n\n".join(sections[engine] for engine in ENGINES if engine in sections)
    path.write_text(f"{_HEAD}\n{body}\n")


def format_section(section: Section) -> str:
    """The results of one run as Markdown."""
    results = section.results
    failed = [result for result in results if not result.is_good]
    switches = sum(result.switches for result in results)
    silent = sum(result.verdict.outcome is Outcome.SILENT for result in results)
    when_and_code = f"{datetime.now(UTC):%Y-%m-%d}, {section.code}"
    found = f"**{silent} silent**, {len(failed)} with an outcome that is not allowed"
    lines = [
        f"## {_TITLES[section.engine]}",
        "",
        f"{when_and_code}: {len(results)} of {section.planned} cells played, {found}.",
        *_render_plantings(section.planted),
        "",
        f"{switches} changes between raw and deep batches while partitions were copied were seen.",
        "",
        f"| event | what | {' | '.join(When)} |",
        "|---|---|---|---|---|",
    ]
    for name, event in EVENTS.items():
        cells = [_summary(results, name, when) for when in When]
        if any(cells):
            lines.append(f"| {name} | {event.what} | {' | '.join(cells)} |")
    if failed:
        lines += ["", "Not allowed:", ""]
        lines += [f"- {_describe(result)}" for result in failed]
    if section.replayed:
        lines += ["", "Failed before, and played again with the code named above:", ""]
        lines += [f"- {_describe(result)} ({code})" for result, code in section.replayed]
    return "\n".join([*lines, "", section.conditions.strip()])


def _describe(result: Result) -> str:
    return f"{result.cell}: {result.verdict.outcome}: {result.verdict.detail}"


def _render_plantings(planted: Planted | None) -> list[str]:
    if planted is None:
        return []
    found = f"{planted.found} of {planted.planted}"
    lines = ["", f"Mirrors that were made to skip batches silently: {found} found."]
    return lines + [f"- not as planted: {text}" for text in planted.mistaken]


def _summary(results: Sequence[Result], event: str, when: When) -> str:
    """How many cells had which outcome."""
    counts = Counter(
        str(result.verdict.outcome)
        for result in results
        if result.cell.event == event and result.cell.when is when
    )
    return ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common())


def outcome_table() -> str:
    """The allowed outcomes of each event, as docs/reference/mirror-delivery.md states them."""
    lines = ["| to | what happens | outcome | with compare-and-append |", "|---|---|---|---|"]
    for event in EVENTS.values():
        other = dict(event.by_delivery).get(Delivery.COMPARE_AND_APPEND)
        cells = [_list_outcomes(event.allowed), "" if other is None else _list_outcomes(other)]
        lines.append(f"| {event.subject} | {event.what} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _list_outcomes(outcomes: frozenset[Outcome]) -> str:
    return ", ".join(outcome for outcome in Outcome if outcome in outcomes)
