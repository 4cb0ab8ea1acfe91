"""A mirror resumes from the checkpoints of an earlier version, without loss or duplicates.

The stored clusters have 60 records that the mirror has copied, five that were aborted, and 40
that came when it had ended.
"""

import json
from pathlib import Path
from zipfile import ZipFile

import pytest

from shoal.lite.cluster import LiteCluster
from shoal.mirror.config import MirrorConfig
from support.formats.stored import STORED, settle_here, unpack
from support.lite.clusters import read
from support.mirror.runs import running, values

pytestmark = pytest.mark.slow

DELIVERIES = ("idempotent", "transactional", "compare-and-append")


def list_expected() -> dict[int, list[bytes]]:
    """What the source has, by partition."""
    found = {0: values("a", 40) + values("more", 20), 1: values("b", 15)}
    found[1] += values("t", 5) + values("more", 20)
    return {partition: [value.encode() for value in said] for partition, said in found.items()}


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_checkpoints_are_of_the_format_before(delivery: str) -> None:
    """Guards against replacing the stored files by files that prove nothing."""
    with ZipFile(STORED / f"mirror-{delivery}.zip") as stored:
        [name] = [n for n in stored.namelist() if "__shoal_mirror_" in n and n.endswith(".log")]
        assert b'"format": 1' in stored.read(name)
        [place] = [n for n in stored.namelist() if n.endswith("target/cluster.json")]
        assert json.loads(stored.read(place))["format"] == 3


@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.quick("idempotent")
async def test_a_mirror_goes_on_from_stored_checkpoints(delivery: str, tmp_path: Path) -> None:
    home = unpack(f"mirror-{delivery}", tmp_path / "mirror")
    async with (
        LiteCluster(directory=settle_here(home / "source")) as source,
        LiteCluster(directory=settle_here(home / "target")) as target,
    ):
        before = read(target, "orders", 2)
        assert [len(before[0]), len(before[1])] == [40, 20]
        config = MirrorConfig(
            {"bootstrap.servers": source.bootstrap},
            {"bootstrap.servers": target.bootstrap},
            topics=("orders",),
            name=f"kept-{delivery}",
            delivery=delivery,
        )
        async with running(config) as mirror:
            status = await mirror.until(lambda s: s.lag == 0 and s.counts.records >= 40)
        assert status.counts.records == 40
        assert (status.counts.lost, status.counts.displaced, status.parked) == (0, 0, ())
        assert read(source, "orders", 2) == list_expected()
        assert read(target, "orders", 2) == list_expected()
        assert [each.generation for each in status.partitions] == [1, 1]
