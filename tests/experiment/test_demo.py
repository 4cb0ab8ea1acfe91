"""The demo as a newcomer runs it, on real Spark; its runs afterwards; and its sudden end."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, build_opener

import psutil
import pytest

from shoal.model.events import Event, FaultSeen, Tick
from shoal.telemetry.events import EventReader

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

pytestmark = [pytest.mark.spark, pytest.mark.slow]

GONE_WITHIN_S = 60.0  # 15 on a calm machine
LIMIT_S = 500


def shoal(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "shoal", *arguments]


@dataclass
class Finished:
    """A demo that has ended: what it printed, and what its page showed."""

    code: int
    stdout: str
    stderr: str
    runs_dir: Path
    seen: list[str]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """One demo for the module; with its page in a browser, where there is one."""
    folder = tmp_path_factory.mktemp("demo")
    if shutil.which("chromium") is None:
        return run_demo(folder, "--no-page", list)
    from support.web_browser import open_browser

    # First, so that it is there before the button presses itself.
    with open_browser() as browser:
        return run_demo(folder, "--page", lambda: use_page(browser, folder / "err"))


def run_demo(folder: Path, option: str, use: Callable[[], list[str]]) -> Finished:
    command = shoal("demo", "--runs-dir", str(folder / "runs"), option)
    environment = {n: v for n, v in os.environ.items() if n not in {"DISPLAY", "WAYLAND_DISPLAY"}}
    with (folder / "out").open("w") as out, (folder / "err").open("w") as err:
        process = subprocess.Popen(command, stdout=out, stderr=err, env=environment)
        try:
            if seen := use():
                wait_for_line(folder / "err", r"the page stays until Ctrl-C")
                process.send_signal(signal.SIGINT)
            code = process.wait(LIMIT_S)
        finally:
            process.kill()
            process.wait(LIMIT_S)
    stdout, stderr = ((folder / name).read_text() for name in ("out", "err"))
    return Finished(code, stdout, stderr, folder / "runs", seen)


def wait_for_line(file: Path, pattern: str) -> re.Match[str]:
    deadline = time.monotonic() + LIMIT_S
    while not (found := re.search(pattern, file.read_text())):
        assert time.monotonic() < deadline, file.read_text()
        time.sleep(0.1)
    return found


def use_page(browser: "Browser", stderr: Path) -> list[str]:
    """Press the button, follow a lost message, wait for all verdicts; return what was seen."""
    from playwright.sync_api import expect

    from support.web_browser import check_look, take_on

    address = wait_for_line(stderr, r"page: (http://\S+)")[1]
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
    page.set_default_timeout(LIMIT_S * 1000)
    expect.set_options(timeout=LIMIT_S * 1000)
    page.goto(address)
    button = page.get_by_role("button", name="Cut off the followers, kill the leader")
    expect(button).to_be_enabled()
    expect(page.get_by_text("It presses itself in")).to_be_visible()
    page.wait_for_timeout(2000)  # so that the picture shows a rate
    keep_picture(page, "demo-before")
    button.click()
    one, other = (page.locator(f"[aria-labelledby=acks-{acks}]") for acks in ("1", "all"))
    life = one.get_by_role("link", name="The life of message").first
    expect(life).to_be_visible()
    keep_picture(page, "demo-lost")
    seen = [text_of(one.locator(".count")), text_of(other.locator(".count"))]
    life.click()
    expect(page.get_by_text("not seen after this", exact=True)).to_be_visible()
    keep_picture(page, "demo-life")
    seen.append(text_of(page.locator(".sentence.big")))
    page.go_back()
    expect(page.locator(".sentence .verdict")).to_have_count(4)
    keep_picture(page, "demo-verdicts")
    seen += [text_of(each) for each in page.locator(".sentence .verdict").all()]
    for look in ("light-1280", "dark-390"):
        take_on(page, look)
        check_look(page, look, stderr.with_name(f"demo-{look}.png"))
    assert problems == []
    page.close()
    return seen


def text_of(place: "Locator") -> str:
    return place.inner_text().lower()


def keep_picture(page: "Page", name: str) -> None:
    """For the documents: in the folder that SHOAL_PICTURES names."""
    if folder := os.environ.get("SHOAL_PICTURES"):
        page.screenshot(path=f"{folder}/{name}.png", full_page=True)


def test_all_verdicts_are_what_they_must_be(demo: Finished) -> None:
    assert demo.code == 0, demo.stderr
    assert re.search(r"VIOLATED: [\d,]+ of [\d,]+ acknowledged messages were lost", demo.stdout)
    assert re.search(r"PROVEN: All [\d,]+ acknowledged messages were delivered[;.]", demo.stdout)
    assert "PROVEN: All 20,000 acknowledged messages were delivered, in order" in demo.stdout
    assert "VIOLATED: 1 of 8,000 acknowledged messages was lost (1 not-mirrored)" in demo.stdout
    assert "lane 2, sequence 1000" in demo.stdout
    assert re.search(r"one of them: Message \d+ of lane 0 was due .* but ", demo.stdout)


def test_all_runs_keep_their_results_and_reports(demo: Finished) -> None:
    results = {}
    for path in demo.runs_dir.glob("*/result.json"):
        result = json.loads(path.read_text())
        results[path.parent.name.partition("-demo")[2]] = result
    assert {name: result["verdict"] for name, result in results.items()} == {
        "-acks-1": "violated",
        "-acks-all": "proven",
        "": "proven",
        "-with-a-loss": "violated",
    }
    assert results["-acks-1"]["findings"]["lost: never-stored"]["count"] > 0
    assert results["-acks-all"]["metrics"]["lost"] == 0
    assert results[""]["metrics"]["delivered"] == 20_000
    assert results["-with-a-loss"]["metrics"]["delivered"] == 7_999
    for name in ("report.html", "junit.xml", "summary.md"):
        assert len(list(demo.runs_dir.glob(f"*/{name}"))) == 4


@pytest.mark.system("chromium")
def test_the_page_shows_losses_on_one_side_and_a_life_and_the_verdicts(demo: Finished) -> None:
    lost, kept, life, *verdicts = demo.seen
    assert re.fullmatch(r"[\d,]+ acknowledged messages are lost", lost)
    assert kept.startswith("0 lost")
    assert "was acknowledged after" in life
    assert "cut" in life
    assert verdicts == ["violated", "proven", "proven", "violated"]


@pytest.mark.long
def test_the_same_ledgers_give_the_same_verdict_again(demo: Finished) -> None:
    lossy = next(path for path in demo.runs_dir.iterdir() if path.name.endswith("loss"))
    before = json.loads((lossy / "result.json").read_text())
    again = subprocess.run(
        shoal("audit", str(lossy), "--output", "json"),
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert again.returncode == 4, again.stderr
    assert json.loads(again.stdout) == before


@pytest.mark.parametrize(
    ("option", "least_s"),
    [pytest.param("--page", 10.0, marks=pytest.mark.long), ("--no-page", 2.0)],
)
def test_on_a_server_the_address_is_printed_and_the_button_presses_itself(
    option: str, least_s: float, tmp_path: Path
) -> None:
    """Judged by the order of what is printed and by the events of the runs, not by the clock."""
    environment = {n: v for n, v in os.environ.items() if n not in {"DISPLAY", "WAYLAND_DISPLAY"}}
    command = shoal("demo", "--runs-dir", str(tmp_path), option)
    said: list[str] = []
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as demo:
        assert demo.stderr
        try:
            for line in demo.stderr:
                said.append(line.strip())
                if found := re.fullmatch(r"page: (http://\S+)#/demo\s*", line):
                    with pytest.raises(HTTPError) as answer:  # it serves what it has announced
                        build_opener(NoRedirect).open(found[1], timeout=LIMIT_S)
                    assert answer.value.code == 303
                    answer.value.close()
                if "the leaders are killed" in line:
                    break
        finally:
            started = psutil.Process(demo.pid).children(recursive=True)
            demo.kill()
    psutil.wait_procs(started, timeout=GONE_WITHIN_S)
    up = next(n for n, line in enumerate(said) if "two clusters of three brokers are up" in line)
    assert said[up + 1].startswith("page: http://127.0.0.1:") == (option == "--page"), said
    assert any("page:" in line for line in said) == (option == "--page"), said
    cut = "the followers are cut off from the leader, in both clusters"
    assert said.index(cut) < len(said)
    for folder in tmp_path.glob("*-demo-acks-*"):
        events = read_events(folder)
        [pressed_us] = [each.t for each in events if isinstance(each, FaultSeen)][:1]
        sent_us = next(e.t for e in events if isinstance(e, Tick) and e.counters["sent"])
        # The first tick with messages is later than the start by a second at most.
        assert pressed_us - sent_us >= (least_s - 1.5) * 1e6


class NoRedirect(HTTPRedirectHandler):
    """Lets a test see the answer to the token itself."""

    def redirect_request(self, *_given: object) -> None:
        return None


def read_events(folder: Path) -> list[Event]:
    reader = EventReader(folder)
    events = reader.read().events
    reader.close()
    return events


@pytest.fixture
def start_demo(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A demo whose Spark, clusters, mirror and workers are all up."""
    command = shoal("demo", "--runs-dir", str(tmp_path))
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as it:
        assert it.stderr
        for line in it.stderr:
            if "received" in line and " 0 received" not in line:
                break
        yield it
        it.kill()


@pytest.mark.long
def test_a_killed_demo_leaves_no_process(start_demo: subprocess.Popen[str]) -> None:
    left = psutil.Process(start_demo.pid).children(recursive=True)
    assert any("java" in process.name() for process in left)
    os.kill(start_demo.pid, 9)
    start_demo.wait(100)
    deadline = time.monotonic() + GONE_WITHIN_S
    while alive := [process for process in left if process.is_running()]:
        assert time.monotonic() < deadline, alive
        time.sleep(0.1)
