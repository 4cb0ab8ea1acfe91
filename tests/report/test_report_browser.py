"""Reports in a real browser, opened as files: what they show, on a desk, a phone and on paper."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from shoal.experiment.compare.comparison import JudgedRun, compare
from shoal.model.comparison import ParameterEffect, SweepResult
from shoal.model.findings import Verdict
from shoal.model.result import Result
from shoal.report.files import write_report_files
from shoal.report.side_by_side import link_reports, render_comparison, render_sweep
from shoal.telemetry.excerpt import read_excerpt
from support.web_browser import DESK, PATIENCE_MS, PHONE, open_browser
from support.web_runs import HOSTILE, write_run

pytestmark = [pytest.mark.system("chromium"), pytest.mark.xdist_group("chromium report")]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as browser:
        # Helper processes of the browser start with the first page, and stay.
        first = browser.new_page()
        first.goto("data:text/html,<canvas></canvas>")
        first.close()
        yield browser


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page whose console must stay empty; whatever it requests but its file fails the test."""
    context = browser.new_context(viewport={"width": DESK, "height": 900})
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    expect.set_options(timeout=PATIENCE_MS)
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on(
        "console", lambda m: problems.append(m.text) if m.type in {"error", "warning"} else None
    )
    page.on("request", lambda r: problems.append(r.url) if not r.url.startswith("file:") else None)
    yield page
    context.close()
    assert [text for text in problems if text != "data:,"] == []


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_run(tmp_path_factory.mktemp("report") / "violated-run", topic=HOSTILE)
    result = json.loads((folder / "result.json").read_text())
    write_report_files(folder, Result.from_json(result), read_excerpt(folder))
    return folder


def check_everywhere(page: Page, path: Path) -> None:
    """It fits a phone, it is accessible, in both colour schemes."""
    for scheme, width in (("light", DESK), ("dark", PHONE)):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        page.set_viewport_size({"width": width, "height": 900})
        page.goto(path.as_uri())
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        expect(page.get_by_role("heading", level=2).first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        found = Axe().run(page)
        assert found.violations_count == 0, found.generate_report()


def test_the_report_of_a_run_shows_verdict_tiles_and_tracks(page: Page, run: Path) -> None:
    check_everywhere(page, run / "report.html")
    page.set_viewport_size({"width": DESK, "height": 900})
    tiles = page.locator(".tile")
    expect(tiles.filter(has_text="delivered").first).to_contain_text("99.9 %")
    expect(tiles.filter(has_text="latency p99")).to_contain_text("14 ms")
    expect(page.get_by_text("missed: latency_ms_p99<10")).to_be_visible()
    for title in ("Faults", "Messages per second", "Latency from", "Lanes", "Brokers", "CPU of"):
        expect(page.get_by_role("img", name=title).first).to_be_visible()
    moved = page.get_by_role("region", name="How far messages moved")
    expect(moved).to_contain_text("0.06 places on average, 30 in all; 4 reordered")
    expect(page.get_by_text("Its life: shoal runs message")).to_be_visible()
    expect(page.get_by_text(HOSTILE).first).to_be_visible()
    expect(page.locator(".witness")).to_contain_text(f"key {HOSTILE}")
    expect(page.locator(".witness")).to_contain_text(f"headers {HOSTILE}; {HOSTILE}")
    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    expect(page.get_by_role("region", name="table: lanes")).to_contain_text(HOSTILE)
    assert page.locator("main img").count() == 0
    assert page.title() == "violated, thresholds missed: violated-run"


def test_a_click_filters_and_a_link_keeps_the_choice(page: Page, run: Path) -> None:
    page.goto((run / "report.html").as_uri())
    page.get_by_role("button", name="received").click()
    expect(page.get_by_text("None of the 1 finding belongs")).to_be_visible()
    assert "stage=received" in page.url
    page.reload()
    expect(page.get_by_text("None of the 1 finding belongs")).to_be_visible()


def test_an_address_that_names_nothing_falls_back(page: Page, run: Path) -> None:
    page.goto((run / "report.html").as_uri() + "#/?stage=constructor&group=__proto__&from=x&at=-1")
    expect(page.locator(".note")).to_have_count(4)
    expect(page.get_by_role("img", name="Lanes")).to_be_visible()


def test_paper_is_light_and_charts_fit_it(page: Page, run: Path) -> None:
    page.emulate_media(color_scheme="dark")
    page.goto((run / "report.html").as_uri())
    expect(page.get_by_role("heading", name="Over time")).to_be_visible()
    dark = page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--back')")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    light = page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--back')")
    assert light != dark
    page.wait_for_function(
        "[...document.querySelectorAll('.uplot')].every((chart) => chart.clientWidth <= 690)"
    )
    expect(page.locator("details.data").first).to_be_hidden()
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    page.emulate_media(media="screen")
    page.wait_for_function("document.querySelector('.uplot').clientWidth > 690")
    assert page.pdf(format="A4")[:4] == b"%PDF"


def make_judged_runs(folder: Path, source: Path) -> list[JudgedRun]:
    """Three runs that are alike with each of two settings, with reports; the second loses."""
    found = []
    for number in range(6):
        name = f"{HOSTILE[:9]}run {number}".replace("/", "")
        verdict = Verdict.VIOLATED if number > 2 else Verdict.PROVEN
        path = write_run(folder / name, verdict=verdict)
        (path / "report.html").write_bytes((source / "report.html").read_bytes())
        found.append(replace_settings(JudgedRun.read(path), number > 2))
    return found


def replace_settings(run: JudgedRun, is_second: bool) -> JudgedRun:
    return JudgedRun(run.path, {"acks": HOSTILE if is_second else "all"}, run.result)


def test_a_comparison_links_to_the_reports_of_its_runs(
    page: Page, run: Path, tmp_path: Path
) -> None:
    runs = make_judged_runs(tmp_path, run)
    path = tmp_path / "comparison.html"
    links = link_reports(path, {each.result.run: each.path for each in runs})
    path.write_text(render_comparison(compare(runs), links))
    check_everywhere(page, path)
    expect(page.get_by_role("heading", level=1)).to_have_text("2 side by side")
    expect(page.get_by_text("verdicts differ")).to_be_visible()
    assert page.locator(".panel svg").count() > 0
    assert page.locator("main img").count() == 0
    page.get_by_role("link", name=runs[0].result.run).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("violated-run")


def test_a_sweep_shows_effects_and_combinations(page: Page, run: Path, tmp_path: Path) -> None:
    comparison = compare(make_judged_runs(tmp_path, run))
    effects = tuple(
        ParameterEffect("acks", row.measure, ("all", HOSTILE), row.values, row.judged)
        for row in comparison.rows
    )
    sweep = SweepResult(HOSTILE, {"acks": ("all", HOSTILE)}, 3, 7, 6, 6, effects, comparison)
    path = tmp_path / "sweep.html"
    path.write_text(render_sweep(sweep))
    check_everywhere(page, path)
    expect(page.get_by_role("heading", name="The effect of acks")).to_be_visible()
    expect(page.get_by_role("region", name="table: Every combination")).to_be_visible()
    expect(page.get_by_text(HOSTILE).first).to_be_visible()
    assert page.locator("main img").count() == 0
