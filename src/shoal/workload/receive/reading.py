"""Turns fetch responses into columns of delivered records. Pure; no I/O.

Rules:
- A position advances from batch header to batch header; records are decoded afterwards, so that
  the next fetch can be in flight in the meantime.
- Control batches are not messages. For `read_committed`, batches of aborted transactions are not
  either, by the list of aborted transactions in the response.
- Records before the position (a fetch starts at the start of a batch) are skipped.
- A batch that cannot be decoded does not stop the consumer: each of its records is unreadable.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np

from shoal.client.consume.isolation import AbortedFilter, BatchKind
from shoal.model.ledger import ABORTED, COMMITTED, OPEN
from shoal.model.topics import TopicPartition
from shoal.wire.batch import LOG_APPEND_TIME, Batch, iter_batches
from shoal.wire.errors import WireError
from shoal.wire.fetch import FetchedPartition
from shoal.wire.records.columns import RecordArrays, decode_columns
from shoal.wire.records.records import ControlType, decode_control, decode_records
from shoal.workload.envelope import MessageKind
from shoal.workload.envelope_columns import DecodedMessages, MessageReader

Flags = np.ndarray[Any, np.dtype[np.bool_]]
Ints = np.ndarray[Any, np.dtype[np.int32]]
Longs = np.ndarray[Any, np.dtype[np.int64]]

READ_COMMITTED = "read_committed"


@dataclass(frozen=True, slots=True)
class FoundBatch:
    """A batch of messages, and the first offset in it that was requested."""

    log: int  # into `LogReader.logs`
    batch: Batch
    first_offset: int


class WithheldBatch(NamedTuple):
    """A batch without messages for this reader: control records, or aborted data."""

    log: int  # into `LogReader.logs`
    low: int
    high: int
    fate: int  # into `FATES`


@dataclass(frozen=True, slots=True)
class DeliveredRecords:
    """Records in the order of arrival; within a log, by offset."""

    batch: Longs  # into the list of batches that was decoded
    log: Ints  # into `LogReader.logs`
    offset: Longs
    timestamp_us: Longs  # -1: none
    append_us: Longs  # -1: the topic does not stamp append times
    messages: DecodedMessages

    def __len__(self) -> int:
        return len(self.offset)

    def only(self, chosen: Flags) -> "DeliveredRecords":
        m = self.messages
        return DeliveredRecords(
            self.batch[chosen],
            self.log[chosen],
            self.offset[chosen],
            self.timestamp_us[chosen],
            self.append_us[chosen],
            DecodedMessages(
                m.kind[chosen],
                m.producer[chosen],
                m.topic[chosen],
                m.lane[chosen],
                m.sequence[chosen],
                m.sent_us[chosen],
                m.intact[chosen],
                m.key_check[chosen],
                m.headers_check[chosen],
            ),
        )


class LogReader:
    """Follows several logs of one cluster."""

    def __init__(
        self,
        run: str,
        topics: Iterable[str],
        positions: Mapping[TopicPartition, int],
        *,
        isolation: str,
    ) -> None:
        self.messages = MessageReader(run, list(topics))
        self.logs = list(positions)
        self.positions = dict(positions)
        self._index = {tp: index for index, tp in enumerate(self.logs)}
        self._isolation = isolation
        self.withheld: list[WithheldBatch] | None = None  # a list: collect them
        decode_columns([])  # loads the compiled code now, so that it does not delay messages

    def index_of(self, tp: TopicPartition) -> int:
        """The index of a log in `logs`; a new log is appended."""
        if tp not in self._index:
            self._index[tp] = len(self.logs)
            self.logs.append(tp)
        return self._index[tp]

    def advance(self, tp: TopicPartition, answer: FetchedPartition) -> list[FoundBatch]:
        """Move the position past the response; return its batches with messages."""
        found: list[FoundBatch] = []
        position = self.positions[tp]
        aborted_filter = AbortedFilter(answer.aborted if self._isolation == READ_COMMITTED else ())
        for batch in iter_batches(answer.records):
            if batch.next_offset <= position:
                continue
            kind = aborted_filter.classify(batch)
            if kind is BatchKind.DATA:
                found.append(FoundBatch(self._index[tp], batch, position))
            elif self.withheld is not None:
                low = max(batch.base_offset, position)
                fate = _read_fate(batch, kind)
                self.withheld.append(WithheldBatch(self._index[tp], low, batch.next_offset, fate))
            position = batch.next_offset
        self.positions[tp] = position
        return found

    def decode(self, found: list[FoundBatch]) -> DeliveredRecords:
        """Decode the batches, all at once."""
        try:
            records = decode_columns([item.batch for item in found])
        except WireError:
            if len(found) == 1:
                return _make_unreadable(found[0])
            return _concatenate([self.decode([item]) for item in found])
        counts = np.array([item.batch.record_count for item in found], np.int64)
        first_offsets = np.array([item.first_offset for item in found], np.int64)
        wanted = records.offset >= np.repeat(first_offsets, counts)
        delivered = self._to_records(found, counts, records)
        return delivered if wanted.all() else delivered.only(wanted)

    def _to_records(
        self, found: list[FoundBatch], counts: Longs, records: RecordArrays
    ) -> DeliveredRecords:
        logs = np.array([item.log for item in found], np.int32)
        stamped = np.array([i.batch.timestamp_type == LOG_APPEND_TIME for i in found], np.bool_)
        timestamp_us = np.where(records.timestamp < 0, -1, records.timestamp * 1000)
        return DeliveredRecords(
            np.repeat(np.arange(len(found)), counts),
            np.repeat(logs, counts),
            records.offset,
            timestamp_us,
            np.where(np.repeat(stamped, counts), timestamp_us, -1),
            self.messages.read(records),
        )


def _read_fate(batch: Batch, kind: BatchKind) -> int:
    """Return the fate that a batch without messages shows; a damaged one shows none."""
    if kind is BatchKind.ABORTED:
        return ABORTED
    try:
        marker = decode_control(decode_records(batch)[0]).type
    except (WireError, IndexError):
        return OPEN
    if marker == ControlType.COMMIT:
        return COMMITTED
    return ABORTED if marker == ControlType.ABORT else OPEN


def _make_unreadable(item: FoundBatch) -> DeliveredRecords:
    """One unreadable row for each record in the header of a batch that cannot be decoded."""
    last = min(item.batch.record_count - 1, item.batch.last_offset_delta)
    offsets = np.arange(item.batch.base_offset, item.batch.base_offset + last + 1, dtype=np.int64)
    offsets = offsets[offsets >= item.first_offset]
    count = len(offsets)
    nothing, none = np.zeros(count, np.int32), np.full(count, -1, np.int64)
    messages = DecodedMessages(
        np.full(count, MessageKind.UNREADABLE, np.int8),
        nothing,
        nothing,
        np.full(count, -1, np.int32),
        none,
        none,
        np.zeros(count, np.bool_),
        nothing,
        nothing,
    )
    logs, batch = np.full(count, item.log, np.int32), np.zeros(count, np.int64)
    return DeliveredRecords(batch, logs, offsets, none, none, messages)


def _concatenate(parts: list[DeliveredRecords]) -> DeliveredRecords:
    def join(name: str) -> Any:
        return np.concatenate([getattr(part, name) for part in parts])

    def join_messages(name: str) -> Any:
        return np.concatenate([getattr(part.messages, name) for part in parts])

    names = tuple(field.name for field in fields(DecodedMessages))
    messages = DecodedMessages(*(join_messages(name) for name in names))
    batch = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    stamps = (join("timestamp_us"), join("append_us"))
    return DeliveredRecords(batch, join("log"), join("offset"), *stamps, messages)
