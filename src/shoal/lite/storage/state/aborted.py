"""Which aborted transactions a reader must be told of, with the records that it gets."""

from collections.abc import Sequence

from shoal.lite.storage.header import HEADER_SIZE, unpack_header
from shoal.lite.storage.segment import Segment
from shoal.lite.storage.slices import LogSlice
from shoal.wire.fetch import AbortedTransaction


def aborted_in(
    segments: Sequence[Segment], offset: int, records: LogSlice, upper_offset: int
) -> list[AbortedTransaction]:
    """Those that touch what was read from `offset` on, which lies in the first segment or later."""
    if not any(segment.transactions for segment in segments):
        return []
    bound = _offset_behind(segments, offset, records, upper_offset)
    aborted = []
    for segment in segments:
        for entry in segment.transactions:
            if entry.last_offset >= offset and entry.first_offset < bound:
                aborted.append(AbortedTransaction(entry.producer_id, entry.first_offset))
            if entry.last_stable_offset >= bound:
                return aborted
    return aborted


def _offset_behind(
    segments: Sequence[Segment], offset: int, records: LogSlice, upper_offset: int
) -> int:
    """An offset behind what was read from `offset` on, not above `upper_offset`."""
    place = 0
    while place < len(segments) and segments[place].locate(offset) is None:
        place += 1
    if place == len(segments):
        return upper_offset
    end = records.position + len(records)
    next_header = segments[place].read_at(end, HEADER_SIZE)
    if len(next_header) == HEADER_SIZE:
        return min(upper_offset, unpack_header(next_header).base_offset)
    behind = segments[place + 1 :]
    return min(upper_offset, behind[0].base_offset) if behind else upper_offset
