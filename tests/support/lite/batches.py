"""Record batches for tests of Kafka Lite's log."""

from typing import SupportsBytes

from shoal.lite.partitions.admission.producer_rules import check_marker, check_sequence
from shoal.lite.storage.header import unpack_header
from shoal.lite.storage.partition_log import LogAppendInfo, PartitionLog
from shoal.lite.storage.state.replaying import marker_in
from shoal.wire.batch import iter_batches
from shoal.wire.records.records import BatchOptions, Record, decode_records, encode_batch

NOW_MS = 1_700_000_000_000


def batch_of(
    *values: bytes,
    timestamp_ms: int = NOW_MS,
    producer: tuple[int, int, int] | None = None,
    codec: int = 0,
) -> bytearray:
    """A batch as a producer sends it; `producer` is (id, epoch, first sequence)."""
    records = [Record(0, timestamp_ms + i, None, value) for i, value in enumerate(values)]
    options: BatchOptions = {"codec": codec}
    if producer is not None:
        options["producer_id"], options["producer_epoch"], options["base_sequence"] = producer
    return encode_batch(records, **options)


def append(log: PartitionLog, batch: bytearray, *, leader_epoch: int = 0) -> LogAppendInfo:
    """Append a producer's batch, unless it is a duplicate; `ApiError` if it is not next."""
    view = memoryview(batch)
    header = unpack_header(view)
    duplicate = check_sequence(header, log.producers) if header.producer_id >= 0 else None
    if duplicate is not None:
        return LogAppendInfo(duplicate.base_offset, is_duplicate=True)
    return log.append(view, header, leader_epoch=leader_epoch)


def append_marker(log: PartitionLog, batch: bytearray, *, is_bumped: bool = False) -> LogAppendInfo:
    """Append a transaction marker; `ApiError` if it may not end the transaction."""
    view = memoryview(batch)
    header = unpack_header(view)
    check_marker(header, marker_in(view), log.producers, is_bumped=is_bumped)
    return log.append(view, header, leader_epoch=0)


def values_of(record_set: SupportsBytes) -> list[bytes | None]:
    """The values of all records of all batches."""
    return [
        record.value
        for batch in iter_batches(memoryview(bytes(record_set)))
        for record in decode_records(batch)
    ]


def everything_in(log: PartitionLog) -> list[bytes | None]:
    """All values, read as a consumer would: from the start, one read after the other."""
    values: list[bytes | None] = []
    offset = log.start_offset
    while offset < log.end_offset:
        data = log.read(offset, 1000, upper_offset=log.end_offset)
        for batch in iter_batches(memoryview(bytes(data))):
            batch.check_crc()
            values += [r.value for r in decode_records(batch) if r.offset >= offset]
            offset = batch.next_offset
    return values
