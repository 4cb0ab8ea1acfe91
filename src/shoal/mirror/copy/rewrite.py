"""How a stored batch becomes one that a producer may send; pure.

An unpatched broker takes a fetched batch only with base offset 0, no broker's timestamp type,
no transaction of another cluster and the sequence of a producer of its own (`prepare`), and
only if it has one record for each of its offsets (`dense_copy`). It replaces the timestamp type
by its topic's: so a batch of the source's append time is encoded again before, with that time as
the create time of its records (`shoal.wire.records.re_encode`).

Rules:
- `prepare` edits the 61-byte header in place. The CRC is carried over, not computed: damage to
  the records is found by the target as it would have been by a consumer of the source.
- `dense_copy` decodes, and so checks the CRC first: encoding anew would make damage valid.
- Records have the timestamps that a reader of the source sees. Compare-and-append also keeps the
  timestamp type: the target takes batches as they are.
"""

from collections.abc import Iterator

from shoal.client.produce.sequencing import Identity
from shoal.mirror.offsets.offset_map import Span, spans_of
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


def prepare(batch: Batch, identity: Identity, base_sequence: int) -> None:
    """Make the header, in place, that of a batch from producer `identity`."""
    batch.edit(
        base_offset=0,
        leader_epoch=NO_LEADER_EPOCH,
        attributes=batch.attributes & ~STORED_BITS,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        base_sequence=base_sequence,
    )


def prepare_to_append(batch: Batch, base_offset: int) -> None:
    """Make the header, in place, that of a batch that is written at an offset by a mirror."""
    batch.edit(
        base_offset=base_offset,
        leader_epoch=NO_LEADER_EPOCH,
        attributes=batch.attributes & ~(STORED_BITS & ~TIMESTAMP_TYPE_BIT),
        producer_id=NO_PRODUCER_ID,
        producer_epoch=NO_PRODUCER_EPOCH,
        base_sequence=NO_SEQUENCE,
    )


def dense_copy(batch: Batch, *, from_offset: int) -> tuple[Batch, list[Span]] | None:
    """The records at and above an offset as a batch without gaps, or None if there are none.

    And at which source offsets they were.

    Keys, values, headers, timestamps and codec stay. Where the source's broker has set its
    append time, that is every record's timestamp.
    """
    records = records_from(batch, from_offset)
    if not records:
        return None
    return _packed(records, batch), spans_of(record.offset for record in records)


def records_from(batch: Batch, offset: int) -> list[Record]:
    """The records at and above an offset, with the timestamps that a reader sees."""
    batch.check_crc()
    return [record for record in decode_records(batch) if record.offset >= offset]


def within_limit(batch: Batch, limit_bytes: int, *, keep_offsets: bool = False) -> Iterator[Batch]:
    """The batch in pieces of at most so many bytes, if it can be cut; 0 for no limit."""
    if not limit_bytes or batch.size <= limit_bytes or batch.record_count < 2:
        yield batch
        return
    for half in halves(batch, keep_offsets=keep_offsets):
        yield from within_limit(half, limit_bytes, keep_offsets=keep_offsets)


def halves(batch: Batch, *, keep_offsets: bool = False) -> tuple[Batch, Batch]:
    """The first and the second half of the records, each in a batch of its own."""
    records = records_from(batch, 0)
    middle = len(records) // 2
    if not keep_offsets:
        first, second = (_packed(some, batch) for some in (records[:middle], records[middle:]))
        return first, second
    border = records[middle].offset
    return (
        _packed(records[:middle], batch, span=(batch.base_offset, border - 1)),
        _packed(records[middle:], batch, span=(border, batch.last_offset)),
    )


def rest_of(batch: Batch, count: int) -> Batch:
    """The records behind the first so many."""
    return _packed(records_from(batch, 0)[count:], batch)


def _packed(records: list[Record], like: Batch, span: tuple[int, int] | None = None) -> Batch:
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


def ends_like(batch: Batch, count: int, other: Batch) -> bool:
    """Whether the first so many records of a batch end with what another one ends with.

    Keys, values and headers are compared. The other batch may hold more than that, or less.
    """
    is_whole = batch.record_count == other.record_count == count
    if is_whole and batch.codec == other.codec and batch.records == other.records:
        return True
    ours, theirs = decode_records(batch)[:count], decode_records(other)
    common = min(len(ours), len(theirs))
    return [_content(one) for one in ours[-common:]] == [_content(one) for one in theirs[-common:]]


def find_difference(batch: Batch, other: Batch) -> int | None:
    """The first offset at which both batches have a record, and not the same one."""
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
