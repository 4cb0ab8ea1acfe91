"""Opens run folders for an audit and finds their row groups.

Several folders of one run (of producers and consumers that shared nothing) are joined into one
ledger. `model/run_folder.py` reads each folder; of its segments only the footers are read here.
Ledger order is folder, worker, epoch, segment number, row.

Every inconsistency is a `LedgerError` that names the file and the problem.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from shoal.audit.arrays import LARGEST, Ints, ints
from shoal.audit.read.buckets import ALL_BUCKETS, Partitions, read_ranges
from shoal.audit.read.consistency import open_consistent
from shoal.audit.read.read import NameAlias, Piece, RowGroupPiece, Vocabulary, read_rows
from shoal.audit.result import thresholds
from shoal.audit.result.verdict import DEFAULT_FIDELITY
from shoal.model.commit_chain import REMEDY
from shoal.model.errors import LedgerError, UsageError
from shoal.model.ledger import (
    BUCKETS_KEY,
    FORMAT_KEY,
    ORDERED,
    POSITION,
    TABLES,
    Columns,
    columns_of,
    read_format,
)
from shoal.model.promises import PROMISED_DELIVERIES
from shoal.model.run_folder import RUN_FILE, LedgerSegment, RunFolder, describe_malformed_plan
from shoal.model.runs import is_by_hash, run_hash
from shoal.model.segment_footer import read_footer_check
from shoal.storage.files import map_in_threads, open_to_read
from shoal.storage.parquet import describe_unreadable_segment, parse_parquet

Json = Mapping[str, Any]

_FEWEST_IN_PARALLEL: Final = 16  # segments of this machine that threads open
MOST_SMALL_ROWS: Final = 10_000_000

# Columns whose smallest and largest values choose row groups, or the bins of time.
RANGED: Final = ("sequence", "offset", "intended_us", "sent_us", "received_us")


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A row group and the statistics of its footer; a range is (smallest, largest)."""

    piece: Piece
    rows: int
    ranges: Mapping[str, tuple[int, int]]
    group: str | None = None  # the consumer group, if all rows are of one
    buckets: tuple[int, int] = ALL_BUCKETS  # [low, high) of its streams
    cluster: str | None = None  # of the log, if all rows are of one


class _FooterColumn:
    """The ranges of one column in all row groups of a table, sorted for search."""

    def __init__(self, ranges: Sequence[tuple[int, int]]) -> None:
        table = self.ranges = np.array(ranges, dtype=np.int64).reshape(-1, 2)
        self._order = np.argsort(table[:, 0], kind="stable")
        self._lows, self._highs = table[self._order].T
        self._reached = np.maximum.accumulate(self._highs)

    def overlapping(self, low: int, high: int) -> Ints:
        """Return the numbers of the row groups that may have a value in [low, high)."""
        end = int(np.searchsorted(self._lows, high))
        begin = int(np.searchsorted(self._reached[:end], low))
        found: Ints = self._order[begin:end][self._highs[begin:end] >= low]
        return found

    def overlaps(self, low: int, high: int) -> bool:
        """Whether `overlapping` would return any; it takes no longer with more row groups."""
        end = int(np.searchsorted(self._lows, high))
        return end > 0 and int(self._reached[end - 1]) >= low


def _count_ranges(ranges: Ints, lows: Sequence[int]) -> Ints:
    """Return for each (smallest, largest) how many of the ranges that begin at `lows` it touches.

    What lies below the first one counts as a range too.
    """
    first, last = (np.searchsorted(ints(lows), ranges[:, side], "right") for side in (0, 1))
    found: Ints = last - first + 1
    return found


