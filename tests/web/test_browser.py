"""The page in a real browser: every place opens, numbers move, nothing is out of place.

One browser for the module; each test has a page of its own. A page with an error in its console
fails its test.
"""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from shoal.model.findings import Verdict
from shoal.model.serialised import to_plain
from shoal.runtime.processes import ProcessIdentity
from support.web_browser import (
    DESK,
    PATIENCE_MS,
    check_look,
    in_looks,
    open_browser,
    open_page,
    open_place,
    take_on,
)
from support.web_runs import (
    HOSTILE,
    RunningRun,
    describe_demo,
    write_hostile_mirror,
    write_json,
    write_run,
    write_sweep,
    write_traced_run,
)
from support.web_server import Served, serve_runs

pytestmark = [pytest.mark.system("chromium"), pytest.mark.xdist_group("chromium page")]


@pytest.fixture(scope="module")
def runs_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page") / "runs"
    write_run(folder / "violated-run", age_s=60, topic=HOSTILE)
    write_run(folder / "proven-run", verdict=Verdict.PROVEN, age_s=120)
    write_traced_run(folder / "traced-run", age_s=180)
    write_sweep(folder / SWEEP)
    write_hostile_mirror(folder.parent / "state" / "shoal" / "mirrors" / "hostile")
    return folder


@pytest.fixture(scope="module")
def served(runs_dir: Path) -> Iterator[Served]:
    with serve_runs(runs_dir, state=runs_dir.parent / "state") as served:
        served.log_in()
        yield served


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as browser:
        yield browser


@pytest.fixture
def page(browser: Browser, served: Served) -> Iterator[Page]:
    with open_page(browser, served) as page:
        yield page


SWEEP = "sweep-x"
# A hidden page closes its stream, and opens another one when it is shown again.
HIDE_AND_SHOW = """() => {
  for (const hidden of [true, false]) {
    Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
    document.dispatchEvent(new Event("visibilitychange"));
  }
}"""
LIFE = "#/life/traced-run?topic=t&producer=p0&lane=1&sequence=7"
# In the order of the looks that they have in `make test`: a desk's, a phone's, and so on.
PLACES = {
    "home": ("#/", "Shoal"),
    "run": ("#/run/violated-run", "violated-run"),
    "replay": ("#/run/violated-run?at=2.5&stage=mirror", "violated-run"),
    "life": (LIFE, "Message 7 of lane 1"),
    "compare": ("#/compare?a=violated-run&b=proven-run", "Two runs"),
    "sweep": (f"#/sweep/{SWEEP}", "Sweep of consistency"),
}


@pytest.mark.parametrize(("name", "look"), in_looks(PLACES))
def test_every_place_opens_and_is_accessible(
    page: Page, served: Served, name: str, look: str, tmp_path: Path
) -> None:
    take_on(page, look)
    open_place(page, served, *PLACES[name])
    if name != "life":
        expect(page.locator(".verdict.violated").first).to_be_visible()
        assert bool(page.locator(".player .sentence").count()) is (name == "replay")
    else:
        expect(page.get_by_text("but is not in the target").first).to_be_visible()
    check_look(page, look, tmp_path / f"{name}-{look}.png")


def test_hostile_names_stay_text(page: Page, served: Served) -> None:
    open_place(page, served, "#/run/violated-run", "violated-run")
    expect(page.get_by_text(HOSTILE).first).to_be_visible()
    expect(page.locator(".witness")).to_contain_text(f"key {HOSTILE}")
    expect(page.locator(".witness")).to_contain_text(f"headers {HOSTILE}; {HOSTILE}")
    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    expect(page.get_by_text(HOSTILE).first).to_be_visible()
    assert page.locator("main img").count() == 0
    assert "owned" not in page.title()
    open_place(page, served, "#/", "Shoal")
    expect(page.get_by_text(HOSTILE).first).to_be_visible()
    assert page.locator("main img").count() == 0


def test_hostile_texts_of_a_mirror_stay_text(page: Page, served: Served) -> None:
    open_place(page, served, "#/mirror/hostile", "mirror hostile")
    expect(page.get_by_role("button", name="differs at offset 1")).to_be_visible()
    for where in (".bar", ".remarks", "table"):
        expect(page.locator(where).get_by_text(HOSTILE).first).to_be_visible()
    assert page.locator("main img").count() == 0
    assert "owned" not in page.title()


