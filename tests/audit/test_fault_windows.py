"""Faults: windows from the commit log, and the metrics of the messages in them."""

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.audit.audit import Sizes, audit
from shoal.audit.read.folder import open_ledger
from shoal.audit.times.faults import FaultWindow, all_faults, fault_windows
from shoal.model.errors import LedgerError
from shoal.model.ledger import FAILED
from shoal.model.result import Result, Window
from support.audit.bruteforce import Judge, name
from support.audit.chaos import chaotic_runs
from support.audit.faults import faulty_runs
from support.audit.ledgers import History, clean_run, receive


def line(number: int, phase: str, at_us: int, **more: Any) -> dict[str, Any]:
    fields = {"kind": "fault", "fault": number, "phase": phase, "at_us": at_us}
    return {**fields, "name": "kill", "target": "source/1", "detail": {}, **more}


def test_a_begin_and_an_end_make_a_window() -> None:
    lines = [
        line(1, "begin", 5, detail={"signal": 9}),
        line(2, "begin", 7, name="pause", target="mirror"),
        line(1, "end", 9),
    ]
    assert fault_windows(lines) == (
        FaultWindow(1, "kill", "source/1", 5, 9, {"signal": 9}),
        FaultWindow(2, "pause", "mirror", 7),
    )


@pytest.mark.parametrize(
    "lines",
    [
        [line(1, "end", 9)],
        [line(1, "begin", 5), line(1, "begin", 6)],
        [line(1, "begin", 5), line(1, "end", 6), line(1, "end", 6)],
        [line(1, "middle", 5)],
        [{"kind": "fault", "at_us": 5, "name": "kill"}],
        [{**line(1, "begin", 5), "at_us": "5"}],
        [line(1, "begin", 5, detail=[1])],
    ],
)
def test_inconsistent_lines_are_refused(lines: list[dict[str, Any]]) -> None:
    with pytest.raises(LedgerError, match="fault"):
        fault_windows(lines)


# ---------------------------------------------------------------- what happened in each


def make_faulted(history: History, *windows: tuple[int, int | None]) -> History:
    for number, (began_us, ended_us) in enumerate(windows, 1):
        history.commits.append(line(number, "begin", began_us))
        if ended_us is not None:
            history.commits.append(line(number, "end", ended_us))
    return history


def judge(history: History, folder: Path, sizes: Sizes | None = None) -> Result:
    return audit(open_ledger([history.write(folder / "run")]), sizes=sizes)


def test_folders_of_one_run_count_their_faults_together() -> None:
    logs = [[line(1, "begin", 7), line(2, "begin", 9)], [line(1, "begin", 5), line(1, "end", 8)]]
    found = all_faults(logs)
    assert [(w.number, w.began_us) for w in found] == [(1, 5), (2, 7), (3, 9)]


def test_a_run_without_faults_has_no_windows(tmp_path: Path) -> None:
    assert judge(clean_run(), tmp_path).worst.windows == ()


def test_findings_and_metrics_are_in_the_window_of_the_intended_send(
    tmp_path: Path,
) -> None:
    history = make_faulted(clean_run(lanes=1, count=20), (5_000, 9_000), (8_000, None))
    del history.rows["receipts"][7]  # lost in the first
    history.rows["receipts"].insert(9, history.rows["receipts"].pop(14))  # 15 before 10 to 14
    receive(history, "p0", 0, 8, offset=30, received_us=25_000)  # a copy, in both
    result = judge(history, tmp_path)
    first, second, calm = result.worst.windows
    assert [w.fault for w in result.worst.windows] == [1, 2, None]
    assert first.counts["attempts"] == 4
    assert first.findings["lost: undelivered"] == first.counts["lost"] == 1
    assert first.findings["duplicate: target"] == 1
    assert second.counts["attempts"] == 12
    assert second.findings["reordered"] == 5
    assert second.findings["duplicate: target"] == 1
    assert (first.ratios.completeness, second.ratios.completeness) == (3 / 4, 1.0)
    assert calm.counts["attempts"] == 5
    assert calm.findings == {}
    assert first.latency_us["e2e_intended"].count == 3
    assert first.latency_us["e2e_intended"].undelivered == 1
    assert first.latency_us["producer"].percentiles["p99"] == 300
    assert (first.sent, first.received) == (4, 4)
    assert Result.from_json(result.to_json()) == result


def make_stalled_run(*, stall_ms: int = 3000, count: int = 900) -> History:
    """A message every 10 ms; those of the stall, from 3 s on, come when it is over."""
    history = clean_run(lanes=1, count=count)
    for _, row in history.rows["attempts"]:
        row["sent_us"] = row["intended_us"] = 10_000 * row["sequence"]
        row["acked_us"] = row["sent_us"] + 300
    for _, row in history.rows["receipts"]:
        sent_us = 10_000 * row["sequence"]
        stalled = 3_000_000 <= sent_us < 3_000_000 + 1000 * stall_ms
        row["received_us"] = 2000 + (3_000_000 + 1000 * stall_ms if stalled else sent_us)
    return history


