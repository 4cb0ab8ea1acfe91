"""A run folder on disk: the commit log, sealed Parquet segments, `run.json`.

`model/ledger.py` defines the format and `model/run_folder.py` reads it; this module writes it.

Rules:
- Every line of the commit log is chained to the one before (`model/commit_chain.py`).
- A commit is durable: files and their folders are flushed to the disk before a commit returns.
- A folder stays readable wherever its writers die. An incomplete last line of the commit log is
  ignored; a segment that is not in the commit log does not exist.
- A segment is written once, and never opened for writing again. Nothing is overwritten.
"""

import asyncio
import fcntl
import json
import logging
import os
import re
import secrets
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Self

from shoal.model.commit_chain import START, CommitMark, chain_line, follow_chain, read_mark
from shoal.model.errors import UsageError
from shoal.model.ledger import COMMIT_KINDS, FORMAT, NO_INCARNATION, TABLES
from shoal.model.run_folder import (
    COMMITS_FILE,
    LEDGER_FOLDER,
    LONGEST_LINE_BYTES,
    RUN_FILE,
    RunFolder,
    read_commits,
    read_plan,
    read_url,
)
from shoal.model.segment_footer import check_footer
from shoal.storage.places import is_url, join_place
from shoal.workload.control import Commit, CommitLine, await_commit

if TYPE_CHECKING:
    import pyarrow as pa

    from shoal.workload.record.rows import LedgerRows

_log = logging.getLogger(__name__)

_WORKER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class CommitLog:
    """The commit log of a run, open for its only writer: the driver, or a standalone command.

    The file is locked, because two producers that reserve in one log would use the same sequences.
    """

    def __init__(self, run_dir: Path) -> None:
        self.path = run_dir / COMMITS_FILE
        self._lock = threading.Lock()
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        _lock(self._file, run_dir)
        _drop_partial_line(self._file)
        flush_folder(run_dir)
        self._mark = _find_mark(self.path)

    def append(self, line: CommitLine) -> None:
        """Add one line; it is durable when this returns. A missing `at_us` is added."""
        if line.get("kind") not in COMMIT_KINDS:
            raise UsageError(f"{line.get('kind')!r:.40} is not a kind of line of the commit log")
        stamped = {"at_us": time.time_ns() // 1000, **line}
        with self._lock:
            text, mark = chain_line(stamped, self._mark)
            if len(text) > LONGEST_LINE_BYTES:
                raise UsageError(f"a line of {len(text)} bytes is too long for the commit log")
            _write_all(self._file, text)
            self._mark = mark
            os.fsync(self._file)

    async def append_in_thread(self, line: CommitLine) -> None:
        """Like `append`, in a thread: a slow disk must not delay messages."""
        await asyncio.to_thread(self.append, line)

    def lines(self) -> list[CommitLine]:
        """All lines, including those of earlier writers."""
        return read_commits(self.path.parent)

    def close(self) -> None:
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class LedgerWriter:
    """Collects the rows of one table of one worker, and seals them into segments.

    If `seal` is called several times at once, each call returns when all rows that were appended
    before it are committed.
    """

    def __init__(
        self, place: Path | str, *, worker: str, epoch: int, table: str, commit: Commit
    ) -> None:
        """`place` is the run's folder, or the URL of its segments."""
        from shoal.workload.record.rows import LedgerRows

        if _WORKER.fullmatch(worker) is None:
            raise UsageError(f"{worker!r:.80} is not a valid name for a worker")
        self._place = str(place)
        self._stem = f"{worker}-{epoch}"
        self._table = table
        self._commit = commit
        self._number = 0
        self._rows = LedgerRows(table)
        self._sealing = asyncio.Lock()

    @property
    def unsealed_rows(self) -> int:
        return len(self._rows)

    def append(self, **columns: Any) -> None:
        """Add rows; see `LedgerRows.append` for what a column may be."""
        self._rows.append(columns)

    async def seal(self) -> None:
        """Write all rows so far into a new segment; return when it is durable and committed."""
        async with self._sealing:
            if not len(self._rows):
                return
            rows, self._rows = self._rows, self._rows.successor()
            number, self._number = self._number, self._number + 1
            path = PurePosixPath(LEDGER_FOLDER, self._table, f"{self._stem}-{number}.parquet")
            # In a thread, because a slow disk must not delay messages.
            place = join_place(self._place, str(path))
            check = await asyncio.to_thread(_write_segment, place, rows)
            line = {"kind": "segment", "table": self._table, "number": number}
            content = {"path": str(path), "rows": len(rows), "footer": check}
            await await_commit(self._commit({**line, **content}))


def _write_segment(place: str, rows: "LedgerRows") -> str:
    """Write a durable segment; return the checksum of its footer."""
    from shoal.workload.record.rows import to_parquet

    if is_url(place):
        from shoal.storage.files import write_bytes

        content = to_parquet(rows)
        write_bytes(place, content)
        return check_footer(content)
    path = Path(place)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = to_parquet(rows)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        _write_all(file, content)
        os.fsync(file)
    finally:
        os.close(file)
    flush_folder(path.parent)
    return check_footer(content)


def _write_all(file: int, content: Any) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(file, left) :]


