"""The places of a cluster and of a mirror in a real browser, over real brokers and a real mirror.

One cluster, one mirror and one browser for the module. A page with an error in its console fails.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from support.lite.clusters import eventually, send
from support.web_browser import (
    DESK,
    check_look,
    in_looks,
    open_browser,
    open_page,
    open_place,
    take_on,
)
from support.web_runs import HOSTILE
from support.web_server import Served, serve_runs
from support.web_things import CLUSTER, MIRROR, PLANTED, RunningThings, run_things

pytestmark = [pytest.mark.system("chromium"), pytest.mark.xdist_group("chromium places")]

PLACES = {
    "mirror": (f"#/mirror/{MIRROR}?differs={PLANTED}-0", f"mirror {MIRROR}"),
    "cluster": (f"#/cluster/{CLUSTER}", f"cluster {CLUSTER}"),
    "stories": ("#/stories?story=election", "What happens before what"),
}


@pytest.fixture(scope="module")
def things(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningThings]:
    with run_things(tmp_path_factory.mktemp("state")) as things:
        yield things


@pytest.fixture(scope="module")
def served(things: RunningThings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    runs: Path = tmp_path_factory.mktemp("runs")
    with serve_runs(runs, "--allow-actions", state=things.state) as served:
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


@pytest.mark.parametrize(("name", "look"), in_looks(PLACES))
def test_every_place_opens_and_is_accessible(
    page: Page, served: Served, name: str, look: str, tmp_path: Path
) -> None:
    width = take_on(page, look)
    open_place(page, served, *PLACES[name])
    if name == "mirror":
        expect(page.get_by_role("region", name="both records")).to_be_visible()
    elif name == "cluster":
        expect(page.get_by_role("group", name="Order of events")).to_be_visible()
        kill = page.get_by_role("button", name="kill broker 1")
        expect(kill).to_be_visible(visible=width == DESK)
    else:
        expect(page.get_by_text("is elected, in epoch 1")).to_be_visible()
    check_look(page, look, tmp_path / f"{name}-{look}.png")


def test_a_broker_is_killed_by_the_button_and_comes_back(page: Page, served: Served) -> None:
    open_place(page, served, *PLACES["cluster"])
    node = page.locator(".node", has_text="broker 2")
    expect(node.locator(".state")).to_have_text(re.compile("leads|in sync"))
    node.get_by_role("button", name="kill broker 2").click()
    expect(node.locator(".state")).to_have_text("dead")
    expect(page.get_by_text("under-replicated").first).to_be_visible()
    node.get_by_role("button", name="restart broker 2").click()
    expect(node.locator(".state")).to_have_text(re.compile("leads|in sync"))
    expect(page.get_by_text("have a leader and all replicas in sync")).to_be_visible()
    page.get_by_text("Table: states and elections").click()
    table = page.get_by_role("region", name="table: states and elections")
    expect(table.get_by_text("dead")).to_be_visible()


def test_a_node_is_cut_off_and_healed(page: Page, served: Served) -> None:
    open_place(page, served, *PLACES["cluster"])
    page.get_by_role("button", name="cut off broker 3").click()
    expect(page.get_by_text("link from 3 to 1 cut")).to_be_visible()
    page.get_by_role("button", name="end all faults").click()
    expect(page.get_by_text("link from 3 to 1 cut")).to_have_count(0)


def test_an_event_shows_its_causes(page: Page, served: Served) -> None:
    open_place(page, served, *PLACES["stories"])
    page.get_by_role("button", name="A write is replicated").click()
    expect(page.locator(".spacetime .dot")).to_have_count(4)
    # Both followers copy after the write, and the high watermark follows both.
    expect(page.locator(".spacetime .edge")).to_have_count(4)
    page.get_by_role("button", name="b2 orders-0: has copied").click()
    expect(page.locator(".spacetime .dot.faint")).to_have_count(1)
    assert "story=write" in page.url


def test_a_tail_says_what_it_skips(page: Page, served: Served, things: RunningThings) -> None:
    open_place(page, served, f"#/cluster/{CLUSTER}?topic={PLANTED}", PLACES["cluster"][1])
    page.get_by_role("button", name="Follow", exact=True).click()
    table = page.get_by_role("region", name="table: records")
    expect(table.get_by_text("order 5 of 5 pieces")).to_be_visible()
    expect(table.get_by_text(HOSTILE, exact=True)).to_have_count(6)
    assert page.locator("main img").count() == 0
    expect(page.get_by_text("Nothing skipped.")).to_be_visible()
    send(things.source, PLANTED, *(b"<b>%d</b>" % number for number in range(500)))
    expect(table.get_by_text("<b>499</b>")).to_be_visible()
    expect(page.get_by_text(re.compile(r"\d+ records skipped"))).to_be_visible()
    page.get_by_role("button", name="Stop", exact=True).click()
    expect(table).to_have_count(0)


def test_the_records_that_differ_are_side_by_side(page: Page, served: Served) -> None:
    open_place(page, served, f"#/mirror/{MIRROR}", f"mirror {MIRROR}")
    expect(page.get_by_text("1 partition differs from the source")).to_be_visible()
    page.get_by_role("button", name="differs at offset 3").click()
    table = page.get_by_role("region", name="both records")
    expect(table.get_by_role("row", name="value").locator("mark")).to_have_text(["5", "7"])
    expect(page.locator(".records .here")).to_have_count(2)
    expect(page.locator(".records span").get_by_text(HOSTILE, exact=True)).to_be_visible()
    expect(page.locator(".records code").get_by_text(HOSTILE, exact=True)).to_have_count(9)
    for field in ("key", "header"):
        row = table.get_by_role("row", name=re.compile(f"^{field}"))
        # Of long values that are equal the end is shown.
        expect(row).to_contain_text(HOSTILE[-22:])
    assert page.locator("main img").count() == 0
    assert "owned" not in page.title()
    assert f"differs={PLANTED}-0" in page.url


def test_a_mirror_is_paused_and_resumed(page: Page, served: Served, things: RunningThings) -> None:
    open_place(page, served, f"#/mirror/{MIRROR}", f"mirror {MIRROR}")
    page.get_by_role("button", name="pause this mirror").click()
    expect(page.get_by_text("Paused.")).to_be_visible()
    page.get_by_role("button", name="resume this mirror").click()
    expect(page.get_by_text("Paused.")).to_have_count(0)
    before = count_copied(things)
    send(things.source, "orders", b"another")
    eventually(lambda: count_copied(things) > before)
    expect(page.get_by_text(f"copied up to {count_copied(things)} of")).to_be_visible()


def count_copied(things: RunningThings) -> int:
    copied = 0
    for line in (things.mirror_folder / "events.jsonl").read_text().splitlines():
        event = json.loads(line)
        copied = event["counters"]["records"] if event["kind"] == "tick" else copied
    return copied


def test_home_leads_to_what_runs(page: Page, served: Served) -> None:
    open_place(page, served, "#/", "Shoal")
    expect(page.get_by_text("Three ways to begin")).to_be_visible()
    page.get_by_role("link", name=f"cluster {CLUSTER}").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"cluster {CLUSTER}")
    page.go_back()
    page.get_by_role("link", name=f"mirror {MIRROR}").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"mirror {MIRROR}")


@pytest.mark.parametrize(
    "body",
    [
        # What may be refused is tested without processes in tests/control.
        b'{"thing": "cluster:places", "action": "kill", "node": 77}',
        b'{"thing": "cluster:places", "action": "slow", "node": 1, "other": 2, "settings": {}}',
        b"[]",
    ],
)
def test_an_action_that_is_not_known_is_refused(served: Served, body: bytes) -> None:
    answer = served.post("/api/v1/actions", body)
    assert answer.status == 400
    assert json.loads(answer.body)["error"]


def test_an_action_by_the_api_says_what_was_done(served: Served) -> None:
    body = {"thing": f"cluster:{CLUSTER}", "action": "pause", "node": 1}
    answer = served.post("/api/v1/actions", json.dumps(body).encode())
    assert (answer.status, json.loads(answer.body)) == (200, {"done": "pause: node 1 of places"})
    resumed = json.dumps({**body, "action": "resume"}).encode()
    assert served.post("/api/v1/actions", resumed).status == 200