def test_a_stall_is_detected_recovered_from_and_drained(tmp_path: Path) -> None:
    history = make_faulted(make_stalled_run(), (2_500_000, 4_000_000), (7_000_000, 7_500_000))
    result = judge(history, tmp_path)
    first, second, _ = result.worst.windows
    assert first.time_to_detect_us == 500_000
    assert first.time_to_recover_us == 6_000_000 - 2_500_000
    assert first.time_to_drain_us == 6_002_000 - 4_000_000
    assert second.time_to_detect_us is None  # it was not felt
    assert second.time_to_recover_us is None
    assert second.time_to_drain_us == 0


def test_what_is_left_of_one_fault_does_not_hide_the_next(tmp_path: Path) -> None:
    history = make_stalled_run()
    for _, row in history.rows["receipts"]:  # a second stall, shorter than the first
        if 7_000_000 <= 10_000 * row["sequence"] < 7_800_000:
            row["received_us"] = 7_802_000
    history = make_faulted(history, (3_000_000, 5_000_000), (7_000_000, 7_500_000))
    _, second, _ = judge(history, tmp_path).worst.windows
    assert (second.time_to_detect_us, second.time_to_recover_us) == (0, 800_000)


def test_what_was_on_its_way_when_a_fault_began_does_not_hide_it(tmp_path: Path) -> None:
    history = make_faulted(
        make_stalled_run(), (3_001_000, 6_000_000)
    )  # the first to be held left before
    first, _ = judge(history, tmp_path).worst.windows
    assert first.time_to_detect_us == 9_000
    assert first.time_to_recover_us == 6_000_000 - 3_001_000


def test_faults_that_begin_together_are_both_felt(tmp_path: Path) -> None:
    history = make_faulted(make_stalled_run(), (2_990_000, 6_000_000), (2_991_000, 5_500_000))
    first, second, _ = judge(history, tmp_path).worst.windows
    assert (first.time_to_detect_us, second.time_to_detect_us) == (10_000, 9_000)
    assert first.time_to_recover_us == 6_000_000 - 2_990_000
    assert second.time_to_recover_us == 6_000_000 - 2_991_000


def test_what_lasts_to_the_end_of_the_run_is_not_recovered_from(tmp_path: Path) -> None:
    history = make_faulted(make_stalled_run(stall_ms=60_000), (2_500_000, None))
    first, _ = judge(history, tmp_path).worst.windows
    assert first.time_to_detect_us == 500_000
    assert first.time_to_recover_us is None
    assert first.time_to_drain_us is None


def test_refused_messages_are_felt_without_anything_to_compare_with(tmp_path: Path) -> None:
    history = make_faulted(clean_run(lanes=1, count=900), (0, 100_000))
    for _, row in history.rows["attempts"]:
        if 50_000 <= row["intended_us"] < 60_000:
            row["outcome"] = FAILED
    first, _ = judge(history, tmp_path).worst.windows
    assert (first.time_to_detect_us, first.time_to_recover_us) == (50_000, 60_000)


@given(
    history=st.one_of(chaotic_runs(), faulty_runs()),
    windows=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), min_size=1, max_size=3),
    sizes=st.sampled_from([Sizes(), Sizes(1, 1, 1)]),
)
@pytest.mark.slow
def test_windows_are_those_of_the_brute_force_judge(
    history: History, windows: list[tuple[int, int]], sizes: Sizes
) -> None:
    spans = [(began_us, began_us + length_us) for began_us, length_us in windows]
    with tempfile.TemporaryDirectory() as folder:
        result = judge(make_faulted(history, *spans), Path(folder), sizes)
    for of, group in result.groups.items():
        expected = Judge(history, of)
        for window, (began_us, ended_us) in zip(group.windows, spans, strict=False):
            inside = {
                m
                for m, when in find_intended_times(expected).items()
                if began_us <= when < ended_us
            }
            check(expected, window, inside)
        outside = {
            m
            for m, when in find_intended_times(expected).items()
            if not any(began_us <= when < ended_us for began_us, ended_us in spans)
        }
        check(expected, group.windows[-1], outside)


def find_intended_times(judge: Judge) -> dict[Any, int]:
    """Return the intended send time of each message that has one."""
    times = {
        m: a["intended_us"] if a["intended_us"] != -1 else a["sent_us"]
        for m, a in judge.attempts.items()
    }
    return {m: when for m, when in times.items() if when != -1}


def check(judge: Judge, window: Window, inside: set[Any]) -> None:
    counts = Counter(why for m, why in judge.losses().items() if m in inside)
    counts["vanished"] = len(judge.vanished() & inside)
    for cluster, known in judge.known.items():
        if cluster == "source" or judge.h.mirror:
            copies = (len(places) - 1 for m, places in known.items() if m in inside)
            counts[f"duplicate: {cluster}"] = sum(copies)
    counts["reordered"] = sum(
        (*stream, sequence) in inside and any(before > sequence for before in order[:n])
        for stream, order in judge.arrivals().items()
        for n, sequence in enumerate(order)
    )
    counts["aborted read"] = sum(judge.outcome.get(m) == 1 for m in judge.delivered & inside)
    fields = {name: window.findings.get(name, 0) for name in counts}
    assert fields == dict(counts)
    assert window.counts["attempts"] == len(inside)
    assert window.counts["delivered"] == len(judge.delivered & inside)
    assert window.counts["ok"] == sum(judge.outcome[m] == 0 for m in inside)
    own = [r for r in judge.receipts if name(r) in inside]
    assert window.counts["deliveries"] == len(own)
