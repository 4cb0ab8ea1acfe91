"""The slot of each message in the arrays of a cell.

A cell holds a range of sequences of all streams. Its slots are in the order of streams (by name)
and then of sequences. If sequences are dense, which is usual, a slot is computed: stream * width +
sequence - low. If they are sparse (a garbled sequence, a huge reservation of which little was
used), the distinct (stream, sequence) pairs are sorted once, and a slot is the rank of a pair. So
memory depends on the number of rows, not on the numbers in them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shoal.audit.arrays import (
    Array,
    Ints,
    Rows,
    full_ints,
    ints,
    is_repeated_value,
    repeat_value,
)
from shoal.audit.context import Stream, sort_key
from shoal.audit.read.read import PRODUCER_NUMBER, Vocabulary

# A dense cell may have this many slots for each row; up to `_DENSE_SLOTS` it is always dense.
_DENSE_SLOTS_PER_ROW = 4
_DENSE_SLOTS = 1 << 16
_TABLE_SIZE = 1 << 22
_MANY_SLOTS = 4096
_ANY_LANE = 1 << 32


@dataclass(frozen=True)
class Index:
    """The streams of a cell and the slots of their messages."""

    streams: list[Stream]
    low: int
    width: int  # 0 if slots are sparse
    pair_streams: Ints  # of each slot, if slots are sparse
    pair_sequences: Ints

    @property
    def size(self) -> int:
        return len(self.streams) * self.width if self.width else len(self.pair_streams)

    @cached_property
    def topics(self) -> list[str]:
        """The topics of all streams, ascending."""
        return sorted({stream.topic for stream in self.streams})

    @cached_property
    def topic_of_stream(self) -> Ints:
        numbers = {topic: number for number, topic in enumerate(self.topics)}
        return ints([numbers[stream.topic] for stream in self.streams])

    def topic_of(self, slots: Ints) -> Ints:
        """Return the number of the topic of each slot."""
        if len(self.topics) == 1:
            return repeat_value(0, len(slots), np.int64)
        return self.topic_of_stream[self.stream_of(slots)]

    def stream_of(self, slots: Ints) -> Ints:
        return slots // self.width if self.width else self.pair_streams[slots]

    def sequence_of(self, slots: Ints) -> Ints:
        if not self.width:
            return self.pair_sequences[slots]
        found = slots // self.width
        found *= -self.width
        found += slots  # faster than the remainder
        found += self.low
        return found

    def count_per_stream(self, slots: Ints) -> Ints:
        """Return how many of these slots each stream has."""
        if self.width and len(slots) > _MANY_SLOTS and bool((slots[1:] >= slots[:-1]).all()):
            ends = np.arange(len(self.streams) + 1, dtype=np.int64) * self.width
            return np.diff(np.searchsorted(slots, ends)).astype(np.int64)
        return np.bincount(self.stream_of(slots), minlength=len(self.streams)).astype(np.int64)

    def first_slots(self, limits: Ints) -> Ints:
        """Return the slots of each stream whose sequence is from 0 up to the stream's limit."""
        if self.low < 0:
            return ints()
        if self.width:
            count = np.clip(limits - self.low, 0, self.width)
            starts = np.repeat(np.arange(len(count)) * self.width, count)
            return starts + _counting(count)
        return np.flatnonzero(self.pair_sequences < limits[self.pair_streams])


