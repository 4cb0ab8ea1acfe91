"""Restores the producer state from a snapshot and the batches after it.

Rules of this file:
- Replaying begins at the latest snapshot, if one exists, and reads the batches after it.
- A snapshot has only the last batch of each producer. So a few MiB before it are read too: a
  producer that repeats one of its last five batches after a restart is recognised.
"""

from collections.abc import Sequence

from shoal.lite.storage.header import BatchHeader
from shoal.lite.storage.scan import LocatedBatch
from shoal.lite.storage.segment import Segment, segment_index_of
from shoal.lite.storage.state.producer_state import EndedTransaction, ProducerStates
from shoal.lite.storage.state.snapshots import ProducerSnapshot, add_recent_batches
from shoal.wire.batch import Batch
from shoal.wire.records.records import ControlMarker, decode_control, decode_records

LOOK_BACK_BYTES = 4 * 1024 * 1024


def restore_producers(
    snapshot: ProducerSnapshot | None, segments: Sequence[Segment], end_offset: int
) -> ProducerStates:
    """The producer state at `end_offset`; the snapshot must not be above it."""
    states = ProducerStates()
    start_offset = 0
    if snapshot is not None:
        start_offset = snapshot.offset
        recent = ProducerStates()
        for segment, position in _ranges_before(segments, start_offset):
            _replay_range(recent, segment, position, start_offset)
        known = dict(recent.items())
        for producer_id, producer in snapshot.producers.items():
            states.restore(producer_id, add_recent_batches(producer, known.get(producer_id)))
        states.on_snapshot_restored(start_offset)
    for segment in segments[segment_index_of(segments, start_offset) :]:
        found = segment.locate(start_offset)
        if found is not None:
            _replay_range(states, segment, found[0], end_offset)
    return states


def _ranges_before(segments: Sequence[Segment], offset: int) -> list[tuple[Segment, int]]:
    """The last few MiB below an offset: segments, and the start position in each."""
    ranges: list[tuple[Segment, int]] = []
    remaining_bytes = LOOK_BACK_BYTES
    for segment in reversed(segments[: segment_index_of(segments, offset) + 1]):
        start, end = segment.range_before(offset, remaining_bytes)
        ranges.append((segment, start))
        remaining_bytes -= end - start
        if remaining_bytes <= 0:
            break
    return ranges[::-1]


def _replay_range(states: ProducerStates, segment: Segment, position: int, end_offset: int) -> None:
    for found in segment.batches(position):
        if found[1].base_offset >= end_offset:
            return
        replay(states, segment, found)


def replay(
    states: ProducerStates, segment: Segment, found: LocatedBatch
) -> EndedTransaction | None:
    """Record a batch of the log again; returns the transaction that it ends, if any."""
    position, header = found
    if not header.is_control:
        states.record(header, header.base_offset)
        return None
    batch = memoryview(segment.read_at(position, header.size))
    return record_marker(states, batch, header, header.base_offset)


def record_marker(
    states: ProducerStates, view: memoryview, header: BatchHeader, offset: int
) -> EndedTransaction | None:
    """Record a control batch; returns the transaction that it ends, if any."""
    # Compaction has emptied this control batch: it ends no transaction.
    if header.record_count == 0:
        return None
    return states.record_marker(header, offset, marker_in(view))


def marker_in(view: memoryview) -> ControlMarker:
    """The marker of a control batch."""
    return decode_control(decode_records(Batch(view))[0])
