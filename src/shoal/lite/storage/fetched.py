"""What a leader sent, before a follower writes it.

Rules of this file:
- Nothing of it is believed: a batch must be one, be whole and undamaged, and follow the log.
- Units are taken whole or not at all (see `units`).
"""

from typing import NamedTuple

from shoal.lite.base.codes import Code, Refused
from shoal.lite.storage.header import HEADER_SIZE, BatchHeader, unpack_header
from shoal.wire.batch import CHECKED_START, CONTINUED_BIT, LEAST_BATCH_LENGTH, LENGTH_END, MAGIC
from shoal.wire.records.crc import crc32c


class Checked(NamedTuple):
    """The batches of whole units, their bytes, and what is wrong with the one behind them."""

    headers: list[BatchHeader]
    size_bytes: int
    objection: Refused | None


def checked(record_set: memoryview, next_offset: int) -> Checked:
    """What a leader sent, as far as it may be written."""
    found: list[BatchHeader] = []
    whole_count = whole_bytes = position = 0
    objection = None
    length = len(record_set)
    while length - position >= HEADER_SIZE:
        header = unpack_header(record_set, position)
        end = position + header.batch_length + LENGTH_END
        if end > length:
            # The leader sends whole batches; a limit on the way may have cut the last.
            break
        if (
            header.magic != MAGIC
            or header.batch_length < LEAST_BATCH_LENGTH
            or header.base_offset < next_offset
            or header.last_offset_delta < 0
            or crc32c(record_set[position + CHECKED_START : end]) != header.crc
        ):
            objection = _objection(header, next_offset)
            break
        found.append(header)
        next_offset = header.base_offset + header.last_offset_delta + 1
        position = end
        if not header.attributes & CONTINUED_BIT:
            whole_count, whole_bytes = len(found), end
    return Checked(found[:whole_count], whole_bytes, objection)


def _objection(header: BatchHeader, next_offset: int) -> Refused:
    """What is wrong with a batch that a leader sent."""
    if header.batch_length < LEAST_BATCH_LENGTH or header.magic != MAGIC:
        message = "the leader sent what is no batch"
    elif header.base_offset < next_offset or header.last_offset_delta < 0:
        message = f"a batch at {header.base_offset} does not follow {next_offset}"
    else:
        message = f"the batch at {header.base_offset} is damaged"
    return Refused(Code.CORRUPT_MESSAGE, message)
