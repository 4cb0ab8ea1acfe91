"""Whether a run folder contradicts itself: then what is left of it proves nothing.

The one place of these rules, for ledgers of every format; the chain of the commit log
(`model/commit_chain.py`) protects its lines from format 3 on.

Rules:
- The segments of a worker, epoch and table have the numbers 0 to n - 1.
- In a run that has finished every lease has an `ended` line. Standalone commands write none.
- A file in the ledger folder that no line names was being written when its writer died: there are
  few of them for one worker, epoch and table. Parts of scans are exempt: Spark may try one again,
  and the files of a lost try are all without a line. So are compacted segments: the log still names
  what they would stand for.
  And so are all of a run on another file system that has not ended: its commit log is stored there
  later than its segments.
- A producer that has finished recorded the outcomes of all attempts that its manifests count.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from shoal.model.commit_chain import REMEDY
from shoal.model.errors import LedgerError
from shoal.model.ledger import TABLES
from shoal.model.run_folder import (
    COMMITS_FILE,
    COMPACTED_SUFFIX,
    LEDGER_FOLDER,
    RUN_FILE,
    RunFolder,
    read_url,
)
from shoal.storage.files import list_files, map_places
from shoal.storage.parquet import describe_unreadable_segment, open_parquet
from shoal.storage.places import join_place

# A worker that loses its driver seals what it has once more; several seals may wait for that.
MOST_UNNAMED: Final = 4
# One that ended in order has waited for all of its segments.
MOST_UNNAMED_OF_ENDED: Final = 1

Lease = tuple[str, str]  # worker and epoch

_SEGMENT: Final = re.compile(r"(.+)-(\d+)-(\d+)\.parquet")
_PART_OF_SCAN: Final = re.compile(r".+-part-\d+")
_IN_ORDER: Final = ("finished", "stopped")


class SegmentSeries(NamedTuple):
    """The segments that one worker has written of one table under one lease."""

    table: str
    worker: str
    epoch: int

    def __str__(self) -> str:
        return f"{LEDGER_FOLDER}/{self.table}/{self.worker}-{self.epoch}-*.parquet"


def open_consistent(directory: Path) -> RunFolder:
    """Open a run folder; `LedgerError` if it contradicts itself."""
    # First the files, because a run that continues names more of them meanwhile.
    files = _list_files(directory, read_url(directory))
    folder = RunFolder.open(directory)
    named = _list_named(folder)
    endings = _find_endings(folder)
    for wrong in (
        *_find_gaps(named),
        *_find_unended(folder, endings),
        *(_find_unnamed(files, named, endings) if _has_whole_log(folder) else ()),
        *_find_missing_attempts(folder, endings),
    ):
        raise LedgerError(f"{directory} contradicts itself: {wrong}", remedy=REMEDY)
    return folder


def _has_whole_log(folder: RunFolder) -> bool:
    return folder.url is None or folder.plan.get("state") != "running"


def _list_files(directory: Path, url: str | None) -> dict[SegmentSeries, set[int]]:
    """Return the numbers of the segments that are stored, as workers name them."""
    if url is None:
        ledger = directory / LEDGER_FOLDER
        names = [(table, each.name) for table in TABLES for each in (ledger / table).glob("*")]
    else:
        listed = [each.name for each in list_files(join_place(url, LEDGER_FOLDER))]
        names = [(table, name) for table, _, name in (each.rpartition("/") for each in listed)]
    found: dict[SegmentSeries, set[int]] = defaultdict(set)
    for table, name in names:
        match = None if name.endswith(COMPACTED_SUFFIX) else _SEGMENT.fullmatch(name)
        if match and table in TABLES:
            worker, epoch, number = match.groups()
            found[SegmentSeries(table, worker, int(epoch))].add(int(number))
    return found


def _list_named(folder: RunFolder) -> dict[SegmentSeries, set[int]]:
    """Return the numbers of the segments that the commit log names."""
    found: dict[SegmentSeries, set[int]] = defaultdict(set)
    for table in TABLES:
        for segment in (*folder.segments(table), *folder.list_replaced_segments(table)):
            found[SegmentSeries(table, segment.worker, segment.epoch)].add(segment.number)
    return found


def _find_endings(folder: RunFolder) -> dict[Lease, str]:
    """Return how each lease ended; "" if no line says so."""
    found: dict[Lease, str] = {}
    for line in folder.commits:
        if line["kind"] in ("lease", "ended"):
            lease = (str(line.get("worker")), str(line.get("epoch")))
            found[lease] = str(line.get("reason", found.get(lease, "")))
    return found


def _find_gaps(named: Mapping[SegmentSeries, set[int]]) -> Iterator[str]:
    for series, numbers in named.items():
        if len(numbers) <= max(numbers):
            gap = min(set(range(max(numbers))) - numbers)
            yield (
                f"{COMMITS_FILE} names segments of {series} up to number {max(numbers)},"
                f" and none with number {gap}"
            )


def _find_unended(folder: RunFolder, endings: Mapping[Lease, str]) -> Iterator[str]:
    if folder.plan.get("state") != "finished" or folder.plan.get("role"):
        return
    for (worker, epoch), reason in endings.items():
        if not reason:
            yield (
                f"{RUN_FILE} says that the run has finished, and {COMMITS_FILE} has no line for the"
                f" end of worker {worker} (epoch {epoch})"
            )


def _find_unnamed(
    files: Mapping[SegmentSeries, set[int]],
    named: Mapping[SegmentSeries, set[int]],
    endings: Mapping[Lease, str],
) -> Iterator[str]:
    for series, numbers in files.items():
        if _PART_OF_SCAN.fullmatch(series.worker):
            continue
        is_in_order = endings.get((series.worker, str(series.epoch))) in _IN_ORDER
        unnamed = numbers - named.get(series, set())
        if len(unnamed) > (MOST_UNNAMED_OF_ENDED if is_in_order else MOST_UNNAMED):
            yield (
                f"{len(unnamed)} files {series} are not in {COMMITS_FILE}, such as number"
                f" {min(unnamed)}; a worker that died leaves fewer"
            )


def _find_missing_attempts(folder: RunFolder, endings: Mapping[Lease, str]) -> Iterator[str]:
    """Compare the manifests of producers that finished with the rows of their attempts."""
    counted: dict[str, int] = defaultdict(int)
    manifests = folder.segments("manifests")
    places = [segment.path for segment in manifests]
    counts = map_places(_sum_counts, places, is_remote=folder.url is not None)
    for segment, count in zip(manifests, counts, strict=True):
        counted[segment.worker] += count
    for worker, count in counted.items():
        reasons = [reason for (name, _), reason in endings.items() if name == worker]
        rows = sum(each.rows for each in folder.segments("attempts") if each.worker == worker)
        if reasons == ["finished"] and rows < count:
            yield (
                f"the manifests of worker {worker} count {count:,} attempts, and its segments of"
                f" attempts have {rows:,} rows"
            )


def _sum_counts(place: str) -> int:
    try:
        with open_parquet(place) as file:
            counts: Any = file.read(columns=["count"]).column("count")
    except (OSError, pa.ArrowException, KeyError) as error:
        raise describe_unreadable_segment(place, error) from error
    return int(pc.sum(counts).as_py() or 0)
