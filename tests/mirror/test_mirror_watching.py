"""What a source does behind a mirror's back: deletes, truncates, mirrors back."""

from pathlib import Path

import pytest

from shoal.lite.cluster import LiteCluster
from shoal.mirror.config import CopyRules
from shoal.mirror.routes import Route
from shoal.mirror.watch.source import check_cycles, name_location
from shoal.model.errors import ConfigError, SystemFailure
from shoal.model.topics import TopicPartition
from shoal.wire.batch import iter_batches
from support.mirror.copies import client, config_of, fill, make_topic, mirror_all, values_of

DELIVERIES = ["at-least-once", "idempotent", "transactional", "compare-and-append"]


@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.quick("transactional")
async def test_records_deleted_before_they_were_copied_are_told_as_lost(
    source: LiteCluster, target: LiteCluster, delivery: str
) -> None:
    topic = f"lost-{delivery}"
    await make_topic(source.bootstrap, topic)
    fill(source.bootstrap, topic, range(100))
    options = {"delivery": delivery, "name": topic}
    config = config_of(source.bootstrap, target.bootstrap, topic, **options)
    await mirror_all(config)
    fill(source.bootstrap, topic, range(100, 300))
    async with client(source.bootstrap) as one:
        await one.admin.delete_records({TopicPartition(topic, 0): 210})
    failing = config_of(
        source.bootstrap, target.bootstrap, topic, copy=CopyRules(on_loss="fail"), **options
    )
    with pytest.raises(SystemFailure, match="deleted the offsets from 100 to 209 before"):
        await mirror_all(failing)
    status = await mirror_all(config)
    assert (status.parked, status.counts.lost, status.counts.records) == ((), 110, 90)
    found = values_of(target.bootstrap, topic, 190)
    assert found == [f"{number}".encode() for number in [*range(100), *range(210, 300)]]


def _cut(cluster_folder: Path, topic: str) -> None:
    """Take the second half of a log away, as a failed disk would."""
    (file,) = cluster_folder.glob(f"*/{topic}-0/{0:020}.log")
    log = bytearray(file.read_bytes())
    batches = list(iter_batches(memoryview(log)))
    half = batches[: len(batches) // 2]
    with file.open("r+b") as cut:
        cut.truncate(sum(batch.size for batch in half))


@pytest.mark.parametrize("more", [0, 500], ids=["shorter", "longer"])
@pytest.mark.parametrize("delivery", ["idempotent", "compare-and-append"])
@pytest.mark.quick("idempotent-longer", "compare-and-append-shorter")
async def test_a_source_that_was_truncated_is_copied_from_there_or_parks(
    target: LiteCluster, tmp_path: Path, more: int, delivery: str
) -> None:
    topic = f"truncated-{more}-{delivery}"
    options = {"name": topic, "delivery": delivery}
    with LiteCluster(directory=tmp_path) as source:
        await make_topic(source.bootstrap, topic)
        fill(source.bootstrap, topic, range(300))
        config = config_of(source.bootstrap, target.bootstrap, topic, **options)
        assert (await mirror_all(config)).counts.records == 300
    _cut(tmp_path, topic)
    with LiteCluster(directory=tmp_path) as source:
        fill(source.bootstrap, topic, range(1000, 1000 + more))
        config = config_of(source.bootstrap, target.bootstrap, topic, **options)
        status = await mirror_all(config)
    if delivery == "compare-and-append":
        assert "on, which are copied up to 300" in str(status.parked[0])
        assert len(values_of(target.bootstrap, topic, 300)) == 300
        return
    assert not status.parked
    assert status.counts.truncated > 0
    values = values_of(target.bootstrap, topic, 300 + more)
    assert values == [f"{number}".encode() for number in [*range(300), *range(1000, 1000 + more)]]


async def test_a_cycle_is_refused(source: LiteCluster, target: LiteCluster) -> None:
    await make_topic(source.bootstrap, "round")
    fill(source.bootstrap, "round", range(100))
    await mirror_all(config_of(source.bootstrap, target.bootstrap, "round", name="there"))
    with pytest.raises(ConfigError, match="in a cycle") as caught:
        await mirror_all(config_of(target.bootstrap, source.bootstrap, "round", name="back"))
    assert caught.value.remedy


def test_a_cycle_over_three_clusters_is_found_by_the_way_that_records_came() -> None:
    route = Route(TopicPartition("t", 0), TopicPartition("t", 0))
    origins = {"t": {name_location("A", "t"), name_location("B", "t")}}
    with pytest.raises(ConfigError, match="cycle"):
        check_cycles([route], origins, "A")
    check_cycles([route], origins, "D")
    other = Route(TopicPartition("t", 0), TopicPartition("C.t", 0))
    check_cycles([other], origins, "A")
