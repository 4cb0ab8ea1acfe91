"""Runs on topics that are compacted for real: only superseded messages are not lost."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shoal.audit.audit import audit
from shoal.audit.read.folder import open_ledger
from shoal.client.admin import NewTopic, Resource, ResourceType
from shoal.client.client import Client
from shoal.experiment.standalone import ReadOptions, consume_standalone, produce_standalone
from shoal.lite.cluster import LiteCluster
from shoal.model.findings import Verdict
from shoal.model.result import Result
from shoal.workload.specs import ConsumerSpec, ProducedTopic, ProducerSpec
from support.client.topic_reader import read_topic
from support.experiment.mirrored_run import MirroredRun, MirroredTopic
from support.mirror.copiers import Copier, fault_of

pytestmark = pytest.mark.slow

QUICK = {"log.cleaner.backoff.ms": "50"}
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.bytes": "16384",
    "min.cleanable.dirty.ratio": "0.01",
}
MESSAGES = 1000


@pytest.fixture(scope="module")
def clusters() -> Iterator[dict[str, str]]:
    with LiteCluster(properties=QUICK) as source, LiteCluster(properties=QUICK) as target:
        yield {"source": source.bootstrap, "target": target.bootstrap}


def counts(result: Result) -> dict[str, int]:
    return {name: found.count for name, found in result.findings.items()}


def numbers_in(bootstrap: str, topic: str, partitions: int) -> set[int]:
    """Return the messages in the topic, read with an independent client."""
    found = read_topic(bootstrap, topic, partitions=partitions, count=0)
    values = [r.value or b"" for records in found.partitions.values() for r in records]
    split = [value.split(b";", 3) for value in values]
    return {int(number) for _, number, _, payload in split if payload[3] == 0}


def await_compaction(
    bootstrap: str, topic: str, *, partitions: int, most: int = MESSAGES
) -> set[int]:
    """Wait until compaction has finished, with fewer than `most` messages; return the rest."""
    deadline_s = time.monotonic() + 60
    before: set[int] = set()
    while time.monotonic() < deadline_s:
        left = numbers_in(bootstrap, topic, partitions)
        if len(left) < most and left == before:
            return left
        before = left
        time.sleep(1)
    raise AssertionError(f"{topic} still has {len(before)} messages: it was not compacted")


async def send(bootstrap: str, topic: str, folder: Path, **changes: Any) -> None:
    spec = ProducerSpec(
        run="r",
        producer="p",
        topics=(ProducedTopic(topic, 1, 1),),
        rate_per_s=4000.0,
        messages=MESSAGES,
        size_bytes=200,
        max_batch_bytes=8000,
        drain_timeout_s=1.5,
    )
    properties = {"bootstrap.servers": bootstrap}
    await produce_standalone(
        replace(spec, **changes),
        properties,
        lanes=None,
        folder=folder,
        on_progress=lambda _: None,
    )


async def receive(bootstrap: str, topic: str, folder: Path) -> None:
    spec = ConsumerSpec("r", "g", "c", ())
    reading = ReadOptions((topic,), idle_s=2.0)
    properties = {"bootstrap.servers": bootstrap}
    await consume_standalone(spec, reading, properties, folder=folder, on_progress=lambda _: None)


@pytest.mark.parametrize("driver", ["raw", "confluent"])
@pytest.mark.quick("raw")
async def test_two_places_that_share_a_compacted_topic(
    driver: str, clusters: dict[str, str], tmp_path: Path
) -> None:
    here, there, bootstrap = tmp_path / "here", tmp_path / "there", clusters["source"]
    async with Client({"bootstrap.servers": bootstrap}) as client:
        await client.admin.create_topics([NewTopic(driver, 3, 1, COMPACTED)])
    await send(bootstrap, driver, here, driver=driver)
    left = await asyncio.to_thread(await_compaction, bootstrap, driver, partitions=3)
    # Most keys are written once: their messages stay.
    assert MESSAGES * 3 // 4 < len(left) < MESSAGES
    await receive(bootstrap, driver, there)
    result = audit(open_ledger([here, there]))
    assert counts(result) == {"superseded": MESSAGES - len(left)}
    assert result.verdict is Verdict.PROVEN
    assert f"{MESSAGES - len(left)} were superseded" in result.sentence


async def test_compacted_deliveries_have_not_vanished_and_a_loss_is_found(
    clusters: dict[str, str], tmp_path: Path
) -> None:
    topic = MirroredTopic("lossy", "lossy")
    run = MirroredRun(tmp_path / "lossy", clusters, (topic,))
    await run.create_topics(**{name.replace(".", "_"): v for name, v in COMPACTED.items()})
    # Of each partition the messages 49, 99 and 149, whose keys are written only once.
    changes = [fault_of("lose:50:150")]
    copier = Copier(clusters, {"lossy": "lossy"}, changes, batch_bytes=8000)

    @contextmanager
    def mirror() -> Iterator[None]:
        with copier:
            yield
        for cluster in clusters.values():  # scans come next
            await_compaction(cluster, "lossy", partitions=2, most=MESSAGES - 6)

    result = await run.run(mirror(), max_batch_bytes=8000, messages=MESSAGES)
    found = counts(result)
    found.pop("superseded", 0)  # what the source gave up before it was copied
    assert found == {"lost: not-mirrored": 6}
    assert result.worst.metrics.deliveries >= MESSAGES * 3 // 4


async def test_one_key_for_each_lane_is_known_to_the_judge_too(
    clusters: dict[str, str], tmp_path: Path
) -> None:
    """The producer does not know that the topic is going to be compacted."""
    here, there, bootstrap = tmp_path / "here", tmp_path / "there", clusters["source"]
    async with Client({"bootstrap.servers": bootstrap}) as client:
        plain = {**COMPACTED, "cleanup.policy": "delete"}
        await client.admin.create_topics([NewTopic("later", 2, 1, plain)])
        await send(bootstrap, "later", here)
        resource = Resource(ResourceType.TOPIC, "later")
        await client.admin.alter_configs({resource: {"cleanup.policy": "compact"}})
    left = await asyncio.to_thread(await_compaction, bootstrap, "later", partitions=2)
    assert len(left) < MESSAGES // 2
    await receive(bootstrap, "later", there)
    result = audit(open_ledger([here, there]))
    assert counts(result) == {"superseded": MESSAGES - len(left)}
    assert result.verdict is Verdict.PROVEN
