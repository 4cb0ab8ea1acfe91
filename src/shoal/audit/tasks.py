"""The tasks of an audit. They are plain data, so that they can be sent to any worker.

- `MessageCell`: a range of sequences of all streams: what happened to each message.
- `StreamCell`: all sequences of some streams, for runs with many of them.
- `OrderCell`: the same range once more, for order units that interleave with other cells.
- `LateCell`: the same once more, to list the messages of such units that came late.
- `LedgerWalk`: receipts or rows of a scan in ledger order (for jumps of readers), or polls.
- `OffsetCell`: ranges of offsets of one cluster: which message was at each offset.
- `SeenLookup` (in `read.seen_transactions`): which transactions some tasks saw.
- `Regroup` (in `read.regroup`): rows once more, by streams, for runs with many of them.
- `Combination`: some answers of such runs, to be added up.
- `RankCount` (in `times.runs`): how many latencies do not exceed some values.
"""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from shoal.audit.arrays import NONE
from shoal.audit.context import Knowledge, Stream
from shoal.audit.read.buckets import ALL_BUCKETS
from shoal.audit.read.read import Piece
from shoal.audit.read.regroup import Regroup
from shoal.audit.read.seen_transactions import SeenLookup
from shoal.audit.times.faults import FaultWindow
from shoal.audit.times.runs import Question, RankCount

Pieces = tuple[Piece, ...]


@dataclass(frozen=True)
class MessageCell:
    low: int
    high: int
    attempts: Pieces
    receipts: Pieces
    log: Pieces
    keys: Pieces = ()
    transactions: Pieces = ()
    batches: Pieces = ()
    is_again: bool = False  # judged with the knowledge of the context
    knowledge: Knowledge | None = None
    buckets: tuple[int, int] = ALL_BUCKETS  # of its streams, [low, high)


@dataclass(frozen=True)
class StreamCell:
    """All cells of the streams in [low, high) of the buckets; settled in one task."""

    buckets: tuple[int, int]
    cells: tuple[MessageCell, ...]
    is_again: bool = False  # judged with the knowledge of the context


UnitKind = Literal["consumers", "source", "target"]  # what a group received, or a cluster's log


class UnitName(NamedTuple):
    """An order unit: a stream as a group received it, or a stream in a partition of a log."""

    kind: UnitKind
    group: str  # empty for logs
    producer: str
    topic: str
    lane: int
    incarnation: int
    partition: int  # NONE for consumers

    @classmethod
    def of(cls, kind: UnitKind, group: str | None, stream: Stream, partition: int) -> "UnitName":
        return cls(kind, group or "", *stream, NONE if kind == "consumers" else partition)

    @property
    def stream(self) -> Stream:
        return Stream(self.producer, self.topic, self.lane, self.incarnation)


@dataclass(frozen=True)
class OrderCell:
    """The zones of keys of each unit as (first, last); None: every element with its time."""

    cell: MessageCell
    units: dict[UnitName, tuple[tuple[int, int], ...] | None]


@dataclass(frozen=True)
class LateCell:
    """What came late in units that interleave: ranges of sequences (first, last) of each."""

    cell: MessageCell
    units: dict[UnitName, tuple[tuple[int, int], ...]]


@dataclass(frozen=True)
class LedgerWalk:
    number: int  # counts the walks, in ledger order
    table: str  # "receipts", "log" or "polls"
    pieces: Pieces
    control_ranges: Pieces = ()  # for receipts


@dataclass(frozen=True)
class Jump:
    """A step of a reader from one offset to a later one, past offsets that may hold messages."""

    number: int
    topic: str
    partition: int
    origin: int
    landing: int


class Unproven(NamedTuple):
    """An offset that a producer reported and that is not evidence."""

    stream: Stream
    sequence: int
    offset: int


@dataclass(frozen=True)
class OffsetCell:
    cluster: str
    ranges: tuple[tuple[int, int], ...]  # [low, high)
    attempts: Pieces
    receipts: Pieces
    log: Pieces
    transactions: Pieces = ()
    jumps: tuple[Jump, ...] = field(default=())
    unproven: tuple[Unproven, ...] = ()


Wanted = Literal["all", "summaries", "sums"]


@dataclass(frozen=True)
class Combination:
    """A task: some kept answers, in the order of their tasks, to be added up."""

    names: tuple[str, ...]
    wanted: Wanted = "all"  # summaries, which decide about later rounds, or what only adds up
    is_last: bool = False
    faults: tuple[FaultWindow, ...] = ()  # for the last task
    questions: tuple[Question, ...] = ()  # for the last task, if it adds up counts of ranks


Task = (
    MessageCell
    | StreamCell
    | OrderCell
    | LateCell
    | LedgerWalk
    | OffsetCell
    | Regroup
    | Combination
    | SeenLookup
    | RankCount
)
