"""Runs on other file systems: `s3a://`, `s3://` and `hdfs://`, by Arrow.

A run there has the files that a run has in a folder of this machine. Its judge works with a
folder of this machine that has `run.json`, the commit log and `ledger.url`: the segments are read
where they are, by the tasks that need them, and what tasks write is written there too. Results are
made in the folder of this machine and then stored beside the ledgers.

Rules:
- A small run is fetched whole and judged in this process: that takes fewer requests.
- Messages name the URL, not the folder of this machine.
- The commit log of a run that is being written there has parts (`commits/PART.jsonl`), each with
  the lines since the one before. When the run ends, `commits.jsonl` has all lines; without it the
  parts count. The chain of the log shows whether they are whole.
- `result.json` is stored last.
"""

import time
import uuid
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from shoal.audit.scratch import SCRATCH
from shoal.model.errors import LedgerError, ShoalError, SystemFailure
from shoal.model.ledger import TABLES
from shoal.model.run_folder import (
    COMMITS_FILE,
    LEDGER_FOLDER,
    RUN_FILE,
    URL_FILE,
    RunFolder,
    read_url,
)
from shoal.storage.files import (
    fetch_files,
    find_missing_bucket,
    list_files,
    map_in_threads,
    move_file,
    read_bytes,
    remove_file,
    remove_folder,
    store_files,
    write_bytes,
)
from shoal.storage.places import S3_SCHEMES, join_place

REPORTS: Final = ("page.json", "report.html", "junit.xml", "summary.md", "result.json")
TABLES_FOLDER: Final = "tables"
PART_NAME: Final = "part-{:05}.parquet"
COMMIT_PARTS: Final = "commits"
LEFT_BEHIND_S: Final = 86_400.0


# ---------------------------------------------------------------- the run


@contextmanager
def open_remote_run(url: str, *, fetch_below: int = 0) -> Iterator[Path]:
    """Make a folder of this machine for a run on another file system, and remove it at the end.

    If every table of messages has fewer rows than that, the folder has the segments too.
    """
    with TemporaryDirectory(prefix="shoal-run-") as name, _naming(url, str(Path(name).resolve())):
        folder = Path(name).resolve()
        _fetch_plan(folder, url)
        run = RunFolder.open(folder)
        if _count_rows(run) < fetch_below:
            paths = [each.path for table in TABLES for each in run.segments(table)]
            fetch_files(url, [str(Path(path).relative_to(folder)) for path in paths], folder)
            if run.plan.get("state") != "running":
                _name_other_files(folder, url)
        else:
            (folder / URL_FILE).write_text(f"{url}\n", encoding="utf-8")
        yield folder


def _name_other_files(folder: Path, url: str) -> None:
    """Make empty files for those that no line names: how many there are is judged too."""
    for each in list_files(join_place(url, LEDGER_FOLDER)):
        place = folder / LEDGER_FOLDER / each.name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()


@contextmanager
def _naming(url: str, folder: str) -> Iterator[None]:
    """Name the URL in messages about the folder that stands for it."""
    try:
        yield
    except ShoalError as error:
        error.args = tuple(_replace(each, folder, url) for each in error.args)
        error.remedy = _replace(error.remedy, folder, url)
        raise


def _replace(text: object, folder: str, url: str) -> str | None:
    return None if text is None else str(text).replace(folder, url)


def _fetch_plan(folder: Path, url: str) -> None:
    """Fetch `run.json` and the commit log."""
    try:
        fetch_files(url, [RUN_FILE], folder)
    except LedgerError as error:
        raise _describe_missing(url, error) from error
    try:
        fetch_files(url, [COMMITS_FILE], folder)
    except LedgerError:
        parts = [each for each in list_files(join_place(url, COMMIT_PARTS)) if each.name[:1] != "."]
        if not parts:
            raise
        names = sorted(join_place(COMMIT_PARTS, each.name) for each in parts)
        contents = map_in_threads(lambda name: read_bytes(join_place(url, name)), names)
        (folder / COMMITS_FILE).write_bytes(b"".join(contents))


