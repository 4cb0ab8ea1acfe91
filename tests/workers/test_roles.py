"""Producers, consumers, scans and mirrors as workers, against real brokers of ours."""

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from shoal.client.admin import NewTopic
from shoal.client.client import Client
from shoal.lite.cluster import LiteCluster
from shoal.mirror.config import MirrorConfig
from shoal.model.errors import ConfigError
from shoal.workers.processes import ProcessPlacement
from shoal.workers.specs import RestartPolicy, Role, WorkerSpec
from shoal.workers.supervision import WorkerPhase
from shoal.workers.supervisor import RunState, WorkerSupervisor
from shoal.workload.record.ledger import create_run, open_run
from shoal.workload.specs import (
    ConsumerSpec,
    ProducedTopic,
    ProducerSpec,
    ScanSpec,
    StartingPoint,
)

LANES = 3
GROUP = "readers"


@pytest.fixture(scope="module")
def source() -> Iterator[LiteCluster]:
    with LiteCluster() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def target() -> Iterator[LiteCluster]:
    with LiteCluster() as cluster:
        yield cluster


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    create_run(tmp_path / "run", {"run": "r1", "state": "running"})
    return tmp_path / "run"


def _make(cluster: LiteCluster, topic: str) -> None:
    async def make() -> None:
        async with Client(_client(cluster)) as client:
            await client.admin.create_topics([NewTopic(topic, LANES)])

    asyncio.run(make())


def _client(cluster: LiteCluster) -> dict[str, Any]:
    return {"bootstrap.servers": cluster.bootstrap}


def _producer(
    cluster: LiteCluster, topic: str, *, restart: RestartPolicy | None = None, **changes: Any
) -> WorkerSpec:
    fields: dict[str, Any] = {"messages": 1500, "rate_per_s": 3000.0, "size_bytes": 200}
    spec = ProducerSpec(
        run="r1",
        producer="p",
        topics=(ProducedTopic(topic, LANES, LANES),),
        **fields | {"drain_timeout_s": 60.0} | changes,
    )
    task = {"client": _client(cluster), "spec": spec.to_json()}
    return WorkerSpec("producer", Role.PRODUCE, task, restart)


def _beginnings(topic: str) -> tuple[StartingPoint, ...]:
    return tuple(StartingPoint(topic, partition, 0) for partition in range(LANES))


def _consumer(cluster: LiteCluster, topic: str) -> WorkerSpec:
    spec = ConsumerSpec("r1", GROUP, "c", (topic,), _beginnings(topic))
    task = {"client": _client(cluster), "spec": spec.to_json()}
    return WorkerSpec("consumer", Role.CONSUME, task)


def _scan(cluster: LiteCluster, topic: str, name: str) -> WorkerSpec:
    spec = ScanSpec("r1", name, (topic,), _beginnings(topic))
    task = {"client": _client(cluster), "spec": spec.to_json()}
    return WorkerSpec(f"scan-{name}", Role.SCAN, task)


def _mirror(source: LiteCluster, target: LiteCluster, topic: str) -> WorkerSpec:
    config = MirrorConfig(_client(source), _client(target), (topic,))
    return WorkerSpec("mirror", Role.MIRROR, config.to_json())


def _has_ended(*names: str) -> Callable[[RunState], bool]:
    return lambda state: all(state.workers[name].phase is WorkerPhase.ENDED for name in names)


def _running(state: RunState) -> bool:
    return state.all_in(WorkerPhase.RUNNING)


