"""The batch view: what it reads, what it refuses, what an edit changes and leaves alone."""

import random
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.wire.batch import HEADER_SIZE, LOG_APPEND_TIME, Batch, iter_batches, sequence_after
from shoal.wire.errors import CorruptBatch, Malformed, Unencodable, WireError
from support.wire.batches import raw_batch

INT16 = st.integers(-(2**15), 2**15 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
OFFSET = st.integers(0, 2**62)
EDITS = st.fixed_dictionaries(
    {},
    optional={
        "base_offset": OFFSET,
        "leader_epoch": INT32,
        "attributes": INT16,
        "max_timestamp": INT64,
        "producer_id": INT64,
        "producer_epoch": INT16,
        "base_sequence": INT32,
    },
)
FIELDS = [
    "base_offset",
    "batch_length",
    "leader_epoch",
    "magic",
    "attributes",
    "last_offset_delta",
    "base_timestamp",
    "max_timestamp",
    "producer_id",
    "producer_epoch",
    "base_sequence",
    "record_count",
]


def view_of(payload: bytes = b"payload", **changes: int) -> memoryview:
    return memoryview(raw_batch(payload, **changes))


def test_every_field_is_read() -> None:
    batch = Batch(
        view_of(
            b"xyz",
            base_offset=1000,
            leader_epoch=7,
            attributes=0b101_1100,
            last_offset_delta=41,
            base_timestamp=-5,
            max_timestamp=6,
            producer_id=77,
            producer_epoch=8,
            base_sequence=500,
            record_count=40,
        )
    )
    batch.check_crc()
    assert {name: getattr(batch, name) for name in FIELDS} == {
        "base_offset": 1000,
        "batch_length": 52,
        "leader_epoch": 7,
        "magic": 2,
        "attributes": 0b101_1100,
        "last_offset_delta": 41,
        "base_timestamp": -5,
        "max_timestamp": 6,
        "producer_id": 77,
        "producer_epoch": 8,
        "base_sequence": 500,
        "record_count": 40,
    }
    assert (batch.size, bytes(batch.records)) == (64, b"xyz")
    assert (batch.last_offset, batch.next_offset, batch.last_sequence) == (1041, 1042, 541)
    assert (batch.codec, batch.timestamp_type) == (4, LOG_APPEND_TIME)
    assert (batch.is_transactional, batch.is_control) == (True, False)
    assert batch.has_delete_horizon


def test_sequences_wrap_to_zero() -> None:
    assert Batch(view_of(base_sequence=2**31 - 3, last_offset_delta=9)).last_sequence == 6
    assert Batch(view_of(base_sequence=-1)).last_sequence == -1
    assert sequence_after(2**31 - 1, 1) == 0
    assert sequence_after(0, -1) == 2**31 - 1


def test_a_batch_is_dense_if_no_offset_is_without_a_record() -> None:
    assert Batch(view_of(last_offset_delta=9, record_count=10)).is_dense
    assert not Batch(view_of(last_offset_delta=9, record_count=9)).is_dense


@given(payload=st.binary(max_size=9000), edits=EDITS)
def test_an_edit_changes_its_fields_and_keeps_the_checksum_right(
    payload: bytes, edits: dict[str, int]
) -> None:
    batch = Batch(view_of(payload))
    expected = {name: getattr(batch, name) for name in FIELDS} | edits
    batch.edit(**edits)
    assert {name: getattr(batch, name) for name in FIELDS} == expected
    assert bytes(batch.records) == payload
    batch.check_crc()


def test_an_edit_does_not_hide_damage_in_the_records() -> None:
    data = raw_batch(b"payload" * 1000)
    data[HEADER_SIZE + 1234] ^= 1
    batch = Batch(memoryview(data))
    batch.edit(producer_id=5, producer_epoch=1, base_sequence=0)
    with pytest.raises(CorruptBatch, match="checksum"):
        batch.check_crc()
    data[HEADER_SIZE + 1234] ^= 1
    batch.check_crc()


def test_an_edit_works_on_a_batch_in_the_middle_of_a_frame() -> None:
    frame = memoryview(raw_batch(b"one") + raw_batch(b"two") + raw_batch(b"three"))
    _, second, _ = iter_batches(frame)
    second.edit(base_offset=0, producer_id=9, base_sequence=3)
    for batch, producer_id in zip(iter_batches(frame), (-1, 9, -1), strict=True):
        batch.check_crc()
        assert batch.producer_id == producer_id


def test_an_edit_of_read_only_memory_is_refused() -> None:
    batch = Batch(memoryview(bytes(raw_batch())))
    with pytest.raises(Unencodable, match="read-only"):
        batch.edit(base_offset=0)


@pytest.mark.parametrize(
    "edits",
    [
        {"producer_epoch": 1, "base_sequence": 2**31},
        {"producer_id": 1, "attributes": 2**15},
        {"producer_id": 1, "base_offset": -1},
        {"producer_id": 1, "base_offset": 2**63 - 1},
        {"producer_id": 1, "leader_epoch": 2**31},
    ],
)
def test_an_edit_that_does_not_fit_changes_nothing(edits: dict[str, int]) -> None:
    data = raw_batch()
    before = bytes(data)
    with pytest.raises(Unencodable):
        Batch(memoryview(data)).edit(**edits)
    assert bytes(data) == before


@pytest.mark.parametrize(
    ("changes", "position"),
    [
        ({"length_error": 1}, 8),
        ({"length_error": -1}, 8),
        ({"last_offset_delta": -1}, 0),
        ({"base_offset": -1}, 0),
        ({"base_offset": 2**63 - 5}, 0),
        ({"record_count": -1}, 57),
    ],
)
def test_a_header_that_does_not_add_up_is_corrupt(changes: dict[str, int], position: int) -> None:
    with pytest.raises(CorruptBatch) as caught:
        Batch(view_of(b"payload", **changes), base_position=1000)
    assert caught.value.position == 1000 + position


def test_a_view_shorter_than_a_header_is_corrupt() -> None:
    with pytest.raises(CorruptBatch, match="shorter"):
        Batch(view_of()[:60])


@pytest.mark.parametrize(("magic", "words"), [(0, "old format 0"), (1, "old format 1"), (3, "3")])
def test_other_formats_are_named(magic: int, words: str) -> None:
    with pytest.raises(Malformed, match=words):
        Batch(view_of(magic=magic))
    with pytest.raises(Malformed, match=words):
        list(iter_batches(view_of(magic=magic), base_position=50))


@given(cut=st.integers(0, 300), sizes=st.lists(st.integers(0, 40), max_size=4))
def test_iteration_gives_whole_batches_and_leaves_a_cut_one(cut: int, sizes: list[int]) -> None:
    batches = [bytes(raw_batch(bytes(size))) for size in sizes]
    data = b"".join(batches)
    data = data[: max(0, len(data) - cut)]
    whole = [bytes(batch.view) for batch in iter_batches(memoryview(data))]
    assert whole == batches[: len(whole)]
    rest = len(data) - sum(map(len, whole))
    assert len(whole) == len(batches) or rest < len(batches[len(whole)])


@pytest.mark.parametrize("length", [-1, 0, 48, -(2**31)])
def test_an_impossible_length_ends_iteration_with_its_position(length: int) -> None:
    good = raw_batch()
    bad = raw_batch()
    bad[8:12] = length.to_bytes(4, "big", signed=True)
    with pytest.raises(Malformed) as caught:
        list(iter_batches(memoryview(good + bad), base_position=10))
    assert caught.value.position == 10 + len(good) + 8


@given(st.binary(max_size=400), st.integers(0, 2**32))
def test_any_bytes_give_batches_or_wire_errors(noise: bytes, seed: int) -> None:
    random_source = random.Random(seed)
    data = raw_batch(b"abc") + raw_batch(b"defg")
    for _ in range(random_source.randrange(4)):
        data[random_source.randrange(len(data))] = random_source.randrange(256)
    for record_set in (memoryview(noise), memoryview(data)):
        with suppress(WireError):
            for batch in iter_batches(record_set):
                assert batch.next_offset > batch.base_offset
                assert repr(batch)
                batch.check_crc()
