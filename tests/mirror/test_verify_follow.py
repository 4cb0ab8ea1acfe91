"""`shoal mirror verify --follow`: what it proves, what it finds, and what it survives."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest
from confluent_kafka import Producer

from shoal.cli.mirror.proofs import describe_proof
from shoal.client.client import Client
from shoal.lite.cluster import LiteCluster
from shoal.mirror import verify as once
from shoal.mirror.proof import follower
from shoal.mirror.proof.comparison import Difference
from shoal.mirror.proof.files import (
    FILE_NAME,
    RESUME_NAME,
    VERSION,
    PartitionProof,
    lock_folder,
    read_proof,
)
from shoal.mirror.proof.follower import ProofFollower
from shoal.model.errors import UsageError
from shoal.model.topics import TopicPartition
from support.client.topic_reader import SILENT
from support.mirror.copies import client, config_of, fill, make_topic, mirror_all, verify_copies
from support.mirror.leaderless import make_placed

Both = tuple[LiteCluster, LiteCluster]


@pytest.fixture
def both(source: LiteCluster, target: LiteCluster) -> Both:
    return source, target


class _Proof:
    """A follower in the test's own event loop; each round is asked for."""

    def __init__(self, both: Both, folder: Path, *topics: str) -> None:
        self.folder = folder
        source, target = (Client({"bootstrap.servers": each.bootstrap}) for each in both)
        self._clients = source, target
        self.follower = ProofFollower(source, target, topics, mirror="m", folder=folder)
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        for each in self._clients:
            await each.start()
        self.follower._every_s = 0.05
        self._task = asyncio.create_task(self.follower.run(self._stop))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop.set()
        assert self._task is not None
        try:
            await self._task
        finally:
            for each in self._clients:
                await each.close()

    async def until(self, is_so: Callable[[dict[str, PartitionProof]], bool]) -> PartitionProof:
        """Wait for a state in the file; returns the first partition."""
        assert self._task is not None
        async with asyncio.timeout(60):
            while True:
                if self._task.done():
                    self._task.result()
                proof = read_proof(self.folder)
                found = {} if proof is None else {each.source: each for each in proof.partitions}
                if found and is_so(found):
                    return next(iter(found.values()))
                await asyncio.sleep(0.05)


def _proven(partition: str, offset: int) -> Callable[[dict[str, PartitionProof]], bool]:
    return lambda found: (
        found[partition].proven_offset == offset and not found[partition].unavailable
    )


async def _copy(both: Both, topic: str, name: str = "m") -> None:
    await mirror_all(config_of(both[0].bootstrap, both[1].bootstrap, topic, name=name))


def _produce(cluster: LiteCluster, topic: str, value: str, at_ms: int = 1_750_000_000_000) -> None:
    with Producer({"bootstrap.servers": cluster.bootstrap, **SILENT}) as producer:
        producer.produce(topic, value, "key", partition=0, timestamp=at_ms)
        assert producer.flush(30) == 0


