"""A run that lost a producer or consumer unplanned is not proven: what was asked for is unsent."""

import json
from pathlib import Path
from typing import Any

import pytest

from shoal.audit.audit import audit
from shoal.audit.read.folder import open_ledger
from shoal.model.result import Result
from support.audit.ledgers import clean_run, receive

KILLED = "its process was killed by SIGKILL"
Line = dict[str, Any]


def lease(worker: str, epoch: int = 1) -> Line:
    return {"kind": "lease", "worker": worker, "epoch": epoch, "host": "h"}


def end(worker: str, reason: str, epoch: int = 1, error: str = "") -> Line:
    line = {"kind": "ended", "worker": worker, "epoch": epoch, "reason": reason}
    return {**line, "error": error} if error else line


def kill(target: str) -> Line:
    fault = {"kind": "fault", "fault": 1, "phase": "begin", "name": "kill", "detail": {}}
    return {**fault, "target": target}


def reserve(producer: str, until: int = 20) -> Line:
    own = {"worker": producer, "epoch": 1, "producer": "p0", "incarnation": 0}
    return {"kind": "reserve", **own, "topic": "t", "lane": 0, "until": until}


BOTH = [lease("producer-1"), lease("consumer-1"), reserve("producer-1")]
LOST = end("producer-1", "lost", error=KILLED)
DONE = end("producer-1", "finished")
STOPPED = end("consumer-1", "stopped")
ALL_DELIVERED = "all 20 acknowledged messages were delivered"
ATTEMPTED = "so 20 of 6,000 messages were attempted"
PRODUCER_LOST = f"Producer-1 was lost ({KILLED})"

CASES: dict[str, tuple[list[Line], str, str]] = {
    "nobody": ([*BOTH, DONE, STOPPED], "proven", "All 20 acknowledged messages were delivered, in"),
    "the producer": (
        [*BOTH, LOST, STOPPED],
        "inconclusive",
        f"{PRODUCER_LOST}, {ATTEMPTED}; {ALL_DELIVERED}.",
    ),
    "the producer, which failed": (
        [*BOTH, end("producer-1", "failed", error="the disk is full"), STOPPED],
        "inconclusive",
        f"Producer-1 failed (the disk is full), {ATTEMPTED}; {ALL_DELIVERED}.",
    ),
    "the consumer, so producers were stopped": (
        [*BOTH, end("consumer-1", "lost", error=KILLED), end("producer-1", "stopped")],
        "inconclusive",
        f"Consumer-1 was lost ({KILLED}), {ATTEMPTED}; {ALL_DELIVERED}.",
    ),
    "a consumer, after everything was sent": (
        [*BOTH, DONE, end("consumer-1", "lost", error=KILLED)],
        "proven",
        f"All 20 acknowledged messages were delivered, in order; consumer-1 was lost ({KILLED}).",
    ),
    "a producer that was planned to be killed": (
        [*BOTH, kill("producer-1,producer-2"), LOST, STOPPED],
        "proven",
        "All 20 acknowledged messages were delivered, in order.",
    ),
    "one producer by plan and the other not": (
        [
            *(*BOTH, kill("producer-2"), LOST, STOPPED),
            *(lease("producer-2"), end("producer-2", "lost", error=KILLED)),
        ],
        "inconclusive",
        f"{PRODUCER_LOST}, {ATTEMPTED}; {ALL_DELIVERED}.",
    ),
    "a producer that was restarted": (
        [*BOTH, LOST, lease("producer-1", 2), end("producer-1", "finished", 2), STOPPED],
        "proven",
        "All 20 acknowledged messages were delivered, in order.",
    ),
    "a scan": (
        [*BOTH, DONE, STOPPED, lease("scan-source"), end("scan-source", "failed", error="gone")],
        "proven",
        "All 20 acknowledged messages were delivered, in order.",
    ),
}


def judge(
    tmp_path: Path, lines: list[Line], *, lose: bool = False, state: str = "finished"
) -> Result:
    history = clean_run(lanes=1, count=20, scans=False)
    history.commits += [{"at_us": 5, **line} for line in lines]
    if lose:
        history.rows["receipts"].pop()
        receive(history, "p0", 0, 0, offset=0)
    run = history.write(tmp_path / "run")
    plan = json.loads((run / "run.json").read_text())
    plan |= {"workload": {"messages": 6000}, "state": state}
    (run / "run.json").write_text(json.dumps(plan))
    return audit(open_ledger([run]))


@pytest.mark.parametrize("lost", CASES)
def test_the_loss_of_a_worker_is_said_and_judged(lost: str, tmp_path: Path) -> None:
    lines, verdict, sentence = CASES[lost]
    result = judge(tmp_path, lines)
    assert (result.verdict, result.sentence[: len(sentence)]) == (verdict, sentence)
    stages = {name: stage.verdict.value for name, stage in result.worst.stages.items()}
    assert stages["producer_to_source"] == verdict
    assert (stages["source_to_target"], stages["log_to_consumers"]) == ("proven", "proven")
    assert Result.from_json(result.to_json()).lost_workers == result.lost_workers


@pytest.mark.parametrize(
    ("state", "clause"),
    [
        ("finished", "in order."),
        ("running", "in order; the run has not ended after 20 of 6,000 attempts."),
        ("interrupted", "in order; the run was interrupted after 20 of 6,000 attempts."),
    ],
)
def test_a_run_that_was_killed_or_stopped_says_so(state: str, clause: str, tmp_path: Path) -> None:
    result = judge(tmp_path, [], state=state)
    assert result.verdict == "proven"
    assert result.sentence == f"All 20 acknowledged messages were delivered, {clause}"


def test_a_lost_worker_is_in_the_result(tmp_path: Path) -> None:
    named = {"worker": "producer-1", "reason": "lost", "error": KILLED, "at_us": 5, "attempts": 20}
    assert judge(tmp_path, CASES["the producer"][0]).to_json()["lost_workers"] == [named]


def test_a_violation_stays_one(tmp_path: Path) -> None:
    result = judge(tmp_path, CASES["the producer"][0], lose=True)
    assert result.verdict == "violated"
    assert result.sentence.endswith(f"producer-1 was lost ({KILLED}), {ATTEMPTED}.")
