"""Runs for the tests of the page: folders as a run leaves them, and one that is still written."""

import json
import os
import time
from pathlib import Path
from typing import Any

from shoal.experiment.compare.comparison import JudgedRun, compare
from shoal.experiment.runs import driver_identity
from shoal.model.comparison import ParameterEffect, SweepResult
from shoal.model.findings import Verdict
from shoal.model.result import (
    FindingResult,
    GroupResult,
    Latency,
    Metrics,
    Result,
    Stage,
    ThresholdResult,
)
from shoal.runtime.processes import ProcessIdentity
from shoal.web.overview import PROOF_VERSION
from support.audit.ledgers import clean_run

HOSTILE = "<img src=x onerror=\"document.title='owned'\"><b>bold</b>&amp;{{7*7}}"
START_US = 1_794_000_000_000_000
SECOND_US = 1_000_000


def write_run(
    folder: Path, *, verdict: Verdict = Verdict.VIOLATED, topic: str = "orders", age_s: int = 0
) -> Path:
    """A finished run of 5 s with one loss, its page data and the events of all its parts."""
    folder.mkdir(parents=True)
    started_us = START_US - age_s * SECOND_US
    write_json(folder / "run.json", describe_run(folder.name, "finished", started_us))
    write_json(folder / "result.json", build_result(folder.name, verdict, topic).to_json())
    write_json(folder / "page.json", build_page(folder.name, topic))
    write_events(
        folder, "run", [*ticks(5), *faults(), {"kind": "end", "outcome": "finished", "text": ""}]
    )
    states = [
        {"kind": "state", "object": "broker 1", "state": "running", "reason": ""},
        {"kind": "state", "object": "broker 1", "state": "dead", "reason": HOSTILE},
        {"kind": "state", "object": "partition orders-0", "state": "leads", "reason": "election"},
    ]
    write_events(folder / "source", "cluster", states)
    return folder


def describe_run(name: str, state: str, started_us: int) -> dict[str, Any]:
    return {
        "run": name,
        "state": state,
        "started_us": started_us,
        "driver": driver_identity(),
        "command": ["shoal", "run", HOSTILE],
        "clusters": {"source": {"bootstrap.servers": "127.0.0.1:1", "sasl.password": "secret"}},
        "format": 2,
    }


def build_result(name: str, verdict: Verdict, topic: str) -> Result:
    is_violated = verdict is Verdict.VIOLATED
    lost = int(is_violated)
    witness = {"producer": "producer-1", "topic": topic, "lane": 1, "sequence": 77}
    # Findings about contents name keys and headers, which may have any text.
    witness |= {"key": HOSTILE, "headers": [[HOSTILE, HOSTILE]]}
    latency = Latency(1000 - lost, 0, 2345.6, 90_000, {"p50": 1800, "p99": 14_000})
    metrics = Metrics(
        attempts=1000,
        ok=1000,
        deliveries=1000 - lost,
        delivered=1000 - lost,
        delivered_attempts=1000 - lost,
        delivered_ok=1000 - lost,
        lost=lost,
        lost_ok=lost,
        yield_=1.0,
        harvest=1 - lost / 1000,
        completeness=1 - lost / 1000,
        duplication=0.0,
        F=30,
        F_limit=125_000,
        K=20,
        order=30 / 125_000,
        latency_us={"e2e_intended": latency},
        range_us={"sent": 4_990_000},
    )
    findings = {"lost: not-mirrored": FindingResult(1, 1, witness)} if is_violated else {}
    sentence = f"1 of 1,000 was lost of {topic}." if is_violated else "All 1,000 were delivered."
    still = {"topic": topic, "lane": 0, "delivered": 500, "F_limit": 125_000}
    moved = {**still, "lane": 1, "F": 30, "K": 20, "reordered": 4}
    group = GroupResult(
        verdict,
        sentence,
        lanes=(still, moved),
        stages={"source_to_target": Stage(verdict, tuple(findings))},
        findings=findings,
        metrics=metrics,
    )
    threshold = ThresholdResult(
        "latency_ms_p99<10", "latency_ms_p99", {"consumers": 14.0}, ("consumers",)
    )
    fault = {"fault": 0, "name": "kill", "target": "source/1", "began_us": START_US + SECOND_US}
    fault |= {"ended_us": START_US + 2 * SECOND_US, "detail": ""}
    return Result(name, "consumers", {"consumers": group}, faults=(fault,), thresholds=(threshold,))


