"""The careful codec: what it keeps, and what it refuses and where."""

import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.records.readers import read_batch

from shoal.model.errors import UsageError
from shoal.wire.batch import HEADER_SIZE, TIMESTAMP_TYPE_BIT, Batch
from shoal.wire.errors import LimitExceeded, Malformed, Truncated, WireError
from shoal.wire.records.compression import Codec
from shoal.wire.records.records import (
    ControlMarker,
    ControlType,
    Record,
    decode_control,
    decode_headers,
    decode_records,
    encode_batch,
    encode_control_batch,
    write_header,
)
from shoal.wire.records.varint import append_varint
from support.wire.record_samples import SAMPLES, EncodedSample, encode_samples
from support.wire.record_strategies import dense_records, records


def view(batch: bytes | bytearray) -> Batch:
    return Batch(memoryview(batch))


def batch_of(section: bytes, *, count: int = 1, last_offset_delta: int = 0) -> Batch:
    """A batch with whatever bytes for records."""
    output = bytearray(HEADER_SIZE) + section
    write_header(
        output,
        record_count=count,
        last_offset_delta=last_offset_delta,
        base_timestamp=1000,
        max_timestamp=1000,
    )
    return view(output)


def body_of(*fields: int | bytes) -> bytes:
    """Numbers as varints and bytes as they are."""
    output = bytearray()
    for field in fields:
        if isinstance(field, int):
            append_varint(output, field)
        else:
            output += field
    return bytes(output)


def section_of(*fields: int | bytes) -> bytes:
    """One record of these fields, with its true length in front."""
    body = body_of(*fields)
    return body_of(len(body)) + body


@pytest.mark.parametrize(
    "sample", encode_samples(), ids=lambda sample: f"{sample.name}-{sample.codec.name}"
)
def test_samples_come_back(sample: EncodedSample) -> None:
    batch = view(sample.batch)
    batch.check_crc()
    assert batch.codec == sample.codec
    assert batch.record_count == len(sample.records)
    assert batch.max_timestamp == max(record.timestamp for record in sample.records)
    assert decode_records(batch) == list(sample.records)


@given(records(), st.sampled_from(Codec), st.integers(0, 1 << 40))
def test_any_records_come_back_with_their_gaps(
    found: list[Record], codec: Codec, base_offset: int
) -> None:
    found = [record._replace(offset=record.offset + base_offset) for record in found]
    encoded = encode_batch(found, codec=codec, base_offset=base_offset, keep_offsets=True)
    assert decode_records(view(encoded)) == found


@given(records())
def test_producers_send_dense_offsets(found: list[Record]) -> None:
    batch = view(encode_batch(found))
    assert [record.offset for record in decode_records(batch)] == list(range(len(found)))
    assert batch.last_offset_delta == len(found) - 1


@given(dense_records())
def test_another_implementation_reads_the_same(found: list[Record]) -> None:
    found = [record._replace(timestamp=record.offset * 1000) for record in found]
    theirs, size = read_batch(encoded := bytes(encode_batch(found)), 0)
    assert size == len(encoded)
    assert [
        Record(
            record.offset,
            int(record.timestamp.timestamp() * 1000),
            record.key,
            record.value,
            tuple(
                ((header.key or b"").decode(errors="surrogateescape"), header.value)
                for header in record.headers
            ),
        )
        for record in theirs.records
    ] == found


def test_header_fields() -> None:
    batch = view(
        encode_batch(
            SAMPLES["plain"],
            codec=Codec.ZSTD,
            base_offset=100,
            leader_epoch=3,
            producer_id=7,
            producer_epoch=2,
            base_sequence=40,
            is_transactional=True,
        )
    )
    batch.check_crc()
    assert (batch.base_offset, batch.last_offset, batch.leader_epoch) == (100, 101, 3)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (7, 2, 40)
    assert batch.is_transactional
    assert not batch.is_control


def test_a_gap_at_the_end_is_kept() -> None:
    kept = [Record(12, 0, b"k", b"v"), Record(15, 0, b"l", b"w")]
    encoded = encode_batch(kept, keep_offsets=True, base_offset=10, last_offset_delta=9)
    assert view(encoded).next_offset == 20
    assert decode_records(view(encoded)) == kept


def test_append_time_is_every_records_time() -> None:
    encoded = encode_batch(SAMPLES["plain"])
    batch = view(encoded)
    batch.edit(attributes=TIMESTAMP_TYPE_BIT, max_timestamp=5_000)
    assert {record.timestamp for record in decode_records(batch)} == {5_000}


def test_header_keys_that_are_no_utf8_keep_their_bytes() -> None:
    section = section_of(b"\0", 0, 0, -1, -1, 1, 2, b"\xff\xfe", 1, b"v")
    (record,) = decode_records(batch_of(section))
    assert encode_batch([record])[HEADER_SIZE:] == section


