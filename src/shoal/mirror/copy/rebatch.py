"""Deep mode: decodes records and puts them into new batches; pure.

Settings are those of a Kafka producer: `batch.size` (before compression), `linger.ms`,
`compression.type` (`producer` keeps the codec of the source's batch).

Rules:
- A group of gathered records ends where a source batch ends, so that a mirror can resume there. It
  is packed into as many batches as `batch.size` requires.
- Records keep keys, values, headers and timestamps; with `keeps_offsets` their offsets too.
- Records wait no longer than `linger.ms` (`is_due`).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final, NamedTuple

from shoal.mirror.offsets.offset_map import OffsetSpan, find_spans
from shoal.wire.batch import Batch
from shoal.wire.records.compression import Codec
from shoal.wire.records.records import Record, encode_batch

KEEP: Final = "producer"
CODECS: Final = {codec.name.lower(): codec for codec in Codec}
# Approximate size of a record without its key, value and headers.
_OVERHEAD_BYTES: Final = 12


@dataclass(frozen=True, slots=True)
class DeepRules:
    """How batches are built in deep mode."""

    compression_type: Annotated[str, "compression_type"] = KEEP
    batch_size_bytes: Annotated[int, "batch_size_bytes"] = 16_384
    linger_ms: Annotated[int, "linger_ms"] = 0


class BatchGroup(NamedTuple):
    """New batches with all records of one or more whole source batches."""

    batches: list[Batch]
    spans: list[OffsetSpan]
    source_offset: int
    next_offset: int
    # In raw mode: this batch had to be re-encoded.
    is_re_encoded: bool = False


@dataclass(slots=True)
class Rebatcher:
    """Gathers the records of one partition for new batches."""

    rules: DeepRules
    keeps_offsets: bool = False
    source_offset: int = -1  # of the first batch whose records are gathered
    next_offset: int = -1
    since: float | None = None  # when `is_due` first saw records waiting
    _records: list[Record] = field(default_factory=list)
    _spans: list[OffsetSpan] = field(default_factory=list)
    _codec: int = Codec.NONE
    _bytes: int = 0

    @property
    def is_filled(self) -> bool:
        return bool(self._records)

    @property
    def is_full(self) -> bool:
        return self._bytes >= self.rules.batch_size_bytes

    def add(self, records: Sequence[Record], codec: int, span: tuple[int, int]) -> None:
        """Add the records of one source batch, which spans these offsets."""
        if not self._records:
            self.source_offset = span[0]
        self.next_offset = span[1]
        wanted = self.rules.compression_type
        self._codec = codec if wanted == KEEP else CODECS[wanted]
        self._records += records
        self._spans += _spans(records, span)
        self._bytes += sum(map(_size, records))

    def is_due(self, now: float) -> bool:
        """Whether the gathered records have waited for `linger.ms`; must be polled."""
        if not self._records:
            return False
        if self.since is None:
            self.since = now
        return now >= self.since + self.rules.linger_ms / 1000

    @property
    def due_at(self) -> float | None:
        return None if self.since is None else self.since + self.rules.linger_ms / 1000

    def take(self) -> BatchGroup:
        """Pack all gathered records into batches."""
        batches = [self._pack(some) for some in self._portions(self._records)]
        group = BatchGroup(batches, self._spans, self.source_offset, self.next_offset)
        self.forget(self.next_offset)
        return group

    def forget(self, position: int) -> int:
        """Drop the gathered records; returns the source offset of the first, or `position`."""
        began = self.source_offset if self._records else position
        self._records = []
        self._spans = []
        self._bytes = 0
        self.since = None
        return began

    def _portions(self, records: Iterable[Record]) -> Iterator[list[Record]]:
        portion: list[Record] = []
        size = 0
        for record in records:
            if portion and size + _size(record) > self.rules.batch_size_bytes:
                yield portion
                portion, size = [], 0
            portion.append(record)
            size += _size(record)
        if portion:
            yield portion

    def _pack(self, records: list[Record]) -> Batch:
        if not self.keeps_offsets:
            return Batch(memoryview(encode_batch(records, codec=self._codec)))
        first = records[0].offset
        packed = encode_batch(records, codec=self._codec, base_offset=first, keep_offsets=True)
        return Batch(memoryview(packed))


def _spans(records: Sequence[Record], whole: tuple[int, int]) -> list[OffsetSpan]:
    """The source offsets of records; one span for all if a handler has changed the offsets."""
    first, end = whole
    before = first - 1
    for record in records:
        if not before < record.offset < end:
            return [OffsetSpan(first, end - first, len(records))]
        before = record.offset
    return find_spans(record.offset for record in records)


def _size(record: Record) -> int:
    size = len(record.key or b"") + len(record.value or b"") + _OVERHEAD_BYTES
    for name, value in record.headers:
        size += len(name) + len(value or b"") + 2
    return size
