"""Measures the page of `shoal serve`; writes docs/proofs/page.md.

    python scripts/prove_page.py

- Time to the first contentful paint of Home, with 50 runs, in Debian's Chromium on this machine.
- Time to draw 10 series of 10,000 points each, with the chart library and options of the page.
- Resident memory of the server: when it has started, after the requests, and its largest.
"""

import os
import re
import shutil
import statistics
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support.web_browser import open_browser  # noqa: E402
from support.web_runs import write_run  # noqa: E402
from support.web_server import Served, serve_runs  # noqa: E402

PROOF = ROOT / "docs" / "proofs" / "page.md"
UPLOT = ROOT / "src" / "shoal" / "web" / "page" / "vendor" / "uplot" / "uPlot.iife.min.js"
RUNS = 50
LOADS = 15
GOALS = {"paint_ms": 300, "draw_ms": 50, "idle_mb": 60}
DRAW = """() => new Promise((resolve) => {
  const n = 10000;
  const columns = [Array.from({ length: n }, (_, i) => i)];
  for (let s = 0; s < 10; s += 1) columns.push(Array.from({ length: n }, (_, i) => Math.sin(i / 300 + s) * 50 + (i % 17)));
  const series = [{}, ...columns.slice(1).map((_, s) => ({ label: `s${s}`, stroke: "#2f7fb5", width: 1.5, spanGaps: false, points: { show: false } }))];
  const start = performance.now();
  new uPlot({ width: 1200, height: 300, series, legend: { show: true, live: true }, cursor: { y: false }, hooks: { draw: [() => resolve(performance.now() - start)] } }, columns, document.body);
})"""  # noqa: E501 - JavaScript


def measure_paint(browser: Browser, served: Served) -> list[float]:
    times = []
    for _ in range(LOADS):
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        name, _, value = served.cookie.partition("=")
        context.add_cookies([{"name": name, "value": value, "url": f"http://{served.host}"}])
        page = context.new_page()
        page.goto(f"http://{served.host}/")
        page.locator(".run").first.wait_for()
        entry = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
        times.append(float(page.evaluate(entry)))
        context.close()
    return times


def measure_draw(browser: Browser) -> list[float]:
    times = []
    for _ in range(LOADS):
        page = browser.new_page()
        page.add_script_tag(path=UPLOT)
        times.append(float(page.evaluate(DRAW)))
        page.close()
    return times


def read_memory(served: Served) -> tuple[float, float]:
    """Resident megabytes, now and at most."""
    status = Path(f"/proc/{served.pid}/status").read_text()
    found = {key: int(re.search(rf"{key}:\s+(\d+)", status)[1]) for key in ("VmRSS", "VmHWM")}  # type: ignore[index]
    return found["VmRSS"] / 1024, found["VmHWM"] / 1024


def measure() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        runs = Path(folder) / "runs"
        for number in range(RUNS):
            write_run(runs / f"run-{number}", age_s=number * 60)
        with serve_runs(runs, state=Path(folder) / "state") as served:
            served.log_in()
            idle_mb, _ = read_memory(served)
            with open_browser() as browser:
                version = browser.version
                paint, draw = measure_paint(browser, served), measure_draw(browser)
            after_mb, most_mb = read_memory(served)
    return {
        "chromium": version,
        "paint": paint,
        "draw": draw,
        "idle_mb": idle_mb,
        "after_mb": after_mb,
        "most_mb": most_mb,
    }


def describe(found: dict[str, Any]) -> str:
    load, cores = os.getloadavg()[0], os.cpu_count()
    paint, draw = found["paint"], found["draw"]
    rows = [
        ("first contentful paint of Home with 50 runs, ms", paint, GOALS["paint_ms"]),
        ("drawing 10 series of 10,000 points, ms", draw, GOALS["draw_ms"]),
    ]
    lines = [
        f"| {name} | {min(v):.0f} | {statistics.median(v):.0f} | {goal} |" for name, v, goal in rows
    ]
    machine = f"one machine with {cores} cores, load average {load:.1f}"
    return f"""# The page: first paint, charts, memory

Made by `make prove-page` on {datetime.now(UTC):%Y-%m-%d}: Chromium {found["chromium"]} and
`shoal serve` on {machine}. Above a load of 1 other work ran at the same time. {LOADS} loads, each
in a new browser context with an empty cache.

| | best | median | goal |
|---|---|---|---|
{chr(10).join(lines)}

| resident memory of `shoal serve`, MB | |
|---|---|
| after its start (goal: {GOALS["idle_mb"]}) | {found["idle_mb"]:.0f} |
| after the loads | {found["after_mb"]:.0f} |
| at most | {found["most_mb"]:.0f} |
"""


def main() -> int:
    if shutil.which("chromium") is None:
        print(
            "chromium is missing: shoal doctor names the command that installs it", file=sys.stderr
        )
        return 2
    found = measure()
    text = describe(found)
    PROOF.write_text(text, encoding="utf-8")
    print(text)
    is_met = (
        min(found["paint"]) < GOALS["paint_ms"]
        and min(found["draw"]) < GOALS["draw_ms"]
        and found["idle_mb"] < GOALS["idle_mb"]
    )
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
