"""Which target offset a source offset became: exact, in runs, and small; pure.

Rules:
- Source offset N maps to the target offset of the first copied record at or above N; where none
  was copied above and all below is done, to the target's end; else it is not known yet.
- A run is a stretch in which each source offset is one target offset. A new one begins where
  source and target do not go on together: markers, aborted and compacted records at the source,
  markers at the target. So a log without gaps is one run, however long.
- Where a batch was changed to another number of records (by a handler), or where a piece of the
  map is missing, its source offsets all map to the first target offset of it: a reader may then
  see records again, but misses none.
- Runs are kept in blocks of some hundred, each under its first source offset. A block says up
  to where it is complete. Only the last block of a partition still changes.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from shoal.wire.errors import Malformed
from shoal.wire.records.varint import append_varint, read_varlong

BLOCK_RUNS: Final = 256
_FORMAT: Final = 1

Blocks = Mapping[int, bytes]  # by their first source offset


class Span(NamedTuple):
    """So many source offsets from one on, and as how many records they are copied."""

    source: int
    sources: int
    records: int


class Run(NamedTuple):
    """A span and where it is at the target."""

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
        """Where the first record at or above a source offset below the end is."""
        if offset <= self.source or self.sources != self.targets:
            return self.target
        return self.target + offset - self.source


def spans_of(offsets: Iterable[int]) -> list[Span]:
    """The spans of records at these offsets, in order."""
    spans: list[Span] = []
    for offset in offsets:
        if spans and spans[-1].source + spans[-1].sources == offset:
            spans[-1] = Span(spans[-1].source, spans[-1].sources + 1, spans[-1].records + 1)
        else:
            spans.append(Span(offset, 1, 1))
    return spans


def cut_spans(spans: Iterable[Span], records: int) -> tuple[list[Span], list[Span]]:
    """The spans of the first so many records, and those of the others."""
    head: list[Span] = []
    rest: list[Span] = []
    for span in spans:
        inside = min(records, span.records)
        records -= inside
        if inside == span.records:
            head.append(span)
        elif not inside:
            rest.append(span)
        else:
            # Where records do not stand for offsets, all offsets go with the first of them.
            sources = inside if span.sources == span.records else span.sources
            end = span.source + sources
            head.append(Span(span.source, sources, inside))
            rest.append(Span(end, span.sources - sources, span.records - inside))
    return head, rest


class MapWriter:
    """The end of a partition's map, as a running mirror extends it."""

    def __init__(self, start: int, runs: Iterable[Run] = ()) -> None:
        """`start` is the first source offset of the block, and all that it holds so far `runs`."""
        self._start = start
        self._runs = list(runs)
        self._until = self._runs[-1].end if self._runs else start
        self._sealed: dict[int, bytes] = {}
        self._is_saved = False

    def copy(self) -> "MapWriter":
        """One that may be extended, and be thrown away, on its own."""
        other = MapWriter(self._start, self._runs)
        other._until, other._is_saved = self._until, self._is_saved
        other._sealed = dict(self._sealed)
        return other

    def add(self, spans: Iterable[Span], target: int) -> None:
        """These were copied, one behind the other, to this target offset."""
        self._is_saved = False
        for span in spans:
            run = Run(span.source, span.sources, target, span.records)
            target += span.records
            self._until = run.end
            if not self._joined(run):
                if len(self._runs) >= BLOCK_RUNS:
                    self._seal()
                self._runs.append(run)

    def reach(self, done: int) -> None:
        """All source offsets below are copied, or not copied on purpose."""
        if done > self._until:
            self._until = done
            self._is_saved = False

    def unsaved(self) -> dict[int, bytes]:
        """Blocks that were not written yet, or have changed since."""
        if self._is_saved:
            return dict(self._sealed)
        return {**self._sealed, self._start: encode_block(self._until, self._runs)}

    def saved(self, blocks: Blocks) -> None:
        """These have been written."""
        for start, block in blocks.items():
            if self._sealed.get(start) == block:
                del self._sealed[start]
        is_same = blocks.get(self._start) == encode_block(self._until, self._runs)
        self._is_saved = self._is_saved or is_same

    def _joined(self, run: Run) -> bool:
        last = self._runs[-1] if self._runs else None
        if last is None or (last.end, last.target_end) != (run.source, run.target):
            return False
        if last.sources != last.targets or run.sources != run.targets:
            return False
        self._runs[-1] = Run(
            last.source, last.sources + run.sources, last.target, last.targets + run.targets
        )
        return True

    def _seal(self) -> None:
        # The run that does not fit any more begins the next block.
        until = self._runs[-1].end
        self._sealed[self._start] = encode_block(until, self._runs)
        self._start = until
        self._runs = []


