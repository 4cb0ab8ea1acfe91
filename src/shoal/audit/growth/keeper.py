"""Keeps what a follower knows in the run's scratch folder, for a follower that is started again.

Rules:
- A snapshot is named by its position, the lines of the commit log that it is of. It is written
  beside that name and then renamed, so a file with a name is complete; the earlier ones are
  removed after that.
- It is written seldom: at most each `EVERY_S`, and for at most a twentieth of the time. One of more
  than `MOST_BYTES` is not written.
- One that does not fit is left out with the reason, and everything is judged once. Nothing here
  ends a follower: an error of the disk is reported once.
- The end of the run removes it, and so does `shoal clean`.
"""

import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from shoal.audit.follow import READ_TABLES
from shoal.audit.growth.increments import Increments
from shoal.audit.growth.snapshot import CommitLogMark, make_snapshot, read_snapshot
from shoal.audit.read.growing import GrowingLedger, GrowingState
from shoal.audit.scratch import SCRATCH
from shoal.model.errors import LedgerError

FOLDER: Final = "follower"
SUFFIX: Final = ".snapshot"
EVERY_S: Final = 30.0
MOST_BYTES: Final = 64 * 1024 * 1024
MOST_SHARE_OF_TIME: Final = 0.05

Notify = Callable[[str], None]


class SnapshotKeeper:
    """Writes the snapshots of one follower; `restore` reads that of an earlier one."""

    def __init__(
        self,
        run_dir: Path,
        notify: Notify,
        *,
        every_s: float = EVERY_S,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._run_dir = run_dir
        self._folder = snapshot_folder(run_dir)
        self._notify = notify
        self._every_s = every_s
        self._most_bytes = most_bytes
        self._mark = CommitLogMark(run_dir)
        self._due_s = time.monotonic() + every_s
        self._is_failing = False

    def restore(self, *, has_spark: bool) -> tuple[GrowingLedger, Increments]:
        """Return what the last snapshot that fits holds, or that nothing is known.

        Without Spark rows are read into memory, so the answers of tasks of Spark do not fit.
        """
        found = sorted(self._folder.glob(f"*{SUFFIX}"), key=_position_of, reverse=True)
        for path in found:
            try:
                state, known = self._read(path, has_spark=has_spark)
            except (LedgerError, OSError) as error:
                self._notify(f"the snapshot {path} is not used: {error}")
                continue
            self._notify(f"continuing from line {state.lines:,} of the commit log")
            return GrowingLedger(self._run_dir, READ_TABLES, state), known
        if found:
            self._notify("everything is judged once")
        return GrowingLedger(self._run_dir, READ_TABLES), Increments()

    def keep(self, growing: GrowingLedger, known: Increments) -> None:
        """Write what is known now, if it is time and anything is new."""
        began_s = time.monotonic()
        if began_s < self._due_s or growing.state.lines == self._mark.lines:
            return
        try:
            self._mark.advance(growing.state.lines)
            self._write(make_snapshot(self._mark, growing.state, known))
            self._is_failing = False
        except (LedgerError, OSError) as error:
            if not self._is_failing:
                self._notify(f"no snapshot is kept, so a follower judges from the start: {error}")
            self._is_failing = True
        ended_s = time.monotonic()
        self._due_s = ended_s + max(self._every_s, (ended_s - began_s) / MOST_SHARE_OF_TIME)

    def remove(self) -> None:
        remove_snapshots(self._run_dir)

    def _read(self, path: Path, *, has_spark: bool) -> tuple[GrowingState, Increments]:
        if path.stat().st_size > self._most_bytes:
            raise LedgerError(f"it is larger than {self._most_bytes:,} bytes")
        with path.open("rb") as file:
            state, known = read_snapshot(file, self._run_dir)
        if state.footers and not has_spark:
            raise LedgerError("it is of tasks of Spark, which this follower does not use")
        return state, known

    def _write(self, content: bytes) -> None:
        if len(content) > self._most_bytes:
            raise LedgerError(f"it would have {len(content):,} bytes, of {self._most_bytes:,}")
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{self._mark.lines}{SUFFIX}"
        unnamed = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            unnamed.write_bytes(content)
            unnamed.replace(path)
        finally:
            unnamed.unlink(missing_ok=True)
        for other in self._folder.iterdir():
            if other != path:
                other.unlink(missing_ok=True)


def snapshot_folder(run_dir: Path) -> Path:
    return run_dir / SCRATCH / FOLDER


def remove_snapshots(run_dir: Path, *, dry_run: bool = False) -> bool:
    """Remove what followers have left in a run's folder; whether there was anything."""
    folder = snapshot_folder(run_dir)
    was_there = folder.exists()
    if not dry_run:
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):  # an audit is using it, or it is not there
            folder.parent.rmdir()
    return was_there


def _position_of(path: Path) -> int:
    number = path.name.removesuffix(SUFFIX)
    return int(number) if number.isdecimal() else -1
