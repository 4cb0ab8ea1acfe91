"""Reads batches of a log: by offset, by time, and what a fetch response needs besides.

Rules of this file:
- Only complete batches are returned, as slices of the file where the caller can send them.
- Damage that a read finds takes the log offline.
"""

from collections.abc import Iterator

from shoal.lite.storage.header import BatchHeader
from shoal.lite.storage.offline import offline_on_error
from shoal.lite.storage.segment import Segment, segment_index_of
from shoal.lite.storage.slices import NOTHING, LogSlice
from shoal.lite.storage.state import aborted
from shoal.lite.storage.state.log_state import LogState
from shoal.wire.fetch import AbortedTransaction


@offline_on_error("read")
def read(
    log: LogState,
    offset: int,
    max_bytes: int,
    *,
    upper_offset: int,
    at_least_one: bool = True,
    keeps_units: bool = False,
) -> LogSlice:
    """Complete batches from the one that contains `offset`, all below `upper_offset`.

    At most `max_bytes`, but the first batch is returned whole if `at_least_one`, and the
    first unit if `keeps_units`.
    The offset must lie between `start_offset` and `end_offset`.
    """
    log.require_online()
    if offset >= upper_offset:
        return NOTHING
    keeps_units = keeps_units and log.has_units
    segments = log.segments
    for index in range(segment_index_of(segments, offset), len(segments)):
        segment = segments[index]
        if not keeps_units:
            is_last = index + 1 == len(segments)
            end_offset = log.end_offset if is_last else segments[index + 1].base_offset
            bound = None if end_offset <= upper_offset else upper_offset
            known = segment.find_known_slice(offset, bound, max_bytes)
            if known is not None:
                return known
        first = segment.locate(offset)
        if first is None:
            continue
        if first[1].base_offset >= upper_offset:
            return NOTHING
        if first[1].size > max_bytes and not at_least_one:
            return NOTHING
        end = _end_in(log, segment, upper_offset)
        return segment.slice(first, end, max_bytes, keeps_units=keeps_units)
    return NOTHING


def _end_in(log: LogState, segment: Segment, upper_offset: int) -> int:
    """The position where the batches below `upper_offset` end."""
    if upper_offset < log.end_offset and (bound := segment.locate(upper_offset)) is not None:
        return bound[0]
    return segment.size


@offline_on_error("read")
def content(_log: LogState, records: LogSlice) -> bytes:
    """The bytes of what was read."""
    return bytes(records)


@offline_on_error("read")
def check_batch(log: LogState, offset: int) -> None:
    """Check the checksum of the batch that contains `offset`: `LogOffline` if it is damaged.

    For readers that fetch the same records again, as if they could not decode them.
    """
    log.require_online()
    for segment in log.segments[segment_index_of(log.segments, offset) :]:
        if (found := segment.locate(offset)) is not None:
            segment.check_batch(found)
            return


@offline_on_error("read")
def find_aborted(
    log: LogState, offset: int, records: LogSlice, upper_offset: int
) -> list[AbortedTransaction]:
    """The aborted transactions that overlap with what was read from `offset` on."""
    segments = log.segments[segment_index_of(log.segments, offset) :]
    return aborted.find_aborted(segments, offset, records, upper_offset)


def batch_at(log: LogState, offset: int) -> bytes | None:
    """The complete batch that contains `offset`, or the next one; None after the last."""
    return content(log, read(log, offset, 0, upper_offset=log.end_offset)) or None


@offline_on_error("read")
def batch_of_time(log: LogState, timestamp_ms: int) -> bytes | None:
    """The first readable batch that has a record at least as new as `timestamp_ms`."""
    log.require_online()
    for segment in log.segments:
        if segment.max_time[0] < timestamp_ms:
            continue
        found = segment.locate_time(timestamp_ms, log.start_offset)
        if found is not None:
            return segment.read_at(found[0], found[1].size)
    return None


@offline_on_error("read")
def batch_of_max_time(log: LogState) -> bytes | None:
    """The first readable batch that has the newest record."""
    log.require_online()
    newest = max(log.segments, key=lambda segment: segment.max_time[0])
    timestamp_ms, last_offset = newest.max_time
    if last_offset < log.start_offset:
        # Below the log start offset, although its segment still exists: search the rest.
        left = [header for header in _iter_headers(log) if header.max_timestamp >= 0]
        if not left:
            return None
        last_offset = max(left, key=lambda header: header.max_timestamp).last_offset
    elif timestamp_ms < 0:
        return None
    return batch_at(log, last_offset)


def _iter_headers(log: LogState) -> Iterator[BatchHeader]:
    """Every batch header from the start offset on."""
    for segment in log.segments[segment_index_of(log.segments, log.start_offset) :]:
        for _, header in segment.batches():
            if header.last_offset >= log.start_offset:
                yield header
