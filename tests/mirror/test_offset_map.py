"""The offset map against a plain list of pairs: exact, small, and never a record too far."""

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.mirror.offsets import offset_map
from shoal.mirror.offsets.offset_map import (
    MapWriter,
    OffsetMap,
    OffsetRun,
    OffsetSpan,
    decode_block,
    encode_block,
    find_excess,
    find_spans,
    resume_writer,
)
from shoal.wire.errors import Malformed

# How a log goes on: (source offsets without a record, records, target offsets of others).
STEPS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 5), st.integers(0, 2)), min_size=1, max_size=60
)


def _play(steps: list[tuple[int, int, int]]) -> list[tuple[int, int]]:
    """Pairs of source and target offsets, one for each record."""
    pairs, source, target = [], 7, 3
    for gap, records, others in steps:
        source += gap
        target += others
        pairs += [(source + number, target + number) for number in range(records)]
        source, target = source + records, target + records
    return pairs


def _find_expected(pairs: list[tuple[int, int]], offset: int, done: int, end: int) -> int | None:
    if offset > done:
        return None
    return next((target for source, target in pairs if source >= offset), end)


def _write(writer: MapWriter, pairs: list[tuple[int, int]]) -> None:
    for source, target in pairs:
        writer.add([OffsetSpan(source, 1, 1)], target)


@given(steps=STEPS, dropped=st.integers(0, 4))
def test_every_offset_maps_to_the_first_record_at_or_above_it(
    steps: list[tuple[int, int, int]], dropped: int
) -> None:
    pairs = _play(steps)
    done, end = pairs[-1][0] + 1 + dropped, pairs[-1][1] + 1
    writer = MapWriter(pairs[0][0])
    _write(writer, pairs)
    writer.advance_to(done)
    offsets = OffsetMap(writer.blocks_to_save())
    for offset in range(done + 3):
        found = offsets.translate(offset, done=done, target_end=end)
        assert found == _find_expected(pairs, offset, done, end)


@given(steps=STEPS, cut=st.floats(0, 1), data=st.data())
def test_who_goes_on_from_a_checkpoint_writes_the_same_map(
    steps: list[tuple[int, int, int]], cut: float, data: st.DataObject
) -> None:
    pairs = _play(steps)
    done, end = pairs[-1][0] + 1, pairs[-1][1] + 1
    checkpoint = int(cut * (len(pairs) - 1))
    kept: dict[int, bytes] = {}
    with_blocks = data.draw(st.sampled_from([1, 2, 256]))
    old, offset_map.BLOCK_RUNS = offset_map.BLOCK_RUNS, with_blocks  # type: ignore[misc]
    try:
        writer = MapWriter(pairs[0][0])
        _write(writer, pairs)
        writer.advance_to(done)
        kept |= writer.blocks_to_save()
        source, target = pairs[checkpoint]
        again, void = resume_writer(kept, source, target)
        for start in void:
            del kept[start]
        _write(again, pairs[checkpoint:])
        again.advance_to(done)
        kept |= again.blocks_to_save()
    finally:
        offset_map.BLOCK_RUNS = old  # type: ignore[misc]
    offsets = OffsetMap(kept)
    for offset in range(done + 1):
        found = offsets.translate(offset, done=done, target_end=end)
        assert found == _find_expected(pairs, offset, done, end)


@given(steps=STEPS, looks=st.sets(st.integers(0, 59)), adds=st.sets(st.integers(0, 59)))
def test_extending_is_adding_of_whole_batches(
    steps: list[tuple[int, int, int]], looks: set[int], adds: set[int]
) -> None:
    old, offset_map.BLOCK_RUNS = offset_map.BLOCK_RUNS, 3  # type: ignore[misc]
    try:
        slow, fast = MapWriter(7), MapWriter(7)
        source, target = 7, 3
        for number, (gap, records, others) in enumerate(steps):
            source, target = source + gap, target + others
            slow.add([OffsetSpan(source, records, records)], target)
            if number in adds:
                fast.add([OffsetSpan(source, records, records)], target)
            else:
                fast.extend(source, records, target)
            source, target = source + records, target + records
            if number in looks:
                assert fast.copy().blocks_to_save() == slow.blocks_to_save()
                fast.mark_saved(fast.blocks_to_save())
                slow.mark_saved(slow.blocks_to_save())
                assert fast.blocks_to_save() == slow.blocks_to_save()
        for each in (fast, slow):
            each.advance_to(source + 5)
        assert fast.blocks_to_save() == slow.blocks_to_save()
    finally:
        offset_map.BLOCK_RUNS = old  # type: ignore[misc]


@given(steps=STEPS, lost=st.integers(0, 20))
def test_a_lost_piece_of_the_map_never_hides_a_record(
    steps: list[tuple[int, int, int]], lost: int
) -> None:
    pairs = _play(steps)
    done, end = pairs[-1][0] + 1, pairs[-1][1] + 1
    old, offset_map.BLOCK_RUNS = offset_map.BLOCK_RUNS, 2  # type: ignore[misc]
    try:
        writer = MapWriter(pairs[0][0])
        _write(writer, pairs)
    finally:
        offset_map.BLOCK_RUNS = old  # type: ignore[misc]
    blocks = writer.blocks_to_save()
    names = sorted(blocks)
    if len(names) > 2:
        del blocks[names[1 + lost % (len(names) - 2)]]
    offsets = OffsetMap(blocks)
    for offset in range(done + 1):
        found = offsets.translate(offset, done=done, target_end=end)
        expected = _find_expected(pairs, offset, done, end)
        assert found is not None
        assert expected is not None
        assert found <= expected


