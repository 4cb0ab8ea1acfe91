"""Latency runs: the exact latencies of one task, sorted, kept beside the task and not sent.

A section has the latencies of one group and name in one segment of time (see `segments`): rows of
(microseconds, count), ascending. A task writes its sections into one Parquet file of the audit's
scratch folder, one row group each, delta-coded. It returns only a summary of each section and the
name of the file. Without a scratch folder (an audit inside one process) the rows are returned too.

`RankCount` asks runs how many samples do not exceed each of some edges; `ranks` finds exact
percentiles with that.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shoal.audit.arrays import Ints, ints, starts_of_groups, sum_by_key
from shoal.audit.parts import PartKind, TaskPart, make_part
from shoal.audit.scratch import scratch_file
from shoal.storage.files import open_to_read, remove_file
from shoal.storage.parquet import describe_unreadable, parse_parquet

REPLICATION: Final = "replication"
SECTIONS_KEY: Final = b"shoal.sections"
_LOW_BITS: Final = 32

RUN_SCHEMA: Final = pa.schema(
    [
        pa.field("group", pa.string()),
        pa.field("name", pa.string()),
        pa.field("segment", pa.int32()),
        pa.field("microseconds", pa.int64()),
        pa.field("count", pa.int64()),
    ]
)


class SectionKey(NamedTuple):
    group: str | None
    name: str
    segment: int


class LatencySummary(NamedTuple):
    """What the driver knows of the samples of a section, or of several."""

    size: int
    total_us: int  # a Python integer: the sum of a long run may exceed 64 bits
    lowest_us: int
    highest_us: int
    negative: int

    def add(self, other: "LatencySummary") -> "LatencySummary":
        return LatencySummary(
            self.size + other.size,
            self.total_us + other.total_us,
            min(self.lowest_us, other.lowest_us),
            max(self.highest_us, other.highest_us),
            self.negative + other.negative,
        )


def add_summaries(summaries: Iterable[LatencySummary]) -> LatencySummary | None:
    """Return one summary of all samples; None if there are none."""
    found: LatencySummary | None = None
    for each in summaries:
        found = each if found is None else found.add(each)
    return found


# ---------------------------------------------------------------- written by tasks


def record_latencies(
    tables: Sequence[tuple[str | None, str, Ints]], scratch: str | None
) -> list[TaskPart]:
    """Return the parts for tables of (group, name, rows of (segment, microseconds, count)).

    Replication latencies get a file of their own: the driver may have to drop all of them.
    """
    parts = [
        make_part(PartKind.LATENCY, [group, name], _summarise(rows))
        for group, name, rows in tables
        if len(rows)
    ]
    if scratch is None:
        return parts + [
            make_part(PartKind.LATENCY_RUN, [group, name], rows)
            for group, name, rows in tables
            if len(rows)
        ]
    for is_apart in (False, True):
        own = [table for table in tables if len(table[2]) and (table[1] == REPLICATION) is is_apart]
        if own:
            path, rows_written = _write_file(own, scratch)
            parts.append(make_part(PartKind.LATENCY_FILE, [path, is_apart], [rows_written]))
    return parts


def _summarise(rows: Ints) -> Ints:
    """Return a row for each segment: count, sum (high and low part), extremes, negatives."""
    segment, values, counts = rows.T
    starts = starts_of_groups(segment)
    ends = np.append(starts[1:], len(segment)) - 1
    high, low = values >> _LOW_BITS, values & ((1 << _LOW_BITS) - 1)
    return np.column_stack(
        [
            segment[starts],
            np.add.reduceat(counts, starts),
            np.add.reduceat(high * counts, starts),
            np.add.reduceat(low * counts, starts),
            values[starts],
            values[ends],
            np.add.reduceat(np.where(values < 0, counts, 0), starts),
        ]
    )


def read_summary(row: Sequence[int]) -> tuple[int, LatencySummary]:
    """Return the segment and the summary of a row of `PartKind.LATENCY`."""
    segment, count, high, low, lowest, highest, negative = row
    total = (high << _LOW_BITS) + low
    return segment, LatencySummary(count, total, lowest, highest, negative)


def _write_file(tables: Sequence[tuple[str | None, str, Ints]], scratch: str) -> tuple[str, int]:
    """Write the tables as one file; return its path and its rows."""
    sections = [
        (SectionKey(group, name, int(own[0, 0])), own)
        for group, name, rows in tables
        for own in np.split(rows, starts_of_groups(rows[:, 0])[1:])
    ]
    return _write_sections([key for key, _ in sections], (own for _, own in sections), scratch)


def join_runs(paths: Sequence[str], scratch: str) -> tuple[str, int]:
    """Add up the runs in several files to one file, and remove them; one section at a time."""
    files = [_RunFile(path) for path in paths]
    keys = sorted(
        {key for file in files for key in file.places},
        key=lambda key: (key.group or "", key.group is not None, key.name, key.segment),
    )
    found = _write_sections(keys, (_join_section(files, key) for key in keys), scratch)
    for file in files:
        file.close()
        remove_file(file.path)
    return found


class _RunFile:
    """A file of runs that stays open."""

    def __init__(self, path: str) -> None:
        self.path = path
        with _name_unreadable(path):
            self._source = open_to_read(path)
            self._file = parse_parquet(self._source, path)
            keys = json.loads(self._file.schema_arrow.metadata[SECTIONS_KEY])
        self.places = {SectionKey(*names): number for number, names in enumerate(keys)}

    def read(self, key: SectionKey) -> tuple[Ints, Ints]:
        """Return the values and counts of a section."""
        columns = ["microseconds", "count"]
        with _name_unreadable(self.path):
            number = self.places[key]
            table = self._file.read_row_group(number, columns=columns, use_threads=False)
        values, counts = (table.column(name).to_numpy() for name in columns)
        return values, counts

    def close(self) -> None:
        self._file.close()
        self._source.close()


def _join_section(files: Sequence[_RunFile], key: SectionKey) -> Ints:
    """Return rows of (segment, microseconds, count)."""
    own = [file.read(key) for file in files if key in file.places]
    values, counts = (np.concatenate([pair[place] for pair in own]) for place in (0, 1))
    summed = sum_by_key(values, counts)
    return np.column_stack([np.full(len(summed[0]), key.segment, np.int64), *summed])


@contextmanager
def _name_unreadable(path: str) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException, KeyError, ValueError) as error:
        raise describe_unreadable(path, error) from error


def _write_sections(
    keys: Sequence[SectionKey], tables: Iterable[Ints], scratch: str
) -> tuple[str, int]:
    """Write rows of (segment, microseconds, count) of each section; return path and rows."""
    named = json.dumps([list(key) for key in keys]).encode()
    schema = RUN_SCHEMA.with_metadata({SECTIONS_KEY: named})
    written = 0
    with (
        scratch_file(scratch, "latencies") as file,
        pq.ParquetWriter(
            file.sink,
            schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=["group", "name", "segment"],
            column_encoding={"microseconds": "DELTA_BINARY_PACKED", "count": "DELTA_BINARY_PACKED"},
            write_page_checksum=True,
        ) as writer,
    ):
        for key, rows in zip(keys, tables, strict=True):
            writer.write_table(_section_table(key, rows, schema), row_group_size=len(rows))
            written += len(rows)
    return file.place, written


def _section_table(key: SectionKey, rows: Ints, schema: pa.Schema) -> pa.Table:
    count = len(rows)
    arrays = [
        pa.array([key.group] * count, pa.string()),
        pa.array([key.name] * count, pa.string()),
        pa.array(np.full(count, key.segment, np.int32)),
        pa.array(np.ascontiguousarray(rows[:, 1])),
        pa.array(np.ascontiguousarray(rows[:, 2])),
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


# ---------------------------------------------------------------- asked by the driver


@dataclass(frozen=True)
class FileRun:
    """The run of one task, in a file."""

    path: str
    is_apart: bool = False  # holds nothing but replication latencies

    def sections(
        self, wanted: Collection[tuple[str | None, str]]
    ) -> Iterator[tuple[SectionKey, Ints, Ints]]:
        """Read the sections of the wanted groups and names: values, and counts up to each."""
        file = _RunFile(self.path)
        for key in file.places:
            if (key.group, key.name) in wanted:
                values, counts = file.read(key)
                yield key, values, np.cumsum(counts)
        file.close()


@dataclass(frozen=True)
class MemoryRun:
    """A table of a task that had no scratch folder: rows of (segment, microseconds, count)."""

    group: str | None
    name: str
    rows: Ints

    def sections(
        self, wanted: Collection[tuple[str | None, str]]
    ) -> Iterator[tuple[SectionKey, Ints, Ints]]:
        if (self.group, self.name) in wanted:
            for own in np.split(self.rows, starts_of_groups(self.rows[:, 0])[1:]):
                key = SectionKey(self.group, self.name, int(own[0, 0]))
                yield key, own[:, 1], np.cumsum(own[:, 2])


Run = FileRun | MemoryRun


class Question(NamedTuple):
    """How many samples of a group and name do not exceed each edge; in some segments, or in all.

    The answer to a question is, for each rank, the first edge that at least as many do not exceed.
    """

    group: str | None
    name: str
    segments: frozenset[int] | None
    edges: tuple[int, ...]
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True)
class RankCount:
    """A task: how many samples of some runs do not exceed the edges of all questions."""

    runs: tuple[Run, ...]
    questions: tuple[Question, ...]


def count_ranks(task: RankCount) -> list[TaskPart]:
    """Return the counts of each question, in the order of the questions."""
    by_name: dict[tuple[str | None, str], list[int]] = {}
    for number, question in enumerate(task.questions):
        by_name.setdefault((question.group, question.name), []).append(number)
    edges = [np.array(question.edges, dtype=np.int64) for question in task.questions]
    found = [np.zeros(len(own), dtype=np.int64) for own in edges]
    for run in task.runs:
        for key, values, reached in run.sections(by_name):
            upto = np.append(0, reached)
            for number in by_name[key.group, key.name]:
                segments = task.questions[number].segments
                if segments is None or key.segment in segments:
                    found[number] += upto[np.searchsorted(values, edges[number], side="right")]
    values_of_all = np.concatenate(found) if found else np.empty(0, np.int64)
    return [make_part(PartKind.RANK_COUNTS, None, values_of_all)]


def find_places(questions: Iterable[Question], counts: Ints) -> list[Ints]:
    """Return the number of an edge for each rank of each question, given the counts of all runs."""
    places: list[Ints] = []
    at = 0
    for question in questions:
        own = counts[at : at + len(question.edges)]
        places.append(np.searchsorted(own, ints(question.ranks), side="left").astype(np.int64))
        at += len(own)
    return places


@dataclass
class KnownLatencies:
    """The summaries of all sections and the runs that hold them."""

    sections: dict[tuple[str | None, str], dict[int, LatencySummary]] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)
    rows: int = 0  # of all runs

    def add(self, part: TaskPart) -> None:
        """Add a part of one of the three kinds about latencies."""
        if part.kind is PartKind.LATENCY:
            group, name = part.label
            held = self.sections.setdefault((group, name), {})
            for row in part.rows.tolist():
                segment, summary = read_summary(row)
                held[segment] = summary.add(held[segment]) if segment in held else summary
        elif part.kind is PartKind.LATENCY_RUN:
            group, name = part.label
            self.runs.append(MemoryRun(group, name, part.rows))
            self.rows += len(part.rows)
        else:
            path, is_apart = part.label
            self.runs.append(FileRun(path, is_apart))
            self.rows += int(part.values[0])

    def files(self) -> list[str]:
        """Return the files of all runs, without those of replication latencies."""
        files = [run for run in self.runs if isinstance(run, FileRun) and not run.is_apart]
        return [run.path for run in files]

    def summary(
        self, group: str | None, name: str, segments: Collection[int] | None = None
    ) -> LatencySummary | None:
        """Return the summary of some segments, or of all; None without a sample."""
        held: Mapping[int, LatencySummary] = self.sections.get((group, name), {})
        return add_summaries(
            summary for segment, summary in held.items() if segments is None or segment in segments
        )
