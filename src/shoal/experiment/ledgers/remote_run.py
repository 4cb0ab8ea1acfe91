"""A run whose ledgers are on another file system: `shoal run --runs-dir s3a://BUCKET/FOLDER`.

Workers write their segments there. The driver works in a folder of its machine, with the commit
log, `run.json`, events and logs, and copies the first two there while the run runs; results
follow. So the run can be judged from both sides, also if its driver was killed: there up to the
last copy, here to the end.

Rules:
- Lines of the commit log are copied at most a second after they were written, as parts that are
  never changed (see `audit.read.remote`).
- A copy that fails is tried again with the next one. Only the last one, at the end of the run, is
  an error: nothing is lost, since the run can be judged by its folder.
"""

import logging
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from shoal.audit.read.remote import COMMIT_PARTS, replace_file, store_commit_log
from shoal.model.errors import ShoalError, SystemFailure, UsageError
from shoal.model.run_folder import COMMITS_FILE, RUN_FILE, URL_FILE, read_url
from shoal.runtime.tasks import log_only, start_thread
from shoal.storage.files import list_files, map_in_threads, remove_file, write_bytes
from shoal.storage.places import join_place

STORE_EVERY_S: Final = 1.0
END_LIMIT_S: Final = 120.0
INTERRUPTED_LIMIT_S: Final = 1.0  # Ctrl-C ends a run at once
_NUMBER: Final = "{:08}.jsonl"

_log = logging.getLogger(__name__)


def require_writable(url: str) -> None:
    """Fail if no file can be written to the folder of this URL."""
    probe = join_place(url, f"probe-{uuid.uuid4().hex}")
    write_bytes(probe, b"\n")
    remove_file(probe)


def prepare_remote_run(run_dir: Path, url: str) -> None:
    """Make the folder of a run whose segments will be at the URL, if nothing is there."""
    if list_files(url):
        raise UsageError(f"{url} already contains files", remedy="choose another --runs-dir")
    run_dir.mkdir(parents=True)
    (run_dir / URL_FILE).write_text(f"{url}\n", encoding="utf-8")


@contextmanager
def storing_run(run_dir: Path, *, every_s: float = STORE_EVERY_S) -> Iterator[None]:
    """Copy commit log and `run.json` of a run to its URL until it has ended, if it has one."""
    url = read_url(run_dir)
    if url is None:
        yield
        return
    copy = _Copy(run_dir, url)
    thread = start_thread("store-run", lambda: copy.repeat(every_s), on_failure=log_only)
    limit_s = INTERRUPTED_LIMIT_S
    try:
        yield
        limit_s = END_LIMIT_S
    except Exception:
        limit_s = END_LIMIT_S
        raise
    finally:
        copy.is_over.set()
        thread.join(limit_s)
        if not copy.is_stored:
            _report_unstored(copy, run_dir, is_raised=sys.exception() is not None)


def _report_unstored(copy: "_Copy", run_dir: Path, *, is_raised: bool) -> None:
    """Raise that the end of the run is not stored; log it if another error is on its way."""
    why = copy.problem or "it takes too long"
    error = SystemFailure(
        f"the commit log of the run could not be stored: {why}",
        remedy=f"nothing is lost; judge the run by its folder: shoal audit {run_dir}",
    )
    if not is_raised:
        raise error
    _log.warning("%s", error)


class _Copy:
    """What was copied so far."""

    def __init__(self, run_dir: Path, url: str) -> None:
        self.is_over = threading.Event()
        self.is_stored = False  # to the end
        self.problem = ""  # of the last try
        self._run_dir = run_dir
        self._url = url
        self._size = 0  # of the commit log that is copied
        self._parts = 0
        self._plan = b""

    def repeat(self, every_s: float) -> None:
        """Copy what is new until the run has ended, then the whole commit log."""
        while not self.is_over.is_set():
            began_s = time.monotonic()
            self._try(self._store_new)
            self.is_over.wait(max(every_s - (time.monotonic() - began_s), 0.0))
        self.is_stored = self._try(self._store_end)

    def _try(self, store: Callable[[], None]) -> bool:
        try:
            store()
        except ShoalError as error:
            if not self.problem:
                _log.warning("%s", error)
            self.problem = error.message
            return False
        self.problem = ""
        return True

    def _store_new(self) -> None:
        self.store_new_lines()
        self.store_plan()

    def _store_end(self) -> None:
        """Store the whole commit log, then how the run has ended."""
        if not (self._run_dir / RUN_FILE).exists():
            return
        if (self._run_dir / COMMITS_FILE).exists():
            store_commit_log(self._run_dir)
        self.store_plan()
        parts = join_place(self._url, COMMIT_PARTS)
        map_in_threads(remove_file, [join_place(parts, each.name) for each in list_files(parts)])

    def store_new_lines(self) -> None:
        """Store the complete lines of the commit log since the last part."""
        path = self._run_dir / COMMITS_FILE
        if not path.exists():
            return
        with path.open("rb") as file:
            file.seek(self._size)
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        if whole:
            name = _NUMBER.format(self._parts)
            write_bytes(join_place(self._url, COMMIT_PARTS, name), whole)
            self._size += len(whole)
            self._parts += 1

    def store_plan(self) -> None:
        """Store `run.json`, if it has changed."""
        path = self._run_dir / RUN_FILE
        plan = path.read_bytes() if path.exists() else b""
        if plan != self._plan:
            replace_file(join_place(self._url, RUN_FILE), plan)
            self._plan = plan
