"""Compacts the ledgers of a run that has ended: segments once more, grouped by streams.

An audit of a long run with many streams has to bring the rows of some streams together. It does so
in its scratch folder (`shoal.audit.read.regrouping`), or finds it done: `shoal run` does it at the
end of a run, so that an audit of it, now or later, reads each row once. Ledgers that audits read in
the order in which they are anyway are left alone: compaction would only be one more pass.

Rules:
- A compacted segment stands for consecutive segments of one worker and epoch. It is complete and
  flushed before its line is in the commit log, and each line counts alone. So whenever this
  ends, the commit log names every row once.
- The segments that it stands for are deleted after that; by the next compaction, if this one could
  not.
- Nobody may write to the run meanwhile: the lock of the commit log is held. On another file system
  nothing can be locked, so the run must have ended. Two that compact a run there write the same.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from shoal.audit.audit import Sizes, divide_messages, run_here
from shoal.audit.context import AuditContext, build_context
from shoal.audit.parts import TaskPart
from shoal.audit.plan import MOST_SHARES
from shoal.audit.read.buckets import ALL_BUCKETS, split_buckets
from shoal.audit.read.folder import Ledger, RowGroup, open_ledger
from shoal.audit.read.read import RowGroupPiece
from shoal.audit.read.regroup import ROWS_PER_FILE, STREAM_TABLES, Regroup
from shoal.audit.read.regrouping import needs_regrouping
from shoal.audit.read.remote import store_commit_log
from shoal.model.errors import UsageError
from shoal.model.ledger import COMPACTED
from shoal.model.run_folder import COMPACTED_SUFFIX, LEDGER_FOLDER, LedgerSegment, RunFolder
from shoal.model.segment_footer import read_footer_check
from shoal.pipeline.audit_job import scratch_folder
from shoal.storage.files import map_places, open_to_read, remove_file
from shoal.storage.places import is_url, join_place
from shoal.workload.record.ledger import CommitLog, flush_folder

# Fewer rows are not worth a file with a row group for each range of buckets.
LEAST_ROWS: Final = 1000 * MOST_SHARES
_UNNAMED_COMPACTED: Final = f"*{COMPACTED_SUFFIX}.*"

Runner = Callable[[Sequence[Any], AuditContext], list[list[TaskPart]]]


@dataclass(frozen=True)
class _JoinedSegments:
    """Consecutive segments of one worker and epoch, and the task that writes them as one."""

    segments: tuple[LedgerSegment, ...]
    task: Regroup

    @property
    def rows(self) -> int:
        return sum(segment.rows for segment in self.segments)

    def line(self, at_us: int, place: str) -> dict[str, Any]:
        """Return the line that commits it."""
        first, last = self.segments[0], self.segments[-1]
        path = str(self.task.path).removeprefix(f"{place}/")
        numbers = {"number": first.number, "last": last.number}
        name = {"worker": first.worker, "epoch": first.epoch, "table": self.task.table}
        with open_to_read(str(self.task.path)) as source:
            check = read_footer_check(source)
        rows = {"path": path, "rows": self.rows, "footer": check}
        return {"kind": COMPACTED, "at_us": at_us, **name, **numbers, **rows}


def compact_run(
    directory: Path,
    runner: Runner = run_here,
    *,
    sizes: Sizes | None = None,
    least_rows: int = LEAST_ROWS,
    rows_per_file: int = ROWS_PER_FILE,
) -> int:
    """Compact the ledgers of a run if its audits read less then; return how many files it wrote."""
    directory = directory.absolute()
    _require_ended(directory)
    if not is_worth_compacting(directory, sizes):
        if RunFolder.open(directory).is_compacted:
            with CommitLog(directory):  # an earlier compaction may have been killed at its end
                remove_replaced_segments(directory)
        return 0
    with CommitLog(directory) as log:
        ledger = open_ledger([directory])
        place = ledger.folders[0].place
        context = build_context(ledger)
        remove_replaced_segments(directory)
        portions = list(_plan(ledger, least_rows, rows_per_file))
        with scratch_folder(place) as scratch:
            runner([portion.task for portion in portions], replace(context, scratch=scratch))
        if not is_url(place):
            for folder in sorted({Path(str(portion.task.path)).parent for portion in portions}):
                flush_folder(folder)
        at_us = _end_us(ledger.folders[0])
        for portion in portions:
            log.append(portion.line(at_us, place))
        store_commit_log(directory)
        remove_replaced_segments(directory)
    return len(portions)


def _require_ended(directory: Path) -> None:
    """Refuse a run on another file system that has not ended: no lock shows who writes to it."""
    folder = RunFolder.open(directory)
    if folder.url and folder.plan.get("state") == "running":
        raise UsageError(
            f"{folder.url} is not compacted: its run has not ended, or its driver died",
            remedy="judge it as it is, without --compact",
        )


def is_worth_compacting(directory: Path, sizes: Sizes | None = None) -> bool:
    """Whether an audit of these ledgers alone would group their rows by streams first."""
    sizes = sizes or Sizes()
    folder = RunFolder.open(directory)
    rows = sum(segment.rows for table in STREAM_TABLES for segment in folder.segments(table))
    if rows <= sizes.rows_per_cell:  # one task reads all: no footer needs to be opened
        return False
    ledger = open_ledger([directory])
    division = divide_messages(ledger, build_context(ledger), sizes)
    return needs_regrouping(ledger, division, sizes.reads_per_row)


def _end_us(folder: RunFolder) -> int:
    """Return the last time in the commit log: compaction is no event of the run."""
    times = [line.get("at_us") for line in folder.commits]
    return max((at_us for at_us in times if isinstance(at_us, int)), default=0)


def remove_replaced_segments(directory: Path) -> None:
    """Delete the segments that compacted ones stand for, and what a killed task left behind."""
    folder = RunFolder.open(directory)
    left = [] if folder.url else _find_left(directory)
    for table in STREAM_TABLES:
        kept = {segment.path for segment in folder.segments(table)}
        replaced = {segment.path for segment in folder.list_replaced_segments(table)}
        left += sorted(replaced - kept)
    map_places(remove_file, left, is_remote=folder.url is not None)


def _find_left(directory: Path) -> list[str]:
    """Return what killed tasks left of files that had not yet their names."""
    ledger = directory / LEDGER_FOLDER
    return [
        str(each) for table in STREAM_TABLES for each in (ledger / table).glob(_UNNAMED_COMPACTED)
    ]


def _plan(ledger: Ledger, least_rows: int, rows_per_file: int) -> Iterator[_JoinedSegments]:
    [folder] = ledger.folders
    number = 0
    for table in STREAM_TABLES:
        by_path: dict[str, list[RowGroup]] = defaultdict(list)
        for group in ledger.tables[table]:
            by_path[group.piece.path].append(group)
        for segments in _join_segments(folder.segments(table), by_path, rows_per_file):
            if sum(segment.rows for segment in segments) >= least_rows:
                yield _make_portion(folder, (number, table), segments, by_path)
                number += 1


def _join_segments(
    segments: Sequence[LedgerSegment], groups: Mapping[str, Sequence[RowGroup]], rows_per_file: int
) -> Iterator[list[LedgerSegment]]:
    """Return consecutive segments of one worker, epoch and consumer group, up to a size."""
    portion: list[LedgerSegment] = []
    origin: tuple[Any, ...] | None = None
    for segment in segments:
        own = groups.get(segment.path, ())
        names = {group.group for group in own}
        is_plain = bool(own) and all(group.buckets == ALL_BUCKETS for group in own)
        fits = is_plain and len(names) == 1 and not any(_is_renamed(group) for group in own)
        now = (segment.worker, segment.epoch, *names) if fits else None
        is_full = sum(each.rows for each in portion) + segment.rows > rows_per_file
        if portion and (now != origin or is_full):
            yield portion
            portion = []
        if fits:
            portion.append(segment)
        origin = now
    if portion:
        yield portion


def _is_renamed(group: RowGroup) -> bool:
    """Whether names of a row group mean something else: what is written must be what was."""
    return isinstance(group.piece, RowGroupPiece) and bool(group.piece.aliases)


def _make_portion(
    folder: RunFolder,
    name: tuple[int, str],
    segments: Sequence[LedgerSegment],
    groups: Mapping[str, Sequence[RowGroup]],
) -> _JoinedSegments:
    number, table = name
    first, last = segments[0], segments[-1]
    file = f"{first.worker}-{first.epoch}-{first.number}-{last.number}{COMPACTED_SUFFIX}"
    path = join_place(folder.place, LEDGER_FOLDER, table, file)
    pieces = tuple(group.piece for each in segments for group in groups[each.path])
    edges = split_buckets(MOST_SHARES)
    return _JoinedSegments(tuple(segments), Regroup(number, table, pieces, edges, path))