class Footers:
    """What the footers of all row groups of one table say."""

    def __init__(self, groups: Sequence[RowGroup]) -> None:
        self._groups = groups
        self._columns: dict[str, _FooterColumn] = {}
        self._buckets = np.array([g.buckets for g in groups], dtype=np.int64).reshape(-1, 2)
        self._are_of_all_buckets = bool((self._buckets == ALL_BUCKETS).all())

    def pieces(
        self,
        column: str,
        ranges: Iterable[tuple[int, int]],
        buckets: tuple[int, int] = ALL_BUCKETS,
    ) -> tuple[Piece, ...]:
        """Return the row groups that may have a value in a range [low, high), in ledger order."""
        chosen = self._find(column, ranges, buckets)
        return tuple(self._groups[number].piece for number in chosen.tolist())

    def pieces_of(
        self, cluster: str, column: str, ranges: Iterable[tuple[int, int]]
    ) -> tuple[Piece, ...]:
        """Return those of `pieces` that may have rows of the log of a cluster."""
        found = (self._groups[n] for n in self._find(column, ranges, ALL_BUCKETS).tolist())
        return tuple(group.piece for group in found if group.cluster in (None, cluster))

    def has_any(self, column: str, low: int, high: int, buckets: tuple[int, int]) -> bool:
        """Whether a row group may have a value in [low, high)."""
        if buckets == ALL_BUCKETS or self._are_of_all_buckets:
            return self._column(column).overlaps(low, high)
        return bool(len(self._find(column, [(low, high)], buckets)))

    def count_reads(self, column: str, lows: Sequence[int], bucket_edges: Sequence[int]) -> int:
        """Return how many rows tasks would read in all, each its cell of its buckets.

        Cells begin at `lows`, ascending; tasks have the buckets between successive edges.
        """
        reads = _count_ranges(self._column(column).ranges, lows)
        if len(bucket_edges) > 2:
            inclusive = self._buckets - np.array([0, 1])
            reads *= _count_ranges(inclusive, bucket_edges[:-1])
        return int((reads * np.array([group.rows for group in self._groups], np.int64)).sum())

    def _column(self, name: str) -> _FooterColumn:
        if name not in self._columns:
            unknown = (-LARGEST, LARGEST)
            known = [group.ranges.get(name, unknown) for group in self._groups]
            self._columns[name] = _FooterColumn(known)
        return self._columns[name]

    def _find(
        self, column: str, ranges: Iterable[tuple[int, int]], buckets: tuple[int, int]
    ) -> Ints:
        """Return the numbers of the row groups of `pieces`."""
        found = [self._column(column).overlapping(low, high) for low, high in ranges]
        chosen: Ints = np.unique(np.concatenate(found)) if found else ints()
        if buckets == ALL_BUCKETS or self._are_of_all_buckets:
            return chosen
        own = self._buckets[chosen]
        return chosen[(own[:, 0] < buckets[1]) & (own[:, 1] > buckets[0])]


@dataclass(frozen=True)
class Ledger:
    """The joined ledgers of one run."""

    folders: Sequence[RunFolder]
    tables: Mapping[str, Sequence[RowGroup]] = field(default_factory=dict)
    clock_skew_us: int | None = None  # the greatest difference between clocks, from the user
    deadline_us: int | None = None  # a message missing for longer is lost, drained or not

    @property
    def run(self) -> str:
        names = [str(folder.plan.get("run", "")) for folder in self.folders]
        return next((name for name in names if name and not is_by_hash(name)), names[0])

    @cached_property
    def footers(self) -> Mapping[str, Footers]:
        return {table: Footers(groups) for table, groups in self.tables.items()}

    def commits(self, kind: str) -> Iterator[Json]:
        names = _topic_codes(self.folders)
        for folder in self.folders:
            for line in folder.commits:
                if line["kind"] == kind:
                    name = names.get(str(line.get("topic")))
                    yield line if name is None else {**line, "topic": name}

    def rows_of(self, table: str) -> int:
        return sum(group.rows for group in self.tables[table])

    def small_table(self, table: str) -> list[dict[str, Any]]:
        """Return all rows of a small table as dictionaries, in ledger order."""
        if self.rows_of(table) > MOST_SMALL_ROWS:
            raise LedgerError(
                f"table {table} of run {self.run} has {self.rows_of(table):,} rows;"
                f" at most {MOST_SMALL_ROWS:,} are supported"
            )
        names = [name for name, _ in TABLES[table]]
        words = {name for name, kind in TABLES[table] if kind == "dictionary"}
        vocabulary = Vocabulary()
        pieces = [group.piece for group in self.tables[table]]
        rows = read_rows(table, pieces, names, vocabulary=vocabulary)
        spell = vocabulary.names.__getitem__
        columns = [
            list(map(spell, rows[name])) if name in words else rows[name].tolist() for name in names
        ]
        return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def open_ledger(
    directories: Iterable[Path],
    *,
    clock_skew_us: int | None = None,
    deadline_us: int | None = None,
) -> Ledger:
    """Join run folders; all must be of one run.

    From the user: `clock_skew_us` bounds the difference between clocks that no coordinator has
    compared; `deadline_us` is how long a message may take before it counts as lost.
    """
    named = {Path(directory).resolve(): Path(directory) for directory in directories}
    folders = [_open_folder(directory) for directory in named.values()]
    if not folders:
        raise UsageError("no run folder was given", remedy="name one or more: shoal audit DIR")
    runs = sorted({str(folder.plan.get("run")) for folder in folders})
    # A consumer without a run id that received no message fits every run.
    if len({run_hash(run) for run in runs if run}) > 1:
        raise LedgerError(
            f"these folders are of different runs: {', '.join(runs)}",
            remedy="audit the folders of one run together",
        )
    _require_same_promises(folders)
    tables = _read_footers(folders)
    ledger = Ledger(folders, tables, clock_skew_us, deadline_us)
    has_producers = any(ledger.commits("reserve")) or ledger.rows_of("attempts")
    if ledger.rows_of("receipts") and not has_producers:
        raise LedgerError(
            "none of these folders is of a producer, so what was sent is unknown",
            remedy="name the folders of the producers too: shoal audit DIR DIR…",
        )
    return ledger


