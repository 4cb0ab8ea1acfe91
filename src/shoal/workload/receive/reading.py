"""From the answers of a fetch to columns that say what was delivered. Pure; no I/O.

Rules:
- A position moves from batch header to batch header; records are taken apart afterwards, so
  that the next fetch can be on its way meanwhile.
- Control batches are no messages. For `read_committed`, batches of aborted transactions are
  none either, by the list that the broker sends with its answer.
- Records before the position (a fetch begins at the start of a batch) are left out.
- A batch that cannot be taken apart stops nobody: each of its records is unreadable.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from shoal.client.consume.isolation import Sieve, Standing
from shoal.model.topics import TopicPartition
from shoal.wire.batch import LOG_APPEND_TIME, Batch, iter_batches
from shoal.wire.errors import WireError
from shoal.wire.fetch import FetchedPartition
from shoal.wire.records.columns import RecordColumns, decode_columns
from shoal.workload.envelope import Kind
from shoal.workload.envelope_columns import MessageReader, ReadMessages

Flags = np.ndarray[Any, np.dtype[np.bool_]]
Ints = np.ndarray[Any, np.dtype[np.int32]]
Longs = np.ndarray[Any, np.dtype[np.int64]]

READ_COMMITTED = "read_committed"


@dataclass(frozen=True, slots=True)
class FoundBatch:
    """A batch of messages, and the first offset in it that was asked for."""

    log: int  # into `LogReader.logs`
    batch: Batch
    first_offset: int


@dataclass(frozen=True, slots=True)
class Delivered:
    """Records in the order of arrival, within each log by offset."""

    batch: Longs  # into the list of batches that was decoded
    log: Ints  # into `LogReader.logs`
    offset: Longs
    timestamp_us: Longs  # -1: none
    append_us: Longs  # -1: the topic does not stamp append times
    messages: ReadMessages

    def __len__(self) -> int:
        return len(self.offset)

    def only(self, chosen: Flags) -> "Delivered":
        m = self.messages
        return Delivered(
            self.batch[chosen],
            self.log[chosen],
            self.offset[chosen],
            self.timestamp_us[chosen],
            self.append_us[chosen],
            ReadMessages(
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
        decode_columns([])  # loads what is compiled, so that it makes no message late

    def index_of(self, tp: TopicPartition) -> int:
        """The place of a log in `logs`; one that is new gets one."""
        if tp not in self._index:
            self._index[tp] = len(self.logs)
            self.logs.append(tp)
        return self._index[tp]

    def advance(self, tp: TopicPartition, answer: FetchedPartition) -> list[FoundBatch]:
        """Move the position over everything in the answer; the batches that hold messages."""
        found: list[FoundBatch] = []
        position = self.positions[tp]
        sieve = Sieve(answer.aborted if self._isolation == READ_COMMITTED else ())
        for batch in iter_batches(answer.records):
            if batch.next_offset <= position:
                continue
            if sieve.judge(batch) is Standing.DATA:
                found.append(FoundBatch(self._index[tp], batch, position))
            position = batch.next_offset
        self.positions[tp] = position
        return found

    def decode(self, found: list[FoundBatch]) -> Delivered:
        """Take the batches apart, all at once."""
        try:
            records = decode_columns([item.batch for item in found])
        except WireError:
            if len(found) == 1:
                return _unreadable(found[0])
            return _joined([self.decode([item]) for item in found])
        counts = np.array([item.batch.record_count for item in found], np.int64)
        first_offsets = np.array([item.first_offset for item in found], np.int64)
        wanted = records.offset >= np.repeat(first_offsets, counts)
        delivered = self._delivered(found, counts, records)
        return delivered if wanted.all() else delivered.only(wanted)

    def _delivered(
        self, found: list[FoundBatch], counts: Longs, records: RecordColumns
    ) -> Delivered:
        logs = np.array([item.log for item in found], np.int32)
        stamped = np.array([i.batch.timestamp_type == LOG_APPEND_TIME for i in found], np.bool_)
        timestamp_us = np.where(records.timestamp < 0, -1, records.timestamp * 1000)
        return Delivered(
            np.repeat(np.arange(len(found)), counts),
            np.repeat(logs, counts),
            records.offset,
            timestamp_us,
            np.where(np.repeat(stamped, counts), timestamp_us, -1),
            self.messages.read(records),
        )


def _unreadable(item: FoundBatch) -> Delivered:
    """One row for each record that the header promises, though none can be read."""
    last = min(item.batch.record_count - 1, item.batch.last_offset_delta)
    offsets = np.arange(item.batch.base_offset, item.batch.base_offset + last + 1, dtype=np.int64)
    offsets = offsets[offsets >= item.first_offset]
    count = len(offsets)
    nothing, none = np.zeros(count, np.int32), np.full(count, -1, np.int64)
    messages = ReadMessages(
        np.full(count, Kind.UNREADABLE, np.int8),
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
    return Delivered(batch, logs, offsets, none, none, messages)


def _joined(parts: list[Delivered]) -> Delivered:
    def join(name: str) -> Any:
        return np.concatenate([getattr(part, name) for part in parts])

    def join_messages(name: str) -> Any:
        return np.concatenate([getattr(part.messages, name) for part in parts])

    names = tuple(field.name for field in fields(ReadMessages))
    messages = ReadMessages(*(join_messages(name) for name in names))
    batch = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    stamps = (join("timestamp_us"), join("append_us"))
    return Delivered(batch, join("log"), join("offset"), *stamps, messages)
