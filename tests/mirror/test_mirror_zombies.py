"""Mirrors that were paused, replaced and resumed: nothing comes twice, however old it is."""

import time
from pathlib import Path

import pytest

from shoal.lite.cluster import LiteCluster
from support.mirror.kills import MirrorKills

RECORDS = 3_000
HOUR_MS = 3_600_000
THROTTLE = ("--max-bytes-per-s", "40000")


@pytest.mark.parametrize(
    ("delivery", "age_h"),
    [("idempotent", 0), ("idempotent", 48), ("transactional", 48), ("compare-and-append", 0)],
)
@pytest.mark.quick("idempotent-48")
def test_a_zombie_writes_nothing_twice(
    source: LiteCluster, target: LiteCluster, tmp_path: Path, delivery: str, age_h: int
) -> None:
    at_ms = time.time_ns() // 1_000_000 - age_h * HOUR_MS
    copy = MirrorKills(source, target, tmp_path, *THROTTLE, "--delivery", delivery)
    outcome = copy.run_zombie(f"zombie-{delivery}-{age_h}", RECORDS, at_ms=at_ms)
    assert outcome.problems == []