async def test_it_follows_a_copy_and_finds_a_planted_difference(
    both: Both, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await make_topic(both[0].bootstrap, "followed", 2)
    await asyncio.to_thread(fill, both[0].bootstrap, "followed", range(60), partitions=2)
    await _copy(both, "followed")
    async with _Proof(both, tmp_path, "followed") as proof:
        first = await proof.until(_proven("followed-0", 30))
        await proof.until(_proven("followed-1", 30))
        assert (first.source_end, first.difference) == (30, None)
        assert "proven equal up to offset 30, " in describe_proof(first)
        # More is copied, in other batches at the target.
        await asyncio.to_thread(fill, both[0].bootstrap, "followed", range(60, 100), partitions=2)
        await proof.until(lambda found: found["followed-0"].source_end == 50)
        await _copy(both, "followed")
        later = await proof.until(_proven("followed-0", 50))
        assert later.checksum != first.checksum
        # The same record on both sides, but not with the same value.
        for cluster, value in zip(both, ("right", "wrong"), strict=True):
            await asyncio.to_thread(_produce, cluster, "followed", value)
        found = await proof.until(lambda found: found["followed-0"].difference is not None)
        assert found.difference == Difference(50, 50, "the value differs")
        assert found.proven_offset == 50
        await proof.until(_proven("followed-1", 50))
    body = json.loads((tmp_path / FILE_NAME).read_text())
    assert body["partitions"][0]["difference"] == {
        "source_offset": 50,
        "target_offset": 50,
        "what": "the value differs",
    }
    assert (body["version"], body["mirror"], body["source"]) == (VERSION, "m", both[0].bootstrap)


async def test_a_restart_continues_and_begins_again_where_a_topic_is_another(
    both: Both, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    await make_topic(both[0].bootstrap, "kept", 1)
    await asyncio.to_thread(fill, both[0].bootstrap, "kept", range(40))
    await _copy(both, "kept", "kept")
    async with _Proof(both, tmp_path, "kept") as proof:
        whole = await proof.until(_proven("kept-0", 40))
        with lock_folder(tmp_path / "other"), pytest.raises(UsageError, match="another process"):
            lock_folder(tmp_path / "other")
    await asyncio.to_thread(fill, both[0].bootstrap, "kept", range(40, 60))
    await _copy(both, "kept", "kept")
    async with _Proof(both, tmp_path, "kept") as proof:
        continued = await proof.until(_proven("kept-0", 60))
    assert "kept-0: the proof continues at 40" in caplog.text
    # The checksum is that of all batches, however often the proof was restarted.
    (tmp_path / RESUME_NAME).unlink()
    async with _Proof(both, tmp_path, "kept") as proof:
        await proof.until(
            lambda found: found["kept-0"].at_us > continued.at_us and _proven("kept-0", 60)(found)
        )
        again = await proof.until(_proven("kept-0", 60))
        assert again.checksum == continued.checksum != whole.checksum
        # Another topic of the same name, with other records, copied again from its start.
        for cluster in both:
            async with client(cluster.bootstrap) as one:
                await one.admin.delete_topics(["kept"])
        await proof.until(lambda found: bool(found["kept-0"].unavailable))
        await make_topic(both[0].bootstrap, "kept", 1)
        await asyncio.to_thread(fill, both[0].bootstrap, "kept", range(100, 170))
        proof.follower._routes_at = -1e9
        await _copy(both, "kept", "kept-again")
        proof.follower._routes_at = -1e9
        await proof.until(_proven("kept-0", 70))
    assert "the proof begins again: a topic was deleted and created again" in caplog.text


async def test_retention_and_truncation(
    both: Both, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await make_topic(both[0].bootstrap, "cut", 1)
    await asyncio.to_thread(fill, both[0].bootstrap, "cut", range(40))
    await _copy(both, "cut", "cut")
    tp = TopicPartition("cut", 0)
    async with _Proof(both, tmp_path, "cut") as proof:
        await proof.until(_proven("cut-0", 40))
        # The source deletes records that were neither copied nor compared.
        await asyncio.to_thread(fill, both[0].bootstrap, "cut", range(40, 80))
        await proof.until(lambda found: found["cut-0"].source_end == 80)
        async with client(both[0].bootstrap) as one:
            await one.admin.delete_records({tp: 70})
        await _copy(both, "cut", "cut")  # only the last ten
        await proof.until(_proven("cut-0", 80))
        assert "retention deleted records that were not compared; continuing at 70" in caplog.text
        # A log that is shorter than what was compared is not the log that was compared.
        proof.follower._followed[next(iter(proof.follower._followed))].offsets = (95, 95)
        await proof.until(lambda _: "the source ends at 80, below 95" in caplog.text)
        await proof.until(_proven("cut-0", 80))


async def test_one_partition_without_a_leader_does_not_stop_the_others(tmp_path: Path) -> None:
    with (
        LiteCluster(brokers=2, profile="available") as source,
        LiteCluster() as target,
    ):
        for topic, node in (("one", 1), ("two", 2)):
            await make_placed(source, topic, {0: [node]})
            await asyncio.to_thread(fill, source.bootstrap, topic, range(20))
            await _copy((source, target), topic, topic)
        async with _Proof((source, target), tmp_path, "one", "two") as proof:
            await proof.until(lambda found: _proven("one-0", 20)(found) and "two-0" in found)
            await proof.until(_proven("two-0", 20))
            await asyncio.to_thread(source.kill, 2)
            await proof.until(lambda found: bool(found["two-0"].unavailable))
            await asyncio.to_thread(fill, source.bootstrap, "one", range(20, 40))
            await _copy((source, target), "one", "one")
            await proof.until(_proven("one-0", 40))
            await asyncio.to_thread(source.restart, 2)
            back = await proof.until(_proven("two-0", 20))
            assert back.difference is None


async def test_a_deleted_topic_does_not_stop_the_comparison_of_others(both: Both) -> None:
    for topic in ("stays", "goes"):
        await make_topic(both[0].bootstrap, topic, 1)
        await asyncio.to_thread(fill, both[0].bootstrap, topic, range(20))
        await _copy(both, topic, topic)
    async with client(both[0].bootstrap) as one:
        await one.admin.delete_topics(["goes"])
    reports = await verify_copies(both[0].bootstrap, both[1].bootstrap, "goes", "stays")
    found = {report.partition.topic: report for report in reports}
    assert "no topic goes" in found["goes"].unavailable
    assert (found["stays"].records, found["stays"].unavailable) == (20, "")


@pytest.mark.parametrize("step", ["compare_logs", "find_copies"])
async def test_an_unexpected_error_of_one_partition_is_reported_and_stops_no_other(
    both: Both, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    topic = step.replace("_", "-")
    await make_topic(both[0].bootstrap, topic, 2)
    await asyncio.to_thread(fill, both[0].bootstrap, topic, range(40), partitions=2)
    await _copy(both, topic, topic)
    bad, original = TopicPartition(topic, 1), getattr(follower, step)

    async def fail(*arguments: Any, **options: Any) -> Any:
        report, routes = arguments[0], arguments[-1]
        named = [report.partition] if step == "compare_logs" else [r.source for r in routes]
        if bad in named:
            raise IndexError("planted")
        return await original(*arguments, **options)

    async with _Proof(both, tmp_path, topic) as proof:
        monkeypatch.setattr(follower, step, fail)
        monkeypatch.setattr(once, step, fail)
        for each in proof.follower._followed.values():
            each.restart("for the test")
        await proof.until(_proven(f"{topic}-0", 20))
        await proof.until(lambda found: bool(found[str(bad)].unavailable))
        found = {each.source: each for each in proof.follower.partitions}[str(bad)]
        assert "internal error (IndexError('planted'))" in found.unavailable
        assert "NOT COMPARED" in describe_proof(found)
        if step == "compare_logs":
            reports = await verify_copies(both[0].bootstrap, both[1].bootstrap, topic)
            assert [each.records for each in reports] == [20, 0]
            assert "internal error" in reports[1].unavailable
        monkeypatch.setattr(follower, step, original)
        await proof.until(_proven(str(bad), 20))
