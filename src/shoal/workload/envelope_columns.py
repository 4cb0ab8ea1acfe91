"""Encodes and decodes many messages at once, as columns.

`MessageWriter` turns message numbers into arrays of values, keys and header sections, ready to be
packed into record batches. `MessageReader` identifies every record of a fetch. Both do in compiled
loops what `envelope` does for one message; no Python code runs for each message. Importing this
module loads numba: do it only when needed.
"""

from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np

from shoal.model.errors import UsageError
from shoal.model.runs import name_by_hash, run_hash
from shoal.wire.records.columns import ByteColumn, RecordArrays
from shoal.workload import kernels
from shoal.workload.envelope import (
    BLOCK_START,
    MAX_MESSAGES,
    NUMBER_DIGITS,
    Envelope,
    MessageKind,
    decode_message,
    header_section,
    identity_block,
    topic_code,
    topic_hash,
)
from shoal.workload.send.keys import KEY_PREFIX, first_of_key, lane_keys, own_key_start
from shoal.workload.send.payload import POOL_BYTES, RANDOM, Payload, payload_pool

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Ints = np.ndarray[Any, np.dtype[np.int32]]
Longs = np.ndarray[Any, np.dtype[np.int64]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]

_NO_HEADERS = header_section([])


@dataclass(frozen=True, slots=True)
class EncodedMessages:
    """Messages ready to be packed; `headers` are whole header sections with their counts."""

    values: ByteColumn
    keys: ByteColumn
    headers: ByteColumn

    def rows(self, first: int, end: int) -> "EncodedMessages":
        """A view of some of the messages."""
        columns = (self.values, self.keys, self.headers)
        return EncodedMessages(
            *(ByteColumn(c.data, c.start[first:end], c.length[first:end]) for c in columns)
        )


class MessageWriter:
    """Encodes the messages of one producer to one topic; `many_keys` if it is compacted."""

    def __init__(
        self, envelope: Envelope, lanes: int, payload: Payload = RANDOM, *, many_keys: bool = False
    ) -> None:
        self._envelope = envelope
        self._pool = payload_pool(payload, envelope.size_bytes)
        self._lanes = lanes
        self._lane_keys = _key_column(lanes)
        self.many_keys = many_keys
        self._pool_at = 0
        producer = envelope.producer.encode()
        section = header_section([("id", producer), ("seq", b"")])
        self._header_start = section[:-1] if envelope.in_headers else _NO_HEADERS
        self._before = b"" if envelope.in_headers else producer + b";"
        self._tail = bytes([len(producer)]) + producer if envelope.in_headers else b""

    def write(
        self,
        numbers: Longs,
        lanes: Longs,
        sequences: Longs,
        *,
        sent_ns: int,
        kind: MessageKind = MessageKind.MESSAGE,
    ) -> EncodedMessages:
        """Encode one message for each number, all with the same send time."""
        count, size = len(numbers), self._envelope.size_bytes
        if count and not 0 <= int(numbers.max()) < MAX_MESSAGES:
            raise UsageError(f"message number {int(numbers.max())} is out of range")
        headers, keys = self._headers(numbers), self.keys(lanes, sequences, kind=kind)
        values = np.empty(count * size, np.uint8)
        block = identity_block(self._envelope, kind) + bytes(4)
        fixed = (self._before, b";%d;" % sent_ns, block, self._tail)
        kernels.write_values(
            values,
            (numbers, lanes, sequences),
            tuple(np.frombuffer(part, np.uint8) for part in fixed),
            (
                (keys.data, keys.start, keys.length),
                (headers.data, headers.start, headers.length),
            ),
            (self._pool, self._pool_at),
        )
        self._pool_at = (self._pool_at + count * size) % POOL_BYTES
        starts = np.arange(0, count * size, size, dtype=np.int64)
        return EncodedMessages(
            ByteColumn(values, starts, np.full(count, size, np.int64)), keys, headers
        )

    def keys(
        self, lanes: Longs, sequences: Longs, *, kind: MessageKind = MessageKind.MESSAGE
    ) -> ByteColumn:
        """The key of each message, or of each lane's marker."""
        if kind is MessageKind.MESSAGE and self.many_keys:
            return self._own_keys(first_of_key(sequences) * self._lanes + lanes, lanes)
        keys = self._lane_keys if kind is MessageKind.MESSAGE else self._marker_keys
        return ByteColumn(keys.data, keys.start[lanes], keys.length[lanes])

    @cached_property
    def _marker_keys(self) -> ByteColumn:
        lanes = np.arange(self._lanes, dtype=np.int64)
        return self._own_keys(lanes, lanes, of_marker=True)

    def _own_keys(self, numbers: Longs, lanes: Longs, *, of_marker: bool = False) -> ByteColumn:
        count, size = len(numbers), kernels.KEY_SIZE
        data = np.empty(count * size, np.uint8)
        form = self._envelope
        before = own_key_start(
            form.producer, form.topic, incarnation=form.incarnation, of_marker=of_marker
        )
        kernels.write_keys(data, numbers, lanes, self._lanes, np.frombuffer(before, np.uint8))
        starts = np.arange(0, count * size, size, dtype=np.int64)
        return ByteColumn(data, starts, np.full(count, size, np.int64))

    def key_numbers(self, lanes: Longs, sequences: Longs) -> Longs:
        """The hashes that represent the keys in ledgers."""
        keys, found = self.keys(lanes, sequences), np.empty(len(lanes), np.int64)
        kernels.hash_spans(keys.data, keys.start, keys.length, found)
        return found

    def _headers(self, numbers: Longs) -> ByteColumn:
        count = len(numbers)
        before = np.frombuffer(self._header_start, np.uint8)
        if not self._envelope.in_headers:
            zeros = np.zeros(count, np.int64)
            return ByteColumn(before, zeros, np.full(count, before.size, np.int64))
        data = np.empty(count * (before.size + 1 + NUMBER_DIGITS), np.uint8)
        starts, lengths = np.empty(count, np.int64), np.empty(count, np.int64)
        kernels.write_headers(data, starts, lengths, numbers, before)
        return ByteColumn(data, starts, lengths)


