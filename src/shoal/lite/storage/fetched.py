"""Checks of the batches that a leader sent, before a follower writes them.

Rules of this file:
- Nothing is trusted: a batch must have format 2, be complete and undamaged, and follow the log.
- Units are accepted complete or not at all (see `units`).
"""

from typing import NamedTuple

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.storage.header import HEADER_SIZE, BatchHeader, unpack_header
from shoal.wire.batch import CHECKED_START, CONTINUED_BIT, LEAST_BATCH_LENGTH, LENGTH_END, MAGIC
from shoal.wire.records.crc import crc32c


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
