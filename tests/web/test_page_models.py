"""The pure parts of the page: what an address chose, stages, replay, lanes, fewer points."""

import math
from collections.abc import Iterator
from typing import Any

import pytest

from shoal.model.findings import Finding
from support.web_browser import open_browser
from support.web_modules import Modules, open_modules

pytestmark = [pytest.mark.system("chromium"), pytest.mark.xdist_group("chromium modules")]

HOSTILE = ["constructor", "__proto__", "<b>x</b>", "x" * 5000, "NaN", "-1", "1e999", "%00", "🐟"]
TIMES = [1_794_000_000.0 + 0.01 * place for place in range(10_000)]


@pytest.fixture(scope="module")
def modules() -> Iterator[Modules]:
    with open_browser() as browser, open_modules(browser) as modules:
        yield modules


# What an address chose


@pytest.mark.parametrize("text", HOSTILE)
def test_an_unknown_choice_falls_back_with_a_sentence(modules: Modules, text: str) -> None:
    words = {"what": "stage", "fallback": "all stages are shown"}
    chosen = modules.call("choices", "chooseOne", text, ["sent", "source"], words)
    assert chosen["value"] == ""
    (note,) = chosen["notes"]
    assert note.endswith("which is not known here; all stages are shown.")
    assert len(note) < 150
    for query in ({"from": text}, {"to": text}, {"from": "1", "to": text}):
        chosen = modules.call("choices", "chooseTime", query, 10)
        assert (chosen["from"], chosen["to"], len(chosen["notes"])) == (None, None, 1)
    moment = modules.call("choices", "chooseMoment", text, 10)
    assert (moment["at"], len(moment["notes"])) == (None, 1)
    name = {"topic": "t", "producer": "p", "lane": text, "sequence": text}
    assert len(modules.call("choices", "checkMessage", name)) == 2


@pytest.mark.parametrize(
    ("query", "start", "end", "notes"),
    [
        ({}, None, None, 0),
        ({"from": "", "to": ""}, None, None, 0),
        ({"from": "1.5"}, 1.5, None, 0),
        ({"from": "1.5", "to": "3"}, 1.5, 3, 0),
        ({"from": "0.00", "to": "12.31"}, 0, 12.31, 0),
        ({"from": "3", "to": "2"}, None, None, 1),
        ({"from": "11"}, None, None, 1),
        ({"to": "0"}, None, None, 1),
    ],
)
def test_a_time_is_a_stretch_of_the_run(
    modules: Modules, query: dict[str, str], start: Any, end: Any, notes: int
) -> None:
    chosen = modules.call("choices", "chooseTime", query, 10)
    assert (chosen["from"], chosen["to"], len(chosen["notes"])) == (start, end, notes)


@pytest.mark.parametrize("hash_", ["#/run/%E0%A4%A", "#/run/%", "#/%ZZ/x?%ZZ=1"])
def test_an_address_that_is_not_encoded_is_read(modules: Modules, hash_: str) -> None:
    address = modules.call("router", "parseAddress", hash_)
    assert set(address) == {"place", "name", "query"}


@pytest.mark.parametrize(
    ("thing", "part"),
    [
        ("run:r", "run"),
        ("run:r/source", "source"),
        ("run:s/r", "run"),
        ("run:s/r/mirror", "mirror"),
        ("cluster:source", "run"),
    ],
)
def test_a_part_is_told_from_a_run_of_a_sweep(modules: Modules, thing: str, part: str) -> None:
    assert modules.call("router", "partOf", thing) == part


# Stages


@pytest.mark.parametrize(
    ("stage", "finding", "is_of_it"),
    [
        ("", "lost: not-mirrored", True),
        ("mirror", "lost: not-mirrored", True),
        ("source", "lost: not-mirrored", False),
        ("source", "lost: expired", True),
        ("source", "lost: expired at target", False),
        ("target", "lost: expired at target", True),
        ("received", "reordered", True),
        ("received", "reordered: target", False),
    ],
)
def test_findings_belong_to_stages(
    modules: Modules, stage: str, finding: str, is_of_it: bool
) -> None:
    assert modules.call("stages", "isFindingOf", stage, finding) is is_of_it