def test_a_run_from_producer_to_scans_by_workers_alone(
    source: LiteCluster, target: LiteCluster, run_dir: Path
) -> None:
    _make(source, "whole")
    with WorkerSupervisor("r1", run_dir, ProcessPlacement(), groups=[GROUP]) as supervisor:
        supervisor.launch([_mirror(source, target, "whole")])
        assert supervisor.wait(lambda s: "lag" in s.workers["mirror"].progress, 30)
        supervisor.launch([_producer(source, "whole"), _consumer(target, "whole")])
        assert supervisor.wait(_running, 60), supervisor.state()
        supervisor.start_at(time.time_ns() // 1000 + 100_000)
        assert supervisor.wait(_has_ended("producer"), 60), supervisor.state()
        supervisor.stop_workers(["consumer", "mirror"])
        assert supervisor.wait(_has_ended("consumer", "mirror"), 30)
        assert supervisor.state().workers["mirror"].progress["records"] >= 1500
        supervisor.launch([_scan(source, "whole", "source"), _scan(target, "whole", "target")])
        assert supervisor.wait(_has_ended("scan-source", "scan-target"), 60)
        reasons = {name: view.reason for name, view in supervisor.state().workers.items()}
    assert reasons == {
        "mirror": "stopped",
        "producer": "finished",
        "consumer": "stopped",
        "scan-source": "finished",
        "scan-target": "finished",
    }
    run = open_run(run_dir)
    assert pc.value_counts(run.read("attempts")["outcome"]).to_pylist() == [
        {"values": 0, "counts": 1500}
    ]
    assert len(run.read("receipts")) == 1500
    assert len(run.read("log")) == 3000
    drained = {line["lane"] for line in run.commits if line["kind"] == "drained"}
    assert drained == set(range(LANES))


def test_the_first_messages_are_not_late(source: LiteCluster, run_dir: Path) -> None:
    """What takes long to load was loaded before the lease."""
    _make(source, "early")
    with WorkerSupervisor("r1", run_dir, ProcessPlacement(), groups=[GROUP]) as supervisor:
        supervisor.launch([_producer(source, "early", messages=300, drain_timeout_s=0.0)])
        assert supervisor.wait(_running, 60)
        supervisor.start_at(time.time_ns() // 1000 + 300_000)
        assert supervisor.wait(_has_ended("producer"), 60)
    attempts = open_run(run_dir).read("attempts")
    late_us = pc.subtract(attempts["sent_us"], attempts["intended_us"]).to_pylist()
    assert sorted(late_us)[len(late_us) // 2] < 250_000


def test_a_killed_producer_leaves_nothing_unexplained(source: LiteCluster, run_dir: Path) -> None:
    _make(source, "killed")
    with WorkerSupervisor("r1", run_dir, ProcessPlacement(), groups=[GROUP]) as supervisor:
        supervisor.launch([_producer(source, "killed", messages=1_000_000)])
        assert supervisor.wait(_running, 60)
        supervisor.start_at(time.time_ns() // 1000)
        assert supervisor.wait(lambda s: s.workers["producer"].progress.get("ok", 0) > 1000, 60)
        supervisor.kill("producer")
        assert supervisor.wait(_has_ended("producer"), 10)
        assert supervisor.state().workers["producer"].reason == "lost"
        supervisor.launch([_scan(source, "killed", "source")])
        assert supervisor.wait(_has_ended("scan-source"), 60)
    run = open_run(run_dir)
    reserved = {line["lane"]: line["until"] for line in run.commits if line["kind"] == "reserve"}
    log = run.read("log")
    assert len(log) > 1000
    for lane, sequence in zip(log["lane"].to_pylist(), log["sequence"].to_pylist(), strict=True):
        assert sequence < reserved[lane]
    stored = set(zip(log["lane"].to_pylist(), log["sequence"].to_pylist(), strict=True))
    attempts = run.read("attempts")
    ok = set(zip(attempts["lane"].to_pylist(), attempts["sequence"].to_pylist(), strict=True))
    assert ok <= stored


@pytest.mark.long
def test_a_producer_started_again_goes_on_above_what_was_reserved(
    source: LiteCluster, run_dir: Path
) -> None:
    _make(source, "again")
    spec = _producer(
        source, "again", messages=9000, drain_timeout_s=0.0, restart=RestartPolicy(1, 0.05)
    )
    with WorkerSupervisor("r1", run_dir, ProcessPlacement(), groups=[GROUP]) as supervisor:
        supervisor.launch([spec])
        assert supervisor.wait(_running, 60)
        supervisor.start_at(time.time_ns() // 1000)
        assert supervisor.wait(lambda s: s.workers["producer"].progress.get("ok", 0) > 1000, 60)
        supervisor.kill("producer")
        assert supervisor.wait(lambda s: s.workers["producer"].epoch == 2, 10)
        assert supervisor.wait(_has_ended("producer"), 60)
        assert supervisor.state().workers["producer"].reason == "finished"
    run = open_run(run_dir)
    reserves = [line for line in run.commits if line["kind"] == "reserve"]
    assert {line["epoch"] for line in reserves} == {1, 2}
    assert len({line["incarnation"] for line in reserves}) == 1
    reserved = max(line["until"] for line in reserves if line["epoch"] == 1)
    sequences: list[int] = []
    for segment in run.segments("attempts"):
        if segment.epoch == 2:
            sequences += pq.read_table(segment.path)["sequence"].to_pylist()
    assert min(sequences) == reserved
    assert max(sequences) == 9000 // LANES - 1


@pytest.mark.parametrize("role", [Role.SCAN, Role.MIRROR])
def test_a_task_that_makes_no_sense_fails_with_a_sentence(role: Role, run_dir: Path) -> None:
    with WorkerSupervisor("r1", run_dir, ProcessPlacement()) as supervisor:
        supervisor.launch([WorkerSpec("w", role, {"client": {}})])
        assert supervisor.wait(_has_ended("w"), 60)
        view = supervisor.state().workers["w"]
    assert (view.reason, view.restarts) == ("failed", 0)
    assert "has no 'spec'" in view.error or "configuration of a mirror lacks" in view.error


def test_a_mirrors_configuration_travels_as_json() -> None:
    with pytest.raises(ConfigError, match="configuration of a mirror lacks"):
        MirrorConfig.from_json({})