def test_a_run_shows_its_verdict_flow_tracks_and_tables(page: Page, served: Served) -> None:
    open_place(page, served, "#/run/violated-run", "violated-run")
    expect(page.get_by_text("1 lost before it")).to_be_visible()
    expect(page.get_by_text("missed: latency_ms_p99<10")).to_be_visible()
    for title in ("Faults", "Messages per second", "Latency from", "Lanes", "Brokers", "CPU of"):
        expect(page.get_by_role("img", name=re.compile(title)).first).to_be_visible()
    moved = page.get_by_role("region", name="How far messages moved")
    expect(moved).to_contain_text("30 places in all, 0.03 on average over 999 messages")
    expect(moved.locator(".bar")).to_have_count(1)
    captions = page.locator("details.data summary").all_text_contents()
    assert len(captions) >= 6
    page.get_by_text("Table: lanes").click()
    expect(page.get_by_role("region", name="table: lanes").get_by_role("row")).to_have_count(3)


def test_a_click_on_the_flow_filters_and_a_drag_zooms_in_the_address(
    page: Page, served: Served
) -> None:
    open_place(page, served, "#/run/violated-run", "violated-run")
    page.get_by_role("button", name="received").click()
    expect(page.get_by_text("None of the 1 finding belongs")).to_be_visible()
    expect(page.get_by_text("None of the lanes has a finding of this stage.")).to_be_visible()
    expect(page.get_by_text("No states of brokers here.")).to_be_visible()
    page.get_by_role("button", name="mirror 999").click()
    expect(page.locator(".findings").get_by_text("lost: not-mirrored", exact=True)).to_be_visible()
    expect(page.get_by_role("img", name=re.compile("Lanes, the worst 1"))).to_be_visible()
    expect(page.get_by_text("No faults of this stage.")).to_be_visible()
    assert "stage=mirror" in page.url
    page.get_by_role("button", name="Show all stages").click()
    expect(page.get_by_role("img", name=re.compile("Lanes, the worst 2"))).to_be_visible()
    assert "stage=" not in page.url
    chart = page.locator(".track .u-over").nth(1)
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.2, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, middle, steps=4)
    page.mouse.up()
    expect(page.get_by_role("button", name="Show everything")).to_be_visible()
    assert re.search(r"from=0\.\d+|from=1\.\d+", page.url)
    page.reload()
    page.get_by_role("button", name="Show everything").click()
    expect(page.get_by_role("button", name="Show everything")).to_have_count(0)
    assert "from=" not in page.url


def test_the_list_is_filtered_and_two_runs_are_compared(page: Page, served: Served) -> None:
    open_place(page, served, "#/", "Shoal")
    expect(page.locator(".run")).to_have_count(4)
    page.get_by_role("combobox", name="Verdict").select_option("proven")
    expect(page.locator(".run")).to_have_count(2)
    page.get_by_role("combobox", name="Verdict").select_option("")
    page.get_by_role("searchbox", name="Filter").fill("no such run")
    expect(page.get_by_text("No run matches.")).to_be_visible()
    page.get_by_role("searchbox", name="Filter").fill("")
    page.get_by_label("compare violated-run").check()
    page.get_by_label("compare proven-run").check()
    page.get_by_role("link", name="Compare the two").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Two runs")
    expect(page.get_by_role("row", name="lost 1 0")).to_be_visible()


def test_a_message_is_followed_to_where_it_was_last_seen(page: Page, served: Served) -> None:
    open_place(page, served, LIFE, "Message 7 of lane 1")
    expect(page.get_by_text("not seen after this", exact=True)).to_be_visible()
    expect(page.locator(".life .unseen")).to_have_count(1)
    lanes = page.locator(".life svg")
    for text in ("source leader", "broker 2", "followers", "in sync: 3", "mirror", "target leader"):
        expect(lanes.get_by_text(text, exact=True)).to_be_visible()
    expect(page.locator(".life line.neighbour")).to_have_count(6)
    page.get_by_role("link", name="8", exact=True).click()
    expect(page.get_by_text("was received by group g")).to_be_visible()
    expect(page.locator(".life .unseen")).to_have_count(0)
    assert "sequence=8" in page.url
    open_place(page, served, "#/run/violated-run", "violated-run")
    link = page.get_by_role("link", name="Follow this message")
    assert "lane=1&sequence=77" in (link.get_attribute("href") or "")


