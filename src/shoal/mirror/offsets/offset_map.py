"""Maps source offsets to target offsets: exact and compact, as runs; pure.

Rules:
- Source offset N maps to the target offset of the first copied record at or above N. If no record
  above N was copied and everything below is done, it maps to the target's end; else it is unknown.
- A run is a range in which each source offset is one target offset. A new run begins where source
  and target offsets do not advance together: markers, aborted and compacted records at the source,
  markers at the target. So a log without gaps is one run, regardless of its length.
- Where a handler changed the number of records of a batch, or where a piece of the map is missing,
  all its source offsets map to its first target offset: a consumer may read records twice, but
  misses none.
- Runs are stored in blocks of some dozen, with the first source offset as key. A block says up to
  where it is complete. Only the last block of a partition still changes. A block of format 2 is a
  block of format 1 that is compressed; gaps that repeat, as markers of transactions do, take
  one to three bytes each.
- The blocks of a partition take at most `MAP_LIMIT_BYTES`; then the oldest are dropped
  (`find_excess`). What they mapped is not translated any longer: `OffsetMap.knows` says so. If the
  maps of all partitions take more than `MAPS_LIMIT_BYTES`, one that grows keeps an equal part of
  it, so that all together never take more than twice as much.
"""

import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from shoal.wire.errors import Malformed
from shoal.wire.records.varint import append_varint, read_varlong

# Rewritten once a second while the partition moves, so a block must be small.
BLOCK_RUNS: Final = 64
# Of all blocks of one partition, as stored.
MAP_LIMIT_BYTES: Final = 1 << 20
# Of all partitions of a mirror, as far as they grow: above it each may have an equal part.
MAPS_LIMIT_BYTES: Final = 128 << 20
_PLAIN: Final = 1
_COMPRESSED: Final = 2
# Smaller blocks hardly become shorter.
_COMPRESS_FROM_BYTES: Final = 64
# Of one decompressed block: each run has four numbers of at most ten bytes.
_BLOCK_LIMIT_BYTES: Final = 1 << 20

Blocks = Mapping[int, bytes]  # by their first source offset


class OffsetSpan(NamedTuple):
    """`sources` source offsets from `source` on, copied as `records` records."""

    source: int
    sources: int
    records: int


class OffsetRun(NamedTuple):
    """A span and its target offsets."""

    source: int
    sources: int
    target: int
    targets: int

    @property
    def end(self) -> int:
        return self.source + self.sources

    @property
    def target_end(self) -> int:
        return self.target + self.targets

    def at(self, offset: int) -> int:
        """The target offset of the first record at or above a source offset below `end`."""
        if offset <= self.source or self.sources != self.targets:
            return self.target
        return self.target + offset - self.source


def find_spans(offsets: Iterable[int]) -> list[OffsetSpan]:
    """Group ascending source offsets into spans."""
    spans: list[OffsetSpan] = []
    for offset in offsets:
        if spans and spans[-1].source + spans[-1].sources == offset:
            spans[-1] = OffsetSpan(spans[-1].source, spans[-1].sources + 1, spans[-1].records + 1)
        else:
            spans.append(OffsetSpan(offset, 1, 1))
    return spans


def split_spans(
    spans: Iterable[OffsetSpan], records: int
) -> tuple[list[OffsetSpan], list[OffsetSpan]]:
    """Split spans after the first `records` records."""
    head: list[OffsetSpan] = []
    rest: list[OffsetSpan] = []
    for span in spans:
        inside = min(records, span.records)
        records -= inside
        if inside == span.records:
            head.append(span)
        elif not inside:
            rest.append(span)
        else:
            # If records and offsets do not correspond, all offsets belong to the first records.
            sources = inside if span.sources == span.records else span.sources
            end = span.source + sources
            head.append(OffsetSpan(span.source, sources, inside))
            rest.append(OffsetSpan(end, span.sources - sources, span.records - inside))
    return head, rest


