"""How often positions and checkpoints are written."""

from dataclasses import replace
from pathlib import Path

import pytest

from shoal.mirror.copy.intake import Counts
from shoal.mirror.offsets.positions import UNCHANGED_EVERY_S, PositionsFile, read_positions
from shoal.mirror.run.checkpointer import find_pause_s
from shoal.mirror.status import MirrorStatus
from shoal.model.topics import TopicPartition

PLACE = TopicPartition("t", 0)


def status(offset: int, records: int = 0) -> MirrorStatus:
    return MirrorStatus(
        counts=Counts(records=records),
        positions={PLACE: offset},
        lag=0,
        parked=(),
        partitions=(),
        paused=False,
    )


@pytest.mark.parametrize(
    ("later", "final", "after_s", "is_written"),
    [
        (status(1), False, 1.0, False),
        (status(2), False, 1.0, True),
        (status(1, records=5), False, 1.0, True),
        (status(1), True, 1.0, True),
        (status(1), False, UNCHANGED_EVERY_S, True),
    ],
)
def test_what_has_changed_is_written(
    tmp_path: Path, later: MirrorStatus, final: bool, after_s: float, is_written: bool
) -> None:
    path = tmp_path / "positions.json"
    file = PositionsFile(path)
    file.write(status(1), final=False, now_s=100.0)
    assert read_positions(path) == {PLACE: 1}
    path.unlink()
    file.write(later, final=final, now_s=100.0 + after_s)
    assert path.exists() == is_written
    if is_written:
        assert read_positions(path) == later.positions


def test_rows_follow_partitions_that_move_and_appear(tmp_path: Path) -> None:
    path = tmp_path / "positions.json"
    file = PositionsFile(path)
    second, third = TopicPartition("t", 1), TopicPartition('a "quoted" name', 2)
    steps = [{PLACE: 1, second: 5}, {PLACE: 3, second: 5}, {PLACE: 3, second: 6, third: 1}, {}]
    for number, positions in enumerate(steps):
        file.write(replace(status(0), positions=positions), final=False, now_s=float(number))
        assert read_positions(path) == positions


@pytest.mark.parametrize(
    ("written", "pause_s"), [(0, 1.0), (1, 1.0), (50, 1.0), (100, 2.0), (500, 5.0), (100_000, 5.0)]
)
def test_many_checkpoints_are_further_apart(written: int, pause_s: float) -> None:
    assert find_pause_s(written) == pause_s