@dataclass(frozen=True, slots=True)
class DecodedMessages:
    """The identity of each record of a fetch.

    Where `kind` is UNREADABLE or FOREIGN, lane and sequence are -1, and producer and topic are 0,
    the index of the empty name.
    """

    kind: np.ndarray[Any, np.dtype[np.int8]]
    producer: Ints  # into `MessageReader.producers` and `MessageReader.incarnations`
    topic: Ints  # into `MessageReader.topics`
    lane: Ints
    sequence: Longs
    sent_us: Longs  # -1 if the message has no time
    intact: Flags
    key_check: Ints  # a copy of the record must have the same
    headers_check: Ints


class MessageReader:
    """Decodes the messages of one run, and collects their producers.

    Producer `i` is the incarnation `incarnations[i]` of the id `producers[i]`: an id that two
    producers share is listed twice. If `run` is empty, it is the run of the first message.
    """

    def __init__(self, run: str, topics: list[str]) -> None:
        self.run = run
        self.topics = ["", *topics]
        self.producers = [""]
        self.incarnations = [0]
        self._topic_of_hash = {topic_hash(name): i for i, name in enumerate(topics, start=1)}
        self._producer_of_hash: dict[int, int] = {0: 0}
        self._known = (np.frombuffer(BLOCK_START, np.uint8), np.frombuffer(KEY_PREFIX, np.uint8))

    def read(self, records: RecordArrays) -> DecodedMessages:
        """Identify every record."""
        self.run = self.run or _first_run(records)
        count = len(records.value_start)
        kinds = np.empty(count, np.int8)
        found = _FoundProducers(
            np.zeros(count, np.uint64),
            np.zeros(count, np.int64),
            np.zeros(count, np.int32),
            np.zeros(count, np.int64),
        )
        topic_hashes = np.zeros(count, np.uint32)
        lanes, sequences = np.empty(count, np.int32), np.empty(count, np.int64)
        sent_ns, intact = np.full(count, -1, np.int64), np.zeros(count, np.bool_)
        kernels.read_values(
            records.data,
            (
                records.key_start,
                records.key_length,
                records.value_start,
                records.value_length,
                records.header_start,
                records.header_length,
            ),
            self._known,
            np.uint64(run_hash(self.run)),
            (kinds, tuple(found), topic_hashes, lanes, sequences, sent_ns, intact),
        )
        producers = _look_up(
            found.code, lambda code, row: self._index_of_producer(code, records.data, found, row)
        )
        topics = _look_up(topic_hashes, lambda code, _row: self._index_of_topic(code))
        sent_us = np.where(sent_ns < 0, -1, sent_ns // 1000)
        checks = (_checks(records.keys()), _checks(records.header_sections()))
        return DecodedMessages(kinds, producers, topics, lanes, sequences, sent_us, intact, *checks)

    def _index_of_producer(self, code: int, data: Bytes, found: "_FoundProducers", row: int) -> int:
        if code not in self._producer_of_hash:
            start = found.name_start[row]
            name = data[start : start + found.name_length[row]].tobytes()
            self._producer_of_hash[code] = len(self.producers)
            self.producers.append(name.decode("ascii", "replace"))
            self.incarnations.append(int(found.incarnation[row]))
        return self._producer_of_hash[code]

    def _index_of_topic(self, code: int) -> int:
        """The index of a topic; an unknown one is named by its hash, so that no message is lost."""
        if code and code not in self._topic_of_hash:
            self._topic_of_hash[code] = len(self.topics)
            self.topics.append(topic_code(code))
        return self._topic_of_hash.get(code, 0)


class _FoundProducers(NamedTuple):
    """The producer of each record, written by `kernels.read_values`; code 0: no producer."""

    code: np.ndarray[Any, np.dtype[np.uint64]]
    name_start: Longs
    name_length: Ints
    incarnation: Longs


def _checks(column: ByteColumn) -> Ints:
    checks = np.empty(len(column.start), np.int32)
    kernels.check_spans(column.data, column.start, column.length, checks)
    return checks


def _first_run(records: RecordArrays) -> str:
    """The run of the first message of shoal, or an empty string."""
    values = records.values()
    for i in range(len(records)):
        message = decode_message(None, values.at(i), ())
        if message is not None:
            return name_by_hash(message.run)
    return ""


def _look_up(codes: Any, index_of: Any) -> Ints:
    """Replace each code by its index; `index_of(code, row)` is called once for each code."""
    if not len(codes):
        return np.zeros(0, np.int32)
    # The common case: all records of a fetch have the same producer and topic.
    if (codes == codes[0]).all():
        return np.full(len(codes), index_of(int(codes[0]), 0), np.int32)
    distinct, rows, inverse = np.unique(codes, return_index=True, return_inverse=True)
    pairs = zip(distinct, rows, strict=True)
    indices = np.array([index_of(int(code), int(row)) for code, row in pairs], np.int32)
    return np.asarray(indices[inverse])


@cache
def _key_column(lanes: int) -> ByteColumn:
    keys = lane_keys(lanes)
    lengths = np.array([len(key) for key in keys], np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64)
    return ByteColumn(np.frombuffer(b"".join(keys), np.uint8), starts, lengths)