def test_every_finding_belongs_to_a_stage(modules: Modules) -> None:
    stages = modules.call("stages", "STAGES")
    homeless = {
        finding.value
        for finding in Finding
        if not any(modules.call("stages", "isFindingOf", stage, finding.value) for stage in stages)
    }
    assert homeless == set()


def test_a_stage_filters_lanes_states_and_processes(modules: Modules) -> None:
    lanes = [{"findings": {"lost: not-mirrored": 1}}, {"findings": {}}, {"findings": {"torn": 2}}]
    assert modules.call("stages", "lanesOf", "mirror", lanes) == lanes[:1]
    assert modules.call("stages", "lanesOf", "", lanes) == lanes
    states = [{"object": "broker 1"}]
    tick = {"t": 1, "processes": [{"name": "broker 1"}]}
    logs = {part: {"states": states, "ticks": [tick]} for part in ("source", "target")}
    logs["run"] = {"states": [], "ticks": [{"t": 1, "processes": [{"name": "mirror"}]}]}
    shown = modules.call("stages", "logsOf", "source", logs)
    kept = {
        part: (len(log["states"]), len(log["ticks"][0]["processes"])) for part, log in shown.items()
    }
    assert kept == {"source": (1, 1), "target": (0, 0), "run": (0, 0)}
    assert modules.call("stages", "logsOf", "", logs) == logs


# Faults, lanes, order


def test_a_fault_has_the_phases_of_its_window(modules: Modules) -> None:
    fault = {"fault": 3, "name": "kill", "target": "source/1", "began_us": 5_000_000}
    windows = [
        {
            "fault": 3,
            "time_to_detect_us": 100_000,
            "time_to_recover_us": 2_500_000,
            "time_to_drain_us": 50_000,
        },
        {"fault": None, "time_to_detect_us": None},
    ]
    ended = {**fault, "ended_us": 7_000_000}
    (span,) = modules.call("model", "faultSpans", [ended], [], 10, windows)
    assert span["phases"] == [["detected", 5.1], ["recovered", 7.5], ["drained", 7.05]]
    (span,) = modules.call("model", "faultSpans", [{**fault, "ended_us": None}], [], 10, windows)
    assert [phase for phase, _ in span["phases"]] == ["detected", "recovered"]
    assert span["to"] == 10
    for missing in (None, [], [{"fault": 3, "time_to_detect_us": None}]):
        (span,) = modules.call("model", "faultSpans", [ended], [], 10, missing)
        assert span["phases"] == []


def test_lanes_are_the_worst_with_the_share_that_is_affected(modules: Modules) -> None:
    lanes = [
        {
            "topic": "t",
            "lane": lane,
            "due": 100,
            "affected": lane,
            "findings": {},
            "stretches": [[0, 1_000_000, 50, lane], [1_000_000, 2_000_000, 0, 0]],
        }
        for lane in range(30)
    ]
    rows = modules.call("model", "laneRows", lanes, 100)
    assert [row["lane"]["lane"] for row in rows] == list(range(29, 9, -1))
    first, second = rows[0]["spans"]
    assert (first["from"], first["to"], first["share"]) == (100, 101, 29 / 50)
    assert second["share"] == 0


def test_only_time_without_messages_is_a_gap_of_a_lane(modules: Modules) -> None:
    stretches = [[0, 900_000, 10, 0], [1_000_000, 1_900_000, 10, 1], [5_000_000, 5_900_000, 10, 0]]
    lane = {"topic": "t", "lane": 0, "due": 30, "affected": 1, "findings": {}}
    (row,) = modules.call("model", "laneRows", [{**lane, "stretches": stretches}], 0)
    assert [(span["from"], span["to"]) for span in row["spans"]] == [(0, 1), (1, 1.9), (5, 5.9)]


