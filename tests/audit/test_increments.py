"""Looks at a growing run judge only what new rows touch, and find what a whole look finds."""

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from shoal.audit.audit import run_here
from shoal.audit.follow import READ_TABLES, RunFollower, find_certain
from shoal.audit.increments import Increments
from shoal.audit.read.folder import open_ledger
from shoal.audit.read.growing import GrowingLedger
from shoal.audit.tasks import LedgerWalk, MessageCell, OffsetCell, Task
from shoal.model.ledger import ABORTED, COMMITTED, FAILED, OPEN, UNKNOWN
from shoal.model.run_folder import COMMITS_FILE
from support.audit.ledgers import History, Row, busy_run, clean_run

COUNT, LANES = 60, 2
NOBODY: Row = {"producer": "", "lane": -1, "sequence": -1, "intact": False}


def make_troubled_run(seed: int) -> History:
    """Everything that a look may raise, at places of chance."""
    random = Random(seed)
    history = clean_run(producers=2, lanes=LANES, count=COUNT, mirror=random.random() < 0.3)
    for table in ("log", "scans"):
        history.rows[table].clear()
    receipts = [row for _, row in history.rows["receipts"]]
    attempts = [row for _, row in history.rows["attempts"]]
    for _ in range(random.randrange(12)):
        spoil(history, attempts, receipts, random)
    attempt = random.choice(attempts)
    attempt |= {"outcome": UNKNOWN, "acked_us": -1}  # with an offset that no answer confirms
    put_in_transaction(history, attempt, OPEN, 0)
    history.rows["receipts"] = [("w", row) for row in receipts]
    history.rows["attempts"] = [("w", row) for row in attempts]
    return history


def spoil(history: History, attempts: list[Row], receipts: list[Row], random: Random) -> None:
    place = random.randrange(len(receipts))
    row, attempt = receipts[place], random.choice(attempts)
    match random.randrange(9):
        case 0:
            row["offset"] = random.randrange(2 * COUNT)
        case 1:
            receipts.insert(random.randrange(len(receipts)), {**row, "offset": 500 + place})
        case 2:
            receipts.insert(min(place + 20, len(receipts)), dict(row))
        case 3:
            attempt |= {"outcome": FAILED, "error": 10, "offset": -1, "acked_us": -1}
        case 4:
            row["intact"] = False
        case 5:
            row |= NOBODY
        case 6:
            attempts.append({**attempt, "offset": attempt["offset"] + 300, "sent_us": 1})
        case 7:
            fate = random.choice((COMMITTED, ABORTED, OPEN))
            put_in_transaction(history, attempt, fate, random.choice((0, 10**6)))
        case 8:
            row["sequence"] += 1000


def put_in_transaction(history: History, attempt: Row, fate: int, requested_us: int) -> None:
    names = ("producer", "incarnation", "topic", "lane", "sequence")
    message = {name: attempt[name] for name in names}
    own: Row = {"transaction": 3, "fate": fate, "requested_us": requested_us}
    history.add("transactions", **message, **own)


def in_steps(run: Path, random: Random) -> list[list[str]]:
    """The lines of the commit log in some order that keeps that of each table, more each time."""
    by_table: dict[str, list[str]] = {}
    for line in (run / COMMITS_FILE).read_text().splitlines(keepends=True):
        by_table.setdefault(json.loads(line).get("table", ""), []).append(line)
    lines = [by_table["attempts"].pop(0)]  # without any, a ledger is of no producer
    while by_table:
        table = random.choice(sorted(by_table))
        lines.append(by_table[table].pop(0))
        if not by_table[table]:
            del by_table[table]
    ends = sorted(random.sample(range(1, len(lines)), min(9, len(lines) - 1)))
    return [lines[:end] for end in [*ends, len(lines)]]


@pytest.mark.parametrize("seed", range(25))
def test_every_look_finds_what_a_whole_look_finds(seed: int, tmp_path: Path) -> None:
    history = busy_run() if seed == 0 else make_troubled_run(seed)
    run = history.write(tmp_path / "run", rows_per_segment=9)
    growing = GrowingLedger(run, READ_TABLES)
    follower = RunFollower(increments=Increments(rows_per_cell=40))
    for number, lines in enumerate(in_steps(run, Random(seed))):
        (run / COMMITS_FILE).write_text("".join(lines))
        ledger = growing.read(follower.increments.cuts)
        found = follower.find(ledger, growing.new_receipts)
        assert found == find_certain(open_ledger([run])), number
    assert len(follower.increments.cuts) > 1
    # The same of the segments themselves, as tasks read them.
    again = RunFollower(increments=Increments(rows_per_cell=40))
    ledger = growing.open_segments()
    assert growing.new_receipts == []
    receipts = [group.piece for group in ledger.tables["receipts"]]
    assert again.find(ledger, receipts) == found


class CountingRunner:
    """Runs tasks here, and counts those of each look by kind."""

    def __init__(self) -> None:
        self.looks: list[dict[type, int]] = []

    def __call__(self, tasks: Sequence[Task], context: Any) -> Any:
        for task in tasks:
            self.looks[-1][type(task)] = self.looks[-1].get(type(task), 0) + 1
        return run_here(tasks, context)


def test_rows_are_judged_when_they_are_new(tmp_path: Path) -> None:
    """However long a run is, a look at its newest rows judges as many tasks."""
    history = clean_run(producers=2, lanes=LANES, count=400, mirror=False, scans=False)
    history.rows["manifests"].clear()
    for table in ("attempts", "receipts"):
        history.rows[table].sort(key=lambda item: (item[1]["sequence"], item[1]["lane"]))
    history.commits.clear()
    for producer in ("p0", "p1"):
        for lane in range(LANES):
            history.commit("reserve", producer=producer, topic="t", lane=lane, until=400)
    run = history.write(tmp_path / "run", rows_per_segment=64)
    lines = (run / COMMITS_FILE).read_text().splitlines(keepends=True)
    head = [line for line in lines if '"segment"' not in line]
    tables = [
        [line for line in lines if f'"table": "{name}"' in line]
        for name in ("attempts", "receipts")
    ]
    growing, runner = GrowingLedger(run, READ_TABLES), CountingRunner()
    follower = RunFollower(runner=runner, increments=Increments(rows_per_cell=200))
    for end in range(1, len(tables[0]) + 1):
        own = [line for table in tables for line in table[:end]]
        (run / COMMITS_FILE).write_text("".join([*head, *own]))
        runner.looks.append({})
        ledger = growing.read(follower.increments.cuts)
        assert follower.judge(ledger, end, receipts=growing.new_receipts) == []
    assert len(runner.looks) > 20
    assert len(follower.increments.cuts) > 8
    for look in runner.looks[1:]:
        assert look[LedgerWalk] == 1
        assert look[MessageCell] <= 3
        assert look[OffsetCell] <= 2