class MapWriter:
    """The last block of a partition's map, which a running mirror extends."""

    def __init__(self, start: int, runs: Iterable[OffsetRun] = ()) -> None:
        """`start` is the first source offset of the block, and `runs` is its content so far."""
        self._start = start
        self._runs = list(runs)
        # How far source and target have advanced together behind the last run, not yet in it.
        self._more = 0
        self._until = self._runs[-1].end if self._runs else start
        self._sealed: dict[int, bytes] = {}
        self._is_saved = False
        self._encoded: bytes | None = None  # the last block, until it changes

    def copy(self) -> "MapWriter":
        """Return an independent copy, which can be extended and discarded."""
        self._settle()
        other = MapWriter(self._start, self._runs)
        other._until, other._is_saved = self._until, self._is_saved
        other._sealed = dict(self._sealed)
        return other

    def add(self, spans: Iterable[OffsetSpan], target: int) -> None:
        """Add spans that were copied contiguously to this target offset."""
        self._settle()
        self._is_saved = False
        self._encoded = None
        for span in spans:
            run = OffsetRun(span.source, span.sources, target, span.records)
            target += span.records
            self._until = run.end
            if not self._try_join(run):
                if len(self._runs) >= BLOCK_RUNS:
                    self._seal()
                self._runs.append(run)

    def extend(self, source: int, count: int, target: int) -> None:
        """Add `count` offsets from `source` on, copied to as many from `target` on."""
        last = self._runs[-1] if self._runs else None
        if last is not None:
            begin, sources, to, targets = last
            more = self._more
            if (
                sources == targets
                and begin + sources + more == source
                and to + targets + more == target
            ):
                self._more = more + count
                self._until = source + count
                self._is_saved = False
                self._encoded = None
                return
        self.add((OffsetSpan(source, count, count),), target)

    def _settle(self) -> None:
        """Add what `extend` has noted to the last run."""
        if self._more:
            source, sources, target, targets = self._runs[-1]
            more, self._more = self._more, 0
            self._runs[-1] = OffsetRun(source, sources + more, target, targets + more)

    def advance_to(self, done: int) -> None:
        """Note that all source offsets below `done` are copied, or skipped on purpose."""
        if done > self._until:
            self._until = done
            self._is_saved = False
            self._encoded = None

    def blocks_to_save(self) -> dict[int, bytes]:
        """Return the blocks that are not written yet, or have changed since."""
        if self._is_saved:
            return dict(self._sealed)
        return {**self._sealed, self._start: self._encode_last()}

    def _encode_last(self) -> bytes:
        if self._encoded is None:
            self._settle()
            self._encoded = encode_block(self._until, self._runs)
        return self._encoded

    def mark_saved(self, blocks: Blocks) -> None:
        """Mark these blocks as written."""
        for start, block in blocks.items():
            if self._sealed.get(start) == block:
                del self._sealed[start]
        is_same = blocks.get(self._start) == self._encode_last()
        self._is_saved = self._is_saved or is_same

    def _try_join(self, run: OffsetRun) -> bool:
        last = self._runs[-1] if self._runs else None
        if last is None or (last.end, last.target_end) != (run.source, run.target):
            return False
        if last.sources != last.targets or run.sources != run.targets:
            return False
        self._runs[-1] = OffsetRun(
            last.source, last.sources + run.sources, last.target, last.targets + run.targets
        )
        return True

    def _seal(self) -> None:
        # The run that does not fit starts the next block.
        until = self._runs[-1].end
        self._sealed[self._start] = encode_block(until, self._runs)
        self._start = until
        self._runs = []


def resume_writer(
    blocks: Blocks, source_offset: int, target_offset: int, *, first: int = 0
) -> tuple[MapWriter, set[int]]:
    """Create a writer that continues at a checkpoint; returns it and the blocks to delete.

    Map entries above the checkpoint are recreated when the copy resumes from it. `first` is the
    target offset at which the copy began.
    """
    void = {start for start in blocks if start > source_offset}
    below = [start for start in blocks if start <= source_offset]
    if not below:
        # No map of what was copied before: all of it maps to its first record.
        before = (
            [OffsetRun(0, source_offset, first, target_offset - first)]
            if source_offset and target_offset > first
            else []
        )
        return MapWriter(0 if before else source_offset, before), void
    start = max(below)
    until, runs = decode_block(start, blocks[start])
    kept = [clipped for run in runs if (clipped := _clip(run, source_offset)) is not None]
    if until < source_offset:
        end = kept[-1].target_end if kept else target_offset
        kept.append(OffsetRun(until, source_offset - until, min(end, target_offset), 0))
    return MapWriter(start, kept), void


def _clip(run: OffsetRun, end: int) -> OffsetRun | None:
    """Return the part of a run below a source offset."""
    if run.source >= end:
        return None
    if run.end <= end or run.sources != run.targets:
        return run
    return OffsetRun(run.source, end - run.source, run.target, end - run.source)