def _describe_missing(url: str, error: LedgerError) -> ShoalError:
    """Return the error for a URL without `run.json`: a missing bucket is another one."""
    return find_missing_bucket(url) or LedgerError(
        error.message, remedy="give the address of a run: s3a://BUCKET/…/RUN"
    )


def _count_rows(run: RunFolder) -> int:
    """Return the rows of the largest table of messages; a log is half of its table at least."""
    rows = {
        table: sum(segment.rows for segment in run.segments(table))
        for table in ("attempts", "receipts", "log")
    }
    return max(rows["attempts"], rows["receipts"], rows["log"] // 2)


# ---------------------------------------------------------------- what is stored there


def store_commit_log(directory: Path) -> None:
    """Store the commit log of a run whose segments are on another file system beside them."""
    if url := read_url(directory):
        content = (directory / COMMITS_FILE).read_bytes()
        replace_file(join_place(url, COMMITS_FILE), content)


def replace_file(place: str, content: bytes) -> None:
    """Replace a file by one that is complete once it has its name."""
    if place.startswith(S3_SCHEMES):
        write_bytes(place, content)
        return
    fresh = f"{place}.{uuid.uuid4().hex}"
    write_bytes(fresh, content)
    move_file(fresh, place)


def store_results(folder: Path, url: str, tables: Collection[str]) -> None:
    """Store the results of an audit, which are in a folder of this machine, beside the ledgers.

    `tables` are those of an audit; what an earlier one left of them is deleted.
    """
    own = [path for path in (folder / TABLES_FOLDER).rglob("*") if path.is_file()]
    names = sorted(str(path.relative_to(folder)) for path in own)
    store_files(folder, names, url)
    if read_url(folder) is None:  # else those that are folders are there already
        for table in tables:
            stored = [name for name in names if name.startswith(f"{TABLES_FOLDER}/{table}/")]
            _remove_others(join_place(url, TABLES_FOLDER, table), stored, url)
    reports = [name for name in REPORTS if (folder / name).is_file()]
    store_files(folder, reports[:-1], url)
    store_files(folder, reports[-1:], url)


def _remove_others(folder: str, kept: Collection[str], url: str) -> None:
    """Delete the files below a folder that are not among these names, relative to the run."""
    stale = [join_place(folder, each.name) for each in list_files(folder)]
    wanted = {join_place(url, name) for name in kept}
    map_in_threads(remove_file, [place for place in stale if place not in wanted])


def publish_remote_files(folder: str, files: Iterable[tuple[str, str]]) -> None:
    """Make files that tasks wrote the content of a table; each goes into the folder it names."""
    moves = [
        (file, join_place(folder, *filter(None, [inner]), PART_NAME.format(number)))
        for number, (inner, file) in enumerate(files)
    ]
    map_in_threads(lambda move: move_file(*move), moves)
    wanted = {place for _, place in moves}
    stale = [join_place(folder, each.name) for each in list_files(folder)]
    map_in_threads(remove_file, [place for place in stale if place not in wanted])


# ---------------------------------------------------------------- scratch


@contextmanager
def remote_scratch_folder(url: str) -> Iterator[str]:
    """Name a folder for the files of tasks; at the end delete it, and old ones of other audits."""
    parent = join_place(url, SCRATCH)
    name = uuid.uuid4().hex
    folder = join_place(parent, name)
    try:
        # Whether results can be stored is known before anything is read.
        write_bytes(join_place(folder, "begun"), b"\n")
    except SystemFailure as error:
        raise SystemFailure(
            f"the audit cannot write to the run's folder: {error.message}",
            remedy=f"{error.remedy}; or copy the run's folder, and judge the copy",
        ) from error
    try:
        yield folder
    finally:
        with suppress(ShoalError):  # what failed before is worth a message, not this
            _remove_scratch(parent, name)


def _remove_scratch(parent: str, name: str) -> None:
    newest: dict[str, float] = {}
    for each in list_files(parent):
        own = each.name.partition("/")[0]
        newest[own] = max(each.changed_s, newest.get(own, 0.0))
    old = {own for own, at_s in newest.items() if at_s < time.time() - LEFT_BEHIND_S}
    # Not the folder of all audits: another one may be beginning.
    for own in old | {name}:
        remove_folder(join_place(parent, own))
