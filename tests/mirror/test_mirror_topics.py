"""Topics of a running mirror on real brokers: chosen, named, made, grown, and refused alone."""

import asyncio
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shoal.client.admin import NewTopic, Resource, ResourceType
from shoal.lite.cluster import LiteCluster
from shoal.mirror.command import mirror_until
from shoal.mirror.config import MirrorConfig, TopicRules
from shoal.mirror.mm2.naming import Naming
from shoal.mirror.mm2.properties import mirror_file
from shoal.mirror.verify import verify
from shoal.model.errors import UsageError
from support.client.topic_reader import read_topic
from support.mirror.runs import (
    PATIENCE_S,
    Running,
    client,
    eventually,
    fill,
    make,
    running,
    setting,
    values,
)


@pytest.fixture(scope="module", name="source")
def source_address(source: LiteCluster) -> str:
    return source.bootstrap


@pytest.fixture(scope="module", name="target")
def target_address(target: LiteCluster) -> str:
    return target.bootstrap


def _config(source: str, target: str, topics: str, **rules: Any) -> MirrorConfig:
    often = {"refresh_s": 0.1, "sync_configs_s": 0.1}
    return MirrorConfig(
        {"bootstrap.servers": source},
        {"bootstrap.servers": target},
        tuple(topics.split(",")),
        rules=TopicRules(**{**often, **rules}),
    )


def _check_arrived(target: str, topic: str, values: list[str]) -> None:
    found = read_topic(target, topic, partitions=1, count=len(values))
    assert [record.value for record in found.partitions[0]] == [v.encode() for v in values]


async def _topics(bootstrap: str) -> set[str]:
    async with client(bootstrap) as asked:
        return set((await asked.metadata()).topics)


async def test_patterns_choose_and_the_default_policy_names(source: str, target: str) -> None:
    await make(source, "pick-a", "pick-b", "pick-secret", "other")
    for topic in ("pick-a", "pick-b", "pick-secret", "other"):
        fill(source, topic, values(topic))
    naming = Naming("default", source_alias="us", target_alias="eu")
    config = _config(source, target, "pick-.*", exclude=("pick-secret",), naming=naming)
    async with running(config) as mirror:
        await mirror.copied(40)
        # A topic that is made while the mirror runs is found and copied too.
        await make(source, "pick-late")
        fill(source, "pick-late", values("pick-late"))
        await mirror.copied(60)
    for topic in ("pick-a", "pick-b", "pick-late"):
        _check_arrived(target, f"us.{topic}", values(topic))
    assert not await _topics(target) & {
        "us.pick-secret",
        "us.other",
        "pick-a",
        "pick-secret",
        "other",
    }


async def test_a_topic_that_comes_later_is_copied_from_its_first_record(
    source: str, target: str
) -> None:
    await make(source, "late-old")
    fill(source, "late-old", values("old"))
    config = replace(_config(source, target, "late-.*"), start="latest", name="late")
    async with running(config) as mirror:
        await mirror.until(lambda status: bool(status.positions))
        await make(source, "late-new")
        fill(source, "late-new", values("new"))
        status = await mirror.copied(20)
    assert status.counts.records == 20
    _check_arrived(target, "late-new", values("new"))


async def test_a_file_that_resets_to_latest_copies_only_what_comes(
    source: str, target: str
) -> None:
    await make(source, "reset")
    fill(source, "reset", values("old"))
    (config,) = mirror_file(
        {
            "clusters": "R,S",
            "R.bootstrap.servers": source,
            "S.bootstrap.servers": target,
            "R->S.enabled": "true",
            "R->S.topics": "reset",
            "R.consumer.auto.offset.reset": "latest",
            "emit.heartbeats.enabled": "false",
        }
    ).flows
    async with running(config) as mirror:
        await mirror.until(lambda status: bool(status.positions))
        fill(source, "reset", values("new"))
        await mirror.copied(20)
    _check_arrived(target, "R.reset", values("new"))


async def test_a_renamed_topic_goes_on_after_a_stop(source: str, target: str) -> None:
    await make(source, "old-name")
    fill(source, "old-name", values("first"))
    naming = Naming(renames={"old-name": "new-name"})
    config = _config(source, target, "old-name", naming=naming)
    async with running(config) as mirror:
        await mirror.copied(20)
    fill(source, "old-name", values("second"))
    async with running(config) as mirror:
        await mirror.copied(20)
    _check_arrived(target, "new-name", values("first") + values("second"))
    async with client(source) as ours, client(target) as theirs:
        (report,) = await verify(ours, theirs, ["old-name"], naming)
    assert (report.difference, report.records, report.not_yet) == (None, 40, 0)


async def test_a_mirror_within_one_cluster_works_where_names_differ(source: str) -> None:
    await make(source, "circle")
    fill(source, "circle", values("circle"))
    naming = Naming("default", source_alias="copy", target_alias="here")
    async with running(_config(source, source, "circle", naming=naming)) as mirror:
        await mirror.copied(20)
    _check_arrived(source, "copy.circle", values("circle"))


