"""Compacting a log's files, beside those who write to it and read from it.

A log says what is to be compacted (`CleanJob`), a thread writes the new files, and the log swaps
them for the old ones:

    00000000000000000000.log.cleaned    being written; one that is found at a start is removed
    00000000000000000000.log.swap       complete: it takes the place of the segments that begin
                                        within what it spans, also at the next start

Rules of this file:
- Only sealed segments are read, so nothing changes under the thread. If the log was cut or
  deleted meanwhile, the job does not count.
- Old segments go in the order of their offsets: a tombstone never before what it deletes.
- Every step is on the disk before the next one begins.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from shoal.lite.base.log_settings import LogSettings
from shoal.lite.storage.cleaning.compaction import (
    Dirt,
    Filter,
    KeyMap,
    Outcomes,
    cleanable_until,
    grouped,
)
from shoal.lite.storage.disk import sync, write_whole
from shoal.lite.storage.files import (
    DamagedFile,
    decode_checkpoint,
    encode_checkpoint,
    replace_file,
    sync_folder,
)
from shoal.lite.storage.header import BatchHeader
from shoal.lite.storage.scan import headers
from shoal.lite.storage.segment import LOG_SUFFIX, Segment
from shoal.lite.storage.state.producer_state import EndedTransaction

CLEANED_SUFFIX: Final = ".cleaned"
SWAP_SUFFIX: Final = ".swap"
CLEANER_CHECKPOINT: Final = "cleaner-offset-checkpoint"
# How many keys one pass remembers; a log with more is compacted in several.
MOST_KEYS: Final = 500_000
_WRITTEN_AT_ONCE_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Swap:
    """Segments in a row, and the file that replaces them; None if nothing is left of them."""

    old: list[Segment]
    path: Path | None
    # Aborted transactions whose markers are still there.
    aborted: list[EndedTransaction]


@dataclass(slots=True)
class CleanJob:
    """What to compact. `run` may be called from any thread, once."""

    folder: Path
    segments: Sequence[Segment]
    settings: LogSettings
    first_dirty: int
    until: int
    # See `compaction.last_batches`.
    last: dict[int, tuple[int | None, int]]
    now_ms: int
    swaps: list[Swap] = field(default_factory=list)

    def run(self) -> None:
        """Write the new files; `OSError` if the disk fails, `DamagedLog` if the log is damaged."""
        aborted = [entry for segment in self.segments for entry in segment.transactions]
        keys = self._keys(aborted)
        self.until = keys.until
        chosen = [segment for segment in self.segments if segment.base_offset < self.until]
        judge = Filter(
            keys, Outcomes(aborted), self.last, self.now_ms, self.settings.delete_retention_ms
        )
        for places in grouped(dirt_of(chosen, self.until), self.settings):
            self.swaps.append(self._cleaned([chosen[place] for place in places], judge))

    def _keys(self, aborted: list[EndedTransaction]) -> KeyMap:
        keys = KeyMap(self.first_dirty, MOST_KEYS)
        outcomes = Outcomes(e for e in aborted if e.last_offset >= self.first_dirty)
        for segment in self.segments:
            found = segment.locate(self.first_dirty)
            for position, header in segment.batches(found[0]) if found is not None else ():
                if keys.is_full:
                    return keys
                keys.add(_read(segment, position, header), header, outcomes)
        # What compaction has emptied has no batches to tell.
        keys.until = max(keys.until, self.until)
        return keys

    def _cleaned(self, old: list[Segment], judge: Filter) -> Swap:
        name = f"{old[0].base_offset:020d}{LOG_SUFFIX}{CLEANED_SUFFIX}"
        path = self.folder / name
        size = 0
        ends: set[int] = set()
        pending = bytearray()
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            for segment in old:
                for position, header in segment.batches():
                    kept = judge.kept(_read(segment, position, header), header)
                    if kept is None:
                        continue
                    pending += kept
                    if header.is_control:
                        ends.add(header.last_offset)
                    if len(pending) >= _WRITTEN_AT_ONCE_BYTES:
                        write_whole(descriptor, pending, size)
                        size += len(pending)
                        pending.clear()
            write_whole(descriptor, pending, size)
            size += len(pending)
            sync(descriptor)
        finally:
            os.close(descriptor)
        if size == 0:
            path.unlink()
        aborted = [
            entry for segment in old for entry in segment.transactions if entry.last_offset in ends
        ]
        return Swap(old, path if size else None, aborted)

    def forget(self) -> None:
        """Remove what was written: it is not needed."""
        for swap in self.swaps:
            if swap.path is not None:
                swap.path.unlink(missing_ok=True)


def swapped(folder: Path, swap: Swap, interval_bytes: int) -> list[Segment]:
    """Put a new file into the place of the old ones; the segments that are there now."""
    if swap.path is not None:
        swap.path.replace(swap.path.with_suffix(SWAP_SUFFIX))
        sync_folder(folder)
    for segment in swap.old:
        segment.delete()
    sync_folder(folder)
    if swap.path is None:
        return []
    return [_taken_over(folder, swap, interval_bytes)]


def _taken_over(folder: Path, swap: Swap, interval_bytes: int) -> Segment:
    base_offset = swap.old[0].base_offset
    path = folder / f"{base_offset:020d}{LOG_SUFFIX}"
    path.with_name(path.name + SWAP_SUFFIX).replace(path)
    segment = Segment(folder, base_offset)
    segment.rebuild(interval_bytes, lambda _position, _header: None, checks_all=False)
    for entry in swap.aborted:
        segment.transactions.add(entry)
    segment.seal()
    segment.flush()
    return segment


def finish_swaps(folder: Path) -> None:
    """At a start: remove what is incomplete, and finish what was about to be swapped."""
    for path in folder.glob(f"*{LOG_SUFFIX}{CLEANED_SUFFIX}"):
        path.unlink()
    for path in sorted(folder.glob(f"*{LOG_SUFFIX}{SWAP_SUFFIX}")):
        base_offset = int(path.name.split(".")[0])
        end_offset = _end_of(path)
        for other in sorted(folder.glob(f"*{LOG_SUFFIX}")):
            if base_offset <= int(other.stem) < max(end_offset, base_offset + 1):
                Segment(folder, int(other.stem)).delete()
        sync_folder(folder)
        path.replace(path.with_suffix(""))
        sync_folder(folder)


def _end_of(path: Path) -> int:
    """The offset behind the last batch of a complete file."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(descriptor).st_size
        end_offset = 0
        for _, header in headers(lambda at, count: os.pread(descriptor, count, at), 0, size):
            end_offset = header.last_offset + 1
        return end_offset
    finally:
        os.close(descriptor)