def test_lanes_that_moved_are_listed_by_how_far(modules: Modules) -> None:
    lanes = [
        {"topic": "t", "lane": 0, "delivered": 100, "F_limit": 5000},
        {"topic": "t", "lane": 1, "delivered": 100, "F": 10, "K": 5, "F_limit": 5000},
        {"topic": "t", "lane": 2, "delivered": 10, "F": 20, "K": 9, "reordered": 3},
    ]
    moved = modules.call("model", "listMovedLanes", lanes)
    assert [(lane["name"], lane["mean"], lane["pairs"]) for lane in moved] == [
        ("t 2", 2, 9),
        ("t 1", 0.1, 5),
    ]
    assert modules.call("model", "listMovedLanes", None) == []


# The life of a message


def build_life(**changes: Any) -> dict[str, Any]:
    """Message 7, sent at 10 s: in the source at offset 70, nowhere else."""
    neighbour = {"sequence": 6, "last_stage": "received", "intended_us": 9, "received_us": 30}
    life = {
        "producer": "p0",
        "outcome": "ok",
        "last_stage": "source",
        "sentence": "",
        "intended_us": 10,
        "sent_us": 11,
        "acknowledged_us": 15,
        "source": [{"partition": 0, "offset": 70, "append_us": None}],
        "target": [],
        "polls": [],
        "neighbours": [neighbour],
        "faults": [{"name": "kill", "target": "source/1", "began_us": 0, "ended_us": None}],
        "has_target": True,
        "acks": -1,
        "replicas": {"source": {"leader": 2, "in_sync": [2, 1, 3]}},
    }
    return life | changes


POLL = {"group": "g", "partition": 0, "offset": 5, "received_us": 40}
ARRIVED = {
    "last_stage": "received",
    "target": [{"partition": 0, "offset": 5, "append_us": 20}],
    "polls": [POLL],
}


@pytest.mark.parametrize(
    ("changes", "lanes"),
    [
        ({}, ["producer", "source", "followers", "mirror", "target", "consumers"]),
        (ARRIVED, ["producer", "source", "followers", "mirror", "target", "group g"]),
        ({"has_target": False, "replicas": {}}, ["producer", "source", "consumers"]),
        (
            {"has_target": False, "replicas": {"source": {"leader": 2, "in_sync": [2]}}},
            ["producer", "source", "consumers"],
        ),
    ],
)
def test_a_life_has_a_lane_for_each_place(
    modules: Modules, changes: dict[str, Any], lanes: list[str]
) -> None:
    found = modules.call("lifemodel", "lifeLanes", build_life(**changes))
    assert [lane["id"] for lane in found] == lanes
    notes = {lane["id"]: lane["note"] for lane in found}
    if "followers" in lanes:
        assert (notes["source"], notes["followers"]) == ("broker 2", "in sync: 1, 3")


def list_edges(modules: Modules, life: dict[str, Any]) -> list[tuple[str, str]]:
    events = modules.call("lifemodel", "lifeEvents", life)
    return [(event["from"], event["id"]) for event in events if event["from"]]


def test_a_message_goes_its_way_and_its_acknowledgement_another(modules: Modules) -> None:
    assert list_edges(modules, build_life(**ARRIVED)) == [
        ("due", "sent"),
        ("sent", "source 0"),
        ("source 0", "followers"),
        ("followers", "acknowledged"),
        ("source 0", "mirror"),
        ("mirror", "target 0"),
        ("target 0", "poll 0"),
    ]
    # acks=1: whether followers had it is not known.
    edges = list_edges(modules, build_life(acks=1))
    assert edges == [("due", "sent"), ("sent", "source 0"), ("source 0", "acknowledged")]
    only_polled = {"source": [], "sent_us": None, "acknowledged_us": None, "polls": [POLL]}
    assert list_edges(modules, build_life(**only_polled)) == [("due", "poll 0")]


@pytest.mark.parametrize(
    ("changes", "after", "lane"),
    [
        ({}, "source", "mirror"),
        ({"has_target": False}, "source", "consumers"),
        ({"last_stage": "target", "target": ARRIVED["target"]}, "target", "consumers"),
        ({"last_stage": "acknowledged", "source": []}, "producer", "source"),
        ({"last_stage": "planned", "source": []}, "producer", "source"),
    ],
)
def test_the_ring_is_where_a_message_was_not_seen(
    modules: Modules, changes: dict[str, Any], after: str, lane: str
) -> None:
    life = build_life(**changes)
    assert modules.call("lifemodel", "findLastSeen", life) == {"after": after, "lane": lane}
    assert modules.call("lifemodel", "findLastSeen", build_life(**ARRIVED)) is None