async def test_partitions_that_are_added_are_copied_from_their_first_record(
    source: str, target: str
) -> None:
    await make(source, "growing")
    fill(source, "growing", values("zero"))
    async with running(_config(source, target, "growing")) as mirror:
        await mirror.copied(20)
        async with client(source) as asked:
            await asked.admin.create_partitions({"growing": 3})
        fill(source, "growing", values("two"), partition=2)
        await mirror.copied(40)
    found = read_topic(target, "growing", partitions=3, count=40)
    assert [record.value for record in found.partitions[2]] == [
        value.encode() for value in values("two")
    ]


async def test_settings_follow_the_source_but_for_those_that_are_excluded(
    source: str, target: str
) -> None:
    await make(source, "set", configs={"retention.ms": "7200000", "min.insync.replicas": "1"})
    topic = Resource(ResourceType.TOPIC, "set")
    async with running(_config(source, target, "set")) as mirror:
        await mirror.until(lambda status: bool(status.positions))
        assert await setting(target, "set", "retention.ms") == "7200000"
        async with client(source) as asked:
            await asked.admin.alter_configs(
                {topic: {"retention.ms": "3600000", "unclean.leader.election.enable": "true"}}
            )
        await eventually(lambda: setting(target, "set", "retention.ms"), "3600000")
    assert await setting(target, "set", "unclean.leader.election.enable") == "false"


async def test_topics_that_do_not_fit_are_refused_and_others_go_on(
    source: str, target: str
) -> None:
    bad = ("fit-narrow", "fit-compact", "fit-codec", "fit-foreign")
    await make(source, *bad, "fit-good", partitions=2)
    fill(source, "fit-good", values("good"))
    async with client(target) as asked:
        await asked.admin.create_topics(
            [
                NewTopic("fit-narrow", 1, 1),
                NewTopic("fit-compact", 2, 1, configs={"cleanup.policy": "compact"}),
                NewTopic("fit-codec", 2, 1, configs={"compression.type": "gzip"}),
                NewTopic("fit-foreign", 2, 1),
            ]
        )
    fill(target, "fit-foreign", values("foreign"))
    async with running(_config(source, target, "fit-.*,missing")) as mirror:
        status = await mirror.copied(20)
        told = "\n".join(sorted(str(error) for error in status.refused))
        assert len(status.refused) == 5
        assert all(error.remedy for error in status.refused)
        for words in (
            "fit-codec has compression.type=gzip",
            "fit-compact has cleanup.policy=compact, the source topic has delete",
            "fit-narrow has 1 partitions, the source topic has 2",
            "fit-foreign-0 is not empty",
            "the source cluster has no topic missing",
        ):
            assert words in told
        await _repair(target, mirror)
        fill(source, "fit-codec", values("codec"))
        await mirror.copied(40)


async def _repair(target: str, mirror: Running) -> None:
    """What was refused is looked at again, and copied once it fits."""
    codec = Resource(ResourceType.TOPIC, "fit-codec")
    async with client(target) as asked:
        await asked.admin.alter_configs({codec: {"compression.type": "producer"}})
    await mirror.until(lambda status: len(status.refused) == 4)


async def test_two_topics_do_not_become_one(source: str, target: str) -> None:
    await make(source, "pair-a", "pair-b")
    fill(source, "pair-a", values("a"))
    naming = Naming(renames={"pair-b": "pair-a"})
    async with running(_config(source, target, "pair-.*", naming=naming)) as mirror:
        status = await mirror.copied(20)
    assert "would both be copied into pair-a" in str(status.refused[0])


async def test_nothing_to_copy_at_all_ends_with_the_reason(source: str, target: str) -> None:
    with pytest.raises(UsageError, match="the source cluster has no topic nowhere"):
        await mirror_until(asyncio.Event().wait, _config(source, target, "nowhere"))
    # An expression waits for what may come.
    config = replace(_config(source, target, "come-.*"), name="waiting")
    async with running(config) as mirror:
        await make(source, "come-soon")
        fill(source, "come-soon", values("soon"))
        await mirror.copied(20)


@pytest.fixture
def mm2_file(source: str, target: str, tmp_path: Path) -> Path:
    asyncio.run(make(source, "file-there"))
    asyncio.run(make(target, "file-back"))
    fill(source, "file-there", values("there"))
    fill(target, "file-back", values("back"))
    path = tmp_path / "mm2.properties"
    path.write_text(
        f"clusters = A, B\nA.bootstrap.servers = {source}\nB.bootstrap.servers = {target}\n"
        "A->B.enabled = true\nA->B.topics = file-.*\nB->A.enabled = true\nB->A.topics = file-.*\n"
        "tasks.max = 2\nrefresh.topics.interval.seconds = 1\nemit.heartbeats.enabled = false\n"
    )
    return path


def test_both_ways_from_one_file_without_going_round(
    mm2_file: Path, source: str, target: str
) -> None:
    command = [sys.executable, "-m", "shoal", "mirror", "run", str(mm2_file)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            _check_arrived(target, "A.file-there", values("there"))
            _check_arrived(source, "B.file-back", values("back"))
        finally:
            process.send_signal(signal.SIGTERM)
            said = process.communicate(timeout=PATIENCE_S)[1]
    assert process.returncode == 0
    assert "settings without effect: tasks.max" in said
    assert "A--B: copied 20 records" in said
    names = [name for name in asyncio.run(_topics(source)) if "file" in name]
    assert sorted(names) == ["B.file-back", "file-there"]
