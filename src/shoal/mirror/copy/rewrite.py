"""Turns a stored batch into one that a producer can send; pure.

An unpatched broker accepts a fetched batch only with base offset 0, without the timestamp type of
a broker, without the transaction of another cluster and with a sequence of a producer that it knows
(`prepare`), and only if the batch has one record for each of its offsets (`dense_copy`). It
replaces the timestamp type by that of its topic. So a batch with append time is re-encoded first,
with that time as the create time of its records (`shoal.wire.records.re_encode`).

Rules:
- `prepare` edits the 61-byte header in place. The CRC is kept, not computed: the target detects
  damaged records as a consumer of the source would.
- `dense_copy` decodes, so it checks the CRC first: re-encoding would make damage valid.
- Records have the timestamps that a consumer of the source sees. Compare-and-append also keeps the
  timestamp type, because the target stores batches unchanged.
"""

from collections.abc import Iterator

from shoal.client.produce.sequencing import ProducerIdentity
from shoal.mirror.offsets.offset_map import OffsetSpan, find_spans
from shoal.wire.batch import (
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    STORED_BITS,
    TIMESTAMP_TYPE_BIT,
    Batch,
)
from shoal.wire.records.re_encode import keep_timestamp_type
from shoal.wire.records.records import Header, Record, decode_records, encode_batch


def prepare(batch: Batch, identity: ProducerIdentity, base_sequence: int) -> None:
    """Edit the header in place to that of a batch of producer `identity`."""
    batch.edit(
        base_offset=0,
        leader_epoch=NO_LEADER_EPOCH,
        attributes=batch.attributes & ~STORED_BITS,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        base_sequence=base_sequence,
    )


def prepare_to_append(batch: Batch, base_offset: int) -> None:
    """Edit the header in place for compare-and-append at an offset."""
    batch.edit(
        base_offset=base_offset,
        leader_epoch=NO_LEADER_EPOCH,
        attributes=batch.attributes & ~(STORED_BITS & ~TIMESTAMP_TYPE_BIT),
        producer_id=NO_PRODUCER_ID,
        producer_epoch=NO_PRODUCER_EPOCH,
        base_sequence=NO_SEQUENCE,
    )


def dense_copy(batch: Batch, *, from_offset: int) -> tuple[Batch, list[OffsetSpan]] | None:
    """Copy the records at and above an offset into a batch without gaps; None if there are none.

    Also returns the source offsets of the records. Keys, values, headers, timestamps and codec are
    kept. Where the source's broker has set the append time, that is every record's timestamp.
    """
    records = records_from(batch, from_offset)
    if not records:
        return None
    return _pack(records, batch), find_spans(record.offset for record in records)


def records_from(batch: Batch, offset: int) -> list[Record]:
    """Decode the records at and above an offset, with the timestamps that a consumer sees."""
    batch.check_crc()
    return [record for record in decode_records(batch) if record.offset >= offset]


def split_to_limit(
    batch: Batch, limit_bytes: int, *, keep_offsets: bool = False
) -> Iterator[Batch]:
    """Split a batch into pieces of at most `limit_bytes`, if possible; 0 for no limit."""
    if not limit_bytes or batch.size <= limit_bytes or batch.record_count < 2:
        yield batch
        return
    for half in split_in_half(batch, keep_offsets=keep_offsets):
        yield from split_to_limit(half, limit_bytes, keep_offsets=keep_offsets)


def split_in_half(batch: Batch, *, keep_offsets: bool = False) -> tuple[Batch, Batch]:
    """Split a batch into two batches with half of the records each."""
    records = records_from(batch, 0)
    middle = len(records) // 2
    if not keep_offsets:
        first, second = (_pack(some, batch) for some in (records[:middle], records[middle:]))
        return first, second
    border = records[middle].offset
    return (
        _pack(records[:middle], batch, span=(batch.base_offset, border - 1)),
        _pack(records[middle:], batch, span=(border, batch.last_offset)),
    )


def drop_first_records(batch: Batch, count: int) -> Batch:
    """Re-encode a batch without its first `count` records."""
    return _pack(records_from(batch, 0)[count:], batch)


def _pack(records: list[Record], like: Batch, span: tuple[int, int] | None = None) -> Batch:
    if span is None:
        return Batch(memoryview(encode_batch(records, codec=like.codec)))
    first, last = span
    packed = encode_batch(
        records,
        codec=like.codec,
        base_offset=first,
        keep_offsets=True,
        last_offset_delta=last - first,
    )
    batch = Batch(memoryview(packed))
    keep_timestamp_type(batch, like=like)
    return batch


def has_same_ending(batch: Batch, count: int, other: Batch) -> bool:
    """Whether the first `count` records of a batch end with the same records as another batch.

    Keys, values and headers are compared. The other batch may have more or fewer records.
    """
    is_whole = batch.record_count == other.record_count == count
    if is_whole and batch.codec == other.codec and batch.records == other.records:
        return True
    ours, theirs = decode_records(batch)[:count], decode_records(other)
    common = min(len(ours), len(theirs))
    return [_content(one) for one in ours[-common:]] == [_content(one) for one in theirs[-common:]]


def find_difference(batch: Batch, other: Batch) -> int | None:
    """Find the first offset at which both batches have a record and the records differ."""
    is_same = batch.base_offset == other.base_offset and batch.codec == other.codec
    if is_same and batch.records == other.records:
        return None
    theirs = {record.offset: record for record in decode_records(other)}
    for ours in decode_records(batch):
        if ours.offset in theirs and _content(ours) != _content(theirs[ours.offset]):
            return ours.offset
    return None


def _content(record: Record) -> tuple[bytes | None, bytes | None, tuple[Header, ...]]:
    return record.key, record.value, record.headers
