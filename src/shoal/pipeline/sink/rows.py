"""Converts Arrow rows to record batches of partitions, column by column.

Rules:
- Rows of one partition keep their order, within a task.
- A row without a partition goes where Kafka's clients send its key; without a key, rows fill one
  batch of a partition after the other (`StickyRows`).
- A batch ends with the row that reaches a multiple of `batch.size` in its partition; a row of that
  size is a batch of its own. So no batch but that of a large row has twice that size.
- As with the connector, records have the time of the write.
- Bytes are copied once, from Arrow's memory into the batch.
"""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from shoal.model.errors import ConfigError, UsageError
from shoal.model.topics import TopicPartition
from shoal.wire.records.columns import ByteColumn, encode_columns, hash_keys, header_section

_NO_HEADERS: Final = b"\x00"
_RECORD_OVERHEAD_BYTES: Final = 32
_LARGE_TYPES: Final = (pa.large_binary(), pa.large_string())

Counts = Mapping[str, int]


class NewBatch(NamedTuple):
    """A record batch, and the number of its records."""

    log: TopicPartition
    records: int
    content: bytearray


@dataclass(slots=True)
class StickyRows:
    """Where the next rows without a key and a partition go, by topic."""

    positions: dict[str, int] = field(default_factory=dict)

    def take(self, topic: str, sizes: Any, count: int, batch_bytes: int) -> Any:
        """Return a partition for each of these rows."""
        start = self.positions.setdefault(topic, random.randrange(count) * batch_bytes)  # noqa: S311
        ends = start + np.cumsum(sizes)
        self.positions[topic] = int(ends[-1]) % (count * batch_bytes)
        return (ends - sizes) // batch_bytes % count


class SinkRows:
    """The columns of one Arrow batch that are written."""

    def __init__(self, rows: Any, topic: str | None) -> None:
        columns = {name.lower(): rows.column(i) for i, name in enumerate(rows.schema.names)}
        self.count = rows.num_rows
        self.values = _byte_column(columns["value"])
        self.keys = _byte_column(columns["key"]) if "key" in columns else None
        self.headers = _header_column(columns["headers"]) if "headers" in columns else None
        self.partitions = _partition_column(columns.get("partition"), self.count)
        self.topics, self.topic_index = _topic_column(columns.get("topic"), topic, self.count)
        self.sizes = np.maximum(self.values.length, 0) + _RECORD_OVERHEAD_BYTES
        for more in (self.keys, self.headers):
            if more is not None:
                self.sizes += np.maximum(more.length, 0)

    def choose_partitions(self, counts: Counts, sticky: StickyRows, batch_bytes: int) -> Any:
        """Return the partition of each row; `counts` has the number of partitions of each topic."""
        chosen = self.partitions.copy()
        limits = np.array([counts[topic] for topic in self.topics], np.int64)[self.topic_index]
        if (odd := (chosen >= limits) | (chosen < -1)).any():
            row = int(odd.argmax())
            topic = self.topics[self.topic_index[row]]
            raise ConfigError(
                f"a row names partition {chosen[row]}, but topic {topic} has {counts[topic]}"
            )
        hashes = np.full(self.count, -1) if self.keys is None else hash_keys(self.keys)
        by_key = (chosen < 0) & (hashes >= 0)
        chosen[by_key] = hashes[by_key] % limits[by_key]
        for index, topic in enumerate(self.topics):
            rows = np.flatnonzero((chosen < 0) & (self.topic_index == index))
            if len(rows):
                chosen[rows] = sticky.take(topic, self.sizes[rows], counts[topic], batch_bytes)
        return chosen

    def encode(
        self, partitions: Any, *, codec: int, batch_bytes: int, now_ms: int
    ) -> Iterator[NewBatch]:
        """Encode all rows as batches of these partitions."""
        most = int(partitions.max()) + 1
        groups = self.topic_index * most + partitions
        order = np.argsort(groups, kind="stable")
        cuts = _cuts(groups[order], self.sizes[order], batch_bytes)
        for start, end in zip(cuts, [*cuts[1:], self.count], strict=True):
            rows = order[start:end]
            index, partition = divmod(int(groups[rows[0]]), most)
            content = encode_columns(
                values=_take(self.values, rows),
                keys=None if self.keys is None else _take(self.keys, rows),
                headers=None if self.headers is None else _take(self.headers, rows),
                timestamps=np.full(len(rows), now_ms, np.int64),
                codec=codec,
            )
            yield NewBatch(TopicPartition(self.topics[index], partition), len(rows), content)


