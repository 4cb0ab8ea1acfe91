"""User functions that are called with every batch before it is sent.

A handler is called as `handler(partition, batch)` with the source `TopicPartition` and

raw     the `shoal.wire.batch.Batch` as the source stores it, compressed. It returns that batch,
        another batch, or the bytes of one (`shoal.wire.records.records.encode_batch` makes them)
        with at least one record and no gaps;
deep    (`use.raw.bytes=false`) the records of a batch as `RecordColumns`. It returns them, possibly
        changed, other columns, or a list of `shoal.wire.records.records.Record`;

or None, to drop the batch. The batches of a partition come in order. Aborted and control batches
are not passed to the handler. After a kill, a mirror calls the handler again for batches that it
has handled before, and the handler must return the same result.
"""

import importlib
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from shoal.model.errors import UsageError
from shoal.model.topics import TopicPartition
from shoal.wire.batch import Batch
from shoal.wire.records.records import Header, Record


@dataclass(slots=True)
class RecordColumns:
    """The records of one batch, column by column; all columns have the same length."""

    offsets: list[int]
    timestamps: list[int]  # ms
    keys: list[bytes | None]
    values: list[bytes | None]
    headers: list[tuple[Header, ...]]

    @classmethod
    def of(cls, records: Iterable[Record]) -> Self:
        columns = cls([], [], [], [], [])
        for record in records:
            columns.offsets.append(record.offset)
            columns.timestamps.append(record.timestamp)
            columns.keys.append(record.key)
            columns.values.append(record.value)
            columns.headers.append(record.headers)
        return columns

    def __len__(self) -> int:
        return len(self.offsets)

    def select(self, wanted: Iterable[bool]) -> "RecordColumns":
        """The records whose entry in `wanted` is true."""
        pairs = zip(self.records(), wanted, strict=True)
        return RecordColumns.of(record for record, is_wanted in pairs if is_wanted)

    def records(self) -> list[Record]:
        columns = (self.offsets, self.timestamps, self.keys, self.values, self.headers)
        return [Record(*row) for row in zip(*columns, strict=True)]


Raw = Batch | bytes | bytearray | memoryview
Handled = Raw | RecordColumns | list[Record] | None
# The batch is a `Batch` in raw mode, and `RecordColumns` in deep mode.
BatchHandler = Callable[[TopicPartition, Any], Handled]


def load_handler(name: str) -> BatchHandler:
    """Import the function named by `module:function`; the current folder is searched too."""
    module_name, colon, function_name = name.partition(":")
    if not colon or not module_name or not function_name:
        raise UsageError(
            f"{name!r} is not a valid handler name", remedy="write it as module:function"
        )
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise UsageError(
            f"cannot import the handler module {module_name}: {error}",
            remedy="install it, or run from the folder that contains it",
        ) from error
    handler = getattr(module, function_name, None)
    if not callable(handler):
        raise UsageError(
            f"the handler module {module_name} has no function {function_name}",
            remedy="write --handler as module:function",
        )
    return handler  # type: ignore[no-any-return]


def as_batch(handled: object) -> Batch:
    """Convert the result of a raw handler to a batch that can be edited in place."""
    if not isinstance(handled, Raw):
        raise TypeError(f"it returned {type(handled).__name__}, not a batch")
    view = handled.view if isinstance(handled, Batch) else memoryview(handled).cast("B")
    if view.readonly:
        view = memoryview(bytearray(view))
    return Batch(view)


def as_columns(handled: object) -> RecordColumns:
    """Convert the result of a deep handler to columns."""
    if isinstance(handled, RecordColumns):
        handled.records()  # raises if the columns differ in length
        return handled
    if isinstance(handled, list) and all(isinstance(one, Record) for one in handled):
        return RecordColumns.of(handled)
    raise TypeError(f"it returned {type(handled).__name__}, not RecordColumns or a list of Record")