def test_neighbours_and_faults_are_behind_a_message(modules: Modules) -> None:
    lost, arrived = build_life(), build_life(**ARRIVED)
    low, high = modules.call("lifemodel", "lifeRange", lost)
    assert low < 9
    assert high > 30
    (band,) = modules.call("lifemodel", "faultBands", lost, [low, high])
    assert (band["from"], band["to"], band["text"]) == (low, high, "kill source/1")
    assert modules.call("lifemodel", "faultBands", lost, [-20, -10]) == []
    lanes = modules.call("lifemodel", "lifeLanes", arrived)
    (way,) = modules.call("lifemodel", "neighbourWays", arrived, lanes)
    assert way == {"sequence": 6, "from": 9, "to": 30, "lane": "group g"}
    # Neighbours that are far away do not make the message small.
    far = {"sequence": 8, "last_stage": "sent", "intended_us": 10_000, "received_us": None}
    low, high = modules.call("lifemodel", "lifeRange", build_life(**ARRIVED, neighbours=[far]))
    assert high < 100
    events = modules.call("lifemodel", "lifeEvents", arrived)
    placed = modules.call("lifemodel", "placeEvents", events, [low, high], 100, 900)
    assert all(100 <= event["x"] <= 900 for event in placed)
    x = {event["id"]: event["x"] for event in placed}
    assert x["sent"] < x["source 0"] < x["acknowledged"] < x["mirror"] < x["target 0"]


# Replay


def test_a_replay_knows_what_had_happened(modules: Modules) -> None:
    events = [
        {"kind": "meta", "t": 1_000_000},
        {"kind": "tick", "t": 2_000_000, "counters": {"sent": 10, "acknowledged": 8}},
        {"kind": "finding", "t": 2_500_000, "finding": "reordered", "count": 1},
        {"kind": "tick", "t": 3_000_000, "counters": {"sent": 20, "acknowledged": 20}},
        {"kind": "finding", "t": 3_500_000, "finding": "reordered", "count": 4},
        {"kind": "end", "t": 4_000_000},
    ]
    empty = modules.call("series", "emptyLog")
    log = modules.call("series", "addEvents", empty, events, True)
    seen = {at: modules.call("replay", "cutLog", log, at) for at in (0.5, 2, 2.9, 3.6, 9)}
    counts = {at: len(cut["ticks"]) for at, cut in seen.items()}
    assert counts == {0.5: 0, 2: 1, 2.9: 1, 3.6: 2, 9: 2}
    found = {at: cut["findings"].get("reordered", {}).get("count") for at, cut in seen.items()}
    assert found == {0.5: None, 2: None, 2.9: 1, 3.6: 4, 9: 4}
    assert [bool(cut["end"]) for cut in seen.values()] == [False, False, False, False, True]
    flow = modules.call("replay", "flowOfLog", seen[2])
    assert [stage["count"] for stage in flow] == [10, 8, 0]
    assert modules.call("replay", "flowOfLog", seen[0.5]) == []


@pytest.mark.parametrize(
    ("at", "elapsed", "speed", "after"),
    [(0, 1, 1, 1), (3, 0.5, 10, 8), (9, 5, 2, 10), (0, 0, 60, 0), (4, -1, 1, 4)],
)
def test_a_replay_advances_and_stops(
    modules: Modules, at: float, elapsed: float, speed: float, after: float
) -> None:
    assert modules.call("replay", "advance", at, elapsed, speed, 10) == after


