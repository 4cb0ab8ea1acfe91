"""The file of a report: nothing from outside, its hashes, its data, its size."""

import base64
import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shoal.model.comparison import Comparison
from shoal.model.findings import Verdict
from shoal.model.result import GroupResult, Result
from shoal.report.document import MOST_BYTES, encode_data
from shoal.report.page import render
from shoal.report.side_by_side import link_reports, render_comparison
from support.web_runs import HOSTILE, build_page, build_result, describe_run

MANIFEST = describe_run("r", "finished", 1_794_000_000_000_000)
ENDS = "</script><!--<script>]]></style>\u2028\ud800"


def data_of(page: str) -> dict[str, Any]:
    found = re.search(
        r'<script type="application/json" id="report">(.*?)</script>', page, re.DOTALL
    )
    assert found
    content: dict[str, Any] = json.loads(found[1])
    return content


def hostile_report() -> str:
    result = build_result(f"run {HOSTILE}{ENDS}", Verdict.VIOLATED, HOSTILE + ENDS)
    return render(result, MANIFEST, build_page("r", HOSTILE + ENDS))


def test_a_report_needs_nothing_from_outside_and_allows_nothing_else() -> None:
    page = hostile_report()
    head = page.partition("<footer")[0]
    assert not re.search(r"<[^>]*(src|href)=(?!\"data:,\")|@import|url\(", head)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy
    assert "default-src 'none'" in policy[1]
    assert "unsafe" not in policy[1]
    blocks = {
        "script-src": re.findall(r'<script type="module">(.*?)</script>', page, re.DOTALL),
        "style-src": re.findall(r"<style>(.*?)</style>", page, re.DOTALL),
    }
    for directive, found in blocks.items():
        (text,) = found
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in policy[1]


def test_no_text_ends_the_block_of_the_data() -> None:
    page = hostile_report()
    assert page.count("<script") == page.count("</script>") == 2
    assert page.count("<style>") == page.count("</style>") == 1
    assert "<img" not in page
    assert data_of(page)["result"]["sentence"] == f"1 of 1,000 was lost of {HOSTILE}{ENDS}."
    assert "<" not in encode_data({"a": ENDS})
    page.encode()


def test_a_report_shows_the_address_of_a_cluster_and_no_password() -> None:
    page = hostile_report()
    assert data_of(page)["manifest"]["clusters"] == {"source": "127.0.0.1:1"}
    assert "secret" not in page


def test_what_does_not_fit_is_left_out_and_named() -> None:
    page = build_page("r", "t")
    group = page["groups"].pop("consumers")
    group["bins"]["latency"] = [dict.fromkeys(map(str, range(300)), 1)] * 120
    names = [f"group-{number}" for number in range(12)]
    page["groups"] = dict.fromkeys(names, group)
    one = build_result("r", Verdict.VIOLATED, "t").worst
    result = Result("r", names[0], dict.fromkeys(names, one))
    whole = render(result, MANIFEST, page, {"run": [{"kind": "state", "t": 1, "object": "x" * 99}]})
    assert len(whole.encode()) <= MOST_BYTES
    shown = data_of(whole)
    assert names[0] in shown["page"]["groups"]
    assert shown["page"]["left_out"]
    assert {*shown["page"]["groups"], *shown["page"]["left_out"]} == set(names)
    assert shown["events"] == {}
    assert set(shown["result"]["groups"]) == set(names)
    assert len(page["groups"]) == len(names)  # what the caller gave stays as it is


def test_a_typical_report_is_small() -> None:
    page = render(build_result("r", Verdict.PROVEN, "t"), MANIFEST, build_page("r", "t"))
    assert len(page.encode()) < 400_000


def test_a_run_without_any_message_has_a_report() -> None:
    empty = GroupResult(Verdict.INCONCLUSIVE, "Nothing was acknowledged: this proves nothing.")
    page = render(Result("r", "g", {"g": empty}), {})
    assert "<title>inconclusive: r</title>" in page


def test_missed_thresholds_are_in_the_title() -> None:
    result = build_result("r", Verdict.PROVEN, "t")
    assert "<title>proven, thresholds missed: r</title>" in render(result, MANIFEST)
    assert "<title>proven: r</title>" in render(replace(result, thresholds=()), MANIFEST)


@pytest.mark.parametrize("name", ["a run", "a#b?c", "ü%2f", 'quote"'])
def test_links_are_relative_and_only_to_reports_that_exist(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    page = tmp_path / "pages" / "comparison.html"
    assert link_reports(page, {"r": folder}) == {}
    (folder / "report.html").touch()
    links = link_reports(page, {"r": folder})
    assert links["r"].startswith("./../")
    assert not set("# ?\"'") & set(links["r"])
    shown = data_of(render_comparison(Comparison((), ()), links))
    assert shown["links"] == links
