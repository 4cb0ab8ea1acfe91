"""The page: its content, that it has no external resources, and that a browser draws it."""

import re
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from shoal.model.findings import Verdict
from shoal.model.result import (
    FindingResult,
    GroupResult,
    Latency,
    Metrics,
    Result,
    Series,
    Stage,
    Strip,
    ThresholdResult,
    Window,
)
from shoal.report.page import render

MANIFEST = {
    "started_us": 1_794_000_000_000_000,
    "command": ["shoal", "demo"],
    "versions": {"shoal": "0.1.0"},
    "topics": {"demo": {"lanes": 2}},
}


def sample_group(**changes: object) -> GroupResult:
    latency = Latency(999, 0, 2345.6, 90_000, {"p50": 1800, "p99": 14_000, "p99.99": 88_000})
    metrics = Metrics(
        attempts=1000,
        ok=1000,
        deliveries=999,
        delivered=999,
        delivered_attempts=999,
        delivered_ok=999,
        lost=1,
        lost_ok=1,
        yield_=1.0,
        harvest=0.999,
        completeness=0.999,
        duplication=0.0,
        re_read_rate=0.0,
        order=0.0,
        F_limit=249_500,
        latency_us={"e2e_intended": latency},
        range_us={"sent": 4_990_000},
    )
    fields: dict[str, object] = {
        "verdict": Verdict.VIOLATED,
        "sentence": "1 of 1,000 acknowledged messages was lost <between> the logs.",
        "stages": {"source_to_target": Stage(Verdict.VIOLATED, ("lost: not-mirrored",))},
        "findings": {
            "lost: not-mirrored": FindingResult(1, 1, {"topic": "demo", "lane": 1, "sequence": 77})
        },
        "metrics": metrics,
        "series": Series(
            start_s=1_794_000_000,
            sent=[200] * 5,
            received=[180, 205, 200, 200, 214],
            latency_us_p50=[1800, 1700, None, 1750, 1600],
            latency_us_p99=[14_000, 9_000, None, 9_100, 8_800],
            latency_us_max=[90_000, 11_000, None, 12_000, 9_000],
        ),
        "strips": (Strip("demo", 0, 500, 4), Strip("demo", 1, 500, 4, ((76, "lost", 1),))),
        "histogram": ((1024, 1055, 300), (1792, 1855, 600), (88_064, 90_111, 99)),
    }
    return GroupResult(**(fields | changes))  # type: ignore[arg-type]


def page_of(group: GroupResult) -> str:
    return render(Result("r1", "g", {"g": group}), MANIFEST)


def test_the_page_begins_with_the_verdict_and_escapes_all_texts() -> None:
    page = page_of(sample_group())
    assert "<b>violated</b>" in page
    assert "lost &lt;between&gt; the logs" in page
    assert page.index('class="verdict') < page.index("<h2>Metrics") < page.index("<h2>Findings")


def test_a_missed_threshold_stands_beside_the_verdict() -> None:
    group = sample_group(verdict=Verdict.PROVEN, sentence="All delivered.", findings={})
    result = Result("r", "a<b>", {"a<b>": group, "other": group})
    held = ThresholdResult(
        "latency_ms_p99<1", "latency_ms_p99", {"a<b>": 14.0, "other": 0.5}, ("a<b>",)
    )
    met = ThresholdResult("lost<9", "lost", {"a<b>": 1, "other": 1})
    page = render(replace(result, thresholds=(held, met)), MANIFEST)
    assert "1 of 2 thresholds missed" in page
    assert "latency_ms_p99&lt;1: latency_ms_p99 is 14 in group a&lt;b&gt;" in page
    assert "<title>proven, thresholds missed" in page
    assert "thresholds missed" not in render(result, MANIFEST)


def test_latencies_are_those_of_messages_owed() -> None:
    latency = Latency(500, 0, 2000.0, 9000, {"p50": 1800, "p99": 8000}, 500, {"p50": 9000})
    metrics = Metrics(attempts=1000, lost=500, latency_us={"e2e_intended": latency})
    page = page_of(sample_group(metrics=metrics))
    assert "never" in page
    assert "9.00 ms" in page
    assert "8.00 ms" not in page


