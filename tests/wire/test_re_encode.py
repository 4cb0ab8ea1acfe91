"""Batches that are encoded again: append times as create times, and trimmed heads."""

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from shoal.wire.batch import CREATE_TIME, LOG_APPEND_TIME, TIMESTAMP_TYPE_BIT, Batch
from shoal.wire.errors import CorruptBatch, Malformed, WireError
from shoal.wire.records.compression import Codec
from shoal.wire.records.re_encode import trim, with_append_time
from shoal.wire.records.records import Record, decode_records, encode_batch
from support.wire.record_strategies import dense_records

APPENDED_MS = 1_800_000_000_000


def stored_batch(
    records: list[Record], *, codec: int = Codec.NONE, is_stamped: bool = True
) -> Batch:
    """As a broker stores it at offset 40."""
    at_40 = [record._replace(offset=40 + index) for index, record in enumerate(records)]
    batch = Batch(
        memoryview(
            encode_batch(
                at_40,
                codec=codec,
                base_offset=40,
                keep_offsets=True,
                leader_epoch=3,
                producer_id=5,
                producer_epoch=1,
                base_sequence=9,
                is_transactional=True,
            )
        )
    )
    if is_stamped:
        batch.edit(attributes=batch.attributes | TIMESTAMP_TYPE_BIT, max_timestamp=APPENDED_MS)
    return batch


def samples(count: int = 5, *, step_ms: int = 700) -> list[Record]:
    return [
        Record(number, 1_600_000_000_000 + number * step_ms, b"k", b"v" * 70, (("h", b"x"),))
        for number in range(count)
    ]


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("step_ms", [0, 1, 700, -90_000])
def test_the_append_time_becomes_every_records_create_time(codec: Codec, step_ms: int) -> None:
    batch = stored_batch(samples(step_ms=step_ms), codec=codec)
    copy = with_append_time(batch)
    copy.check_crc()
    assert (copy.timestamp_type, copy.codec) == (CREATE_TIME, codec)
    assert (copy.base_timestamp, copy.max_timestamp) == (APPENDED_MS, APPENDED_MS)
    assert (copy.base_offset, copy.leader_epoch, copy.base_sequence) == (40, 3, 9)
    # The records as readers of the source see them.
    assert decode_records(copy) == decode_records(batch)
    assert {record.timestamp for record in decode_records(copy)} == {APPENDED_MS}


def test_records_of_one_create_time_are_not_compressed_again() -> None:
    batch = stored_batch(samples(step_ms=0), codec=Codec.ZSTD)
    assert with_append_time(batch).records == batch.records


@given(dense_records(), st.sampled_from(Codec))
def test_any_records_keep_all_but_their_timestamps(records: list[Record], codec: Codec) -> None:
    batch = stored_batch(records, codec=codec)
    assert decode_records(with_append_time(batch)) == decode_records(batch)


def test_damage_is_not_made_valid() -> None:
    batch = stored_batch(samples())
    batch.view[-1] ^= 1
    with pytest.raises(CorruptBatch):
        with_append_time(batch)
    with pytest.raises(CorruptBatch):
        trim(batch, from_offset=41)


@given(st.binary(max_size=40), st.integers(0, 5))
def test_sections_that_mean_nothing_are_refused(section: bytes, count: int) -> None:
    batch = stored_batch(samples(6))
    view = memoryview(bytearray(batch.view[:61]) + section)
    view[8:12] = (len(view) - 12).to_bytes(4, "big")
    view[57:61] = count.to_bytes(4, "big")
    broken = Batch(view)
    _seal(broken)
    try:
        copy = with_append_time(broken)
    except WireError:
        return
    assert copy.record_count == count


def test_bytes_behind_the_last_record_are_refused() -> None:
    batch = stored_batch(samples(6))
    view = memoryview(bytearray(batch.view))
    view[57:61] = (5).to_bytes(4, "big")
    broken = Batch(view)
    _seal(broken)
    with pytest.raises(Malformed, match="after the last"):
        with_append_time(broken)


def _seal(batch: Batch) -> None:
    batch.view[17:21] = crc32c(batch.view[21:]).to_bytes(4, "big")


@pytest.mark.parametrize("is_stamped", [False, True])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_a_trimmed_batch_keeps_its_header(codec: Codec, is_stamped: bool) -> None:
    batch = stored_batch(samples(), codec=codec, is_stamped=is_stamped)
    copy = trim(batch, from_offset=43)
    assert copy is not None
    copy.check_crc()
    assert decode_records(copy) == decode_records(batch)[3:]
    assert (copy.base_offset, copy.last_offset, copy.base_sequence) == (43, 44, 12)
    assert (copy.codec, copy.producer_id, copy.producer_epoch) == (codec, 5, 1)
    assert (copy.leader_epoch, copy.is_transactional) == (3, True)
    assert copy.timestamp_type == (LOG_APPEND_TIME if is_stamped else CREATE_TIME)


def test_nothing_is_left_of_a_batch_whose_last_records_were_compacted() -> None:
    records = samples(3)
    batch = Batch(memoryview(encode_batch(records, keep_offsets=True, last_offset_delta=9)))
    assert trim(batch, from_offset=5) is None
    copy = trim(batch, from_offset=2)
    assert copy is not None
    assert (copy.base_offset, copy.last_offset, copy.record_count) == (2, 9, 1)
