"""The pieces of work of an audit. Plain data, so that they travel to any worker.

- `MessageCell`: a range of sequences of all streams: what happened to each message.
- `OrderCell`: the same range again, for order units that interleave with other cells.
- `LedgerWalk`: receipts, or rows of a scan, in ledger order: jumps of readers; or polls.
- `OffsetCell`: ranges of offsets of one cluster: who was at each offset.
"""

from dataclasses import dataclass, field

from shoal.audit.context import Knowledge, Stream
from shoal.audit.read.read import Held, Piece

Pieces = tuple[Piece | Held, ...]


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
    knowledge: Knowledge | None = None


# Kind ("consumers", "source", "target"), group (for consumers), producer, topic, lane,
# incarnation, partition (for logs; -1 for consumers).
UnitName = tuple[str, str, str, str, int, int, int]


@dataclass(frozen=True)
class OrderCell:
    """Zones of keys of each unit as (first, last); None asks for every element and its time."""

    cell: MessageCell
    units: dict[UnitName, tuple[tuple[int, int], ...] | None]


@dataclass(frozen=True)
class LedgerWalk:
    number: int  # walks of a table, in ledger order
    table: str  # "receipts", "log" or "polls"
    pieces: Pieces


@dataclass(frozen=True)
class Jump:
    """From one offset of a log to another, with something between that may be known."""

    number: int
    topic: str
    partition: int
    origin: int
    landing: int


# Stream, sequence and offset: what a producer named, and what is no evidence.
Unproven = tuple[Stream, int, int]


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


Task = MessageCell | OrderCell | LedgerWalk | OffsetCell
