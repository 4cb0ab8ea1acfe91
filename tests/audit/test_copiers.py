"""Independent mirrors, correct and broken, between two real clusters: each judged right."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shoal.audit.read.folder import open_ledger
from shoal.lite.cluster import LiteCluster
from shoal.model.findings import Verdict
from shoal.model.result import Result
from support.experiment.mirrored_run import MirroredRun, MirroredTopic
from support.mirror.copiers import Chosen, Copier, drop_headers, fault_of

pytestmark = pytest.mark.slow

EVERY = 50  # every 50th record is affected
MESSAGES = 1000  # of the run, evenly over its partitions


@pytest.fixture(scope="module")
def clusters() -> Iterator[dict[str, str]]:
    with LiteCluster() as source, LiteCluster() as target:
        yield {"source": source.bootstrap, "target": target.bootstrap}


def counts(result: Result) -> dict[str, int]:
    return {name: found.count for name, found in result.findings.items()}


def find_blamed(result: Result) -> dict[str, tuple[str, ...]]:
    """The stages that are not proven, and why."""
    stages = result.worst.stages.items()
    return {name: s.findings for name, s in stages if s.verdict is not Verdict.PROVEN}


# ---------------------------------------------------------------- good ones, each in its way


async def test_a_mirror_that_repartitions_keeps_every_promise(
    clusters: dict[str, str], tmp_path: Path
) -> None:
    topic = MirroredTopic("repartitioned", "repartitioned", partitions=2, lanes=5)
    promises = {"fidelity": ["key", "headers", "payload", "partition", "timestamps"]}
    run = MirroredRun(tmp_path / "repartition", clusters, (topic,), promises=promises)
    await run.create_topics()
    copier = Copier(clusters, {topic.name: topic.target}, repartition=True)
    result = await run.run(copier)
    assert counts(result) == {}
    assert result.verdict is Verdict.PROVEN
    assert result.metrics.delivered_ok == MESSAGES


async def test_a_mirror_that_renames_topics_keeps_every_promise(
    clusters: dict[str, str], tmp_path: Path
) -> None:
    topics = tuple(MirroredTopic(name, f"there.{name}") for name in ("renamed-a", "renamed-b"))
    run = MirroredRun(tmp_path / "rename", clusters, topics)
    await run.create_topics()
    result = await run.run(Copier(clusters, {t.name: t.target for t in topics}))
    assert counts(result) == {}
    assert result.verdict is Verdict.PROVEN
    assert {row.topic for row in result.worst.throughput} == {None, "renamed-a", "renamed-b"}


async def test_a_mirror_that_merges_two_topics_keeps_every_promise(
    clusters: dict[str, str], tmp_path: Path
) -> None:
    topics = tuple(MirroredTopic(name, "merged") for name in ("part-a", "part-b"))
    run = MirroredRun(tmp_path / "merge", clusters, topics)
    await run.create_topics()
    result = await run.run(Copier(clusters, {t.name: t.target for t in topics}))
    assert counts(result) == {}
    assert result.verdict is Verdict.PROVEN
    assert result.missing_scans == ()


async def test_a_merge_that_loses_one_message_is_detected(
    clusters: dict[str, str], tmp_path: Path
) -> None:
    topics = tuple(MirroredTopic(name, "merged-badly") for name in ("bad-a", "bad-b"))
    run = MirroredRun(tmp_path / "merge-badly", clusters, topics)
    await run.create_topics()
    routes = {t.name: t.target for t in topics}
    result = await run.run(Copier(clusters, routes, changes=[fault_of("lose:60:100")]))
    # One in each of the two partitions of both topics.
    assert counts(result) == {"lost: not-mirrored": 4}
    assert find_blamed(result) == {"source_to_target": ("lost: not-mirrored",)}


# ---------------------------------------------------------------- bad ones

# For each fault: what is found, and which stage is to blame for what.
HIT = 2 * (480 // EVERY)  # in both partitions, away from their tails
BROKEN = {
    f"lose:{EVERY}:480": {"lost: not-mirrored": HIT},
    f"duplicate:{EVERY}:480": {"duplicate: target": HIT},
    f"reorder:{EVERY}:480": {"reordered": HIT, "reordered: target": HIT},
    f"change-key:{EVERY}:480": {"altered: key": HIT},
    f"drop-headers:{EVERY}:480": {"altered: headers": HIT},
    f"corrupt:{EVERY}:480": {"corrupted": HIT},
}


@pytest.mark.parametrize("fault", BROKEN, ids=[fault.split(":")[0] for fault in BROKEN])
async def test_a_broken_mirror_is_detected_and_blamed(
    fault: str, clusters: dict[str, str], tmp_path: Path
) -> None:
    name = fault.split(":", maxsplit=1)[0]
    topic = MirroredTopic(name, name)
    run = MirroredRun(tmp_path / name, clusters, (topic,))
    await run.create_topics()
    copier = Copier(clusters, {name: name}, changes=[fault_of(fault)])
    result = await run.run(copier, use_headers=True)
    assert counts(result) == BROKEN[fault]
    assert set(find_blamed(result)) == {"source_to_target"}
    assert result.verdict is Verdict.VIOLATED


async def test_a_mirror_that_drops_all_headers_is_judged_by_what_was_promised(
    clusters: dict[str, str], tmp_path: Path
) -> None:
    for name, kept in (("with", ["key", "headers", "payload"]), ("without", ["key", "payload"])):
        topic = MirroredTopic(f"{name}-headers", f"{name}-headers")
        promises = {"fidelity": kept}
        run = MirroredRun(tmp_path / name, clusters, (topic,), promises=promises)
        await run.create_topics()
        changes = [drop_headers(Chosen())]
        copier = Copier(clusters, {topic.name: topic.target}, changes=changes)
        # Markers lose their headers too, but still drain their lanes.
        result = await run.run(copier, use_headers=True)
        assert counts(result) == {"altered: headers": MESSAGES}
        expected = Verdict.VIOLATED if name == "with" else Verdict.PROVEN
        assert result.verdict is expected


# A mirror that changes every record, markers too, and loses some, the last one of each partition
# among them: only in a drained lane a missing message is lost and not pending.
CHANGED_ALL = {"drop-headers": "altered: headers", "change-key": "altered: key"}


@pytest.mark.parametrize("change", CHANGED_ALL)
@pytest.mark.parametrize("use_headers", [False, True])
async def test_losses_of_a_mirror_that_changes_everything_are_lost(
    change: str, use_headers: bool, clusters: dict[str, str], tmp_path: Path
) -> None:
    name = f"{change}-{'headers' if use_headers else 'body'}"
    run = MirroredRun(tmp_path / name, clusters, (MirroredTopic(name, name),))
    await run.create_topics()
    changes = [fault_of(f"lose:{EVERY}:500"), fault_of(f"{change}:1:1000000")]
    copier = Copier(clusters, {name: name}, changes=changes)
    result = await run.run(copier, use_headers=use_headers)
    lost = 2 * 500 // EVERY
    expected = {"lost: not-mirrored": lost, CHANGED_ALL[change]: MESSAGES - lost, "tail loss": 2}
    if change == "drop-headers" and not use_headers:
        del expected[CHANGED_ALL[change]]  # there are none to drop
    assert counts(result) == expected
    assert set(find_blamed(result)) == {"source_to_target"}


@pytest.mark.parametrize(
    ("fault", "missing"), [("skip-partition:2", MESSAGES // 2), ("stop-at-tail:1:450", 2 * 50)]
)
async def test_what_a_mirror_never_copied_is_pending_until_a_deadline_makes_it_lost(
    fault: str, missing: int, clusters: dict[str, str], tmp_path: Path
) -> None:
    name = fault.split(":", maxsplit=1)[0]
    run = MirroredRun(tmp_path / name, clusters, (MirroredTopic(name, name),))
    await run.create_topics()
    copier = Copier(clusters, {name: name}, changes=[fault_of(fault)])
    result = await run.run(copier, drain_timeout_s=2.0)
    assert counts(result) == {"pending": missing}
    assert find_blamed(result) == {"source_to_target": ()}
    assert result.verdict is Verdict.INCONCLUSIVE
    late = run.judge(deadline_us=0)
    assert counts(late) == {"lost: not-mirrored": missing, "tail loss": missing}
    assert find_blamed(late) == {"source_to_target": ("lost: not-mirrored",)}


# ---------------------------------------------------------------- bytes


async def test_a_mirror_that_unpacks_does_not_keep_bytes(
    clusters: dict[str, str], tmp_path: Path
) -> None:
    topic = MirroredTopic("unpacked", "unpacked")
    run = MirroredRun(tmp_path / "bytes", clusters, (topic,), promises={"fidelity": ["bytes"]})
    await run.create_topics()
    result = await run.run(Copier(clusters, {topic.name: topic.target}), codec="lz4")
    assert set(counts(result)) == {"batch differs"}
    assert find_blamed(result) == {"source_to_target": ("batch differs",)}
    rows = open_ledger([run.folder]).small_table("batches")
    assert counts(result)["batch differs"] == sum(row["cluster"] == "target" for row in rows)


async def test_a_raw_mirror_keeps_bytes(clusters: dict[str, str], tmp_path: Path) -> None:
    topic = MirroredTopic("raw", "raw")
    promises = {"delivery": "exactly_once", "fidelity": ["bytes", "partition"]}
    run = MirroredRun(tmp_path / "raw", clusters, (topic,), promises=promises)
    await run.create_topics()
    result = await run.run(raw_mirror(clusters, topic.name), codec="lz4")
    assert counts(result) == {}
    assert result.verdict is Verdict.PROVEN
    assert len(open_ledger([run.folder]).small_table("batches")) > 2


@contextmanager
def raw_mirror(clusters: dict[str, str], topic: str) -> Iterator[None]:
    """Shoal's raw mirror: `--depth raw` is what a promise of equal bytes asks for."""
    command = [sys.executable, "-m", "shoal", "mirror", "run", "--topics", topic, "--depth", "raw"]
    for side, address in clusters.items():
        command += [f"--{side}-bootstrap-server", address]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.terminate()
            process.wait(100)


async def test_scans_see_whether_a_topic_is_compacted(
    clusters: dict[str, str], tmp_path: Path
) -> None:
    topic = MirroredTopic("compacted", "compacted")
    run = MirroredRun(tmp_path / "compacted", clusters, (topic,))
    await run.create_topics(cleanup_policy="compact,delete", min_cleanable_dirty_ratio="0.99")
    await run.run(Copier(clusters, {topic.name: topic.target}), messages=100)
    scans = open_ledger([run.folder]).small_table("scans")
    assert [row["compacted"] for row in scans] == [True] * 4
