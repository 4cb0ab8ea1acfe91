"""Compacts the segments of a log while other threads write to it and read from it.

A log creates a `CleanJob`, a thread writes the new files, and the log swaps them in:

    00000000000000000000.log.cleaned    being written; removed if it is found at a start
    00000000000000000000.log.swap       complete: it replaces the segments that begin within its
                                        range, also at the next start

Rules of this file:
- Only sealed segments are read, so nothing changes under the thread. If the log was truncated or
  deleted meanwhile, the job is void.
- Old segments are deleted in the order of their offsets: a tombstone never before the records that
  it deletes.
- Every step is synced to disk before the next one begins.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from shoal.lite.base.log_settings import LogSettings
from shoal.lite.storage.cleaning.compaction import (
    BatchFilter,
    CleanableSegment,
    KeyMap,
    TransactionOutcomes,
    cleanable_until,
    group_segments,
    last_batches,
)
from shoal.lite.storage.disk import sync, write_whole
from shoal.lite.storage.files import sync_folder, write_offset
from shoal.lite.storage.header import HEADER_SIZE, BatchHeader
from shoal.lite.storage.offline import offline_on_error
from shoal.lite.storage.scan import headers
from shoal.lite.storage.segment import LOG_SUFFIX, Segment
from shoal.lite.storage.state.log_state import LogState
from shoal.lite.storage.state.producer_state import EndedTransaction

CLEANED_SUFFIX: Final = ".cleaned"
SWAP_SUFFIX: Final = ".swap"
CLEANER_CHECKPOINT: Final = "cleaner-offset-checkpoint"
# The maximum number of keys in one pass; a log with more needs several passes.
MOST_KEYS: Final = 500_000
_WRITE_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Swap:
    """Consecutive segments, and the file that replaces them; None if no record is left."""

    old: list[Segment]
    path: Path | None
    # The aborted transactions whose markers are kept.
    aborted: list[EndedTransaction]


@dataclass(slots=True)
class CleanJob:
    """The segments to compact. `run` may be called from any thread, once."""

    folder: Path
    segments: Sequence[Segment]
    settings: LogSettings
    first_dirty: int
    until: int
    # See `compaction.last_batches`.
    last: dict[int, tuple[int | None, int]]
    # The aborted transactions with records in these segments and their marker in a later one, where
    # their index entry is.
    aborted_later: Sequence[EndedTransaction]
    now_ms: int
    swaps: list[Swap] = field(default_factory=list)

    def run(self) -> None:
        """Write the new files; `OSError` if the disk fails, `DamagedLog` if the log is damaged."""
        aborted = [entry for segment in self.segments for entry in segment.transactions]
        aborted += self.aborted_later
        keys = self._keys(aborted)
        self.until = keys.until
        chosen = [segment for segment in self.segments if segment.base_offset < self.until]
        batch_filter = BatchFilter(
            keys,
            TransactionOutcomes(aborted),
            self.last,
            self.now_ms,
            self.settings.delete_retention_ms,
        )
        for indexes in group_segments(cleanable_segments(chosen, self.until), self.settings):
            self.swaps.append(
                self._write_cleaned([chosen[index] for index in indexes], batch_filter)
            )

    def _keys(self, aborted: Sequence[EndedTransaction]) -> KeyMap:
        keys = KeyMap(self.first_dirty, MOST_KEYS)
        outcomes = TransactionOutcomes(e for e in aborted if e.last_offset >= self.first_dirty)
        for segment in self.segments:
            found = segment.locate(self.first_dirty)
            for position, header in segment.batches(found[0]) if found is not None else ():
                if keys.is_full:
                    return keys
                keys.add(_read(segment, position, header), header, outcomes)
        # Segments that compaction has emptied have no batches that advance `until`.
        keys.until = max(keys.until, self.until)
        return keys

    def _write_cleaned(self, old: list[Segment], batch_filter: BatchFilter) -> Swap:
        name = f"{old[0].base_offset:020d}{LOG_SUFFIX}{CLEANED_SUFFIX}"
        path = self.folder / name
        size = 0
        ends: set[int] = set()
        pending = bytearray()
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            for segment in old:
                for position, header in segment.batches():
                    kept = batch_filter.filter_batch(_read(segment, position, header), header)
                    if kept is None:
                        continue
                    pending += kept
                    if header.is_control and len(kept) > HEADER_SIZE:
                        ends.add(header.last_offset)
                    if len(pending) >= _WRITE_BYTES:
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

    def discard(self) -> None:
        """Remove the new files: they are not needed."""
        for swap in self.swaps:
            if swap.path is not None:
                swap.path.unlink(missing_ok=True)


def swap_in(folder: Path, swap: Swap, interval_bytes: int) -> list[Segment]:
    """Replace old segments by the new file; returns the new segment, if there is one."""
    if swap.path is not None:
        swap.path.replace(swap.path.with_suffix(SWAP_SUFFIX))
        sync_folder(folder)
    for segment in swap.old:
        segment.delete()
    sync_folder(folder)
    if swap.path is None:
        return []
    return [_open_swap(folder, swap, interval_bytes)]


def _open_swap(folder: Path, swap: Swap, interval_bytes: int) -> Segment:
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
    """At a start: remove incomplete files, and finish interrupted swaps."""
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
    """The offset after the last batch of a complete file."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(descriptor).st_size
        end_offset = 0

        def read_at(position: int, count: int) -> bytes:
            return os.pread(descriptor, count, position)

        for _, header in headers(read_at, 0, size, file=path.name):
            end_offset = header.last_offset + 1
        return end_offset
    finally:
        os.close(descriptor)


