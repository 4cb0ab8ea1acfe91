"""What a leader sent, before a follower writes it.

Rules of this file:
- Nothing of it is believed: a batch must be one, be whole and undamaged, and follow the log.
- Units are taken whole or not at all (see `units`).
"""

from shoal.lite.codes import Code, Refused
from shoal.lite.log.header import HEADER_SIZE, BatchHeader, unpack_header
from shoal.wire.batch import CHECKED_START, LEAST_BATCH_LENGTH, LENGTH_END, MAGIC
from shoal.wire.crc import crc32c


def checked(record_set: memoryview, next_offset: int) -> tuple[list[BatchHeader], Refused | None]:
    """The batches of whole units that a leader sent, and what is wrong with the one behind."""
    found: list[BatchHeader] = []
    whole_count = position = 0
    objection = None
    while len(record_set) - position >= HEADER_SIZE:
        header = unpack_header(record_set, position)
        end = position + header.batch_length + LENGTH_END
        if end > len(record_set):
            # The leader sends whole batches; a limit on the way may have cut the last.
            break
        objection = _objection(record_set[position:end], header, next_offset)
        if objection is not None:
            break
        found.append(header)
        next_offset = header.last_offset + 1
        position = end
        if not header.is_continued:
            whole_count = len(found)
    return found[:whole_count], objection


def _objection(batch: memoryview, header: BatchHeader, next_offset: int) -> Refused | None:
    """What is wrong with a batch that a leader sent."""
    message = None
    if header.batch_length < LEAST_BATCH_LENGTH or header.magic != MAGIC:
        message = "the leader sent what is no batch"
    elif header.base_offset < next_offset or header.last_offset_delta < 0:
        message = f"a batch at {header.base_offset} does not follow {next_offset}"
    elif crc32c(batch[CHECKED_START:]) != header.crc:
        message = f"the batch at {header.base_offset} is damaged"
    return None if message is None else Refused(Code.CORRUPT_MESSAGE, message)
