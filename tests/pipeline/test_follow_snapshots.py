"""Followers that are killed at any moment: what they raise together is what one raises alone."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import pytest

from shoal.audit.follow import READ_TABLES, RunFollower, find_certain
from shoal.audit.growth.increments import Increments
from shoal.audit.growth.keeper import SnapshotKeeper, remove_snapshots, snapshot_folder
from shoal.audit.read.folder import open_ledger
from shoal.audit.read.growing import GrowingLedger
from shoal.model.events import FindingSeen
from shoal.pipeline.follow import find_raised, follow_run
from shoal.telemetry.events import EventReader
from support.audit.ledgers import write_commits
from support.audit.live_run import LiveRun
from support.audit.steps import in_steps, make_troubled_run


class Killed(BaseException):
    """Ends a follower as SIGKILL does: nothing of it handles this."""


def raised_events(run: Path) -> list[tuple[str, int]]:
    reader = EventReader(run)
    found = []
    while events := reader.read().events:
        found += [(each.finding, each.count) for each in events if isinstance(each, FindingSeen)]
    reader.close()
    return found


@pytest.mark.parametrize("seed", range(8))
def test_killed_followers_raise_everything_once(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(seed)
    run = make_troubled_run(seed).write(tmp_path / "run", rows_per_segment=9)
    steps = in_steps(run, random)
    write_commits(run, steps.pop(0))
    said: list[str] = []

    def die_sometimes(*_: object) -> None:
        if random.random() < 0.15:
            raise Killed

    def is_over(_wait_s: float) -> bool:
        die_sometimes()
        if not steps:
            return True
        write_commits(run, steps.pop(0))
        return False

    real = Path.replace

    def replace(path: Path, target: Path) -> Path:
        die_sometimes()
        return real(path, target)

    monkeypatch.setattr(Path, "replace", replace)
    monkeypatch.setattr("shoal.pipeline.follow.PERIOD_S", 0)
    monkeypatch.setattr("shoal.audit.growth.keeper.MOST_SHARE_OF_TIME", 1e9)
    options = {"is_over": is_over, "report": die_sometimes, "notify": said.append}
    while True:
        try:
            follow_run(run, snapshot_every_s=0, **options)  # type: ignore[arg-type]
            break
        except Killed:
            if random.random() < 0.2:
                spoil_snapshot(run, random)
    monkeypatch.undo()
    expected = {name: each.count for name, each in find_certain(open_ledger([run])).items()}
    assert find_raised(run) == {name: count for name, count in expected.items() if count}
    events = raised_events(run)
    assert len(events) == len(set(events))
    assert not snapshot_folder(run).exists()


def spoil_snapshot(run: Path, random: Random) -> None:
    for path in snapshot_folder(run).glob("*.snapshot"):
        content = bytearray(path.read_bytes())
        content[random.randrange(len(content))] ^= 1
        path.write_bytes(content)


def begin(run: Path, said: list[str], **options: int) -> tuple[SnapshotKeeper, Callable[[], None]]:
    """A keeper, and what looks at the run and keeps it."""
    keeper = SnapshotKeeper(run, said.append, every_s=0, **options)
    growing, known = keeper.restore(has_spark=False)
    follower = RunFollower(increments=known)

    def look() -> None:
        follower.find(growing.read(known.cuts), growing.new_receipts)
        keeper.keep(growing, known)

    return keeper, look


def test_a_snapshot_is_named_by_its_position_and_replaces_the_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.audit.growth.keeper.MOST_SHARE_OF_TIME", 1e9)
    run = make_troubled_run(1).write(tmp_path / "run", rows_per_segment=9)
    said: list[str] = []
    _, look = begin(run, said)
    for lines in in_steps(run, Random(1))[:3]:
        write_commits(run, lines)
        look()
        assert [each.name for each in snapshot_folder(run).iterdir()] == [f"{len(lines)}.snapshot"]
    assert said == []
    begin(run, said)
    assert said == [f"continuing from line {len(lines)} of the commit log"]


def test_snapshots_are_seldom_and_small(tmp_path: Path) -> None:
    run = make_troubled_run(1).write(tmp_path / "run", rows_per_segment=9)
    said: list[str] = []
    keeper = SnapshotKeeper(run, said.append, every_s=3600)
    growing = GrowingLedger(run, READ_TABLES)
    growing.read()
    keeper.keep(growing, Increments())
    assert not snapshot_folder(run).exists()
    _, look = begin(run, said, most_bytes=1000)
    for lines in in_steps(run, Random(1)):
        write_commits(run, lines)
        look()
    assert not list(snapshot_folder(run).glob("*"))
    [message] = said
    assert message.startswith("no snapshot is kept, so a follower judges from the start: it would")


def test_a_snapshot_that_does_not_fit_is_named_with_the_reason(tmp_path: Path) -> None:
    run = make_troubled_run(1).write(tmp_path / "run", rows_per_segment=9)
    said: list[str] = []
    _, look = begin(run, said)
    look()
    [path] = snapshot_folder(run).iterdir()
    spoil_snapshot(run, Random(5))
    begin(run, said)
    assert said[0].startswith(f"the snapshot {path} is not used: it is damaged")
    assert said[1:] == ["everything is judged once"]


def test_nothing_that_cannot_be_written_ends_a_follower(tmp_path: Path) -> None:
    run = make_troubled_run(1).write(tmp_path / "run", rows_per_segment=9)
    (run / "scratch").write_text("a file where a folder should be")
    said: list[str] = []
    _, look = begin(run, said)
    look()
    [message] = said
    assert "no snapshot is kept" in message


def test_snapshots_are_removed(tmp_path: Path) -> None:
    run = make_troubled_run(1).write(tmp_path / "run", rows_per_segment=9)
    assert not remove_snapshots(run)
    begin(run, [])[1]()
    assert remove_snapshots(run, dry_run=True)
    assert remove_snapshots(run)
    assert not (run / "scratch").exists()


_FOLLOW = """
import sys
from pathlib import Path
from shoal.pipeline.follow import follow_run
follow_run(Path(sys.argv[1]), is_over=lambda wait_s: bool(__import__("time").sleep(wait_s)),
           report=lambda event: None, notify=print, snapshot_every_s=0)
"""


def test_a_follower_continues_after_sigkill(tmp_path: Path) -> None:
    run = tmp_path / "run"
    asyncio.run(LiveRun(run, 2, {1: "copy"}).play(lambda _: None))
    process = subprocess.Popen([sys.executable, "-c", _FOLLOW, str(run)])
    try:
        while not list(snapshot_folder(run).glob("*.snapshot")):
            assert process.poll() is None
            time.sleep(0.05)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    said: list[str] = []
    report = partial(pytest.fail, "raised again")
    follow_run(run, is_over=lambda _: True, report=lambda _: report(), notify=said.append)
    assert said[0].startswith("continuing from line ")
    assert find_raised(run) == {"duplicate: source": 1}
    assert not snapshot_folder(run).exists()
