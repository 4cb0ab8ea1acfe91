"""JUnit XML and Markdown beside a report: what they say, and hostile names in them."""

import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from markdown_it import MarkdownIt

from shoal.model.findings import Verdict
from shoal.model.result import Result, Stage
from shoal.report.twins import render_junit, render_markdown
from support.web_runs import HOSTILE, build_result, describe_run

MANIFEST = describe_run("r", "finished", 1_794_000_000_000_000)
MARKUP = "\x00\x1b[31m\ud800 `code` | [link](http://x) *bold* _em_ # head"


def suite_of(result: Result) -> ET.Element:
    text = render_junit(result, MANIFEST)
    suite = ET.fromstring(text).find("testsuite")  # noqa: S314 - it is ours
    assert suite is not None
    return suite


def names_with(suite: ET.Element, tag: str) -> list[str | None]:
    return [case.get("name") for case in suite if case.find(tag) is not None]


def test_a_violated_run_fails_at_its_stage_and_threshold() -> None:
    suite = suite_of(build_result("r", Verdict.VIOLATED, "t"))
    assert names_with(suite, "failure") == [
        "verdict",
        "source_to_target",
        "threshold latency_ms_p99<10",
    ]
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("3", "3", "0")
    text = suite.findtext("testcase/failure")
    assert text is not None
    assert "lost: not-mirrored: 1" in text
    assert "sequence 77" in text


@pytest.mark.parametrize(
    ("verdict", "failures", "errors"),
    [(Verdict.PROVEN, [], []), (Verdict.INCONCLUSIVE, [], ["verdict", "source_to_target"])],
)
def test_only_a_proven_run_passes(verdict: Verdict, failures: list[str], errors: list[str]) -> None:
    result = replace(build_result("r", verdict, "t"), thresholds=())
    suite = suite_of(result)
    assert names_with(suite, "failure") == failures
    assert names_with(suite, "error") == errors


def test_each_group_is_a_suite_of_its_own() -> None:
    bad = build_result("r", Verdict.VIOLATED, "t")
    good = replace(bad.worst, verdict=Verdict.PROVEN, stages={"x": Stage(Verdict.PROVEN)})
    result = replace(bad, groups={"good": good, **bad.groups})
    root = ET.fromstring(render_junit(result, MANIFEST))  # noqa: S314
    assert [suite.get("failures") for suite in root] == ["0", "3"]
    assert root.get("failures") == "3"


def test_hostile_texts_stay_texts() -> None:
    result = build_result(f"r {HOSTILE}", Verdict.VIOLATED, HOSTILE + MARKUP)
    suite = suite_of(result)
    assert HOSTILE in (suite.findtext("testcase/failure") or "")
    text = render_markdown(result)
    shown = MarkdownIt("commonmark", {"html": True}).enable("table").render(text)
    for tag in ("<img", "<b>", "<a ", "<em>", "<code>", "<h1>"):
        assert tag not in shown, tag
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert all(row.replace("\\|", "").count("|") == 4 for row in rows)


def test_markdown_has_the_verdict_the_numbers_and_the_findings() -> None:
    text = render_markdown(build_result("r", Verdict.VIOLATED, "t"))
    assert text.startswith("## r: violated\n\n1 of 1,000 was lost of t.\n")
    assert "| completeness | 0.999 | 999 delivered of 1,000 |" in text
    assert "**missed**" in text
    assert "- **lost: not-mirrored**: 1; for example producer producer-1" in text
    assert "None." in render_markdown(build_result("r", Verdict.PROVEN, "t"))
