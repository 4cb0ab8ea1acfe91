"""The positions file: written when something has changed, and now and then otherwise."""

from pathlib import Path

import pytest

from shoal.mirror.copy.intake import Counts
from shoal.mirror.offsets.positions import UNCHANGED_EVERY_S, PositionsFile, read_positions
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