MINIMAL = section_of(b"\0", 0, 0, -1, -1, 0)
BAD_SECTIONS: dict[str, tuple[bytes, int, type[WireError], int]] = {
    # What is wrong: section, announced count, error, position.
    "nothing there": (b"", 1, Malformed, 0),
    "too few records": (MINIMAL, 2, Malformed, 0),
    "fewer than announced": (MINIMAL + b"\x00" * 7, 2, Malformed, 7),
    "bytes behind": (MINIMAL + b"!", 1, Malformed, 7),
    "no records but bytes": (MINIMAL, 0, Malformed, 0),
    "length is cut": (b"\x80" * 7, 1, Malformed, 0),
    "length is negative": (body_of(-6) + MINIMAL[1:], 1, Malformed, 0),
    "length beyond the end": (body_of(50) + MINIMAL[1:], 1, Truncated, 0),
    "length too small": (body_of(5) + MINIMAL[1:], 1, Malformed, 0),
    "length too large": (body_of(7) + MINIMAL[1:] + b"!", 1, Malformed, 0),
    "key below null": (section_of(b"\0", 0, 0, -2, -1, 0), 1, Malformed, 4),
    "key beyond the record": (section_of(b"\0", 0, 0, 9, b"k", -1, 0), 1, Malformed, 4),
    "value beyond the record": (section_of(b"\0", 0, 0, -1, 9, b"v", 0), 1, Malformed, 5),
    "value of 2 GiB": (section_of(b"\0", 0, 0, -1, 2**31 - 1, b"v", 0), 1, Malformed, 5),
    "negative header count": (section_of(b"\0", 0, 0, -1, -1, -1), 1, Malformed, 7),
    "more headers than bytes": (section_of(b"\0", 0, 0, -1, -1, 2**30), 1, Malformed, 11),
    "header without a key": (section_of(b"\0", 0, 0, -1, -1, 1, -1, -1), 1, Malformed, 7),
    "header beyond the record": (section_of(b"\0", 0, 0, -1, -1, 1, 9, -1), 1, Malformed, 7),
    "offset beyond the batch": (section_of(b"\0", 0, 1, -1, -1, 0), 1, Malformed, 0),
    "offset before the batch": (section_of(b"\0", 0, -1, -1, -1, 0), 1, Malformed, 0),
    "timestamp beyond 64 bits": (section_of(b"\0", 2**63 - 1, 0, -1, -1, 0), 1, Malformed, 0),
    "varint of 6 bytes": (section_of(b"\0", 0, b"\x80" * 6, -1, -1, 0), 1, Malformed, 3),
}


@pytest.mark.parametrize("name", BAD_SECTIONS)
def test_bad_sections_say_what_and_where(name: str) -> None:
    section, count, error, position = BAD_SECTIONS[name]
    with pytest.raises(error) as caught:
        decode_records(batch_of(section, count=count))
    assert type(caught.value) is error
    assert caught.value.position == position


def test_offsets_must_rise() -> None:
    with pytest.raises(Malformed, match="offset 0 follows 0") as caught:
        decode_records(batch_of(MINIMAL * 2, count=2, last_offset_delta=5))
    assert caught.value.position == 7


def test_decompression_is_bounded() -> None:
    batch = view(encode_batch(SAMPLES["large and repetitive"], codec=Codec.ZSTD))
    with pytest.raises(LimitExceeded):
        decode_records(batch, limit_bytes=100_000)


def test_counts_are_refused_before_a_list_is_made() -> None:
    with pytest.raises(Malformed, match="2147483647 records"):
        decode_records(batch_of(MINIMAL, count=2**31 - 1, last_offset_delta=2**31 - 1))


@pytest.mark.parametrize("kind", [ControlType.ABORT, ControlType.COMMIT])
def test_transaction_markers(kind: ControlType) -> None:
    batch = view(
        encode_control_batch(
            kind, timestamp=5, coordinator_epoch=9, producer_id=4, producer_epoch=1, base_offset=77
        )
    )
    batch.check_crc()
    assert batch.is_control
    assert batch.is_transactional
    assert (batch.producer_id, batch.base_sequence) == (4, -1)
    (record,) = decode_records(batch)
    assert record.offset == 77
    assert decode_control(record) == ControlMarker(kind, 9)


def test_other_control_records_have_no_epoch() -> None:
    record = Record(0, 0, struct.pack(">hh", 0, 99), b"")
    assert decode_control(record) == ControlMarker(99, None)


@pytest.mark.parametrize(
    ("key", "value"),
    [(None, b""), (b"\0\0", b""), (b"\xff\xff\0\0", b""), (bytes(4), None), (bytes(4), b"\0")],
)
def test_bad_control_records(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(Malformed):
        decode_control(Record(0, 0, key, value))


@pytest.mark.parametrize("section", [b"", b"\x04\x02a\x01", b"\x00!", b"\x01"])
def test_bad_header_sections(section: bytes) -> None:
    with pytest.raises(WireError):
        decode_headers(section)


WRONG_CALLS: dict[str, Callable[[], object]] = {
    "no records": lambda: encode_batch([]),
    "falling offsets": lambda: encode_batch(
        [Record(1, 0, None, None), Record(0, 0, None, None)], keep_offsets=True
    ),
    "offset before the base": lambda: encode_batch(
        [Record(1, 0, None, None)], keep_offsets=True, base_offset=2
    ),
    "last delta below a record's": lambda: encode_batch(SAMPLES["plain"], last_offset_delta=0),
    "timestamp of 65 bits": lambda: encode_batch([Record(0, 1 << 64, None, None)]),
    "timestamps too far apart": lambda: encode_batch(
        [Record(0, -(1 << 62), None, None), Record(1, 1 << 62, None, None)]
    ),
    "sequence of 33 bits": lambda: encode_batch(SAMPLES["plain"], base_sequence=1 << 32),
}


@pytest.mark.parametrize("name", WRONG_CALLS)
def test_what_cannot_be_encoded_is_the_callers_fault(name: str) -> None:
    with pytest.raises(UsageError):
        WRONG_CALLS[name]()