def test_a_replay_cuts_bins_and_spans(modules: Modules) -> None:
    bins = {
        "times": [0.5, 1.5, 2.5],
        "seconds": 1,
        "due": [1, 2, 3],
        "acknowledged": [1, 2, 3],
        "received": [1, 2, 3],
        "latency": [{"5": 1}] * 3,
        "never": [0, 1, 1],
    }
    cut = modules.call("replay", "cutBins", bins, 1.2)
    assert (cut["times"], cut["due"]) == (bins["times"], [1, 2, None])
    assert (cut["latency"][2], cut["never"]) == ({}, [0, 1, 0])
    spans = [{"from": 0, "to": 3, "phases": [["a", 1], ["b", 2]]}, {"from": 2, "to": 3}]
    cut_spans = modules.call("replay", "cutSpans", spans, 1.2)
    assert cut_spans == [{"from": 0, "to": 1.2, "phases": [["a", 1]]}]


# Fewer points


def test_fewer_points_keep_extremes_gaps_and_order(modules: Modules) -> None:
    values: list[float | None] = [math.sin(place / 300) * 50 for place in range(10_000)]
    values[4321], values[7000] = 999, -999
    values[2000:3000] = [None] * 1000
    times, kept = modules.call(
        "decimate", "decimate", [TIMES, values], TIMES[0], TIMES[-1] + 1, 1000
    )
    assert len(times) == len(kept) <= 2002
    assert times == sorted(set(times))
    assert (times[0], times[-1]) == (TIMES[0], TIMES[-1])
    known = [value for value in kept if value is not None]
    assert (max(known), min(known)) == (999, -999)
    assert kept.count(None) > 100
    inside = [v for t, v in zip(times, kept, strict=True) if TIMES[2010] <= t <= TIMES[2990]]
    assert inside
    assert set(inside) == {None}


def test_a_zoom_shows_all_points_of_its_stretch(modules: Modules) -> None:
    values = list(range(10_000))
    times, kept = modules.call(
        "decimate", "decimate", [TIMES, values], TIMES[500], TIMES[600], 1000
    )
    assert (kept[0], kept[-1]) == (499, 601)
    assert len(times) == 103
    few = [[1.0, 2.0], [3, 4]]
    assert modules.call("decimate", "decimate", few, 0, 10, 1000) == few
    assert modules.call("decimate", "decimate", [[], []], 0, 10, 1000) == [[], []]
    uneven = [[*TIMES, TIMES[-1] + 1e6], [*values, 1]]
    times, _ = modules.call("decimate", "decimate", uneven, TIMES[0], TIMES[-1] + 1e6, 1000)
    assert times == sorted(set(times))


def test_names_of_close_phases_stand_after_the_last_mark(modules: Modules) -> None:
    marks = [
        {"text": name, "x": x, "width": 40}
        for name, x in (("detected", 0), ("recovered", 100), ("drained", 110))
    ]
    groups = modules.call("charts", "groupPhases", marks, 8)
    assert [(each["texts"], each["left"]) for each in groups] == [
        (["detected"], 8),
        (["recovered", "drained"], 118),
    ]


def test_rates_of_short_bins_are_means(modules: Modules) -> None:
    burst = [0, 0, 0, 0, 0, 1000, 0, 0, 0, 0, 0, None]
    smooth = modules.call("model", "smoothRates", burst, 0.01, 0.05)
    assert smooth == [0, 0, 0, 200, 200, 200, 200, 200, 0, 0, 0, None]
    assert modules.call("model", "smoothRates", burst, 1, 0.1) == burst


DRAW_DENSE = """async () => {
  const { html, render } = await import("/vendor.js");
  const { Track } = await import("/charts.js");
  const n = 20000;
  const times = Array.from({ length: n }, (_, i) => 1e9 + i);
  // Low, with one peak in the middle, and nothing in the last quarter.
  const values = times.map((_, i) => (i >= 15000 ? null : i === 10000 ? 100 : 10));
  const series = [{ label: "s", color: "--c0" }];
  render(html`<${Track} title="dense" height=${200} series=${series} columns=${[times, values]} range=${[times[0], times[n - 1]]} onZoom=${() => null} />`, document.getElementById("app"));
  await new Promise((resolve) => setTimeout(resolve, 200));
  const canvas = document.querySelector("canvas");
  const { data, width, height } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const isLine = (x, y) => data[4 * (y * width + x) + 3] > 200 && data[4 * (y * width + x) + 2] > data[4 * (y * width + x)] + 60;
  const heights = Array.from({ length: width }, (_, x) => Array.from({ length: height }, (_, y) => y).filter((y) => isLine(x, y)).length);
  return heights;
}"""  # noqa: E501 - JavaScript