def build_page(name: str, topic: str) -> dict[str, Any]:
    """The content of page.json: 50 bins of 100 ms."""
    bins = range(50)
    stretches = [(i * 500_000, (i + 1) * 500_000, 50) for i in range(10)]
    lanes = [
        {
            "producer": "producer-1",
            "topic": topic,
            "lane": lane,
            "due": 500,
            "affected": lane,
            "findings": {"lost: not-mirrored": 1} if lane else {},
            "stretches": [[*each, int(lane and each[0] == 500_000)] for each in stretches],
        }
        for lane in (1, 0)
    ]
    counts = {"sent": 1000, "source": 1000, "mirror": 999, "target": 999, "received": 999}
    stages = [
        {"name": stage, "count": count, "lost": int(stage == "mirror"), "duplicated": 0}
        for stage, count in counts.items()
    ]
    group = {
        "bins": {
            "start_us": START_US,
            "bin_us": 100_000,
            "due": [20] * 50,
            "acknowledged": [20] * 50,
            "received": [18 if i < 25 else 22 for i in bins],
            "lost": [int(i == 7) for i in bins],
            "never": [int(i == 7) for i in bins],
            "latency": [{"170": 10, str(180 + i % 20): 9} for i in bins],
            "undated_never": 0,
        },
        "flow": {"stages": stages, "acknowledged": 1000, "failed": 0, "unlocated": 0, "pending": 0},
        "lanes": lanes,
        "curves": [
            {"phase": "before", "count": 500, "never": 0, "points": [[50, 1800], [99, 9000]]},
            {"phase": "during", "count": 499, "never": 1, "points": [[50, 2800], [100, None]]},
        ],
    }
    return {"run": name, "groups": {"consumers": group}, "left_out": [], "version": 1}


