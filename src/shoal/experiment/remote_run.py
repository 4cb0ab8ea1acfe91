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
import threading
import time
from collections.abc import Iterator
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
_NUMBER: Final = "{:08}.jsonl"

_log = logging.getLogger(__name__)


def prepare_remote_run(run_dir: Path, url: str) -> None:
    """Make the folder of a run whose segments will be at the URL, if they can be written there."""
    if list_files(url):
        raise UsageError(f"{url} already contains files", remedy="choose another --runs-dir")
    probe = join_place(url, "begun")
    write_bytes(probe, b"\n")
    remove_file(probe)
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
    is_over = threading.Event()
    thread = start_thread("store-run", lambda: copy.repeat(is_over, every_s), on_failure=log_only)
    try:
        yield
    finally:
        is_over.set()
        thread.join(END_LIMIT_S)
        _finish(copy, run_dir, url)


def _finish(copy: "_Copy", run_dir: Path, url: str) -> None:
    """Store the whole commit log, then how the run has ended."""
    if not (run_dir / RUN_FILE).exists():
        return
    try:
        if (run_dir / COMMITS_FILE).exists():
            store_commit_log(run_dir)
        copy.store_plan()
        parts = join_place(url, COMMIT_PARTS)
        map_in_threads(remove_file, [join_place(parts, each.name) for each in list_files(parts)])
    except ShoalError as error:
        raise SystemFailure(
            f"the commit log of the run could not be stored: {error.message}",
            remedy=f"nothing is lost; judge the run by its folder: shoal audit {run_dir}",
        ) from error


class _Copy:
    """What was copied so far."""

    def __init__(self, run_dir: Path, url: str) -> None:
        self._run_dir = run_dir
        self._url = url
        self._size = 0  # of the commit log that is copied
        self._parts = 0
        self._plan = b""
        self._is_failing = False

    def repeat(self, is_over: threading.Event, every_s: float) -> None:
        while not is_over.is_set():
            began_s = time.monotonic()
            try:
                self.store_new_lines()
                self.store_plan()
                self._is_failing = False
            except ShoalError as error:
                if not self._is_failing:
                    _log.warning("%s", error)
                self._is_failing = True
            is_over.wait(max(every_s - (time.monotonic() - began_s), 0.0))

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
