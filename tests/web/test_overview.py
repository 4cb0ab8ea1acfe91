"""What the page reads of long event files, of proofs and of traces, whatever is in them."""

import json
from pathlib import Path
from typing import Any

from shoal.web import overview
from shoal.web.overview import MOST_TICKS, read_overview, read_proof
from shoal.web.traces import read_trace
from support.web_runs import build_tick, describe_writer


def write_lines(path: Path, events: list[dict[str, Any]]) -> None:
    lines = [json.dumps({"t": place, **event}) for place, event in enumerate(events)]
    path.write_text("".join(f"{line}\n" for line in lines))


def build_state(name: str, state: str, **details: object) -> dict[str, Any]:
    return {"kind": "state", "object": name, "state": state, "reason": "", "details": details}


def test_old_states_are_kept_and_old_ticks_are_not(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    meta = describe_writer("cluster", "c", is_alive=False)
    states = [build_state("partition a-0", "led by broker 1"), build_state("broker 9", "leads")]
    ticks = [build_tick(n, n) for n in range(3 * MOST_TICKS)]
    for tick in ticks[:-1]:
        tick["partitions"] = [{"partition": "a-0", "lag": tick["counters"]["sent"]}]
    gone = build_state("broker 9", "removed")
    write_lines(path, [meta, *states, *ticks, gone])
    with path.open("a") as file:
        file.write('{"kind": "tick", "t": 99')  # still being written
    found = read_overview(path)
    assert found is not None
    kinds = [event["kind"] for event in found["events"]]
    assert kinds[0] == "meta"
    assert kinds.count("tick") == MOST_TICKS
    assert [event["state"] for event in found["events"] if event["kind"] == "state"][:1] == [
        "led by broker 1"
    ]
    assert found["partitions"] == [{"partition": "a-0", "lag": 3 * MOST_TICKS - 2}]
    assert int(found["position"].split("-")[1]) < path.stat().st_size
    assert [event["t"] for event in found["events"]] == sorted(
        event["t"] for event in found["events"]
    )


def test_partitions_from_before_the_last_start_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    meta = describe_writer("mirror", "m", is_alive=False) | {"t": 50}
    old, new = (
        build_tick(1, 1) | {"t": t, "partitions": [{"partition": f"a-{t}"}]} for t in (1, 60)
    )
    write_lines(path, [meta, old, new])
    found = read_overview(path)
    assert found is not None
    assert found["partitions"] == [{"partition": "a-60"}]


def test_ticks_before_the_last_part_of_a_long_file_are_not_read(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(overview, "RECENT_BYTES", 2000)
    path = tmp_path / "events.jsonl"
    first = build_state("partition a-0", "without a leader")
    write_lines(
        path,
        [describe_writer("cluster", "c", is_alive=False), first]
        + [build_tick(n, n) for n in range(100)],
    )
    found = read_overview(path)
    assert found is not None
    kinds = [event["kind"] for event in found["events"]]
    assert 0 < kinds.count("tick") < 10
    assert (kinds.count("meta"), kinds.count("state")) == (1, 1)


def test_lines_that_are_not_events_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text('[1]\nnull\n{"kind": "tick", "t": 1, "partitions": [3, {"partition": 4}]}\n\n{')
    found = read_overview(path)
    assert found is not None
    assert len(found["events"]) == 1
    assert found["partitions"] == []
    assert read_overview(tmp_path / "none") is None


def test_a_proof_of_another_version_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    assert read_proof(path) is None
    for content in ("", "[]", '{"version": 1, "partitions": []}', '{"version": 1}', "[" * 9999):
        (tmp_path / "proof.json").write_text(content)
        assert read_proof(path) is None
    (tmp_path / "proof.json").write_text('{"version": 2, "partitions": []}')
    assert read_proof(path) == {"version": 2, "partitions": []}


def test_a_trace_that_is_damaged_is_read_as_far_as_it_is_whole(tmp_path: Path) -> None:
    folder = tmp_path / "trace"
    folder.mkdir()
    log = 'b1 {"b1":1}\nInitialization Complete\nb1 {"b1":2}\nINFO writes\nb1 {"b1":3}\nhalf'
    (folder / "b1-Log.txt").write_text(log)
    (folder / "b1-Times.txt").write_text("100\n\n")
    (folder / "b2-Log.txt").write_text("b2 no clock\nINFO x\nb2 {}\nINFO y\n\n")
    found = read_trace({"directory": str(tmp_path)})
    assert found["hosts"] == ["b1", "b2"]
    assert found["events"] == [
        ["b1", {"b1": 1}, "Initialization Complete", 100],
        ["b1", {"b1": 2}, "writes", None],
    ]
    assert read_trace({}) == {"hosts": [], "events": []}