def resumed_writer(
    blocks: Blocks, source_offset: int, target_offset: int, *, first: int = 0
) -> tuple[MapWriter, set[int]]:
    """A writer that goes on at a checkpoint, and which blocks are void by that.

    What stands there above the checkpoint is found again by whoever goes on from it. `first` is
    the target offset at which the copy began.
    """
    void = {start for start in blocks if start > source_offset}
    below = [start for start in blocks if start <= source_offset]
    if not below:
        # Nothing is known of what was copied before: that maps to its first record.
        before = (
            [Run(0, source_offset, first, target_offset - first)]
            if source_offset and target_offset > first
            else []
        )
        return MapWriter(0 if before else source_offset, before), void
    start = max(below)
    until, runs = decode_block(start, blocks[start])
    kept = [clipped for run in runs if (clipped := _clipped(run, source_offset)) is not None]
    if until < source_offset:
        end = kept[-1].target_end if kept else target_offset
        kept.append(Run(until, source_offset - until, min(end, target_offset), 0))
    return MapWriter(start, kept), void


def _clipped(run: Run, end: int) -> Run | None:
    """The part of a run below a source offset."""
    if run.source >= end:
        return None
    if run.end <= end or run.sources != run.targets:
        return run
    return Run(run.source, end - run.source, run.target, end - run.source)


class OffsetMap:
    """The whole map of a partition, as it is kept."""

    def __init__(self, blocks: Blocks) -> None:
        self._starts = sorted(blocks)
        self._blocks = blocks

    def translate(self, offset: int, *, done: int, target_end: int) -> int | None:
        """The target offset, None while it is not known.

        `done` and `target_end` are the checkpoint's: how far the source is copied, and to where.
        """
        if offset > done:
            return None
        index = max(0, bisect_right(self._starts, offset) - 1)
        for run in self._runs_from(index):
            if run.end > offset:
                return min(run.at(offset), target_end)
        return target_end

    def records_between(self, offset: int, end: int) -> int:
        """How many records were copied of these source offsets, as far as the map tells."""
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
        """Blocks of which everything lies below a target offset; never the last."""
        found = []
        for start in self._starts[:-1]:
            _, runs = decode_block(start, self._blocks[start])
            if runs and runs[-1].target_end > target_offset:
                break
            found.append(start)
        return found

    def _runs_from(self, index: int) -> Iterator[Run]:
        reached = self._starts[index] if self._starts else 0
        target = 0
        for start in self._starts[index:]:
            until, runs = decode_block(start, self._blocks[start])
            if start > reached:
                # A piece is missing: everything in it maps to where it must begin.
                yield Run(reached, start - reached, target, 0)
            for run in runs:
                target = run.target_end
                yield run
            reached = max(reached, until)


def encode_block(until: int, runs: Iterable[Run]) -> bytes:
    output = bytearray([_FORMAT])
    append_varint(output, until)
    source = target = 0
    for run in runs:
        append_varint(output, run.source - source)
        append_varint(output, run.target - target)
        append_varint(output, run.sources)
        append_varint(output, run.targets - run.sources)
        source, target = run.end, run.target_end
    return bytes(output)


def decode_block(start: int, block: bytes) -> tuple[int, list[Run]]:
    """Up to where it is complete, and its runs."""
    if not block or block[0] != _FORMAT:
        raise Malformed(f"the offset map's block of source offset {start} is of another format")
    until, position = read_varlong(block, 1)
    source = target = 0
    runs: list[Run] = []
    while position < len(block):
        values = []
        for _ in range(4):
            value, position = read_varlong(block, position)
            values.append(value)
        source_gap, target_gap, sources, more = values
        run = Run(source + source_gap, sources, target + target_gap, sources + more)
        runs.append(run)
        source, target = run.end, run.target_end
    return until, runs