def dirt_of(segments: Sequence[Segment], end_offset: int) -> list[Dirt]:
    """Segments as the planner sees them; `end_offset` is where the last one ends."""
    bounds = [*(segment.base_offset for segment in segments[1:]), end_offset]
    return [
        Dirt(segment.base_offset, bound, segment.size, segment.newest_ms)
        for segment, bound in zip(segments, bounds, strict=True)
    ]


def due_until(
    sealed: Sequence[Segment],
    active_base_offset: int,
    settings: LogSettings,
    *,
    first_dirty: int,
    stable_offset: int,
    now_ms: int,
) -> int | None:
    """Up to which offset a log should be compacted now, if at all."""
    if not settings.compacts or not sealed:
        return None
    return cleanable_until(
        dirt_of(sealed, active_base_offset),
        settings,
        first_dirty=first_dirty,
        stable_offset=stable_offset,
        now_ms=now_ms,
    )


def _read(segment: Segment, position: int, header: BatchHeader) -> memoryview:
    """A batch; `DamagedLog` if it is damaged: it would be written again with a good checksum."""
    segment.check_batch((position, header))
    return memoryview(segment.read_at(position, header.size))


__all__ = ["CleanJob", "Swap", "due_until", "finish_swaps", "swapped"]


def note_cleaned(folder: Path, offset: int) -> None:
    """Remember up to where a log is compacted."""
    content = encode_checkpoint([(0, offset)])
    replace_file(folder / CLEANER_CHECKPOINT, content, durable=False)


def cleaned_until(folder: Path) -> int:
    """Up to where a log was compacted, as far as that is known."""
    path = folder / CLEANER_CHECKPOINT
    try:
        [(_, offset)] = decode_checkpoint(path.read_bytes(), source=str(path))
    except (FileNotFoundError, DamagedFile, ValueError):
        return 0
    return offset
