"""Which transactions a read-committed group received a message of: kept beside the tasks, not sent.

A run may have as many transactions as messages, and few of them decide anything: those that lost a
message, and those of attempts whose outcome is unknown. A task writes the transactions that it saw,
ascending, into a file of the audit's scratch folder, and returns the name. `SeenLookup` asks files
which of some transactions they have. Without a scratch folder (an audit inside one process) the
transactions themselves are returned.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shoal.audit.arrays import Ints, ints
from shoal.audit.parts import PartKind, TaskPart, make_part
from shoal.audit.scratch import scratch_file
from shoal.storage.parquet import describe_unreadable, open_parquet

TRANSACTIONS_PER_LOOKUP: Final = 4_000_000
FILES_PER_LOOKUP: Final = 64
_COLUMN: Final = "transaction"


class SeenFile(NamedTuple):
    """What one task saw: transactions of [first, last], in a file."""

    path: str
    first: int
    last: int
    size: int


@dataclass(frozen=True)
class SeenLookup:
    """A task: which of the transactions (ascending) are in some of the files."""

    paths: tuple[str, ...]
    wanted: Ints


Ask = Callable[[Sequence[SeenLookup]], list[list[TaskPart]]]


def record_seen(group: str, seen: Ints, scratch: str | None) -> list[TaskPart]:
    """Return the parts for the transactions (ascending) that a group saw in one cell."""
    if not len(seen):
        return []
    if scratch is None:
        return [make_part(PartKind.SEEN_TRANSACTIONS, group, seen)]
    with scratch_file(scratch, "transactions") as file:
        pq.write_table(
            pa.table({_COLUMN: seen}),
            file.sink,
            compression="zstd",
            compression_level=1,
            use_dictionary=False,
            column_encoding={_COLUMN: "DELTA_BINARY_PACKED"},
            write_page_checksum=True,
        )
    own = [int(seen[0]), int(seen[-1]), len(seen)]
    return [make_part(PartKind.SEEN_FILE, [group, file.place], own)]


def look_up(task: SeenLookup) -> list[TaskPart]:
    """Return which of the wanted transactions are in the files of the task."""
    found = [ints()]
    found += [np.intersect1d(task.wanted, read_seen(path)) for path in task.paths]
    return [make_part(PartKind.SEEN_TRANSACTIONS, None, np.unique(np.concatenate(found)))]


def read_seen(path: str) -> Ints:
    """Return the transactions in a file."""
    try:
        with open_parquet(path) as file:
            seen: Ints = file.read(use_threads=False).column(_COLUMN).to_numpy()
    except (OSError, pa.ArrowException) as error:
        raise describe_unreadable(path, error) from error
    return seen


@dataclass
class SeenTransactions:
    """What all tasks saw, by group: in memory, or in files."""

    arrays: dict[str, list[Ints]] = field(default_factory=lambda: defaultdict(list))
    files: dict[str, list[SeenFile]] = field(default_factory=lambda: defaultdict(list))

    def add(self, part: TaskPart) -> None:
        if part.kind is PartKind.SEEN_FILE:
            group, path = part.label
            self.files[group] += [SeenFile(path, *row) for row in part.rows.tolist()]
        else:
            self.arrays[part.label].append(part.values)

    def find(self, group: str, wanted: Ints, ask: Ask) -> Ints:
        """Return those of some transactions of which the group received a message, ascending."""
        wanted = np.unique(wanted)
        held = np.concatenate([ints(), *self.arrays.get(group, ())])
        found = [np.intersect1d(wanted, held)]
        tasks = list(_plan(self.files.get(group, ()), wanted))
        if tasks:
            found += [part.values for parts in ask(tasks) for part in parts]
        return np.unique(np.concatenate(found))

    def find_in_any(self, wanted: Ints, ask: Ask) -> Ints:
        """Return those of some transactions of which any group received a message, ascending."""
        groups = sorted({*self.arrays, *self.files})
        found = [self.find(group, wanted, ask) for group in groups]
        return np.unique(np.concatenate([ints(), *found]))


def _plan(files: Iterable[SeenFile], wanted: Ints) -> Iterator[SeenLookup]:
    """Plan lookups in the files that may have a wanted transaction; few in each task."""
    portion: list[SeenFile] = []
    count = 0
    for file in files:
        low, high = np.searchsorted(wanted, [file.first, file.last + 1]).tolist()
        if low == high:
            continue
        is_full = count + file.size > TRANSACTIONS_PER_LOOKUP or len(portion) == FILES_PER_LOOKUP
        if portion and is_full:
            yield _make_lookup(portion, wanted)
            portion, count = [], 0
        portion.append(file)
        count += file.size
    if portion:
        yield _make_lookup(portion, wanted)


def _make_lookup(files: Sequence[SeenFile], wanted: Ints) -> SeenLookup:
    ends = [min(f.first for f in files), max(f.last for f in files) + 1]
    low, high = np.searchsorted(wanted, ends).tolist()
    return SeenLookup(tuple(f.path for f in files), wanted[low:high])
