"""Copies whose mirror, source and target are killed: nothing is lost, twice or disordered."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.lite.cluster import LiteCluster
from support.mirror.kills import MIRROR, PARTITIONS, SOURCE, TARGET, MirrorKills, offsets_of

RECORDS = 9_000
THROTTLE = ("--max-bytes-per-s", "60000")


@pytest.fixture
def source() -> Iterator[LiteCluster]:
    with LiteCluster() as cluster:
        yield cluster


@pytest.fixture
def target() -> Iterator[LiteCluster]:
    with LiteCluster(3) as cluster:
        yield cluster


def test_a_mirror_that_is_killed_again_and_again_goes_on(
    source: LiteCluster, target: LiteCluster, tmp_path: Path
) -> None:
    """Each start copies at another depth than the one before."""
    depths = ("deep", "auto", "raw")
    kills = MirrorKills(source, target, tmp_path, *THROTTLE, batch_records=3, depths=depths)
    outcome = kills.run("killed", RECORDS, [MIRROR, TARGET, MIRROR, SOURCE])
    assert outcome.problems == []
    assert outcome.kills.total() == 4


def test_the_depth_changes_while_processes_are_killed(
    source: LiteCluster, target: LiteCluster, tmp_path: Path
) -> None:
    kills = MirrorKills(
        source, target, tmp_path, *THROTTLE, batch_records=60, depths=("auto",), alternates=True
    )
    outcome = kills.run("switched", 2 * RECORDS, [MIRROR, TARGET, MIRROR])
    assert outcome.problems == []
    assert outcome.switches


@pytest.mark.long
def test_compare_and_append_goes_on_at_the_targets_end(
    source: LiteCluster, target: LiteCluster, tmp_path: Path
) -> None:
    kills = MirrorKills(source, target, tmp_path, *THROTTLE, "--delivery", "auto")
    outcome = kills.run("appended", RECORDS, [MIRROR, TARGET, MIRROR])
    assert outcome.problems == []
    for number in range(PARTITIONS):
        assert offsets_of(target, "appended", number) == offsets_of(source, "appended", number)


@pytest.mark.parametrize("kills", [pytest.param(3, id="3"), pytest.param(20, id="20")])
@pytest.mark.quick("3")
def test_two_mirrors_of_one_name_and_opposite_depths_write_each_record_once(
    source: LiteCluster, target: LiteCluster, tmp_path: Path, kills: int
) -> None:
    """They share a producer id: what one has sent is no duplicate of the other's batches."""
    records = 1_500 * kills
    rivals = MirrorKills(
        source, target, tmp_path, *THROTTLE, batch_records=2, depths=("raw", "deep", "auto")
    )
    outcome = rivals.run_rivals("rivals", records, kills)
    assert outcome.problems == []
    assert outcome.kills.total() >= kills