def test_a_log_without_gaps_is_one_run_however_long() -> None:
    writer = MapWriter(0)
    for number in range(10_000):
        writer.add([OffsetSpan(number * 100, 100, 100)], 5 + number * 100)
    ((start, block),) = writer.blocks_to_save().items()
    assert decode_block(start, block) == (1_000_000, [OffsetRun(0, 1_000_000, 5, 1_000_000)])
    assert len(block) < 20


def test_small_transactions_take_few_bytes_each() -> None:
    writer = MapWriter(0)
    for number in range(10_000):
        writer.add([OffsetSpan(number * 11, 10, 10)], number * 10)
    blocks = writer.blocks_to_save()
    assert sum(len(block) for block in blocks.values()) < 10_000 * 5
    # What has been written is offered no more, but for the last block when it has changed.
    writer.mark_saved(blocks)
    assert writer.blocks_to_save() == {}
    writer.add([OffsetSpan(120_000, 1, 1)], 100_000)
    assert len(writer.blocks_to_save()) == 1


def test_a_batch_of_another_size_maps_to_its_first_record() -> None:
    writer = MapWriter(0)
    writer.add([OffsetSpan(0, 5, 5)], 0)
    writer.add([OffsetSpan(5, 5, 2)], 5)
    writer.add([OffsetSpan(10, 5, 5)], 7)
    offsets = OffsetMap(writer.blocks_to_save())
    found = [offsets.translate(offset, done=15, target_end=12) for offset in range(3, 13)]
    assert found == [3, 4, 5, 5, 5, 5, 5, 7, 8, 9]


def test_what_was_copied_before_there_was_a_map_maps_to_its_beginning() -> None:
    writer, void = resume_writer({}, 100, 90)
    assert void == set()
    writer.add([OffsetSpan(100, 10, 10)], 90)
    offsets = OffsetMap(writer.blocks_to_save())
    found = [offsets.translate(offset, done=110, target_end=100) for offset in (0, 99, 100, 105)]
    assert found == [0, 0, 90, 95]


def test_blocks_below_the_log_start_are_found_but_never_the_last() -> None:
    blocks = {
        start: encode_block(start + 10, [OffsetRun(start, 10, start - 100, 10)])
        for start in (100, 110, 120)
    }
    offsets = OffsetMap(blocks)
    assert offsets.below(0) == []
    assert offsets.below(15) == [100]
    assert offsets.below(1000) == [100, 110]


def test_offsets_become_spans() -> None:
    assert find_spans([3, 4, 5, 9, 11, 12]) == [
        OffsetSpan(3, 3, 3),
        OffsetSpan(9, 1, 1),
        OffsetSpan(11, 2, 2),
    ]


def _week_of_transactions(runs: int) -> MapWriter:
    """Batches of ten records, each with a marker behind it at the source only."""
    writer, source, target = MapWriter(0), 0, 0
    for _ in range(runs):
        writer.add([OffsetSpan(source, 10, 10)], target)
        source, target = source + 11, target + 10
    return writer


def test_a_map_has_a_limit_and_what_exceeds_it_is_the_oldest() -> None:
    blocks = _week_of_transactions(20_000).blocks_to_save()
    size = sum(map(len, blocks.values()))
    assert size < 20_000, "less than a byte for each transaction"
    assert find_excess(blocks) == []
    dropped = find_excess(blocks, size // 2)
    assert dropped == sorted(blocks)[: len(dropped)]
    kept = {start: block for start, block in blocks.items() if start not in dropped}
    assert sum(map(len, kept.values())) <= size // 2
    assert find_excess(blocks, 0) == sorted(blocks)[:-1], "the last one stays"


def test_what_was_dropped_is_unknown_unless_the_target_has_deleted_it_too() -> None:
    blocks = _week_of_transactions(2000).blocks_to_save()
    dropped = find_excess(blocks, sum(map(len, blocks.values())) // 2)
    kept = {start: block for start, block in blocks.items() if start not in dropped}
    first = min(kept)
    first_target = decode_block(first, kept[first])[1][0].target
    whole, rest = OffsetMap(blocks), OffsetMap(kept)
    for offset in (first, first + 1, 2000 * 11):
        assert rest.knows(offset, first_target=0)
        said = [each.translate(offset, done=22_000, target_end=20_000) for each in (whole, rest)]
        assert said[0] == said[1]
    assert not rest.knows(first - 1, first_target=0)
    assert not rest.knows(0, first_target=first_target - 1)
    # Nothing is left below the first record that the map has.
    assert rest.knows(0, first_target=first_target)
    assert OffsetMap({}).knows(0, first_target=0)
    assert whole.knows(0, first_target=0)


def test_blocks_are_compressed_and_blocks_of_the_first_format_are_read() -> None:
    runs = [OffsetRun(number * 11, 10, number * 10, 10) for number in range(64)]
    block = encode_block(704, runs)
    assert block[0] == 2
    assert len(block) < 64
    assert decode_block(0, block) == (704, runs)
    plain = b"\x01" + zlib.decompress(block[1:])[1:]
    assert decode_block(0, plain) == (704, runs)
    for broken in (block[:-3], b"\x02nothing", b"\x03"):
        with pytest.raises(Malformed):
            decode_block(0, broken)
    large = b"\x02" + zlib.compress(b"\x01" + bytes(8 << 20))
    with pytest.raises(Malformed, match="too large"):
        decode_block(0, large)
