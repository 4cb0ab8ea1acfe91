"""Learning again what producers have written, from what is in the log already.

Rules of this file:
- It begins with a snapshot, if there is one, and reads the batches behind it.
- A snapshot has the last batch of each producer only. So a few MiB before it are read again:
  whoever repeats one of its last five batches after a restart is recognised.
"""

from collections.abc import Sequence

from shoal.lite.storage.header import BatchHeader
from shoal.lite.storage.scan import Found
from shoal.lite.storage.segment import Segment, place_of
from shoal.lite.storage.state.producer_state import EndedTransaction, ProducerStates
from shoal.lite.storage.state.snapshots import Snapshot, completed
from shoal.wire.batch import Batch
from shoal.wire.records.records import ControlMarker, decode_control, decode_records

LOOK_BACK_BYTES = 4 * 1024 * 1024


def restored_producers(
    snapshot: Snapshot | None, segments: Sequence[Segment], end_offset: int
) -> ProducerStates:
    """What producers wrote below an offset, which the snapshot must not be above."""
    states = ProducerStates()
    start_offset = 0
    if snapshot is not None:
        start_offset = snapshot.offset
        recent = ProducerStates()
        for segment, position in _stretches_before(segments, start_offset):
            _replay_stretch(recent, segment, position, start_offset)
        known = dict(recent.items())
        for producer_id, producer in snapshot.producers.items():
            states.restore(producer_id, completed(producer, known.get(producer_id)))
        states.restored_at(start_offset)
    for segment in segments[place_of(segments, start_offset) :]:
        found = segment.locate(start_offset)
        if found is not None:
            _replay_stretch(states, segment, found[0], end_offset)
    return states


def _stretches_before(segments: Sequence[Segment], offset: int) -> list[tuple[Segment, int]]:
    """The last few MiB below an offset: segments, and from where on in each."""
    stretches: list[tuple[Segment, int]] = []
    left_bytes = LOOK_BACK_BYTES
    for segment in reversed(segments[: place_of(segments, offset) + 1]):
        start, end = segment.stretch_before(offset, left_bytes)
        stretches.append((segment, start))
        left_bytes -= end - start
        if left_bytes <= 0:
            break
    return stretches[::-1]


def _replay_stretch(
    states: ProducerStates, segment: Segment, position: int, end_offset: int
) -> None:
    for found in segment.batches(position):
        if found[1].base_offset >= end_offset:
            return
        replay(states, segment, found)


def replay(states: ProducerStates, segment: Segment, found: Found) -> EndedTransaction | None:
    """Tell of a batch that is in the log already; what it ends, if it is a marker."""
    position, header = found
    if not header.is_control:
        states.record(header, header.base_offset)
        return None
    batch = memoryview(segment.read_at(position, header.size))
    return record_marker(states, batch, header, header.base_offset)


def record_marker(
    states: ProducerStates, view: memoryview, header: BatchHeader, offset: int
) -> EndedTransaction | None:
    """Tell of a batch with a marker."""
    # Of a control batch that compaction has emptied there is nothing left to end.
    if header.record_count == 0:
        return None
    return states.record_marker(header, offset, marker_in(view))


def marker_in(view: memoryview) -> ControlMarker:
    """The marker of a control batch."""
    return decode_control(decode_records(Batch(view))[0])