def test_numbers_move_while_a_run_goes(page: Page, served: Served, runs_dir: Path) -> None:
    running = RunningRun(runs_dir / "going-run")
    try:
        running.tick()
        open_place(page, served, "#/", "Shoal")
        card = page.locator(".card", has_text="going-run")
        expect(card).to_contain_text("So far 1,000 sent")
        running.tick()
        expect(card).to_contain_text("So far 2,000 sent")
        card.get_by_role("link").click()
        expect(page.get_by_role("heading", name="Over time, so far")).to_be_visible()
        running.tick()
        expect(page.get_by_text("So far 3,000 sent, 3,000 acknowledged")).to_be_visible()
        running.end()
        expect(page.get_by_text("All 1,000 were delivered.")).to_be_visible()
        # It has no page.json, so its charts are those of its events; they are whole now.
        expect(page.get_by_role("heading", name="Over time", exact=True)).to_be_visible()
        expect(page.get_by_text("so far")).to_have_count(0)
    finally:
        shutil.rmtree(running.folder)


UNKNOWN_CHOICES = {
    "#/run/violated-run?stage=constructor": "The address names the stage “constructor”",
    "#/run/violated-run?stage=%3Cimg%3E&from=9&to=x": "all of it is shown",
    "#/run/violated-run?group=__proto__": "consumers is shown",
    "#/run/violated-run?at=1e9": "its end is shown",
    "#/?verdict=hasOwnProperty": "all are shown",
    "#/life/traced-run?topic=t&lane=x": "The address names no producer.",
    "#/compare?a=violated-run": "The address does not name two runs",
    "#/stories?story=constructor": "choose one",
    "#/constructor": "No such page",
    "#/mirror/hostile?differs=none&from=z": "which is not known|that this mirror does not copy",
}


def test_an_address_that_names_nothing_falls_back_with_a_sentence(
    page: Page, served: Served
) -> None:
    for place, said in UNKNOWN_CHOICES.items():
        page.goto(f"http://{served.host}/{place}")
        expect(page.get_by_text(re.compile(said)).first, place).to_be_visible()
        expect(page.get_by_role("heading", level=1), place).to_be_visible()
        assert page.locator("main img").count() == 0, place


def test_data_that_cannot_be_drawn_is_said(browser: Browser, served: Served) -> None:
    # Apart from the others: what was caught is written to the console.
    context = browser.new_context()
    name, _, value = served.cookie.partition("=")
    context.add_cookies([{"name": name, "value": value, "url": f"http://{served.host}"}])
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.route(
        "**/violated-run/page", lambda route: route.fulfill(json={"groups": {"consumers": 1}})
    )
    page.goto(f"http://{served.host}/#/run/violated-run")
    expect(page.get_by_role("alert")).to_contain_text("This cannot be shown:")
    page.get_by_role("link", name="All runs").click()
    expect(page.get_by_role("heading", name="Verdicts")).to_be_visible()
    context.close()
    assert problems == []


def test_an_address_of_nothing_says_so(browser: Browser, served: Served) -> None:
    # Apart from the others: a browser writes an answer of 404 to its console.
    context = browser.new_context()
    name, _, value = served.cookie.partition("=")
    context.add_cookies([{"name": name, "value": value, "url": f"http://{served.host}"}])
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    for place in ("#/run/%E0%A4%A", "#/sweep/none", "#/run/", "#/cluster/%"):
        page.goto(f"http://{served.host}/#/stories")
        expect(page.get_by_role("alert")).to_have_count(0)
        page.goto(f"http://{served.host}/{place}")
        expect(page.get_by_role("alert"), place).to_have_text(re.compile("there is no such"))
    context.close()
    assert problems == []


def test_a_sweep_leads_to_its_runs_and_back(page: Page, served: Served) -> None:
    open_place(page, served, "#/", "Shoal")
    row = page.locator(".run", has_text=SWEEP)
    expect(row).to_contain_text("all 2 runs are judged")
    row.get_by_role("link").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Sweep of consistency")
    expect(page.get_by_role("heading", name="The effect of producer.acks")).to_be_visible()
    assert page.locator("main img").count() == 0
    page.get_by_role("link", name="acks_1-1").last.click()
    expect(page.get_by_role("heading", level=1)).to_have_text("acks_1-1")
    expect(page.get_by_role("img", name=re.compile("Latency from"))).to_be_visible()
    page.get_by_role("link", name=SWEEP).click()
    page.get_by_label("compare acks_1-1").check()
    page.get_by_label("compare acks_all-0").check()
    page.get_by_role("link", name="Compare the two").click()
    expect(page.get_by_role("row", name="lost 1 0")).to_be_visible()


