"""The aborted transactions that a fetch response must contain for the records it returns."""

from collections.abc import Sequence

from shoal.lite.storage.header import HEADER_SIZE, unpack_header
from shoal.lite.storage.segment import Segment
from shoal.lite.storage.slices import LogSlice
from shoal.wire.fetch import AbortedTransaction


def find_aborted(
    segments: Sequence[Segment], offset: int, records: LogSlice, upper_offset: int
) -> list[AbortedTransaction]:
    """The aborted transactions that overlap with `records`, which were read from `offset` on.

    `segments` begin with the one that contains `offset`.
    """
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
    """An offset after the records that were read, not above `upper_offset`."""
    index = 0
    while index < len(segments) and segments[index].locate(offset) is None:
        index += 1
    if index == len(segments):
        return upper_offset
    end = records.position + len(records)
    next_header = segments[index].read_at(end, HEADER_SIZE)
    if len(next_header) == HEADER_SIZE:
        return min(upper_offset, unpack_header(next_header).base_offset)
    following = segments[index + 1 :]
    return min(upper_offset, following[0].base_offset) if following else upper_offset