def write_events(folder: Path, subject: str, events: list[dict[str, Any]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lines = [describe_writer(subject, folder.name, is_alive=False), *events]
    dated = [{"t": START_US + place * SECOND_US, **event} for place, event in enumerate(lines)]
    dated = [{"details": {}, **e} if e["kind"] == "state" else e for e in dated]
    text = "".join(json.dumps(event) + "\n" for event in dated)
    (folder / "events.jsonl").write_text(text)


def describe_writer(subject: str, name: str, *, is_alive: bool) -> dict[str, Any]:
    me = ProcessIdentity.of(os.getpid())
    mark = me.start_mark if me and is_alive else "another boot/1"
    return {
        "kind": "meta",
        "version": 1,
        "subject": subject,
        "name": name,
        "pid": os.getpid(),
        "process_start": mark,
        "details": {},
    }


def ticks(count: int) -> list[dict[str, Any]]:
    return [build_tick(1000 * place, place) for place in range(1, count + 1)]


def build_tick(sent: int, place: int) -> dict[str, Any]:
    buckets = {"200": 40, "220": 10}
    usage = {"name": "mirror", "pid": 7, "cpu_s": place * 0.3, "resident_bytes": 40_000_000}
    return {
        "kind": "tick",
        "seconds": 1.0,
        "counters": {"due": sent, "sent": sent, "acknowledged": sent, "received": sent - 100},
        "gauges": {},
        "histograms": {
            "end_to_end": {"count": 50, "sum_us": 500_000, "buckets": buckets, "negative": 0}
        },
        "partitions": [],
        "partitions_left_out": 0,
        "processes": [usage],
    }


def faults() -> list[dict[str, Any]]:
    fault = {"kind": "fault", "id": "1", "what": f"kill {HOSTILE}", "target": "source broker 1"}
    return [{**fault, "phase": phase} for phase in ("begin", "detected", "end")]


def write_hostile_mirror(folder: Path) -> None:
    """A mirror that has ended, with markup in every text that it wrote."""
    partition = {"partition": f"{HOSTILE}-0", "target": HOSTILE, "state": "parked"}
    partition |= {"reason": HOSTILE, "position": 1, "end": 3, "lag": 2, "lag_s": 1.0}  # type: ignore[dict-item]
    ticks = [{**build_tick(1000 * n, n), "partitions": [partition]} for n in (1, 2)]
    remark = {"kind": "log", "level": "warning", "text": HOSTILE}
    write_events(folder, "mirror", [*ticks, remark])
    difference = {"source_offset": 1, "target_offset": 1, "what": HOSTILE}
    proven = {"source": f"{HOSTILE}-0", "target": HOSTILE, "proven_offset": 1, "source_end": 3}
    proven |= {"at_us": 1, "checksum": "", "unavailable": HOSTILE, "difference": difference}
    proof = {"version": PROOF_VERSION, "mirror": HOSTILE, "source": HOSTILE, "target": HOSTILE}
    write_json(folder / "proof.json", {**proof, "pid": 1, "at_us": 1, "partitions": [proven]})


class RunningRun:
    """A run of this process, which writes a tick whenever the test says so."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self._ticks = 0
        now_us = time.time_ns() // 1000
        write_json(folder / "run.json", describe_run(folder.name, "running", now_us))
        self._append(describe_writer("run", folder.name, is_alive=True))

    def tick(self) -> None:
        self._ticks += 1
        self._append(build_tick(1000 * self._ticks, self._ticks))

    def end(self) -> None:
        """Finish and judge it."""
        self._append({"kind": "end", "outcome": "finished", "text": ""})
        result = build_result(self.folder.name, Verdict.PROVEN, "orders")
        write_json(self.folder / "result.json", result.to_json())
        finished = describe_run(self.folder.name, "finished", time.time_ns() // 1000)
        write_json(self.folder / "run.json", finished)

    def _append(self, event: dict[str, Any]) -> None:
        with (self.folder / "events.jsonl").open("a") as file:
            file.write(json.dumps({"t": time.time_ns() // 1000, **event}) + "\n")


def describe_demo(step: str, *, lost: int = 0) -> dict[str, Any]:
    """What the server of `shoal demo` says at one step, with text of messages that is markup."""
    example = {"topic": HOSTILE, "producer": HOSTILE, "lane": 0, "sequence": 5}
    verdicts = step == "over"
    sides = [
        {
            "acks": acks,
            "run": f"demo-acks-{acks}",
            "sent": 12_345,
            "acknowledged": 12_300,
            "received": 12_000,
            "rates": [900.0, 1000.0, 0.0, 950.0],
            "step": step,
            "lost": lost if acks == "1" else 0,
            "examples": [example] if lost and acks == "1" else [],
            "is_sent": verdicts,
            "verdict": ("violated" if acks == "1" else "proven") if verdicts else None,
            "sentence": HOSTILE if verdicts else "",
        }
        for acks in ("1", "all")
    ]
    named = {"title": "A mirror that loses a message", "run": "demo-mirror", "doing": HOSTILE}
    judged = {"format": 1, "verdict": "violated" if verdicts else None, "sentence": HOSTILE}
    shown = {**named, **judged, "sent": 8000, "received": 7999}
    is_pressed = step != "waiting"
    presses = None if is_pressed else 7.5
    return {"presses_in_s": presses, "is_pressed": is_pressed, "sides": sides, "steps": [shown]}


def write_sweep(folder: Path, *, is_done: bool = True) -> Path:
    """A sweep over acks with a run for each of two values; the second lost a message."""
    for number, acks in enumerate(("all", "1")):
        verdict = Verdict.VIOLATED if number else Verdict.PROVEN
        write_run(folder / f"acks_{acks}-{number}", verdict=verdict, age_s=300 + number)
    plan = {"format": 1, "file": "consistency.toml", "repeats": 1, "seed": 7}
    write_json(folder / "sweep.json", plan | {"parameters": {"producer.acks": ["all", HOSTILE]}})
    if is_done:
        levels = ("all", HOSTILE)
        found = [JudgedRun.read(path.parent) for path in sorted(folder.glob("*/run.json"))]
        settings = [{"acks": level} for level in levels]
        comparison = compare(
            [JudgedRun(run.path, own, run.result) for run, own in zip(found, settings, strict=True)]
        )
        effects = tuple(
            ParameterEffect("producer.acks", row.measure, levels, row.values, row.judged)
            for row in comparison.rows
        )
        varied = {"producer.acks": levels}
        sweep = SweepResult("consistency", varied, 1, 7, 2, 2, effects, comparison)
        write_json(folder / "result.json", sweep.to_json())
    return folder


def write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content))


def write_traced_run(folder: Path, *, age_s: int = 0) -> Path:
    """A run with ledgers: 2 lanes of 20 messages; the mirror lost message 7 of lane 1."""
    history = clean_run(lanes=2, count=20)
    for table, cluster in (("receipts", None), ("log", "target")):
        history.rows[table] = [
            (worker, row)
            for worker, row in history.rows[table]
            if (row["lane"], row["sequence"]) != (1, 7) or row.get("cluster") != cluster
        ]
    history.write(folder)
    path = folder / "run.json"
    plan = json.loads(path.read_text())
    described = describe_run(folder.name, "finished", START_US - age_s * SECOND_US)
    named = {name: described[name] for name in ("state", "started_us", "driver")}
    clusters = {role: {"bootstrap.servers": "127.0.0.1:1"} for role in ("source", "target")}
    write_json(path, {**plan, **named, "clusters": clusters, "acks": -1})
    replicas = {"leader": 2, "epoch": 0, "replicas": [1, 2, 3], "in_sync": [2, 3], "eligible": []}
    state = {"kind": "state", "object": "partition t-1", "state": "led by broker 2", "reason": ""}
    write_events(folder / "source", "cluster", [{"t": 1, **state, "details": replicas}])
    return folder
