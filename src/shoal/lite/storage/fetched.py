"""Appends the batches that a leader sent to the log of a follower.

Rules of this file:
- Nothing is trusted: a batch must have format 2, be complete and undamaged, and follow the log.
- Units are accepted complete or not at all (see `units`).
- Batches are written unchanged, with one write where they fit into the active segment.
"""

from collections.abc import Sequence
from typing import NamedTuple

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.storage.appending import (
    begin_epoch,
    look_for_expired_producers,
    record_written_marker,
    write_together,
)
from shoal.lite.storage.header import HEADER_SIZE, BatchHeader, newest_ms, unpack_header
from shoal.lite.storage.state.log_state import LogState
from shoal.lite.storage.units import units_of
from shoal.wire.batch import (
    CHECKED_START,
    CONTINUED_BIT,
    CONTROL_BIT,
    LEAST_BATCH_LENGTH,
    LENGTH_END,
    MAGIC,
)
from shoal.wire.records.crc import crc32c


def append_fetched(log: LogState, record_set: memoryview) -> None:
    """Append batches that the leader sent, unchanged, at their own offsets and epochs.

    `ApiError` if a batch is damaged or does not follow the log; those before it are written,
    except for the others of its unit.
    """
    log.require_online()
    headers, size_bytes, error = validate_fetched(record_set, log.end_offset)
    if headers and _can_write_together(log, headers, size_bytes):
        _write_fetched(log, record_set[:size_bytes], headers, is_known_to_fit=True)
    else:
        position = 0
        for unit in units_of(headers):
            end = position + sum(header.size for header in unit)
            _write_fetched(log, record_set[position:end], unit)
            position = end
    if error is not None:
        raise error


def _can_write_together(log: LogState, headers: list[BatchHeader], size_bytes: int) -> bool:
    """Whether all batches have one epoch and fit in the active segment: one write is enough.

    An empty segment accepts any batch, so its limits are not checked that way.
    """
    segment = log.segments[-1]
    return (
        headers[0].leader_epoch == headers[-1].leader_epoch
        and segment.size > 0
        and not segment.should_roll(
            log.settings,
            size_bytes,
            last_offset=headers[-1].last_offset,
            max_timestamp_ms=newest_ms(headers),
        )
    )


def _write_fetched(
    log: LogState,
    view: memoryview,
    headers: Sequence[BatchHeader],
    *,
    is_known_to_fit: bool = False,
) -> None:
    if headers[0].leader_epoch > log.epochs.latest:
        begin_epoch(log, headers[0].leader_epoch)
    write_together(log, view, headers, is_known_to_fit=is_known_to_fit)
    position = 0
    for header in headers:
        end = position + header.batch_length + LENGTH_END
        if header.attributes & CONTROL_BIT and header.producer_id >= 0:
            record_written_marker(log, view[position:end], header, header.base_offset)
        else:
            log.producers.record(header, header.base_offset)
        position = end
    look_for_expired_producers(log)


class ValidatedBatches(NamedTuple):
    """The batches of complete units, their size, and the error of the batch after them."""

    headers: list[BatchHeader]
    size_bytes: int
    error: ApiError | None


def validate_fetched(record_set: memoryview, next_offset: int) -> ValidatedBatches:
    """The valid batches at the start of what a leader sent, up to the last complete unit."""
    found: list[BatchHeader] = []
    whole_count = whole_bytes = position = 0
    error = None
    length = len(record_set)
    while length - position >= HEADER_SIZE:
        header = unpack_header(record_set, position)
        end = position + header.batch_length + LENGTH_END
        if end > length:
            # The leader sends complete batches, but a size limit may have cut the last one.
            break
        if (
            header.magic != MAGIC
            or header.batch_length < LEAST_BATCH_LENGTH
            or header.base_offset < next_offset
            or header.last_offset_delta < 0
            or crc32c(record_set[position + CHECKED_START : end]) != header.crc
        ):
            error = _batch_error(header, next_offset)
            break
        found.append(header)
        next_offset = header.base_offset + header.last_offset_delta + 1
        position = end
        if not header.attributes & CONTINUED_BIT:
            whole_count, whole_bytes = len(found), end
    return ValidatedBatches(found[:whole_count], whole_bytes, error)


def _batch_error(header: BatchHeader, next_offset: int) -> ApiError:
    """Why a batch that a leader sent is invalid."""
    if header.batch_length < LEAST_BATCH_LENGTH or header.magic != MAGIC:
        message = "the leader sent bytes that are not a batch of format 2"
    elif header.base_offset < next_offset or header.last_offset_delta < 0:
        message = f"the leader sent offset {header.base_offset}, but {next_offset} is the next one"
    else:
        message = f"the leader sent a damaged batch at offset {header.base_offset}"
    return ApiError(Code.CORRUPT_MESSAGE, message)
