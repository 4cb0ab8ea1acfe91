"""One record batch of format 2, read through its 61-byte header; the records stay encoded.

    byte  0  base offset        8      byte 27  base timestamp      8   (delete horizon if bit 6)
          8  batch length       4           35  max timestamp       8
         12  leader epoch       4           43  producer id         8
         16  magic (2)          1           51  producer epoch      2
         17  CRC-32C            4           53  base sequence       4
         21  attributes         2           57  record count        4
         23  last offset delta  4           61  records, compressed as one block

The batch length counts from byte 12, the CRC from byte 21. Attributes: bits 0 to 2 codec, 3
time is the broker's append time, 4 transactional, 5 control, 6 delete horizon.

Rules of this file:
- A `Batch` is a view. It copies nothing and never reads the records, except to check the CRC.
- Every `Batch` has a consistent header: format 2, the length of its view, valid offsets. Its
  records and its CRC may still be wrong: `check_crc` checks them.
- An edit changes the header in place, and computes the new CRC from the old one: damage in the
  records is neither hidden nor detected.
"""

import struct
from collections.abc import Iterator

from shoal.wire.errors import CorruptBatch, Malformed, Unencodable
from shoal.wire.records.crc import crc32c, shift

HEADER_SIZE = 61
MAGIC = 2
# The batch length counts the bytes from here on; and its smallest possible value.
LENGTH_END = 12
LEAST_BATCH_LENGTH = HEADER_SIZE - LENGTH_END
CRC_START = 17
CHECKED_START = 21

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_LEADER_EPOCH = -1
NO_TIMESTAMP = -1

CREATE_TIME = 0
LOG_APPEND_TIME = 1

CODEC_MASK = 0b111
TIMESTAMP_TYPE_BIT = 1 << 3
TRANSACTIONAL_BIT = 1 << 4
CONTROL_BIT = 1 << 5
DELETE_HORIZON_BIT = 1 << 6
# Shoal's own, a bit that Kafka does not use: this batch was written together with the next one, and
# neither is valid without the other. See `shoal.lite.storage.units`.
CONTINUED_BIT = 1 << 7
# Bits of a stored batch that come from its broker or from a transaction; a producer must not send
# them. With the delete horizon, for example, tombstones would be removed too early.
STORED_BITS = TIMESTAMP_TYPE_BIT | TRANSACTIONAL_BIT | DELETE_HORIZON_BIT | CONTINUED_BIT

SEQUENCE_MASK = (1 << 31) - 1

_LAST_OFFSET = (1 << 63) - 2  # so that the next offset still fits

_BYTE = struct.Struct(">b")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_UINT32 = struct.Struct(">I")
_INT64 = struct.Struct(">q")
_UNCHECKED = struct.Struct(">qiibI")  # bytes 0 to 20
_CHECKED = struct.Struct(">hiqqqhii")  # bytes 21 to 60, which the CRC covers
_VITALS = struct.Struct(">qi4xb6xi30xi")  # base offset, length, magic, last delta, record count
_new = object.__new__