def _counting(counts: Ints) -> Ints:
    """Return 0, 1, … count - 1 for each count, concatenated."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total, dtype=np.int64) - np.repeat(ends - counts, counts)


def build_index(
    tables: Sequence[Rows], vocabulary: Vocabulary, *, low: int, extents: Mapping[Stream, int]
) -> tuple[Index, list[Ints]]:
    """Return the index of all rows and planned streams, and the slot of each row.

    `extents` has the planned streams and the limit of their sequences; they need no rows.
    """
    streams, codes = _number_streams(tables, vocabulary, extents.keys())
    sequences = [table["sequence"] for table in tables]
    top = max((int(s.max()) + 1 for s in sequences if len(s)), default=low)
    width = max([top, *extents.values(), low]) - low
    rows = sum(map(len, sequences))
    if len(streams) * width <= max(_DENSE_SLOTS, _DENSE_SLOTS_PER_ROW * rows):
        index = Index(streams, low, width, ints(), ints())
        slots = [code * width + (s - low) for code, s in zip(codes, sequences, strict=True)]
        return index, slots
    return _sparse_index(streams, codes, sequences, low)


def _sparse_index(
    streams: list[Stream], codes: Sequence[Ints], sequences: Sequence[Array], low: int
) -> tuple[Index, list[Ints]]:
    values, ranks = np.unique(np.concatenate(sequences), return_inverse=True)
    pairs = np.concatenate(codes) * len(values) + ranks
    distinct, slots = np.unique(pairs, return_inverse=True)
    index = Index(streams, low, 0, distinct // len(values), values[distinct % len(values)])
    return index, np.split(slots, np.cumsum([len(s) for s in sequences])[:-1])


def _number_streams(
    tables: Sequence[Rows], vocabulary: Vocabulary, planned: Iterable[Stream]
) -> tuple[list[Stream], list[Ints]]:
    """Return all streams in the order of names, and the stream number of each row."""
    words, lanes = max(len(vocabulary), 1), _lane_span(tables)
    packed = [_pack_streams(table, words, lanes) for table in tables]
    span = len(vocabulary.producers) * words * lanes
    distinct = _distinct(packed, span)
    found = [_decode_stream(vocabulary, *divmod(p, lanes)) for p in distinct.tolist()]
    streams = sorted({*found, *planned}, key=sort_key)
    places = {stream: place for place, stream in enumerate(streams)}
    numbers = ints([places[stream] for stream in found])
    if span <= _TABLE_SIZE:
        table = full_ints(span)
        table[distinct] = numbers
        return streams, [table[p] for p in packed]
    return streams, [numbers[np.searchsorted(distinct, p)] for p in packed]


def _pack_streams(table: Rows, words: int, lanes: int) -> Ints:
    """Return a number for the stream of each row; `lanes` as `_lane_span` says."""
    producer, topic, lane = (table[name] for name in (PRODUCER_NUMBER, "topic", "lane"))
    own = lane.astype(np.int64)
    if lanes == _ANY_LANE:
        own %= lanes
    if len(own) and is_repeated_value(producer) and is_repeated_value(topic):
        own += (int(producer[0]) * words + int(topic[0])) * lanes
        return own
    own += (producer.astype(np.int64) * words + topic) * lanes
    return own


def _decode_stream(vocabulary: Vocabulary, packed: int, lane: int) -> Stream:
    number, topic = divmod(packed, len(vocabulary))
    producer, incarnation = vocabulary.producers[number]
    return Stream(producer, vocabulary.names[topic], _lane(lane), incarnation)


def _lane_span(tables: Sequence[Rows]) -> int:
    """Return the number of lanes to allow for; a garbled lane may be any 32-bit number."""
    low = min((int(t["lane"].min()) for t in tables if len(t["lane"])), default=0)
    high = max((int(t["lane"].max()) for t in tables if len(t["lane"])), default=0)
    return high + 1 if low >= 0 else _ANY_LANE


def _lane(packed: int) -> int:
    """Lanes are signed 32-bit numbers in the ledgers."""
    return packed if packed < 1 << 31 else packed - (1 << 32)


def _distinct(packed: Sequence[Ints], span: int) -> Ints:
    if span > _TABLE_SIZE:
        return np.unique(np.concatenate(packed)) if packed else ints()
    seen = np.zeros(span, dtype=np.bool_)
    for codes in packed:
        seen[codes] = True
    return np.flatnonzero(seen)