def cleanable_segments(segments: Sequence[Segment], end_offset: int) -> list[CleanableSegment]:
    """The segments with their offsets, sizes and times; the last one ends at `end_offset`."""
    bounds = [*(segment.base_offset for segment in segments[1:]), end_offset]
    return [
        CleanableSegment(segment.base_offset, bound, segment.size, segment.newest_ms)
        for segment, bound in zip(segments, bounds, strict=True)
    ]


@offline_on_error("compacted")
def due_cleaning(log: LogState, now_ms: int, *, stable_offset: int) -> CleanJob | None:
    """A compaction job, or None if not due. Run it in any thread, then call `on_cleaned`."""
    log.require_online()
    sealed, active = log.segments[:-1], log.segments[-1]
    if not log.settings.compacts or not sealed:
        return None
    first_dirty = max(log.first_dirty, sealed[0].base_offset)
    until = cleanable_until(
        cleanable_segments(sealed, active.base_offset),
        log.settings,
        first_dirty=first_dirty,
        stable_offset=stable_offset,
        now_ms=now_ms,
    )
    if until is None:
        return None
    chosen = [segment for segment in sealed if segment.base_offset < until]
    return CleanJob(
        log.folder,
        chosen,
        log.settings,
        first_dirty,
        until,
        last=last_batches(log.producers),
        aborted_later=[
            entry
            for segment in log.segments[len(chosen) :]
            for entry in segment.transactions
            if entry.first_offset < until
        ],
        now_ms=now_ms,
    )


@offline_on_error("compacted")
def on_cleaned(log: LogState, job: CleanJob) -> None:
    """A job is done: its files replace the old segments, if those still exist."""
    if log.offline_reason is not None or not _has_sealed(log, job.segments):
        job.discard()
        return
    for swap in job.swaps:
        start = log.segments.index(swap.old[0])
        log.segments[start : start + len(swap.old)] = swap_in(
            log.folder, swap, log.settings.index_interval_bytes
        )
    log.flusher.on_truncated(log.segments)
    log.keep_snapshots()
    log.first_dirty = job.until
    write_offset(log.folder / CLEANER_CHECKPOINT, job.until, durable=False)


def _has_sealed(log: LogState, segments: Sequence[Segment]) -> bool:
    """Whether segments still exist, sealed and in this order."""
    if not segments or segments[0] not in log.segments[:-1]:
        return False
    start = log.segments.index(segments[0])
    return log.segments[start:-1][: len(segments)] == list(segments)


def _read(segment: Segment, position: int, header: BatchHeader) -> memoryview:
    """Read a batch; `DamagedLog` if it is damaged: a new checksum would hide that."""
    segment.check_batch((position, header))
    return memoryview(segment.read_at(position, header.size))
