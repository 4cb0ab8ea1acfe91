"""Message sets of the formats 0 and 1 become batches; the sets are made by kafka-python."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.wire.batch import CREATE_TIME, MAGIC, iter_batches
from shoal.wire.errors import CorruptBatch, Malformed, WireError
from shoal.wire.records.compression import Codec, compress
from shoal.wire.records.message_sets import RUN_BYTES, read_batches, xxh32_short
from shoal.wire.records.records import Record, decode_records
from support.formats.old import OLD_CODECS, as_read, message_set, old_records, stamp
from support.mirror.batches import stored_batch


def read(*sets: bytes | bytearray) -> list[tuple[int, list[Record]]]:
    found = []
    for batch, stored_format in read_batches(memoryview(b"".join(sets))):
        batch.check_crc()
        assert (batch.magic, batch.timestamp_type) == (MAGIC, CREATE_TIME)
        found.append((stored_format, decode_records(batch)))
    return found


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", OLD_CODECS)
def test_all_of_a_message_set_is_kept(magic: int, codec: Codec) -> None:
    records = old_records(40, 7)
    stored = message_set(magic, codec, records)
    assert read(stored) == [(magic, as_read(magic, records))]
    (one,) = read_batches(memoryview(stored))
    assert (one.batch.codec, one.batch.base_offset, one.batch.last_offset) == (codec, 40, 46)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", OLD_CODECS)
def test_gaps_of_compaction_stay(magic: int, codec: Codec) -> None:
    records = [record for record in old_records(40, 9) if record.offset in (41, 42, 46)]
    assert read(message_set(magic, codec, records)) == [(magic, as_read(magic, records))]


def test_formats_may_follow_each_other() -> None:
    old, newer, plain = old_records(0, 3), old_records(3, 4), old_records(7, 2)
    found = read(
        message_set(0, Codec.NONE, old),
        message_set(1, Codec.NONE, newer),
        message_set(1, Codec.LZ4, plain),
        stored_batch(9, 3),
        message_set(1, Codec.NONE, old_records(12, 2)),
    )
    assert [stored_format for stored_format, _ in found] == [0, 1, 1, 2, 1]
    assert [record.offset for _, records in found for record in records] == list(range(14))


def test_batches_of_today_are_read_as_ever() -> None:
    stored = memoryview(stored_batch(0, 3) + stored_batch(3, 2) + stored_batch(5, 1)[:-1])
    found = [one.batch.view for one in read_batches(stored)]
    assert found == [batch.view for batch in iter_batches(stored)]


def test_a_message_that_is_cut_is_left_out() -> None:
    stored = message_set(1, Codec.NONE, old_records(0, 3))
    for cut in range(1, 30):
        ((_, records),) = read(stored[:-cut])
        assert [record.offset for record in records] == [0, 1]
    wrapper = message_set(1, Codec.GZIP, old_records(0, 3))
    assert read(wrapper[:-1]) == []


def test_an_append_time_is_that_of_all_messages_in_a_wrapper() -> None:
    stored = stamp(message_set(1, Codec.GZIP, old_records(0, 3)), 1_600_000_000_000)
    ((_, records),) = read(stored)
    assert {record.timestamp for record in records} == {1_600_000_000_000}


def test_many_messages_become_several_batches() -> None:
    records = [Record(number, 5, None, bytes(1000)) for number in range(300)]
    found = read(message_set(1, Codec.NONE, records))
    assert len(found) == 3
    assert [record for _, some in found for record in some] == records
    assert RUN_BYTES < 300_000


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", OLD_CODECS)
def test_damage_is_found(magic: int, codec: Codec) -> None:
    stored = message_set(magic, codec, old_records(0, 1))
    for position in range(17, len(stored)):
        damaged = bytearray(stored)
        damaged[position] ^= 1
        with pytest.raises(CorruptBatch):
            read(damaged)


@given(st.binary(max_size=80), st.sampled_from([0, 1]), st.integers(-5, 80))
def test_bytes_that_mean_nothing_are_refused(noise: bytes, magic: int, size: int) -> None:
    head = bytes(8) + size.to_bytes(4, "big", signed=True) + bytes(4) + bytes([magic])
    try:
        found = read(head + noise)
    except WireError:
        return
    # Nothing but a message that is cut: no checksum of chance is right.
    assert found == []


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_offsets_and_times_that_fit_no_batch_are_refused(codec: Codec) -> None:
    same = [Record(3, 5, None, b"a"), Record(3, 5, None, b"b")]
    far = [Record(3, -1 << 62, None, b"a"), Record(4, (1 << 63) - 1, None, b"b")]
    for records in (same, far):
        with pytest.raises(Malformed):
            read(message_set(1, codec, records))


def test_a_wrapper_without_messages_is_refused() -> None:
    stored = stamp(message_set(1, Codec.NONE, [Record(3, 5, None, b"")]), 5)
    stored[17] = Codec.SNAPPY
    with pytest.raises((CorruptBatch, Malformed)):
        read(stored)


@pytest.mark.parametrize(
    ("data", "expected"),
    [(b"", 0x02CC5D05), (b"a", 0x550D7456), (b"abc", 0x32D153FF)],
)
def test_xxh32_of_few_bytes(data: bytes, expected: int) -> None:
    assert xxh32_short(data) == expected


def test_xxh32_is_the_checksum_of_lz4_headers() -> None:
    frame = compress(Codec.LZ4, bytes(77))
    end = 14 if frame[4] & 0b1000 else 6  # with or without the content's size
    assert frame[end] == xxh32_short(frame[4:end]) >> 8 & 0xFF
