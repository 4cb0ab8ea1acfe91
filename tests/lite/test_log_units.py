"""Batches that are written together: wherever a process is killed, all are there or none."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.lite.base.codes import ApiError
from shoal.lite.base.log_settings import LogSettings
from shoal.lite.storage.header import BatchHeader, unpack_header
from shoal.lite.storage.partition_log import PartitionLog
from shoal.lite.storage.recovery.last_shutdown import LastShutdown
from shoal.wire.batch import CONTINUED_BIT, Batch
from support.lite.batches import append, batch_of, everything_in

SMALL = LogSettings(segment_bytes=400)


def unit_of(first_offset: int, *sizes: int, gap: int = 0) -> tuple[memoryview, list[BatchHeader]]:
    """Batches of so many records each, at offsets from `first_offset` on, with gaps between."""
    data = bytearray()
    offset = first_offset
    for number, size in enumerate(sizes, 1):
        batch = batch_of(*(f"{offset + i}".encode() for i in range(size)))
        one = Batch(memoryview(batch))
        one.edit(base_offset=offset, attributes=CONTINUED_BIT if number < len(sizes) else 0)
        data += batch
        offset = one.next_offset + gap
    view = memoryview(data)
    headers, position = [], 0
    while position < len(view):
        headers.append(unpack_header(view, position))
        position += headers[-1].size
    return view, headers


def write(log: PartitionLog, first_offset: int, *sizes: int, gap: int = 0) -> None:
    log.append_unit(*unit_of(first_offset, *sizes, gap=gap), leader_epoch=0)


def test_units_lie_at_their_offsets(tmp_path: Path) -> None:
    log = PartitionLog(tmp_path, SMALL, last_shutdown=LastShutdown.CLEANLY)
    write(log, 3, 2, 2, gap=5)
    assert log.end_offset == 12
    write(log, 20, 1)
    assert everything_in(log) == [b"3", b"4", b"10", b"11", b"20"]
    append(log, batch_of(b"plain"))
    assert log.end_offset == 22


def test_followers_get_whole_units(tmp_path: Path) -> None:
    log = PartitionLog(tmp_path / "a", SMALL, last_shutdown=LastShutdown.CLEANLY)
    write(log, 0, 1, 1, 1, 1)
    write(log, 4, 1)
    few = log.read(0, 1, upper_offset=log.end_offset, keeps_units=True)
    assert len(bytes(few)) == len(unit_of(0, 1, 1, 1, 1)[0])
    follower = PartitionLog(tmp_path / "b", SMALL, last_shutdown=LastShutdown.CLEANLY)
    follower.append_fetched(memoryview(bytes(few)[:-10]))
    assert follower.end_offset == 0, "half a unit is not written"
    damaged = bytearray(bytes(few))
    damaged[-1] ^= 1
    with pytest.raises(ApiError):
        follower.append_fetched(memoryview(damaged))
    assert follower.end_offset == 0
    follower.append_fetched(memoryview(bytes(few)))
    assert follower.end_offset == 4


def test_a_log_can_begin_far_away(tmp_path: Path) -> None:
    log = PartitionLog(tmp_path / "a", SMALL, last_shutdown=LastShutdown.CLEANLY)
    assert log.can_reach(1 << 40)
    write(log, 1 << 40, 2)
    assert (log.start_offset, log.end_offset) == (1 << 40, (1 << 40) + 2)
    assert not log.can_reach(1 << 42)
    log.close()
    again = PartitionLog(tmp_path / "a", SMALL, last_shutdown=LastShutdown.KILLED)
    assert (again.start_offset, again.end_offset) == (1 << 40, (1 << 40) + 2)


@given(
    units=st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=4), min_size=1, max_size=6),
    gap=st.integers(0, 3),
    share=st.floats(0, 1),
    ended=st.sampled_from([LastShutdown.KILLED, LastShutdown.UNKNOWN]),
)
def test_a_torn_log_ends_with_a_whole_unit(
    tmp_path_factory: pytest.TempPathFactory,
    units: list[list[int]],
    gap: int,
    share: float,
    ended: LastShutdown,
) -> None:
    folder = tmp_path_factory.mktemp("log")
    log = PartitionLog(folder, SMALL, last_shutdown=LastShutdown.CLEANLY)
    ends = [0]
    for sizes in units:
        write(log, log.end_offset + gap, *sizes, gap=gap)
        ends.append(log.end_offset)
    active = max(folder.glob("*.log"))
    kept = round(active.stat().st_size * share)
    with active.open("r+b") as file:
        file.truncate(kept)
    torn = PartitionLog(folder, SMALL, last_shutdown=ended)
    assert torn.end_offset in ends
    assert torn.epochs.latest == (0 if torn.end_offset else torn.epochs.latest)
    write(torn, torn.end_offset, 1, 1)
    assert torn.end_offset - 2 in ends
    torn.close()
