"""Deep mode: puts the records of several batches into new ones; pure.

Settings are those of a Kafka producer: `batch.size` (before compression), `linger.ms`,
`compression.type` (`producer` keeps the codec of the source's batch).

Rules:
- A group of gathered records ends where a source batch ends, so that a mirror can resume there. It
  is packed into as many batches as `batch.size` requires. Several source batches share a new one
  only as far as they fit.
- Records keep keys, values, headers and timestamps; with `keeps_offsets` their offsets too. What no
  handler has changed is not decoded (`shoal.wire.records.joining`).
- Records wait no longer than `linger.ms` (`is_due`).
- With `keeps_whole`, a source batch that found no others to join is sent as it is.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Final, NamedTuple

from shoal.mirror.offsets.offset_map import OffsetSpan, find_spans
from shoal.wire.batch import Batch
from shoal.wire.records.compression import Codec
from shoal.wire.records.joining import BatchJoiner, Part, SourceBatch

KEEP: Final = "producer"
CODECS: Final = {codec.name.lower(): codec for codec in Codec}
# Of a record, besides its body: at most its length, attributes and deltas.
_OVERHEAD_BYTES: Final = 10


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
    source_batches: int = 1


class JoinedFront(NamedTuple):
    """What became of the small batches at the front of a record set."""

    groups: list[BatchGroup]  # that are complete now
    size_bytes: int
    batches: int
    controls: int  # of these, control batches
    next_offset: int
    epochs: list[tuple[int, int]]  # leader epochs that begin there, with their first offset


@dataclass(slots=True)
class Rebatcher:
    """Gathers the records of one partition for new batches."""

    rules: DeepRules
    keeps_offsets: bool = False
    keeps_whole: bool = False
    source_offset: int = -1  # of the first batch whose records are gathered
    next_offset: int = -1
    since: float | None = None  # when `is_due` first saw records waiting
    _joiner: BatchJoiner = field(init=False)
    _finished: list[Batch] = field(default_factory=list)
    _spans: list[OffsetSpan] = field(default_factory=list)
    _codec: int = Codec.NONE
    _sources: int = 0
    _whole: Batch | None = None  # of the only source batch so far

    def __post_init__(self) -> None:
        self._joiner = BatchJoiner(self.keeps_offsets)

    @property
    def is_filled(self) -> bool:
        return self._sources > 0

    def add(self, source: SourceBatch, whole: Batch | None = None) -> list[BatchGroup]:
        """Gather the records of one source batch; returns the groups that are complete now.

        `whole` is the batch itself, if it could be sent as it is.
        """
        limit = self.rules.batch_size_bytes
        groups = []
        if self._sources and self._joiner.size + source.size > limit:
            groups.append(self.take())
        if not self._sources:
            self.source_offset, self._whole = source.source_offset, whole
        else:
            self._whole = None
        self.next_offset = source.next_offset
        wanted = self.rules.compression_type
        self._codec = source.codec if wanted == KEEP else CODECS[wanted]
        self._sources += 1
        self._gather(source.parts)
        self._extend_spans(_spans(source))
        if self._joiner.size >= limit or self._finished:
            groups.append(self.take())
        return groups

    def join_front(self, records: memoryview, position: int, *, has_aborted: bool) -> JoinedFront:
        """Gather the small batches at the front of a record set, all in one pass.

        The others are for `add`.
        """
        data, limit, at = bytes(records), self.rules.batch_size_bytes, 0
        groups: list[BatchGroup] = []
        epochs: list[tuple[int, int]] = []
        batches = controls = 0
        wanted = self.rules.compression_type
        while True:
            run = self._joiner.add_small(
                data, at, position, limit_bytes=limit, has_aborted=has_aborted
            )
            at, position, epochs = run.end, run.next_offset, epochs + run.epochs
            batches, controls = batches + run.joined + run.controls, controls + run.controls
            if run.joined:
                if not self._sources:
                    self.source_offset = run.spans[0][0]
                self._whole, self._sources = None, self._sources + run.joined
                self.next_offset = sum(run.spans[-1])
                self._codec = Codec.NONE if wanted == KEEP else CODECS[wanted]
                for first, count in run.spans:
                    self._extend_spans([OffsetSpan(first, count, count)])
            if not run.is_full:
                return JoinedFront(groups, at, batches, controls, position, epochs)
            groups.append(self.take())

    def _gather(self, parts: Iterable[Part]) -> None:
        limit, joiner = self.rules.batch_size_bytes, self._joiner
        for part in parts:
            if joiner.count and (
                joiner.size + len(part.body) + _OVERHEAD_BYTES > limit
                or not joiner.accepts(part.timestamp)
            ):
                self._finished.append(joiner.build(self._codec))
                joiner = self._joiner = BatchJoiner(self.keeps_offsets)
            joiner.add(part)

    def _extend_spans(self, spans: list[OffsetSpan]) -> None:
        """Add the spans of a source batch; a log without gaps stays one span."""
        first = spans[0]
        if self._spans and first.sources == first.records:
            last = self._spans[-1]
            if last.sources == last.records and last.source + last.sources == first.source:
                both = last.records + first.records
                self._spans[-1] = OffsetSpan(last.source, both, both)
                spans = spans[1:]
        self._spans += spans

    def is_due(self, now: float) -> bool:
        """Whether the gathered records have waited for `linger.ms`; must be polled."""
        if not self._sources:
            return False
        if self.since is None:
            self.since = now
        return now >= self.since + self.rules.linger_ms / 1000

    @property
    def due_at(self) -> float | None:
        return None if self.since is None else self.since + self.rules.linger_ms / 1000

    def take(self) -> BatchGroup:
        """Pack all gathered records into batches."""
        whole = self._whole if self.keeps_whole else None
        if whole is None and self._joiner.count:
            self._finished.append(self._joiner.build(self._codec))
        group = BatchGroup(
            self._finished if whole is None else [whole],
            self._spans,
            self.source_offset,
            self.next_offset,
            is_re_encoded=whole is None,
            source_batches=self._sources,
        )
        self.forget(self.next_offset)
        return group

    def forget(self, position: int) -> int:
        """Drop the gathered records; returns the source offset of the first, or `position`."""
        began = self.source_offset if self._sources else position
        self._joiner = BatchJoiner(self.keeps_offsets)
        self._finished = []
        self._spans = []
        self._sources = 0
        self._whole = None
        self.since = None
        return began


def _spans(source: SourceBatch) -> list[OffsetSpan]:
    """The source offsets of records; one span for all if a handler has changed the offsets."""
    first, end, count = source.source_offset, source.next_offset, len(source.parts)
    if source.is_plain or end - first == count == 1:
        return [OffsetSpan(first, count, count)]
    before = first - 1
    for part in source.parts:
        if not before < part.offset < end:
            return [OffsetSpan(first, end - first, count)]
        before = part.offset
    return find_spans(part.offset for part in source.parts)