def _open_folder(directory: Path) -> RunFolder:
    folder = open_consistent(directory)
    try:
        thresholds.parse(folder.plan.get("thresholds") or ())
    except UsageError as error:
        problem = ("thresholds", f"cannot be used: {error}")
        raise describe_malformed_plan(directory, problem) from error
    return folder


def _require_same_promises(folders: Iterable[RunFolder]) -> None:
    """Refuse folders of one run that promise different things.

    Without this check the order of the folders would decide. A folder may promise nothing.
    """
    given = [
        (f.directory / RUN_FILE, f.plan["promises"]) for f in folders if f.plan.get("promises")
    ]
    for path, promises in given[1:]:
        first_path, first = given[0]
        if _with_defaults(promises) != _with_defaults(first):
            raise LedgerError(
                f"{first_path} and {path} promise different things:"
                f" {json.dumps(first)} and {json.dumps(promises)}",
                remedy="audit only folders with the same promises together",
            )


def _with_defaults(promises: Json) -> tuple[Any, ...]:
    fidelity = frozenset(promises.get("fidelity", DEFAULT_FIDELITY))
    return promises.get("delivery", PROMISED_DELIVERIES[0]), promises.get("order", True), fidelity


def _topic_codes(folders: Sequence[RunFolder]) -> dict[str, str]:
    """Return the names of topics that a consumer recorded only by number.

    A consumer does so if it runs separately and the mirror renames topics. The folder of the
    producer has both the number and the name.
    """
    plans = [folder.plan.get("topic_codes") or {} for folder in folders]
    return {str(code): str(name) for plan in plans for code, name in plan.items()}


def _name_aliases(folders: Sequence[RunFolder]) -> list[tuple[NameAlias, ...]]:
    """Return for each folder the names that mean something else there than in the others.

    Consumers in places that share nothing may have the same name, but are two consumers.
    """
    codes = _topic_codes(folders).items()
    topics = tuple(NameAlias("topic", code, name) for code, name in codes)
    roles = [str(folder.plan.get("role")) for folder in folders]
    found = []
    for place, role in enumerate(roles):
        kind, _, name = role.partition(" ")
        earlier = roles[:place].count(role) if kind == "consumer" else 0
        other = (NameAlias("consumer", name, f"{name} #{earlier + 1}"),) if earlier else ()
        found.append(topics + other)
    return found


class _PlacedSegment(NamedTuple):
    """A committed segment, and where its rows are in the ledger order of its table."""

    table: str
    segment: LedgerSegment
    start: int
    aliases: tuple[NameAlias, ...]


def _read_footers(folders: Sequence[RunFolder]) -> dict[str, list[RowGroup]]:
    """Return the row groups of all committed segments by table, in ledger order.

    Each footer is read once, many at once.
    """
    placed = [each for table in TABLES for each in _place_segments(folders, table)]
    partitions = read_source_partitions([folder.plan for folder in folders])

    def open_segment(each: _PlacedSegment) -> list[RowGroup]:
        known = None if each.aliases else partitions
        groups = read_footer(
            each.segment, each.table, each.start, aliases=each.aliases, partitions=known
        )
        return list(groups)

    is_remote = any(folder.url for folder in folders)
    if is_remote or len(placed) >= _FEWEST_IN_PARALLEL:
        opened = map_in_threads(open_segment, placed)
    else:
        opened = [open_segment(each) for each in placed]
    tables: dict[str, list[RowGroup]] = {table: [] for table in TABLES}
    for each, groups in zip(placed, opened, strict=True):
        tables[each.table] += groups
    return tables