class Batch:
    """A view of exactly one batch. Writable where the memory under it is."""

    __slots__ = ("view",)

    view: memoryview

    def __init__(self, view: memoryview, *, base_position: int = 0) -> None:
        """`base_position` is the position of the view, for errors."""
        if len(view) < HEADER_SIZE:
            message = f"a batch of {len(view)} bytes is shorter than its {HEADER_SIZE}-byte header"
            raise CorruptBatch(message, position=base_position)
        base_offset, length, magic, last_offset_delta, record_count = _VITALS.unpack_from(view)
        if magic != MAGIC:
            raise _magic_error(magic, base_position)
        if length + LENGTH_END != len(view):
            message = f"a batch of {len(view)} bytes has a length field for {length + LENGTH_END}"
            raise CorruptBatch(message, position=base_position + 8)
        if last_offset_delta < 0 or not 0 <= base_offset <= _LAST_OFFSET - last_offset_delta:
            message = f"invalid batch offsets: base {base_offset}, last delta {last_offset_delta}"
            raise CorruptBatch(message, position=base_position)
        if record_count < 0:
            message = f"a batch with an invalid record count: {record_count}"
            raise CorruptBatch(message, position=base_position + 57)
        self.view = view

    @classmethod
    def of(cls, view: memoryview) -> "Batch":
        """A view whose header is known to be consistent."""
        batch = _new(cls)
        batch.view = view
        return batch

    def __repr__(self) -> str:
        return (
            f"Batch(offsets {self.base_offset} to {self.last_offset}, {self.record_count} records, "
            f"{self.size} bytes, attributes {self.attributes:#x}, producer {self.producer_id})"
        )

    @property
    def size(self) -> int:
        """The number of bytes, header included."""
        return len(self.view)

    @property
    def records(self) -> memoryview:
        """The records section, still compressed."""
        return self.view[HEADER_SIZE:]

    @property
    def base_offset(self) -> int:
        return _INT64.unpack_from(self.view, 0)[0]  # type: ignore[no-any-return]

    @property
    def batch_length(self) -> int:
        return _INT32.unpack_from(self.view, 8)[0]  # type: ignore[no-any-return]

    @property
    def leader_epoch(self) -> int:
        return _INT32.unpack_from(self.view, 12)[0]  # type: ignore[no-any-return]

    @property
    def magic(self) -> int:
        return _BYTE.unpack_from(self.view, 16)[0]  # type: ignore[no-any-return]

    @property
    def crc(self) -> int:
        """As stored; `check_crc` compares it."""
        return _UINT32.unpack_from(self.view, CRC_START)[0]  # type: ignore[no-any-return]

    @property
    def attributes(self) -> int:
        return _INT16.unpack_from(self.view, 21)[0]  # type: ignore[no-any-return]

    @property
    def codec(self) -> int:
        """The compression codec, see `shoal.wire.records.compression.Codec`."""
        return self.attributes & CODEC_MASK

    @property
    def timestamp_type(self) -> int:
        """`CREATE_TIME` or `LOG_APPEND_TIME`."""
        return LOG_APPEND_TIME if self.attributes & TIMESTAMP_TYPE_BIT else CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)

    @property
    def has_delete_horizon(self) -> bool:
        return bool(self.attributes & DELETE_HORIZON_BIT)

    @property
    def last_offset_delta(self) -> int:
        return _INT32.unpack_from(self.view, 23)[0]  # type: ignore[no-any-return]

    @property
    def last_offset(self) -> int:
        """The last offset as written: compaction may have removed that record."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The offset to read next. The last record plus 1 would loop on compacted batches."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def is_dense(self) -> bool:
        """Whether it has a record at each of its offsets: compaction removes some."""
        return self.record_count == self.last_offset_delta + 1

    @property
    def base_timestamp(self) -> int:
        return _INT64.unpack_from(self.view, 27)[0]  # type: ignore[no-any-return]

    @property
    def max_timestamp(self) -> int:
        return _INT64.unpack_from(self.view, 35)[0]  # type: ignore[no-any-return]

    @property
    def producer_id(self) -> int:
        return _INT64.unpack_from(self.view, 43)[0]  # type: ignore[no-any-return]

    @property
    def producer_epoch(self) -> int:
        return _INT16.unpack_from(self.view, 51)[0]  # type: ignore[no-any-return]

    @property
    def base_sequence(self) -> int:
        return _INT32.unpack_from(self.view, 53)[0]  # type: ignore[no-any-return]

    @property
    def last_sequence(self) -> int:
        """Sequences wrap from 2³¹-1 to 0; a batch without any has `NO_SEQUENCE`."""
        base_sequence = self.base_sequence
        if base_sequence < 0:
            return NO_SEQUENCE
        return sequence_after(base_sequence, self.last_offset_delta)

    @property
    def record_count(self) -> int:
        return _INT32.unpack_from(self.view, 57)[0]  # type: ignore[no-any-return]

    def check_crc(self) -> None:
        """Raise `CorruptBatch` if the stored checksum does not match the bytes."""
        computed = crc32c(self.view[CHECKED_START:])
        if computed != self.crc:
            message = f"the checksum is {computed:#010x}, {self!r} has {self.crc:#010x}"
            raise CorruptBatch(message, position=CRC_START)

    def edit(  # noqa: C901 - one optional argument for each field that may change
        self,
        *,
        base_offset: int | None = None,
        leader_epoch: int | None = None,
        attributes: int | None = None,
        max_timestamp: int | None = None,
        producer_id: int | None = None,
        producer_epoch: int | None = None,
        base_sequence: int | None = None,
    ) -> None:
        """Change header fields in place and update the CRC; the records are not read.

        Either all changes are made or none.
        """
        view = self.view
        if view.readonly:
            raise Unencodable(f"{self!r} is in read-only memory; edit a copy of it")
        offset, length, epoch, magic, crc = _UNCHECKED.unpack_from(view)
        old_checked = bytes(view[CHECKED_START:HEADER_SIZE])
        fields = list(_CHECKED.unpack(old_checked))
        if attributes is not None:
            fields[0] = attributes
        if max_timestamp is not None:
            fields[3] = max_timestamp
        if producer_id is not None:
            fields[4] = producer_id
        if producer_epoch is not None:
            fields[5] = producer_epoch
        if base_sequence is not None:
            fields[6] = base_sequence
        if base_offset is not None:
            if not 0 <= base_offset <= _LAST_OFFSET - fields[1]:
                raise Unencodable(f"{base_offset} cannot be the base offset of {self!r}")
            offset = base_offset
        if leader_epoch is not None:
            epoch = leader_epoch
        try:
            new_checked = _CHECKED.pack(*fields)
            if new_checked != old_checked:
                difference = crc32c(old_checked) ^ crc32c(new_checked)
                crc ^= shift(difference, len(view) - HEADER_SIZE)
            view[:HEADER_SIZE] = _UNCHECKED.pack(offset, length, epoch, magic, crc) + new_checked
        except struct.error as error:
            raise Unencodable(f"a value does not fit its header field: {error}") from error


def sequence_after(sequence: int, count: int) -> int:
    """The sequence `count` records later; sequences wrap from 2³¹-1 to 0."""
    return (sequence + count) & SEQUENCE_MASK


def iter_batches(record_set: memoryview, *, base_position: int = 0) -> Iterator[Batch]:
    """The complete batches of a record set, in order; an incomplete last one is left out.

    A fetch returns a slice of the log, which may end inside a batch. `base_position` is the
    position of the record set, for errors.
    """
    position = 0
    while True:
        batch = batch_at(record_set, position, base_position=base_position)
        if batch is None:
            return
        yield batch
        position += batch.size


def batch_at(record_set: memoryview, position: int, *, base_position: int = 0) -> Batch | None:
    """The batch at a position of a record set; None if it is incomplete."""
    if len(record_set) - position <= 16:
        return None
    length = _INT32.unpack_from(record_set, position + 8)[0]
    magic = record_set[position + 16]
    if magic != MAGIC:
        raise _magic_error(magic, base_position + position)
    if length < LEAST_BATCH_LENGTH:
        message = f"a batch has an invalid length field: {length}"
        raise Malformed(message, position=base_position + position + 8)
    next_position: int = position + LENGTH_END + length
    if next_position > len(record_set):
        return None
    return Batch(record_set[position:next_position], base_position=base_position + position)


def _magic_error(magic: int, position: int) -> Malformed:
    if magic in {0, 1}:
        message = f"a message set of the old format {magic}; only batches of format 2 are supported"
    else:
        message = f"unknown record batch format {magic}"
    return Malformed(message, position=position + 16)
