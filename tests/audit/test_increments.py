"""Looks at a growing run judge only what new rows touch, and find what a whole look finds."""

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from shoal.audit.audit import run_here
from shoal.audit.follow import READ_TABLES, RunFollower, find_certain
from shoal.audit.growth.increments import Increments
from shoal.audit.read.folder import open_ledger
from shoal.audit.read.growing import GrowingLedger
from shoal.audit.tasks import LedgerWalk, MessageCell, OffsetCell, Task
from shoal.model.run_folder import COMMITS_FILE
from support.audit.ledgers import busy_run, clean_run, write_commits
from support.audit.steps import LANES, in_steps, make_troubled_run


@pytest.mark.parametrize("seed", range(25))
def test_every_look_finds_what_a_whole_look_finds(seed: int, tmp_path: Path) -> None:
    history = busy_run() if seed == 0 else make_troubled_run(seed)
    run = history.write(tmp_path / "run", rows_per_segment=9)
    growing = GrowingLedger(run, READ_TABLES)
    follower = RunFollower(increments=Increments(rows_per_cell=40))
    for number, lines in enumerate(in_steps(run, Random(seed))):
        write_commits(run, lines)
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
        [line for line in lines if f'"table":"{name}"' in line] for name in ("attempts", "receipts")
    ]
    growing, runner = GrowingLedger(run, READ_TABLES), CountingRunner()
    follower = RunFollower(runner=runner, increments=Increments(rows_per_cell=200))
    for end in range(1, len(tables[0]) + 1):
        own = [line for table in tables for line in table[:end]]
        write_commits(run, [*head, *own])
        runner.looks.append({})
        ledger = growing.read(follower.increments.cuts)
        assert follower.judge(ledger, end, receipts=growing.new_receipts) == []
    assert len(runner.looks) > 20
    assert len(follower.increments.cuts) > 8
    for look in runner.looks[1:]:
        assert look[LedgerWalk] == 1
        assert look[MessageCell] <= 3
        assert look[OffsetCell] <= 2
