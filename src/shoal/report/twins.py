"""What other programs read of a verdict: JUnit XML for CI servers, Markdown for people and chats.

Rules:
- JUnit: a suite for each consumer group, with a case for the verdict, each stage and each
  threshold. Violated and missed are failures; inconclusive is an error: it proves nothing, so a
  build must not pass. Characters that XML cannot hold become "?".
- Markdown: names and sentences are escaped, so that none becomes markup or HTML.
"""

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from shoal.model.findings import Verdict
from shoal.model.result import GroupResult, Latency, Result, ThresholdResult
from shoal.model.units import format_us
from shoal.model.witness import witness_text

JUNIT_FILE: Final = "junit.xml"
MARKDOWN_FILE: Final = "summary.md"
_NOT_XML: Final = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_MARKUP: Final = re.compile(r"([\\`*_\[\]#|~])")
_SHOWN_PERCENTILES: Final = ("p50", "p99", "p99.9")


# JUnit


def render_junit(result: Result, manifest: Mapping[str, Any]) -> str:
    """Return the verdict as JUnit XML."""
    suites = ET.Element("testsuites", name="shoal")
    for name, group in result.groups.items():
        suites.append(_suite(result, name, group, manifest))
    for key in ("tests", "failures", "errors"):
        suites.set(key, str(sum(int(suite.get(key, "0")) for suite in suites)))
    ET.indent(suites)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(suites, encoding="unicode")}\n'


def _suite(
    result: Result, name: str, group: GroupResult, manifest: Mapping[str, Any]
) -> ET.Element:
    suite = ET.Element("testsuite", name=_xml(f"{result.run}: {name}"))
    began = datetime.fromtimestamp(manifest.get("started_us", 0) / 1e6, UTC)
    suite.set("timestamp", f"{began:%Y-%m-%dT%H:%M:%S}")
    cases = [_verdict_case("verdict", group.verdict, group.sentence, group)]
    cases += [
        _verdict_case(stage, judged.verdict, ", ".join(judged.findings) or "nothing found", group)
        for stage, judged in group.stages.items()
    ]
    cases += [_threshold_case(each, name) for each in result.thresholds]
    for case in cases:
        case.set("classname", _xml(f"{result.run}.{name}"))
        case.set("time", "0")
    suite.extend(cases)
    suite.set("tests", str(len(cases)))
    for key, tag in (("failures", "failure"), ("errors", "error")):
        suite.set(key, str(sum(case.find(tag) is not None for case in cases)))
    return suite


def _verdict_case(name: str, verdict: Verdict, message: str, group: GroupResult) -> ET.Element:
    case = ET.Element("testcase", name=_xml(name))
    if verdict is Verdict.PROVEN:
        return case
    tag = "failure" if verdict is Verdict.VIOLATED else "error"
    found = ET.SubElement(case, tag, type=verdict.value, message=_xml(message))
    if name == "verdict":
        found.text = _xml("\n".join(_finding_lines(group)))
    return case


def _threshold_case(threshold: ThresholdResult, group: str) -> ET.Element:
    case = ET.Element("testcase", name=_xml(f"threshold {threshold.text}"))
    if group in threshold.missed_by:
        message = "; ".join(threshold.sentences())
        ET.SubElement(case, "failure", type="threshold missed", message=_xml(message))
    return case


def _finding_lines(group: GroupResult) -> Iterable[str]:
    for name, found in group.findings.items():
        yield f"{name}: {found.count}"
        if found.witness:
            yield f"  {witness_text(found.witness)}"


def _xml(text: str) -> str:
    return _NOT_XML.sub("?", text)


# Markdown


def render_markdown(result: Result) -> str:
    """Return the verdict, the numbers behind it and the findings, as Markdown."""
    group = result.worst
    lines = [
        f"## {_plain(result.run)}: {result.verdict.value}",
        "",
        _plain(result.sentence),
        "",
        *_table(("metric", "value", "from"), _metric_rows(group)),
    ]
    if result.thresholds:
        head = ("threshold", "met", "because")
        lines += ["", *_table(head, map(_threshold_row, result.thresholds))]
    if len(result.groups) > 1:
        lines += ["", *_table(("group", "verdict", "lost"), map(_group_row, result.groups.items()))]
    lines += ["", "### Findings", ""]
    for name, found in group.findings.items():
        witness = f"; for example {_plain(witness_text(found.witness))}" if found.witness else ""
        lines.append(f"- **{_plain(name)}**: {found.count:,}{witness}")
    if not group.findings:
        lines.append("None.")
    return "\n".join([*lines, ""]).encode(errors="replace").decode()


def _metric_rows(group: GroupResult) -> Iterable[Sequence[str]]:
    m = group.metrics
    copies = m.deliveries - m.re_reads - m.delivered
    yield (
        "yield",
        _ratio(m.yield_),
        f"{m.ok:,} acknowledged of {m.attempts:,} attempts, {m.unknown:,} unknown",
    )
    yield "completeness", _ratio(m.completeness), f"{m.delivered_ok:,} delivered of {m.ok:,}"
    yield "lost", f"{m.lost:,}", f"{m.pending:,} pending"
    yield "duplication", _ratio(m.duplication), f"{copies:,} of {m.deliveries:,} deliveries"
    yield "order", _ratio(m.order), f"F = {m.F:,}, K = {m.K:,}"
    owed = m.latency_us.get("e2e_intended", Latency()).owed()
    for name in _SHOWN_PERCENTILES:
        value = owed.get(name)
        yield f"latency {name}", "unknown" if value is None else format_us(value), "end to end"


def _threshold_row(threshold: ThresholdResult) -> Sequence[str]:
    word = "met" if threshold.is_met else "**missed**"
    return _plain(threshold.text), word, _plain("; ".join(threshold.sentences()))


def _group_row(item: tuple[str, GroupResult]) -> Sequence[str]:
    name, group = item
    return _plain(name), group.verdict.value, f"{group.metrics.lost:,}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    body = [f"| {' | '.join(row)} |" for row in rows]
    return [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}", *body]


def _ratio(value: float | None) -> str:
    return "unknowable" if value is None else f"{value:.6g}"


def _plain(text: str) -> str:
    """Return a text without markup: for Markdown and for the HTML that it becomes."""
    flat = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MARKUP.sub(r"\\\1", flat)