def flush_folder(folder: Path) -> None:
    """Make new files in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _find_mark(path: Path) -> CommitMark:
    """The mark after the last line of a commit log."""
    mark = START
    with path.open("rb") as file:
        for number, text in enumerate(file, 1):
            mark = follow_chain(text, {"line": number}, mark, f"{path}: line {number}")
    return mark


def _lock(file: int, run_dir: Path) -> None:
    """Lock the commit log until it is closed or the process ends."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(file)
        raise UsageError(
            f"another process is writing to the ledgers in {run_dir}",
            remedy="choose another folder, or wait until that process has ended",
        ) from error
    except OSError as error:  # a file system without locks
        _log.warning("cannot lock the ledgers in %s: %s", run_dir, error.strerror)


def _drop_partial_line(file: int) -> None:
    """Remove the incomplete last line of a writer that died, so that the next line is complete."""
    size = os.fstat(file).st_size
    start = max(size - LONGEST_LINE_BYTES, 0)
    tail = os.pread(file, size - start, start)
    whole = start + tail.rfind(b"\n") + 1
    if whole < size:
        os.ftruncate(file, whole)
        os.fsync(file)


# ---------------------------------------------------------------- run folders


class LedgerFolder(RunFolder):
    """A run folder whose tables can be read."""

    def read(self, table: str) -> "pa.Table":
        """All committed rows of one table, in the order of the segments."""
        import pyarrow as pa

        from shoal.workload.record.rows import arrow_schema, read_segment

        parts = [read_segment(segment.path, table) for segment in self.segments(table)]
        whole = pa.concat_tables([arrow_schema(table).empty_table(), *parts])
        return whole.unify_dictionaries()


def create_run(run_dir: Path, plan: Mapping[str, Any]) -> None:
    """Create the folder and its `run.json`, which must not exist.

    If `ledger.url` is there already, the segments will be elsewhere.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    if (run_dir / RUN_FILE).exists():
        raise UsageError(f"{run_dir} already contains a run", remedy="choose another folder")
    for table in TABLES if read_url(run_dir) is None else ():
        (run_dir / LEDGER_FOLDER / table).mkdir(parents=True, exist_ok=True)
    update_run(run_dir, {**plan, "format": FORMAT})


def update_run(run_dir: Path, plan: Mapping[str, Any]) -> None:
    """Replace `run.json` atomically."""
    fresh = run_dir / (RUN_FILE + ".new")
    with fresh.open("w", encoding="utf-8") as file:
        json.dump(plan, file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(run_dir / RUN_FILE)
    flush_folder(run_dir)


def close_run(run_dir: Path, state: str, **more: Any) -> None:
    """Write to `run.json` how the run has ended, and the last line of its commit log."""
    log = run_dir / COMMITS_FILE
    text = _last_line(log)
    mark = read_mark(text, str(log)) if text else START
    plan = {**read_plan(run_dir), **more, "state": state, "commit_log": mark.to_json()}
    update_run(run_dir, plan)


def _last_line(path: Path) -> bytes:
    """The last complete line of a commit log; empty if it has none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 2 * LONGEST_LINE_BYTES))
            whole = file.read().rpartition(b"\n")[0]
    except FileNotFoundError:
        return b""
    return whole.rpartition(b"\n")[2] + b"\n" if whole else b""


def open_run(run_dir: Path) -> LedgerFolder:
    """Read the plan and the commit log of a run folder; segments are read later."""
    return LedgerFolder.open(run_dir)


def draw_incarnation() -> int:
    """Draw the incarnation of a new producer ledger: 32 random bits, never 0."""
    return secrets.randbelow((1 << 32) - 1) + 1


def earlier_incarnation(commits: Iterable[CommitLine], producer: str) -> int:
    """The incarnation that a restarted producer must keep; 0 if it has reserved nothing.

    Without a reservation nothing was sent, so a new incarnation is safe.
    """
    lines = _reservations(commits, producer)
    return max((int(line.get("incarnation", NO_INCARNATION)) for line in lines), default=0)


def first_free_numbers(
    commits: Iterable[CommitLine], producer: str, lanes: Mapping[str, int]
) -> dict[str, int]:
    """The first message number that a producer may use after a restart, by topic.

    Numbers that were reserved before are not used again: they may have been sent.
    """
    rows = dict.fromkeys(lanes, 0)
    for line in _reservations(commits, producer):
        if line["topic"] in rows:
            rows[line["topic"]] = max(rows[line["topic"]], line["until"])
    return {topic: rows[topic] * lanes[topic] for topic in lanes}


def _reservations(commits: Iterable[CommitLine], producer: str) -> Iterator[CommitLine]:
    return (c for c in commits if c["kind"] == "reserve" and c["producer"] == producer)
