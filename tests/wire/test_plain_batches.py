"""Plain batches are numbered in one pass: the same bytes as by `Batch.edit`, and no other batch."""

from hypothesis import given
from hypothesis import strategies as st

from shoal.wire.batch import NO_LEADER_EPOCH, SEQUENCE_MASK, Batch, sequence_after
from shoal.wire.plain_batches import NO_NUMBERS, Numbering, first_plain, number_plain
from support.wire.batches import raw_batch

# What may be wrong with a batch for this way, or may not.
ODD = st.sampled_from(
    [
        {},
        {},
        {"attributes": 1},
        {"attributes": 4},
        {"attributes": 1 << 3},
        {"attributes": 1 << 4},
        {"attributes": 1 << 5},
        {"attributes": 1 << 6},
        {"attributes": -(1 << 15)},
        {"record_count": 0},
        {"record_count": 9},
        {"record_count": -1, "last_offset_delta": -2},
        {"magic": 1},
        {"length_error": -60},
        {"max_timestamp": 5},
        {"base_offset": -1},
        {"base_offset": (1 << 63) - 3},
    ]
)
PLAIN: tuple[dict[str, int], ...] = ({}, {"attributes": 1}, {"attributes": 4})


@given(
    odds=st.lists(ODD, max_size=5),
    payloads=st.lists(st.binary(max_size=5000), min_size=5, max_size=5),
    sequence=st.integers(0, SEQUENCE_MASK),
    cut=st.integers(0, 80),
)
def test_the_front_is_numbered_as_by_edits_and_the_rest_left_as_it_is(
    odds: list[dict[str, int]], payloads: list[bytes], sequence: int, cut: int
) -> None:
    parts = [
        raw_batch(payload, **{"base_offset": 100 + 10 * number, **odd})
        for number, (odd, payload) in enumerate(zip(odds, payloads, strict=False))
    ]
    data = b"".join(parts)
    data = data[: len(data) - cut]
    expected, whole = bytearray(), 0
    for odd, part in zip(odds, parts, strict=True):
        if odd not in PLAIN or len(expected) + len(part) > len(data):
            break
        batch = Batch(memoryview(part))
        batch.edit(
            base_offset=0,
            leader_epoch=NO_LEADER_EPOCH,
            producer_id=77,
            producer_epoch=2,
            base_sequence=sequence_after(sequence, 10 * whole),
        )
        expected += part
        whole += 1
    frame = bytearray(data)
    found = list(
        number_plain(memoryview(frame), 100, Numbering(77, 2, sequence, oldest_ms=1_000_000))
    )
    assert [each.source_offset for each in found] == [100 + 10 * n for n in range(whole)]
    assert all(each.record_count == 10 and each.leader_epoch == 3 for each in found)
    assert [each.sequence for each in found] == [each.batch.base_sequence for each in found]
    assert b"".join(bytes(each.batch.view) for each in found) == bytes(expected)
    assert frame == expected + data[len(expected) :]
    for each in found:
        Batch(each.batch.view).check_crc()


@given(producer_id=st.sampled_from([-1, 0, 77]), payload=st.binary(max_size=5000))
def test_without_a_producer_offsets_are_kept(producer_id: int, payload: bytes) -> None:
    numbers = {"producer_id": producer_id, "producer_epoch": 3, "base_sequence": 9}
    parts = [raw_batch(payload, base_offset=100 + 20 * n, **numbers) for n in range(3)]
    found = list(number_plain(memoryview(bytearray(b"".join(parts))), 90, NO_NUMBERS))
    for part, each in zip(parts, found, strict=True):
        batch = Batch(memoryview(part))
        batch.edit(leader_epoch=-1, producer_id=-1, producer_epoch=-1, base_sequence=-1)
        assert bytes(each.batch.view) == bytes(part)
        assert each.source_offset == each.batch.base_offset
        each.batch.check_crc()


def test_a_batch_below_the_position_or_above_the_limit_is_left() -> None:
    frame = bytearray(raw_batch(b"x" * 100, base_offset=100) + raw_batch(base_offset=110))
    assert not list(number_plain(memoryview(frame), 101, Numbering(1, 0, 0)))
    assert not list(number_plain(memoryview(frame), 100, Numbering(1, 0, 0, limit_bytes=160)))
    assert len(list(number_plain(memoryview(frame), 100, Numbering(1, 0, 0, 161)))) == 2


def test_damage_in_the_records_stays_visible_and_read_only_memory_is_left() -> None:
    damaged = raw_batch(b"payload" * 1000)
    damaged[3000] ^= 1
    assert not list(number_plain(memoryview(bytes(damaged)), 0, Numbering(1, 0, 0)))
    ((batch, *_),) = number_plain(memoryview(damaged), 0, Numbering(1, 0, 0))
    damaged[3000] ^= 1
    batch.check_crc()


def test_the_first_batch_is_measured_if_it_is_plain() -> None:
    assert first_plain(memoryview(raw_batch(b"xyz"))) == (64, 10)
    assert first_plain(memoryview(raw_batch(attributes=1 << 5))) is None
    assert first_plain(memoryview(raw_batch(magic=1))) is None
    assert first_plain(memoryview(b"short")) is None