class OffsetMap:
    """The complete map of a partition, as stored."""

    def __init__(self, blocks: Blocks) -> None:
        self._starts = sorted(blocks)
        self._blocks = blocks

    def knows(self, offset: int, *, first_target: int) -> bool:
        """Whether the map has a source offset, or all copied records are at or above its start.

        `first_target` is the target offset of the first record that is there: of the copy, or of
        the target's log, if that has deleted older ones.
        """
        if not self._starts or offset >= self._starts[0]:
            return True
        first = next(self._runs_from(0), None)
        return first is None or first.target <= first_target

    def translate(self, offset: int, *, done: int, target_end: int) -> int | None:
        """Return the target offset of a source offset; None while it is unknown.

        `done` and `target_end` are the source and target offsets of the checkpoint.
        """
        if offset > done:
            return None
        index = max(0, bisect_right(self._starts, offset) - 1)
        for run in self._runs_from(index):
            if run.end > offset:
                return min(run.at(offset), target_end)
        return target_end

    def count_records(self, offset: int, end: int) -> int:
        """Count the records copied from these source offsets, as far as the map knows."""
        index = max(0, bisect_right(self._starts, offset) - 1)
        count = 0
        for run in self._runs_from(index):
            if run.source >= end:
                break
            if run.end > offset:
                last = run.target_end if run.end <= end else run.at(end)
                count += last - run.at(offset)
        return count

    def below(self, target_offset: int) -> list[int]:
        """Find blocks that map only to records below a target offset; never the last block."""
        found = []
        for start in self._starts[:-1]:
            _, runs = decode_block(start, self._blocks[start])
            if runs and runs[-1].target_end > target_offset:
                break
            found.append(start)
        return found

    def _runs_from(self, index: int) -> Iterator[OffsetRun]:
        reached = self._starts[index] if self._starts else 0
        target = 0
        for start in self._starts[index:]:
            until, runs = decode_block(start, self._blocks[start])
            if start > reached:
                # A piece is missing: all its offsets map to the target offset where it begins.
                yield OffsetRun(reached, start - reached, target, 0)
            for run in runs:
                target = run.target_end
                yield run
            reached = max(reached, until)


def find_excess(blocks: Blocks, limit_bytes: int = MAP_LIMIT_BYTES) -> list[int]:
    """Find the oldest blocks of a partition that exceed the limit; never the last block."""
    excess = sum(map(len, blocks.values())) - limit_bytes
    found: list[int] = []
    for start in sorted(blocks)[:-1]:
        if excess <= 0:
            break
        found.append(start)
        excess -= len(blocks[start])
    return found


def encode_block(until: int, runs: Iterable[OffsetRun]) -> bytes:
    output = bytearray([_PLAIN])
    append_varint(output, until)
    source = target = 0
    for run in runs:
        append_varint(output, run.source - source)
        append_varint(output, run.target - target)
        append_varint(output, run.sources)
        append_varint(output, run.targets - run.sources)
        source, target = run.end, run.target_end
    if len(output) >= _COMPRESS_FROM_BYTES:
        compressed = bytes([_COMPRESSED]) + zlib.compress(output)
        if len(compressed) < len(output):
            return compressed
    return bytes(output)


def _decompress_block(start: int, block: bytes) -> bytes:
    inflate = zlib.decompressobj()
    try:
        plain = inflate.decompress(block[1:], _BLOCK_LIMIT_BYTES)
    except zlib.error as error:
        raise Malformed(f"the offset map block at source offset {start} is damaged") from error
    if not inflate.eof:
        raise Malformed(f"the offset map block at source offset {start} is too large or cut off")
    return plain


def decode_block(start: int, block: bytes) -> tuple[int, list[OffsetRun]]:
    """Return up to which source offset a block is complete, and its runs."""
    if block[:1] == bytes([_COMPRESSED]):
        block = _decompress_block(start, block)
    if not block or block[0] != _PLAIN:
        raise Malformed(f"the offset map block at source offset {start} has an unknown format")
    until, position = read_varlong(block, 1)
    source = target = 0
    runs: list[OffsetRun] = []
    while position < len(block):
        values = []
        for _ in range(4):
            value, position = read_varlong(block, position)
            values.append(value)
        source_gap, target_gap, sources, more = values
        run = OffsetRun(source + source_gap, sources, target + target_gap, sources + more)
        runs.append(run)
        source, target = run.end, run.target_end
    return until, runs
