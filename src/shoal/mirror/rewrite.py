"""How a stored batch becomes one that a producer may send; pure.

An unpatched broker takes a fetched batch only with base offset 0, no broker's timestamp type,
no transaction of another cluster and the sequence of a producer of its own (`prepare`), and
only if it has one record for each of its offsets (`dense_copy`).

Rules:
- `prepare` edits the 61-byte header in place. The CRC is carried over, not computed: damage to
  the records is found by the target as it would have been by a consumer of the source.
- `dense_copy` decodes, and so checks the CRC first: encoding anew would make damage valid.
"""

from shoal.client.delivery import Identity
from shoal.mirror.offset_map import Span, spans_of
from shoal.wire.batch import (
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    STORED_BITS,
    TIMESTAMP_TYPE_BIT,
    Batch,
)
from shoal.wire.records import Record, decode_records, encode_batch


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
        attributes=batch.attributes & ~STORED_BITS,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=NO_PRODUCER_EPOCH,
        base_sequence=NO_SEQUENCE,
    )


def trimmed_copy(batch: Batch, *, from_offset: int) -> Batch | None:
    """The records at and above an offset, at their offsets, or None if there are none."""
    records = _records_from(batch, from_offset)
    if not records:
        return None
    copy = encode_batch(
        records,
        codec=batch.codec,
        base_offset=from_offset,
        keep_offsets=True,
        last_offset_delta=batch.last_offset - from_offset,
    )
    return Batch(memoryview(copy))


def dense_copy(batch: Batch, *, from_offset: int) -> tuple[Batch, list[Span]] | None:
    """The records at and above an offset as a batch without gaps, or None if there are none.

    And at which source offsets they were.

    Keys, values, headers, timestamps and codec stay. The timestamps are those of the
    producer, also where the source's broker put its own beside them: as in a batch that goes
    unopened.
    """
    records = _records_from(batch, from_offset)
    if not records:
        return None
    spans = spans_of(record.offset for record in records)
    return Batch(memoryview(encode_batch(records, codec=batch.codec))), spans


def _records_from(batch: Batch, offset: int) -> list[Record]:
    batch.check_crc()
    batch.edit(attributes=batch.attributes & ~TIMESTAMP_TYPE_BIT)
    return [record for record in decode_records(batch) if record.offset >= offset]


def same_records(batch: Batch, other: Batch) -> bool:
    """Whether two batches carry the same keys, values and headers in the same order."""
    if batch.record_count != other.record_count:
        return False
    if batch.codec == other.codec and batch.records == other.records:
        return True
    ours, theirs = decode_records(batch), decode_records(other)
    return [(r.key, r.value, r.headers) for r in ours] == [
        (r.key, r.value, r.headers) for r in theirs
    ]