def test_every_ratio_names_numerator_and_denominator() -> None:
    page = page_of(sample_group())
    assert "999 delivered" in page
    assert "1,000 attempts" in page
    assert "lane 1, sequence 77" in page


def test_the_page_has_no_external_resources() -> None:
    page = page_of(sample_group())
    assert not re.search(r"(src|href)=|url\(|@import|<script", page)


def test_a_run_without_any_message_still_has_a_page() -> None:
    empty = GroupResult(Verdict.INCONCLUSIVE, "Nothing was acknowledged: this proves nothing.")
    page = page_of(empty)
    assert "<b>inconclusive</b>" in page
    assert "unknowable" in page


class _Balance(HTMLParser):
    VOID = frozenset({"meta", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        del attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        del tag, attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_faults_have_rows_and_are_shaded_in_pictures_over_time() -> None:
    latency = {"e2e_intended": Latency(10, 0, 5.0, 9, {"p50": 5, "p99": 9})}
    counts = dict.fromkeys(("attempts", "lost", "deliveries", "re_reads", "delivered"), 10)
    kill = Window(1, counts, findings={"reordered": 3}, latency_us=latency, time_to_detect_us=2000)
    group = sample_group(windows=(kill, Window(None, counts, latency_us=latency)))
    began_us = group.series.start_s * 1_000_000 + 500_000
    fault = {"fault": 1, "name": "kill", "target": "source/<1>", "began_us": began_us}
    result = Result("r", "g", {"g": group}, faults=({**fault, "ended_us": None, "detail": {}},))
    page = render(result, MANIFEST)
    assert '"whole">1 kill</td><td>source/&lt;1&gt;</td><td class="whole">from 0.5 s</td>' in page
    assert "never</td>" in page
    assert "fault 1: 3 reordered" in page
    assert page.count('<rect class="fault"') == 2
    parser = _Balance()
    parser.feed(page)
    assert parser.open == []


def test_names_of_faults_at_one_time_stand_below_each_other() -> None:
    group = sample_group()
    at_us = group.series.start_s * 1_000_000
    common = {"name": "cut", "target": "a<->b", "began_us": at_us, "detail": {}}
    faults = tuple({**common, "fault": n, "ended_us": at_us + 900_000} for n in (1, 2))
    page = render(Result("r", "g", {"g": group}, faults=faults), MANIFEST)
    places = re.findall(r'<text class="tick" x="([\d.]+)" y="([\d.]+)">[12] cut a ↔ b</text>', page)
    assert len(places) == 2 * len(set(places)) == 4
    assert len({x for x, _ in places}) == 1


def test_each_group_has_its_row_and_the_mirror_its_cost() -> None:
    fine = sample_group(verdict=Verdict.PROVEN, sentence="All is well.")
    used = {"cpu_s": 1.25, "peak_memory_bytes": 51_000_000}
    mirror = {"kind": "shoal", "mode": "deep", "delivery": None, "usage": used}
    result = Result("r", "bad", {"fine": fine, "bad": sample_group()}, mirror=mirror)
    page = render(result, MANIFEST)
    assert '<td>fine</td><td class="proven">proven</td><td class="number">999</td>' in page
    assert '<td>bad</td><td class="violated">violated</td>' in page
    assert "The mirror (shoal, deep) used 1.25 CPU seconds and 51.0 MB of memory at most." in page
    assert "Consumer groups" not in page_of(fine)


def test_tags_are_balanced() -> None:
    parser = _Balance()
    parser.feed(page_of(sample_group()))
    assert parser.open == []


@pytest.mark.system("chromium")
def test_a_browser_draws_the_page_without_complaint(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text(page_of(sample_group()), encoding="utf-8")
    flags = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking"
    more = "--disable-component-update --disable-sync --disable-quic --enable-logging=stderr"
    command = ["chromium", *flags.split(), *more.split(), "--window-size=1000,3000"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", page.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "<b>violated</b>" in shown.stdout
    assert shown.stdout.count("<svg") == 5
    assert "CONSOLE" not in shown.stderr
