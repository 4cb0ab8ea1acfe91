"""The columnar codec agrees with the careful one, copies nothing and refuses the same bytes."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.model.errors import UsageError
from shoal.wire.batch import HEADER_SIZE, TIMESTAMP_TYPE_BIT, Batch, iter_batches
from shoal.wire.errors import LimitExceeded, Malformed, WireError
from shoal.wire.records.columns import (
    ByteColumn,
    RecordArrays,
    decode_columns,
    encode_columns,
    header_section,
)
from shoal.wire.records.compression import Codec
from shoal.wire.records.records import (
    BatchOptions,
    Record,
    decode_records,
    encode_batch,
    write_header,
)
from support.wire.record_samples import SAMPLES, EncodedSample, encode_samples
from support.wire.record_strategies import dense_records, records


def view(batch: bytes | bytearray) -> Batch:
    return Batch(memoryview(batch))


def all_records(columns: RecordArrays) -> list[Record]:
    return [columns.record(index) for index in range(len(columns))]


def encode_as_columns(found: list[Record], **options: object) -> bytearray:
    return encode_columns(
        values=ByteColumn.of_list([record.value for record in found]),
        keys=ByteColumn.of_list([record.key for record in found]),
        headers=ByteColumn.of_list([header_section(record.headers) for record in found]),
        timestamps=np.array([record.timestamp for record in found], np.int64),
        **options,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    "sample", encode_samples(), ids=lambda sample: f"{sample.name}-{sample.codec.name}"
)
def test_samples_in_both_directions(sample: EncodedSample) -> None:
    columns = decode_columns([view(sample.batch)])
    assert all_records(columns) == list(sample.records)
    encoded = encode_columns(
        values=columns.values(),
        keys=columns.keys(),
        headers=columns.header_sections(),
        timestamps=columns.timestamp,
        codec=sample.codec,
    )
    assert encoded == sample.batch


@given(records(), st.sampled_from(Codec), st.integers(0, 1 << 40))
def test_decodes_as_the_careful_codec(found: list[Record], codec: Codec, base_offset: int) -> None:
    found = [record._replace(offset=record.offset + base_offset) for record in found]
    encoded = encode_batch(found, codec=codec, base_offset=base_offset, keep_offsets=True)
    assert all_records(decode_columns([view(encoded)])) == found


@given(dense_records(), st.sampled_from(Codec))
def test_encodes_as_the_careful_codec(found: list[Record], codec: Codec) -> None:
    options: BatchOptions = {
        "codec": codec,
        "base_offset": 5,
        "leader_epoch": 1,
        "producer_id": 2,
        "producer_epoch": 3,
        "base_sequence": 4,
        "is_transactional": True,
    }
    assert encode_as_columns(found, **options) == encode_batch(found, **options)


@given(dense_records(max_size=6), st.data())
def test_refuses_what_the_careful_codec_refuses(found: list[Record], choose: st.DataObject) -> None:
    section = bytearray(encode_batch(found)[HEADER_SIZE:])
    for _ in range(choose.draw(st.integers(1, 3))):
        position = choose.draw(st.integers(0, len(section) - 1))
        section[position] = choose.draw(st.integers(0, 255))
    output = bytearray(HEADER_SIZE) + section
    write_header(
        output,
        record_count=len(found),
        last_offset_delta=len(found) - 1,
        base_timestamp=choose.draw(st.sampled_from((0, 2**63 - 1, -(2**63)))),
        max_timestamp=0,
    )
    batch = view(output)
    try:
        expected = decode_records(batch)
    except WireError:
        with pytest.raises(Malformed, match=r"batch 0 of 1"):
            decode_columns([batch])
    else:
        # Columns have no place for the record attributes, which Kafka does not use.
        expected = [record._replace(attributes=0) for record in expected]
        assert all_records(decode_columns([batch])) == expected


def test_batches_of_every_kind_are_joined() -> None:
    samples = list(encode_samples())
    columns = decode_columns(view(sample.batch) for sample in samples)
    expected = [record for sample in samples for record in sample.records]
    assert len(columns) == len(expected)
    assert all_records(columns) == expected


def test_batches_in_one_piece_of_memory_are_not_copied() -> None:
    record_set = bytearray(
        encode_batch(SAMPLES["mixed"])
        + encode_batch(SAMPLES["headers"], base_offset=300)
        + encode_batch(SAMPLES["plain"], base_offset=302)
    )
    # Out of order and with one left out: spans are by place, not by rank.
    batches = list(iter_batches(memoryview(record_set)))[::-2]
    columns = decode_columns(batches)
    assert np.shares_memory(columns.data, np.frombuffer(record_set, np.uint8))
    expected = [record for batch in batches for record in decode_records(batch)]
    assert all_records(columns) == expected


def test_a_single_batch_is_not_copied() -> None:
    encoded = encode_batch(SAMPLES["plain"])
    columns = decode_columns([view(encoded)])
    assert np.shares_memory(columns.data, np.frombuffer(encoded, np.uint8))
    assert not columns.data.flags.writeable


def test_append_time_is_every_records_time() -> None:
    batch = view(encode_batch(SAMPLES["plain"]))
    batch.edit(attributes=TIMESTAMP_TYPE_BIT, max_timestamp=5_000)
    assert decode_columns([batch]).timestamp.tolist() == [5_000, 5_000]


def test_no_batches_and_no_records() -> None:
    assert len(decode_columns([])) == 0
    empty = bytearray(HEADER_SIZE)
    write_header(empty, record_count=0, last_offset_delta=9, base_timestamp=0, max_timestamp=0)
    assert len(decode_columns([view(empty)])) == 0
    assert len(decode_columns([view(empty), view(encode_batch(SAMPLES["one"]))])) == 1


def test_errors_name_the_batch_and_the_place_in_it() -> None:
    good = encode_batch(SAMPLES["plain"])
    bad = bytearray(good)
    bad[HEADER_SIZE] = 0xFF
    with pytest.raises(Malformed, match=r"batch 1 of 2") as caught:
        decode_columns([view(good), view(bad)])
    assert caught.value.position == 0


def test_counts_are_refused_before_rows_are_allocated() -> None:
    output = encode_batch(SAMPLES["plain"])
    write_header(
        output,
        record_count=2**31 - 1,
        last_offset_delta=2**31 - 1,
        base_timestamp=0,
        max_timestamp=0,
    )
    with pytest.raises(Malformed, match="2147483647 records"):
        decode_columns([view(output)])


def test_the_limit_counts_all_batches_together() -> None:
    batch = view(encode_batch(SAMPLES["large and repetitive"], codec=Codec.LZ4))
    decode_columns([batch], limit_bytes=600_000)
    with pytest.raises(LimitExceeded):
        decode_columns([batch, batch], limit_bytes=600_000)


def test_byte_columns_from_lists_matrices_and_one_string() -> None:
    strings = [b"one", None, b"", b"three"]
    column = ByteColumn.of_list(strings)
    assert [column.at(index) for index in range(4)] == strings
    matrix = np.arange(12, dtype=np.uint8).reshape(3, 4)
    column = ByteColumn.of_matrix(matrix[::-1])
    assert [column.at(index) for index in range(3)] == [
        bytes((8, 9, 10, 11)),
        bytes((4, 5, 6, 7)),
        bytes((0, 1, 2, 3)),
    ]
    column = ByteColumn.of_repeated(b"same", 2)
    assert [column.at(0), column.at(1)] == [b"same", b"same"]


def test_values_alone_make_a_batch() -> None:
    matrix = np.frombuffer(b"aabbcc", np.uint8).reshape(3, 2)
    batch = view(
        encode_columns(
            values=ByteColumn.of_matrix(matrix), timestamps=np.array([7, 9, 8], np.int64)
        )
    )
    batch.check_crc()
    assert decode_records(batch) == [
        Record(0, 7, None, b"aa"),
        Record(1, 9, None, b"bb"),
        Record(2, 8, None, b"cc"),
    ]
    assert batch.max_timestamp == 9


ONE = np.ones(1, np.int64)
BAD_COLUMNS: dict[str, ByteColumn] = {
    "start beyond the data": ByteColumn(np.zeros(4, np.uint8), ONE * 5, ONE * 0),
    "end beyond the data": ByteColumn(np.zeros(4, np.uint8), ONE * 3, ONE * 2),
    "negative start": ByteColumn(np.zeros(4, np.uint8), ONE * -1, ONE),
    "length below null": ByteColumn(np.zeros(4, np.uint8), ONE * 0, ONE * -2),
    "start near the end of int64": ByteColumn(np.zeros(4, np.uint8), ONE * (2**63 - 1), ONE),
    "more than a batch": ByteColumn(np.zeros(4, np.uint8), ONE * 0, ONE * 2**31),
    "another number of rows": ByteColumn(np.zeros(4, np.uint8), ONE, np.ones(2, np.int64)),
}


@pytest.mark.parametrize("part", ["values", "keys", "headers"])
@pytest.mark.parametrize("name", BAD_COLUMNS)
def test_spans_outside_their_data_are_refused(name: str, part: str) -> None:
    columns = {"values": ByteColumn.of_repeated(b"v", 1), part: BAD_COLUMNS[name]}
    with pytest.raises(UsageError):
        encode_columns(timestamps=ONE, **columns)  # type: ignore[arg-type]


@pytest.mark.parametrize("section", [None, b"", b"\x02", b"\x00\x00", b"\x02\x02a"])
def test_header_sections_that_are_none_are_refused(section: bytes | None) -> None:
    with pytest.raises(UsageError):
        encode_columns(
            values=ByteColumn.of_repeated(b"v", 1),
            headers=ByteColumn.of_repeated(section, 1),
            timestamps=ONE,
        )


def test_empty_and_far_apart_batches_are_refused() -> None:
    with pytest.raises(UsageError):
        encode_columns(values=ByteColumn.of_repeated(b"v", 0), timestamps=np.empty(0, np.int64))
    with pytest.raises(UsageError):
        encode_columns(
            values=ByteColumn.of_repeated(b"v", 2), timestamps=np.array([-(2**62), 2**62], np.int64)
        )


def run_python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.strip()


def test_the_import_loads_neither_numpy_nor_numba() -> None:
    code = "import sys, shoal.wire.records.columns; print({'numba', 'numpy'} & set(sys.modules))"
    assert run_python(code) == "set()"


def test_without_numba_the_first_use_says_what_to_install() -> None:
    code = """
import sys
sys.modules["numba"] = None
from shoal.model.errors import UsageError
from shoal.wire.records.columns import decode_columns
try:
    decode_columns([])
except UsageError as error:
    print(error.remedy)
"""
    assert run_python(code) == "pip install 'shoal[workload]'"