def _cuts(groups: Any, sizes: Any, batch_bytes: int) -> list[int]:
    """Return where batches begin: with a new group, after enough bytes, around a large row."""
    starts = np.cumsum(sizes) - sizes
    firsts = np.flatnonzero(np.diff(groups, prepend=groups[0] - 1))
    # Each group counts its bytes from its own first row.
    starts -= np.repeat(starts[firsts], np.diff(firsts, append=len(groups)))
    pieces = starts // batch_bytes
    is_large = sizes >= batch_bytes
    is_cut = (np.diff(pieces, prepend=pieces[0]) != 0) | is_large
    is_cut[1:] |= is_large[:-1]
    is_cut[firsts] = True
    cuts: list[int] = np.flatnonzero(is_cut).tolist()
    return cuts


def _take(column: ByteColumn, rows: Any) -> ByteColumn:
    return ByteColumn(column.data, column.start[rows], column.length[rows])


def _present(array: Any) -> Any:
    """Return which values are not null; None if all are."""
    if not array.null_count:
        return None
    bits = np.unpackbits(np.frombuffer(array.buffers()[0], np.uint8), bitorder="little")
    return bits[array.offset : array.offset + len(array)].astype(bool)


def _offsets(array: Any) -> Any:
    """Return the offsets of a binary, string or list array."""
    kind = np.int64 if array.type in _LARGE_TYPES else np.int32
    if not len(array):
        return np.zeros(1, np.int64)
    offsets = np.frombuffer(array.buffers()[1], kind)
    return offsets[array.offset : array.offset + len(array) + 1].astype(np.int64)


def _byte_column(array: Any) -> ByteColumn:
    """Return a binary or string array as spans of its own memory."""
    offsets, present = _offsets(array), _present(array)
    data = array.buffers()[2]
    lengths = np.diff(offsets)
    if present is not None:
        lengths[~present] = -1
    content = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    return ByteColumn(content, offsets[:-1], lengths)


def _header_column(array: Any) -> ByteColumn | None:
    """Return the encoded header section of each row; None if no row has headers."""
    if array.null_count == len(array) or not np.diff(_offsets(array)).any():
        return None
    sections = []
    for headers in array.to_pylist():
        if not headers:
            sections.append(_NO_HEADERS)
            continue
        if any(header is None or header["key"] is None for header in headers):
            raise UsageError("a header without a key cannot be written")
        sections.append(header_section([(header["key"], header["value"]) for header in headers]))
    return ByteColumn.of_list(sections)


def _partition_column(array: Any, count: int) -> Any:
    """Return the partition that each row names; -1 for none."""
    if array is None:
        return np.full(count, -1, np.int64)
    partitions = np.frombuffer(array.buffers()[1], np.int32)
    partitions = partitions[array.offset : array.offset + count].astype(np.int64)
    present = _present(array)
    if present is None:
        present = np.ones(count, bool)
    # -1 is a mistake in a row, not a row without a partition.
    return np.where(present, np.where(partitions < 0, -2, partitions), -1)


def _topic_column(array: Any, topic: str | None, count: int) -> tuple[list[str], Any]:
    """Return the topics of the rows, and which one each row has."""
    if topic is not None:
        return [topic], np.zeros(count, np.int64)
    if array.null_count:
        raise ConfigError(
            "a row has no topic", remedy='fill the column, or set .option("topic", "orders")'
        )
    coded = array.dictionary_encode()
    index = np.frombuffer(coded.indices.buffers()[1], np.int32)[:count]
    return coded.dictionary.to_pylist(), index.astype(np.int64)
