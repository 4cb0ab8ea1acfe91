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
- A producer that has finished recorded the outcomes of all attempts that its manifests count.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from shoal.model.commit_chain import REMEDY
from shoal.model.errors import LedgerError
from shoal.model.ledger import TABLES
from shoal.model.run_folder import (
    COMMITS_FILE,
    COMPACTED_SUFFIX,
    LEDGER_FOLDER,
    RUN_FILE,
    RunFolder,
)

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
    files = _list_files(directory)
    folder = RunFolder.open(directory)
    named = _list_named(folder)
    endings = _find_endings(folder)
    for wrong in (
        *_find_gaps(named),
        *_find_unended(folder, endings),
        *_find_unnamed(files, named, endings),
        *_find_missing_attempts(folder, endings),
    ):
        raise LedgerError(f"{directory} contradicts itself: {wrong}", remedy=REMEDY)
    return folder


def _list_files(directory: Path) -> dict[SegmentSeries, set[int]]:
    """Return the numbers of the segments on the disk, as workers name them."""
    found: dict[SegmentSeries, set[int]] = defaultdict(set)
    for table in TABLES:
        for path in (directory / LEDGER_FOLDER / table).glob("*.parquet"):
            if path.name.endswith(COMPACTED_SUFFIX):
                continue
            if match := _SEGMENT.fullmatch(path.name):
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
    for segment in folder.segments("manifests"):
        counted[segment.worker] += _sum_counts(segment.path)
    for worker, count in counted.items():
        reasons = [reason for (name, _), reason in endings.items() if name == worker]
        rows = sum(each.rows for each in folder.segments("attempts") if each.worker == worker)
        if reasons == ["finished"] and rows < count:
            yield (
                f"the manifests of worker {worker} count {count:,} attempts, and its segments of"
                f" attempts have {rows:,} rows"
            )


def _sum_counts(path: Path) -> int:
    try:
        counts: Any = pq.read_table(path, columns=["count"]).column("count")
    except (OSError, pa.ArrowException) as error:
        raise LedgerError(
            f"{path} cannot be read as a segment: {error!s:.300}", remedy=REMEDY
        ) from error
    return int(pc.sum(counts).as_py() or 0)
