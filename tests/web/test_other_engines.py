"""Pages of what writes few events: other engines, other mirrors, single producers."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import expect

from shoal.lite.cluster import LiteCluster
from shoal.systems.metadata_events import MetadataEvents
from shoal.telemetry.events import EventWriter
from shoal.telemetry.run_events import ProcessEvents, RunEvents
from support.lite.clusters import create_topic, eventually
from support.web_browser import open_browser, open_page
from support.web_runs import describe_run, write_json
from support.web_server import Served, serve_runs

pytestmark = [pytest.mark.system("chromium"), pytest.mark.xdist_group("chromium places")]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """A run on an external cluster with MirrorMaker 2, and a single consumer, all running."""
    run, alone = tmp_path / "runs" / "r1", tmp_path / "runs" / "alone"
    with LiteCluster() as cluster, ExitStack() as stack:
        create_topic(cluster, "orders", 2, 1)
        for folder in (run, alone):
            folder.mkdir(parents=True)
            write_json(folder / "run.json", describe_run(folder.name, "running", 1))
        servers = {"bootstrap.servers": cluster.bootstrap}
        events = RunEvents(run)
        events.add_part(MetadataEvents(run / "source", "r1/source", servers, engine="external"))
        pids = [os.getpid()]
        events.add_part(ProcessEvents(run / "mirror", "r1/mirror", {"kind": "mm2"}, lambda: pids))
        stack.callback(events.close, "finished")
        events.on_progress({"sent": 5}, {})
        reading = RunEvents(alone, name="consumer a")
        stack.callback(reading.close, "finished")
        reading.on_progress({"received": 5}, {})
        stream = run / "source" / "events.jsonl"
        eventually(lambda: "led by broker 1" in stream.read_text())
        stack.callback(write_single_node(tmp_path / "node", tmp_path / "state").close)
        with serve_runs(run.parent, state=tmp_path / "state") as served:
            served.log_in()
            yield served


def write_single_node(folder: Path, state: Path) -> EventWriter:
    """What a broker of a cluster over several hosts writes, and how it is found."""
    name = "east-broker-1"
    details = {"engine": "lite", "node": "broker 1", "address": "h1:9092", "bootstrap": "h1:9092"}
    writer = EventWriter(folder, "cluster", name, details=details)
    for broker, where in ((1, "leads"), (2, "fenced")):
        writer.set_state(f"broker {broker}", where, details={"address": f"h{broker}:9092"})
    for _ in range(2):
        writer.tick(counters={"records_in": 5})
    entry = state / "shoal" / "nodes" / f"{name}.json"
    entry.parent.mkdir(parents=True)
    write_json(entry, {"name": name, "directory": str(folder)})
    return writer


def test_their_pages_open_without_an_error(served: Served) -> None:
    """`open_page` fails for an error in the console."""
    with open_browser() as browser, open_page(browser, served) as page:
        for place, seen in (
            ("#/", "r1"),
            ("#/", "east-broker-1"),
            ("#/cluster/east-broker-1", "its cluster as broker 1 at h1:9092 sees it"),
            ("#/cluster/r1/source", "orders-1"),
            ("#/mirror/r1/mirror", "mirror"),
            ("#/run/r1", "r1"),
            ("#/run/alone", "alone"),
        ):
            page.goto(f"http://{served.host}/{place}")
            expect(page.get_by_text("Loading…")).to_have_count(0)
            expect(page.locator("main")).to_contain_text(seen)
            assert "NaN" not in page.locator("main").inner_text(), place
            assert "undefined" not in page.locator("main").inner_text(), place
