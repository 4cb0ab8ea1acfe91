"""All codecs between all kinds of clusters; judged by `verify` and by a script that is not ours."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from shoal.lite.cluster import LiteCluster
from support.client.topic_reader import SILENT
from support.lite.engines import running_cluster
from support.mirror.copies import config_of, make_topic, mirror_all, verify_copies

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
RECORDS = 300
SCRIPT = Path(__file__).parents[2] / "scripts" / "compare_topics.py"


@pytest.fixture(scope="module")
def clusters(apache_bootstrap: str) -> Iterator[dict[str, str]]:
    """Two of each kind, by name."""
    with (
        LiteCluster() as lite,
        LiteCluster() as other_lite,
        running_cluster("apache") as other_apache,
    ):
        yield {
            "lite": lite.bootstrap,
            "other lite": other_lite.bootstrap,
            "apache": apache_bootstrap,
            "other apache": other_apache.bootstrap,
        }


def _fill(bootstrap: str, topic: str, codec: str) -> None:
    settings = {"compression.type": codec, "linger.ms": 2, "batch.num.messages": 25}
    with Producer({"bootstrap.servers": bootstrap, **settings, **SILENT}) as producer:
        for number in range(RECORDS):
            producer.produce(
                topic,
                value=None if number % 11 == 0 else f"value {number} " * 10,
                key=None if number % 7 == 0 else f"key {number}",
                headers=[("number", str(number)), ("none", None)] if number % 3 else None,
                partition=number % 2,
            )
            producer.poll(0)
        assert producer.flush(60) == 0


def _compare(source: str, target: str, topic: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), source, target, topic]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("target", ["other lite", "other apache"])
@pytest.mark.parametrize("source", ["lite", "apache"])
@pytest.mark.quick("lite-other apache", "apache-other lite")
async def test_every_codec_arrives_byte_for_byte(
    clusters: dict[str, str], source: str, target: str
) -> None:
    topics = [f"matrix-{source}-{target.replace(' ', '-')}-{codec}" for codec in CODECS]
    ours, theirs = clusters[source], clusters[target]
    for codec, topic in zip(CODECS, topics, strict=True):
        await make_topic(ours, topic, 2)
        await asyncio.to_thread(_fill, ours, topic, codec)
    status = await mirror_all(config_of(ours, theirs, *topics, name=topics[0]))
    assert (status.parked, status.counts.records) == ((), RECORDS * len(CODECS))
    assert status.counts.trimmed + status.counts.closed_gaps + status.counts.split == 0
    for report in await verify_copies(ours, theirs, *topics):
        assert (report.difference, report.not_yet, report.records_one_by_one) == (None, 0, 0)
        assert (report.records, report.equal_batches > 0) == (RECORDS // 2, True)
    judges = (asyncio.to_thread(_compare, ours, theirs, topic) for topic in topics)
    for judged in await asyncio.gather(*judges):
        assert judged.returncode == 0, judged.stdout + judged.stderr


def test_the_script_finds_what_differs(clusters: dict[str, str]) -> None:
    for bootstrap, codec in ((clusters["lite"], "none"), (clusters["other lite"], "zstd")):
        asyncio.run(make_topic(bootstrap, "differs", 2))
        _fill(bootstrap, "differs", codec)
    judged = _compare(clusters["lite"], clusters["other lite"], "differs")
    # Their timestamps are not the same.
    assert judged.returncode == 1
    assert "differs" in judged.stdout
