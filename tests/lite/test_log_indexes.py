"""Index entries are Apache Kafka's bytes, and searches never point behind what is wanted."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.lite.storage.indexes import (
    OFFSET_ENTRY,
    TIME_ENTRY,
    FileEntries,
    IndexBuilder,
    MemoryEntries,
    relative_offset_before_time,
)

batches = st.lists(
    st.tuples(st.integers(61, 9000), st.integers(1, 50), st.integers(0, 10_000)), max_size=60
)


def build_index(
    sizes: list[tuple[int, int, int]], base_offset: int
) -> tuple[IndexBuilder, list[int]]:
    builder = IndexBuilder(base_offset, interval_bytes=4096)
    position, offset, positions = 0, base_offset, []
    for size, records, timestamp_ms in sizes:
        last_offset = offset + records - 1
        builder.add(position, size, last_offset=last_offset, max_timestamp_ms=timestamp_ms)
        positions.append(position)
        position += size
        offset = last_offset + 1
    return builder, positions


def test_entries_are_big_endian_pairs_relative_to_the_base() -> None:
    builder = IndexBuilder(100, interval_bytes=100)
    builder.add(0, 150, last_offset=104, max_timestamp_ms=7000)
    builder.add(150, 90, last_offset=109, max_timestamp_ms=6000)
    builder.seal()
    assert builder.offsets.encode() == struct.pack(">II", 9, 150)
    assert builder.times.encode() == struct.pack(">qI", 7000, 4)


def test_a_cut_last_entry_is_dropped() -> None:
    entries = MemoryEntries(OFFSET_ENTRY, struct.pack(">IIB", 3, 50, 9))
    assert (len(entries), entries.last()) == (1, (3, 50))


@given(st.lists(st.integers(0, 1000), max_size=20), st.integers(-1, 1001))
def test_a_file_is_searched_as_memory_is(
    tmp_path_factory: pytest.TempPathFactory, values: list[int], wanted: int
) -> None:
    memory = MemoryEntries(TIME_ENTRY)
    for value in sorted(values):
        memory.append(value, value * 2)
    path = tmp_path_factory.mktemp("index") / "entries"
    path.write_bytes(memory.encode())
    file = FileEntries(path, TIME_ENTRY)
    assert file.last() == memory.last()
    assert file.floor_by_first(wanted) == memory.floor_by_first(wanted)
    assert file.floor_by_second(wanted) == memory.floor_by_second(wanted)


def test_empty_indexes_point_to_the_start() -> None:
    empty = MemoryEntries(TIME_ENTRY)
    assert empty.floor_by_first(10) is None
    assert empty.floor_by_second(10) is None
    assert relative_offset_before_time(empty, 10) == 0


@given(batches, st.integers(0, 3000))
def test_a_search_never_leads_behind_the_batch(
    sizes: list[tuple[int, int, int]], wanted: int
) -> None:
    builder, positions = build_index(sizes, base_offset=500)
    offset, holder = 500, None
    for position, (_, records, _) in zip(positions, sizes, strict=True):
        offset += records
        if holder is None and offset > 500 + wanted:
            holder = position
    entry = builder.offsets.floor_by_first(wanted)
    found = 0 if entry is None else entry[1]
    assert found in {0, *positions}
    assert holder is None or found <= holder


@given(batches, st.integers(0, 10_000))
def test_everything_before_a_time_entry_is_older(
    sizes: list[tuple[int, int, int]], timestamp_ms: int
) -> None:
    builder, _ = build_index(sizes, base_offset=0)
    builder.seal()
    until = relative_offset_before_time(builder.times, timestamp_ms)
    offset = 0
    for _, records, batch_time in sizes:
        if offset < until:
            assert batch_time < timestamp_ms
        offset += records
    times = [entry[0] for entry in TIME_ENTRY.iter_unpack(builder.times.encode())]
    assert times == sorted(set(times))