def test_a_past_run_is_replayed(page: Page, served: Served) -> None:
    open_place(page, served, "#/run/violated-run", "violated-run")
    player = page.get_by_role("group", name="Replay")
    player.get_by_role("slider").fill("2.1")
    expect(player).to_contain_text("2.1 s of 5.0 s")
    expect(player).to_contain_text("So far 2,000 sent (1,000/s), 2,000 acknowledged")
    expect(page.locator(".flow .stages")).to_contain_text("2,000")
    page.reload()
    expect(player).to_contain_text("So far 2,000 sent")
    player.get_by_role("combobox").select_option("10")
    player.get_by_role("button", name="Play").click()
    # It plays to the end, where the page shows everything again.
    expect(player.get_by_role("button", name="Replay")).to_be_visible()
    expect(page.locator(".flow .stages")).to_contain_text("999")
    assert "at=" not in page.url


@pytest.mark.parametrize(("step", "look"), in_looks(["over", "waiting", "cut"]))
def test_the_page_of_the_demo_at_each_step(
    page: Page, served: Served, step: str, look: str, tmp_path: Path
) -> None:
    # tests/experiment/test_demo.py has the demo itself; this server has none.
    said = describe_demo(step, lost=41 if step == "over" else 0)
    page.route("**/api/v1/demo", lambda route: route.fulfill(json=said))
    width = take_on(page, look)
    open_place(page, served, "#/demo", "What acks=1 costs when a leader dies")
    expect(page.locator(".acks-side")).to_have_count(2)
    if step == "over":
        expect(page.get_by_text("41 acknowledged messages are lost")).to_be_visible()
        expect(page.locator(".acks-side .verdict.violated")).to_be_visible()
    # No buttons that act on a phone; it presses itself.
    button = page.get_by_role("button", name="Cut off the followers")
    expect(button).to_be_visible(visible=step == "waiting" and width == DESK)
    assert page.locator("main img").count() == 0
    assert "owned" not in page.title()
    check_look(page, look, tmp_path / f"demo-{step}-{look}.png")


def test_only_a_running_run_can_be_stopped_and_only_if_allowed(
    browser: Browser, page: Page, served: Served, tmp_path: Path
) -> None:
    open_place(page, served, "#/run/violated-run", "violated-run")
    stop = "stop this run: it drains and is judged"
    expect(page.get_by_role("button", name=stop)).to_have_count(0)
    # A process that stands for the driver of a run, and ends as one does at Ctrl-C.
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as driver:
        try:
            for name in ("going-run", f"{SWEEP}/going-run"):
                running = RunningRun(tmp_path / "runs" / name)
                running.tick()
                manifest = json.loads((running.folder / "run.json").read_text())
                identity = to_plain(ProcessIdentity.of(driver.pid))
                write_json(running.folder / "run.json", {**manifest, "driver": identity})
            write_json(tmp_path / "runs" / SWEEP / "sweep.json", {})
            with serve_runs(
                tmp_path / "runs", "--allow-actions", state=tmp_path / "state"
            ) as allowed:
                allowed.log_in()
                with open_page(browser, allowed) as own:
                    for name in ("going-run", f"{SWEEP}%2Fgoing-run"):
                        open_place(own, allowed, f"#/run/{name}", "going-run")
                        expect(own.get_by_role("button", name=stop)).to_be_visible()
                    own.get_by_role("button", name=stop).click()
                    driver.wait(PATIENCE_MS / 1000)
                    expect(own.get_by_text("It drains and is judged.")).to_be_visible()
        finally:
            driver.kill()


def test_an_empty_folder_shows_three_ways_to_begin_and_when_the_server_is_gone(
    browser: Browser, tmp_path: Path
) -> None:
    context = browser.new_context()
    with serve_runs(tmp_path / "none", state=tmp_path / "state") as own:
        empty = context.new_page()
        empty.set_default_timeout(PATIENCE_MS)
        empty.goto(own.address)
        expect(empty.get_by_text("shoal run mirror-correctness")).to_be_visible()
        expect(empty.get_by_role("button", name="Copy the command")).to_have_count(3)
        assert "token" not in empty.url
        found = Axe().run(empty)
        assert found.violations_count == 0, found.generate_report()
    expect(empty.get_by_text("Disconnected: shoal serve does not answer.")).to_be_visible()
    context.close()


def test_a_list_of_runs_says_when_the_server_is_gone(page: Page, served: Served) -> None:
    open_place(page, served, "#/", "Shoal")
    expect(page.get_by_text("Nothing runs now.")).to_be_visible()
    # What it follows is refused from now on, as by a server that has ended.
    page.route("**/api/v1/stream*", lambda route: route.fulfill(status=204))
    page.evaluate(HIDE_AND_SHOW)
    expect(page.get_by_text("Disconnected: shoal serve does not answer.")).to_be_visible()
