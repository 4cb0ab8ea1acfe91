"""Judges a run while it runs, every second, and appends what is certain to its events.

Rules:
- A run of up to `MOST_ROWS_HERE` rows is judged in this process, from rows in memory. A larger one
  is judged by tasks of the runner that the caller gives, which read its segments.
- A step judges what new rows touch (`shoal.audit.growth.increments`), so its cost does not grow
  with the run. Judging takes at most a quarter of one core: after a long step comes a long pause.
- The last step follows the end of the run, so that everything committed is judged. If the run is
  compacted by then, that is left to the judgement on the whole run.
- Findings that an earlier follower of this run has raised are not raised again. What it knew is
  read from its last snapshot (`shoal.audit.growth.keeper`), which is written after the events.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from shoal.audit.audit import Runner
from shoal.audit.follow import RunFollower
from shoal.audit.growth.keeper import EVERY_S, Notify, SnapshotKeeper
from shoal.audit.plan import ROWS_PER_CELL
from shoal.audit.read.growing import GrowingLedger
from shoal.model.errors import LedgerError
from shoal.model.events import FindingSeen
from shoal.model.run_folder import RUN_FILE, RunFolder, read_url
from shoal.pipeline.audit_job import scratch_folder
from shoal.telemetry.events import EventReader, append_event, now_us

PERIOD_S: Final = 1.0
WAIT_FOR_RUN_S: Final = 0.5
MOST_SHARE: Final = 0.25
MOST_ROWS_HERE: Final = 5_000_000

Report = Callable[[FindingSeen], None]


def follow_run(
    run_dir: Path,
    *,
    is_over: Callable[[float], bool],
    report: Report,
    notify: Notify,
    large_runner: Callable[[], Runner] | None = None,
    snapshot_every_s: float = EVERY_S,
) -> None:
    """Judge a run until it is over; `is_over` waits that many seconds, at most, and says so.

    `notify` gets a sentence about what became of the state of an earlier follower.
    """
    while not (run_dir / RUN_FILE).exists():
        if is_over(WAIT_FOR_RUN_S):
            return
    keeper = SnapshotKeeper(run_dir, notify, every_s=snapshot_every_s)
    growing, increments = keeper.restore(has_spark=large_runner is not None)
    follower = RunFollower(raised=find_raised(run_dir), increments=increments)
    has_ended = False
    while True:
        began_s, began_cpu_s = time.monotonic(), time.process_time()
        try:
            events = _look(growing, follower, large_runner)
        except LedgerError:
            # Segments are compacted, and then deleted, after the end of a run: all of it is judged.
            if not RunFolder.open(run_dir).is_compacted:
                raise
            keeper.remove()
            return
        for event in events:
            append_event(run_dir, "run", run_dir.name, event)
            report(event)
        if has_ended:
            keeper.remove()
            return
        keeper.keep(growing, follower.increments)
        took_s, cpu_s = time.monotonic() - began_s, time.process_time() - began_cpu_s
        has_ended = is_over(max(PERIOD_S, cpu_s / MOST_SHARE) - min(took_s, PERIOD_S))


def _look(
    growing: GrowingLedger, follower: RunFollower, large_runner: Callable[[], Runner] | None
) -> list[FindingSeen]:
    """Judge what is committed now: in this process, or with the runner for large runs."""
    if large_runner is None or growing.count_committed() <= MOST_ROWS_HERE:
        ledger = growing.read(follower.increments.cuts)
        return follower.judge(ledger, now_us(), receipts=growing.new_receipts)
    follower.runner = large_runner()
    follower.increments.rows_per_cell = ROWS_PER_CELL
    # Tasks write what is large into the scratch folder: nothing of it comes to this process.
    place = read_url(growing.directory) or str(growing.directory)
    with scratch_folder(place) as scratch:
        ledger = growing.open_segments()
        return follower.judge(ledger, now_us(), receipts=growing.new_receipts, scratch=scratch)


def find_raised(run_dir: Path) -> dict[str, int]:
    """Return the counts of certain findings in the event stream of a run."""
    raised: dict[str, int] = {}
    reader = EventReader(run_dir)
    with suppress(LedgerError):
        while events := reader.read().events:
            for event in events:
                if isinstance(event, FindingSeen) and event.is_certain:
                    raised[event.finding] = max(event.count, raised.get(event.finding, 0))
    reader.close()
    return raised