def test_a_dense_line_is_whole_with_its_peak_and_its_gap(modules: Modules) -> None:
    heights = modules.page.evaluate(DRAW_DENSE)
    drawn = [x for x, height in enumerate(heights) if height]
    first, last = drawn[0], drawn[-1]
    # Without a hole up to the gap, which is a quarter of the width; the peak is one or two columns.
    assert drawn == list(range(first, last + 1))
    assert 0.70 < (last - first) / (len(heights) - first) < 0.80
    high = [x for x in drawn if heights[x] > 100]
    assert 1 <= len(high) <= 3
    assert abs(high[0] - first - (last - first) * 2 / 3) < 4
    assert all(heights[x] <= 3 for x in drawn if x not in high)


@pytest.mark.parametrize(
    ("places", "sides"),
    [
        ([100], ["above"]),
        ([100, 110], ["above", "below"]),
        ([100, 100, 130], ["above", "below", "beside"]),
        # Beside an event that another one follows there is no room, nor beside one at the end.
        ([100, 100, 130, 140], ["above", "below", "beside"]),
        ([740, 742, 790], ["above", "below"]),
    ],
)
def test_labels_stand_above_below_or_beside(
    modules: Modules, places: list[int], sides: list[str]
) -> None:
    events = [{"lane": "producer", "x": x, "label": "acknowledged"} for x in places]
    placed = modules.call("lifemodel", "placeLabels", events, 880)
    assert [label["side"] for label in placed] == sides


@pytest.mark.parametrize("time_us", [None, 1e19, -1e19, 10**30])
def test_a_time_that_no_calendar_has_is_unknown(modules: Modules, time_us: Any) -> None:
    assert modules.call("format", "formatTime", time_us) == "\u2013"
    assert modules.call("format", "formatClock", time_us or 1e19) == "\u2013"


@pytest.mark.parametrize(("count", "rows"), [(0, 0), (1, 1), (12, 12), (13, 2), (1000, 2)])
def test_many_faults_share_a_row_for_each_kind(modules: Modules, count: int, rows: int) -> None:
    what = ("kill source/1", "cut source/1<->source/2")
    faults = [{"what": what[n % 2], "from": n, "to": n + 1, "phases": []} for n in range(count)]
    found = modules.call("model", "faultRows", faults)
    assert len(found) == rows
    assert sum(len(row["spans"]) for row in found) == count
    assert {row["label"] for row in found} <= {"kill", "cut"}


def test_of_many_processes_the_busiest_are_drawn(modules: Modules) -> None:
    cpu = [[0.1], [0.9], [None], [0.9], [0.2]]
    memory = [[5], [1], [9], [2], [None]]
    usage = {"names": list("abcde"), "times": [1], "cpu": cpu, "memory": memory}
    found = modules.call("model", "busiest", usage, 3)
    assert (found["names"], found["cpu"]) == (["b", "d", "e"], [[0.9], [0.9], [0.2]])
    assert found["memory"] == [[1], [2], [None]]
    assert modules.call("model", "busiest", usage, 8)["names"] == list("abcde")


def test_a_clock_that_is_set_back_leaves_charts_in_order(modules: Modules) -> None:
    times = [5, 6, 7, 2, 3, 4]
    ticks = [
        {"t": t * 1_000_000, "counters": {"received": 10 * n}, "histograms": {}}
        for n, t in enumerate(times)
    ]
    drawn = modules.call("model", "binsOfTicks", ticks)["times"]
    assert drawn == sorted(drawn)
    assert [tick["t"] for tick in modules.call("series", "sortByTime", ticks)] == sorted(
        t * 1_000_000 for t in times
    )


def test_a_sweep_whose_plan_is_unreadable_claims_no_total(modules: Modules) -> None:
    sweep = {"parameters": {}, "planned": 0, "done": 1, "verdicts": {}}
    said = modules.call("runs", "describeSweep", sweep)
    assert said == "What it varies is not known; 1 run is judged."
