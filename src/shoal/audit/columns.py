"""Columns of the tables of integers that kernels pass on: `table[:, OrderColumn.PARTITION]`.

Tables whose rows are unpacked into names where they are read need no class: `PartKind` names their
columns.
"""

from enum import IntEnum, auto


class _Column(IntEnum):
    """Columns are numbered from 0, in the order in which they are defined."""

    @staticmethod
    def _generate_next_value_(name: str, start: int, count: int, last_values: list[int]) -> int:
        return count


class OrderColumn(_Column):
    """The summary of one order unit in one cell; F to WITNESS_AFTER are an `OrderMeasure`."""

    LOW = auto()  # the first sequence of the cell
    COUNT = auto()
    FIRST_KEY = auto()
    LAST_KEY = auto()
    F = auto()
    K = auto()
    REORDERED = auto()
    WITNESS = auto()
    WITNESS_AFTER = auto()
    PARTITION = auto()
    LAST_PARTITION = auto()


class LatestColumn(_Column):
    """The highest values of each (stream, partition, key) of a cell."""

    STREAM = auto()
    PARTITION = auto()
    KEY = auto()
    OWN = auto()  # the offset in the log itself
    SOURCE = auto()
    TARGET = auto()
    SEQUENCE = auto()
    UNPLACED = auto()  # sequence among messages without a known place in the source, or NONE


class SlotColumn(_Column):
    """Statistics of the messages whose intended send is in one segment and one slot of time."""

    SEGMENT = auto()
    SLOT = auto()
    ATTEMPTS = auto()
    WORSE = auto()  # how many were refused, unanswered or never delivered
    LONGEST_US = auto()  # to a first delivery; -LARGEST if none was delivered
    LAST_US = auto()  # the time of the last first delivery; -LARGEST if none was delivered


class BatchColumn(_Column):
    """The batches of one stream in one cell."""

    STREAM = auto()
    LOW = auto()  # the first sequence of the cell
    BEGUN = auto()  # how many batches begin after the first message of the stream in the cell
    FIRST_SENT = auto()
    FIRST_ACKED = auto()
    LAST_SENT = auto()
    LAST_ACKED = auto()


class StepColumn(_Column):
    """How one reader moved in one walk. A fall is a step to an offset that is not higher."""

    FIRST = auto()
    LAST = auto()
    LOWEST = auto()
    HIGHEST = auto()
    FALLS = auto()
    FALL_FROM = auto()  # the least fall, by where it began
    FALL_TO = auto()