def _place_segments(folders: Sequence[RunFolder], table: str) -> list[_PlacedSegment]:
    segments = [
        (segment, aliases)
        for folder, aliases in zip(folders, _name_aliases(folders), strict=True)
        for segment in folder.segments(table)
    ]
    starts = [0, *accumulate(segment.rows for segment, _ in segments)]
    return [
        _PlacedSegment(table, segment, start, aliases)
        for (segment, aliases), start in zip(segments, starts, strict=False)
    ]


def read_source_partitions(plans: Iterable[Json]) -> dict[str, int]:
    """Return how many partitions each source topic has."""
    topics = [(plan.get("topics") or {}).items() for plan in plans]
    return {
        name: int(topic["partitions"])
        for items in topics
        for name, topic in items
        if isinstance(topic, Mapping) and topic.get("partitions")
    }


def read_footer(
    segment: LedgerSegment,
    table: str,
    position: int,
    *,
    aliases: tuple[NameAlias, ...] = (),
    partitions: Partitions | None = None,
) -> Iterator[RowGroup]:
    """Return the row groups of a segment; the first row is at this position in the ledger.

    `partitions` are those of source topics, if the buckets of a regrouped segment are wanted.
    """
    path, rows = segment.path, segment.rows
    try:
        with open_to_read(path) as source:
            check = segment.footer_check and read_footer_check(source)
            with parse_parquet(source, path) as file:
                metadata, schema = file.metadata, file.schema_arrow
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        raise describe_unreadable_segment(path, error) from error
    ledger_format = read_format((schema.metadata or {}).get(FORMAT_KEY), path)
    if ledger_format != segment.table_format:
        raise LedgerError(
            f"{path} has ledger format {ledger_format}, and {RUN_FILE} of its folder has"
            f" {segment.table_format}",
            remedy=REMEDY,
        )
    columns = columns_of(table, ledger_format)
    if table in ORDERED and POSITION in schema.names:
        columns = (*columns, (POSITION, "int64"))
    if not _has_columns(schema, columns):
        raise LedgerError(f"{path} does not have the columns of table {table}")
    if metadata.num_rows != rows:
        raise LedgerError(
            f"{path} has {metadata.num_rows} rows; {rows} were committed", remedy=REMEDY
        )
    if check != segment.footer_check:
        raise LedgerError(
            f"{path} is not the file that was committed under this name, or was changed:"
            f" its footer has the checksum {check}; {segment.footer_check} was committed",
            remedy=REMEDY,
        )
    places = {name: schema.names.index(name) for name in RANGED if name in schema.names}
    stored = (schema.metadata or {}).get(BUCKETS_KEY)
    buckets = None if partitions is None else read_ranges(stored, partitions)
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        if group.num_rows:
            ranges = {name: _range(group.column(place)) for name, place in places.items()}
            only = _only_name(group.column(0)) if schema.names[0] in ("group", "cluster") else None
            piece = RowGroupPiece(path, number, position, aliases)
            own = ALL_BUCKETS if buckets is None else buckets[number]
            found = RowGroup(piece, group.num_rows, ranges, buckets=own)
            is_log = schema.names[0] == "cluster"
            yield replace(found, cluster=only) if is_log else replace(found, group=only)
            position += 0 if POSITION in schema.names else group.num_rows


def _has_columns(schema: Any, columns: Columns) -> bool:
    names = (pa.dictionary(pa.int32(), pa.string()), pa.string())
    return bool(schema.names == [name for name, _ in columns]) and all(
        field.type in names if kind == "dictionary" else field.type == pa.type_for_alias(kind)
        for field, (_, kind) in zip(schema, columns, strict=True)
    )


def _range(column: Any) -> tuple[int, int]:
    statistics = column.statistics
    if statistics is None or not statistics.has_min_max:
        return -LARGEST, LARGEST
    return int(statistics.min), int(statistics.max)


def _only_name(column: Any) -> str | None:
    statistics = column.statistics
    if statistics is None or not statistics.has_min_max or statistics.min != statistics.max:
        return None
    return str(statistics.min)
