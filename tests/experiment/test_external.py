"""Runs on somebody else's clusters: they touch nothing that is not theirs, and clean up.

What else is on the clusters is compared before and after: the files of its logs byte for byte,
every setting, and the committed offsets of a group; and somebody writes all the while.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    ResourceType,
)

from shoal.audit.audit import audit
from shoal.audit.read.folder import open_ledger
from shoal.cli.main import execute
from shoal.experiment.faults.fault_injection import prepare_environment
from shoal.experiment.manifest import Manifest
from shoal.experiment.run import run_workload
from shoal.experiment.safety import Permissions, apply_permissions
from shoal.experiment.spec import Caps, ExperimentSpec, MirrorSpec, load
from shoal.lite.cluster import LiteCluster
from shoal.model.errors import SystemFailure, UsageError
from shoal.model.events import End, Event, Meta, State, Tick
from shoal.model.findings import Verdict
from shoal.model.result import Result
from shoal.telemetry.events import EventReader
from support.lite.clusters import create_topic, send

OTHERS = "precious"
BUSY = "busy"
CANARY = "canary"
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def clusters() -> Iterator[tuple[LiteCluster, LiteCluster]]:
    """A source and a target on which others work."""
    with LiteCluster() as source, LiteCluster() as target:
        for cluster in (source, target):
            create_topic(cluster, OTHERS, 2, 1)
            assert send(cluster, OTHERS, b"a", b"b") == [None, None]
            create_topic(cluster, BUSY, 1, 1)
            create_topic(cluster, CANARY, 3, 1)
            assert send(cluster, CANARY, b"older") == [None]
            read_committed_offset(cluster, offset=1)
        yield source, target


def read_committed_offset(cluster: LiteCluster, *, offset: int | None = None) -> int:
    """What somebody's group has committed; sets it first if an offset is given."""
    place = TopicPartition(OTHERS, 0)
    settings = {"bootstrap.servers": cluster.bootstrap, "group.id": "theirs"}
    consumer = Consumer(settings | {"enable.auto.commit": False})
    try:
        if offset is not None:
            consumer.commit(offsets=[TopicPartition(OTHERS, 0, offset)], asynchronous=False)
        return int(consumer.committed([place], timeout=PATIENCE_S)[0].offset)
    finally:
        consumer.close()


def spec_for(
    clusters: tuple[LiteCluster, LiteCluster], tmp_path: Path, *, more: str = ""
) -> ExperimentSpec:
    source, target = clusters
    file = tmp_path / "theirs.toml"
    file.write_text(
        f"""
        [source]
        engine = "external"
        bootstrap = "{source.bootstrap}"
        [target]
        engine = "external"
        bootstrap = "{target.bootstrap}"
        [mirror]
        kind = "shoal"
        [topics]
        partitions = 3
        [producer]
        messages = 600
        rate = 600
        size = 200
        drain_timeout = "60s"
        {more}
        """
    )
    return load(file)


def run_experiment_in(spec: ExperimentSpec, run_dir: Path) -> Result:
    with prepare_environment(spec) as environment:
        run_workload(
            spec,
            addresses=environment.addresses(spec),
            run_dir=run_dir,
            watch=lambda _progress: None,
        )
    return audit(open_ledger([run_dir]))


def everything(cluster: LiteCluster) -> dict[str, Any]:
    """All that others have there: names of topics, settings, logs byte for byte, offsets."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    topics = sorted(admin.list_topics(timeout=PATIENCE_S).topics)
    nodes = [(ResourceType.BROKER, str(node.id)) for node in cluster.nodes()]
    asked = [ConfigResource(*one) for one in nodes]
    asked += [ConfigResource(ResourceType.TOPIC, name) for name in (OTHERS, BUSY, CANARY)]
    settings = {}
    for resource, answer in admin.describe_configs(asked).items():
        entries = answer.result(timeout=PATIENCE_S).values()
        settings[str(resource)] = sorted((e.name, e.value, str(e.source)) for e in entries)
    logs = {
        file.name: file.read_bytes()
        for folder in cluster.log_dirs().values()
        for file in sorted(folder.glob(f"{OTHERS}-*/*.log"))
    }
    assert logs
    theirs = {"topics": topics, "settings": settings, "logs": logs}
    return theirs | {"committed": read_committed_offset(cluster)}


@contextmanager
def traffic(cluster: LiteCluster) -> Iterator[list[int]]:
    """Somebody who writes to a topic of theirs all the while; the list counts what was taken."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    sent: list[int] = []
    is_over = threading.Event()

    def write() -> None:
        while not is_over.wait(0.01):
            producer.produce(BUSY, b"x", on_delivery=lambda error, _: sent.append(error is None))
            producer.poll(0)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield sent
    finally:
        is_over.set()
        thread.join()
        producer.flush(PATIENCE_S)


def log_end(cluster: LiteCluster, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "looking"})
    try:
        return int(consumer.get_watermark_offsets(TopicPartition(topic, 0), PATIENCE_S)[1])
    finally:
        consumer.close()


def check_events(run_dir: Path) -> None:
    """The run watches its clusters by their metadata: its own topics, and nothing of others."""
    for role in ("source", "target"):
        events = read_events(run_dir / role)
        [meta] = [each for each in events if isinstance(each, Meta)]
        assert (meta.subject, meta.details["engine"]) == ("cluster", "external")
        states = {each.object for each in events if isinstance(each, State)}
        partitions = {f"partition theirs-{number}" for number in range(3)}
        assert states - {"broker 1"} == partitions
    ticks = [each for each in read_events(run_dir) if isinstance(each, Tick)]
    used = {process.name for tick in ticks for process in tick.processes}
    assert {"driver", "producer-1", "consumer-1"} <= used


def test_the_events_of_a_failed_run_end_with_the_reason(
    clusters: tuple[LiteCluster, LiteCluster], tmp_path: Path
) -> None:
    spec = apply_permissions(spec_for(clusters, tmp_path), Permissions())
    spec = replace(spec, mirror=MirrorSpec("external", start="false"))
    run_dir = tmp_path / "runs" / "failed"
    with pytest.raises(SystemFailure, match="the mirror exited"):
        run_experiment_in(spec, run_dir)
    end = read_events(run_dir)[-1]
    assert isinstance(end, End)
    assert end.outcome == "failed"
    assert "the mirror exited before the run ended" in end.text
    assert execute(["clean", "failed", "--runs-dir", str(tmp_path / "runs")]) == 0


def read_events(folder: Path) -> list[Event]:
    reader = EventReader(folder)
    events = reader.read().events
    reader.close()
    return events


def test_a_run_touches_nothing_else_and_cleans_up_after_itself(
    clusters: tuple[LiteCluster, LiteCluster], tmp_path: Path
) -> None:
    before = [everything(cluster) for cluster in clusters]
    busy_before = log_end(clusters[0], BUSY)
    spec = apply_permissions(spec_for(clusters, tmp_path), Permissions())
    run_dir = tmp_path / "runs" / "one"
    with traffic(clusters[0]) as sent:
        result = run_experiment_in(spec, run_dir)
    assert result.verdict is Verdict.PROVEN, result.sentence
    check_events(run_dir)
    assert sent
    assert all(sent)
    assert log_end(clusters[0], BUSY) == busy_before + len(sent)
    between = [everything(cluster) for cluster in clusters]
    assert "theirs" in between[0]["topics"]
    arguments = ["clean", "one", "--runs-dir", str(tmp_path / "runs")]
    assert execute([*arguments, "--dry-run"]) == 0
    assert [everything(cluster)["topics"] for cluster in clusters] == [
        one["topics"] for one in between
    ]
    assert execute(arguments) == 0
    assert [everything(cluster) for cluster in clusters] == before
    assert execute(arguments) == 0  # again: nothing is left, and nothing is wrong


def test_a_topic_of_the_same_name_that_somebody_made_later_stays(
    clusters: tuple[LiteCluster, LiteCluster], tmp_path: Path
) -> None:
    run_dir = tmp_path / "runs" / "two"
    spec = apply_permissions(spec_for(clusters, tmp_path), Permissions())
    run_experiment_in(spec, run_dir)
    admin = AdminClient({"bootstrap.servers": clusters[0].bootstrap})
    admin.delete_topics(["theirs"])["theirs"].result(PATIENCE_S)
    create_topic(clusters[0], "theirs", 1, 1)
    assert execute(["clean", "two", "--runs-dir", str(tmp_path / "runs")]) == 1
    assert "theirs" in everything(clusters[0])["topics"]
    assert "theirs" not in everything(clusters[1])["topics"]
    admin.delete_topics(["theirs"])["theirs"].result(PATIENCE_S)


def test_a_canary_is_written_to_and_stays(
    clusters: tuple[LiteCluster, LiteCluster], tmp_path: Path
) -> None:
    source = clusters[0]
    spec = spec_for((source, source), tmp_path)
    spec = apply_permissions(single(spec), Permissions(canary_topic=CANARY))
    run_dir = tmp_path / "runs" / "three"
    result = run_experiment_in(spec, run_dir)
    assert result.verdict is Verdict.PROVEN, result.sentence
    assert Manifest.read(run_dir).clusters["source"].topics == {}
    assert execute(["clean", "three", "--runs-dir", str(tmp_path / "runs")]) == 0
    assert CANARY in everything(source)["topics"]


def single(spec: ExperimentSpec) -> ExperimentSpec:
    """The same with no target."""
    return replace(spec, target=None, mirror=MirrorSpec())


def test_a_topic_that_is_there_is_refused_without_leave(
    clusters: tuple[LiteCluster, LiteCluster], tmp_path: Path
) -> None:
    before = [everything(cluster) for cluster in clusters]
    spec = spec_for(clusters, tmp_path)
    spec = replace(spec, topics=replace(spec.topics, name=OTHERS))
    with pytest.raises(UsageError, match="already"):
        run_experiment_in(apply_permissions(spec, Permissions()), tmp_path / "refused")
    assert [everything(cluster) for cluster in clusters] == before


def test_faults_need_leave(clusters: tuple[LiteCluster, LiteCluster], tmp_path: Path) -> None:
    fault = '[[fault]]\nname = "kill"\ntarget = "mirror"\nat = "100ms"\nfor = "1s"'
    spec = spec_for(clusters, tmp_path, more=fault)
    with pytest.raises(UsageError, match="faults"):
        apply_permissions(spec, Permissions())
    assert apply_permissions(spec, Permissions(allow_faults=True)).faults


def test_caps_hold_whatever_the_file_says(
    clusters: tuple[LiteCluster, LiteCluster], tmp_path: Path
) -> None:
    spec = apply_permissions(
        single(spec_for(clusters, tmp_path)),
        Permissions(caps=Caps(max_rate_per_s=300, max_bytes=20_000)),
    )
    run_dir = tmp_path / "runs" / "capped"
    result = run_experiment_in(spec, run_dir)
    assert result.metrics.attempts == 100  # of 200 bytes each
    assert json.loads((run_dir / "run.json").read_text())["workload"]["rate_per_s"] == 300
    assert execute(["clean", "capped", "--runs-dir", str(tmp_path / "runs")]) == 0


def test_doctor_tells_permissions_and_changes_nothing(
    clusters: tuple[LiteCluster, LiteCluster], capsys: pytest.CaptureFixture[str]
) -> None:
    before = everything(clusters[0])
    servers = ["doctor", "--bootstrap-server", clusters[0].bootstrap, "--output", "json"]
    assert execute(servers) == 0
    checks = {check["name"]: check["state"] for check in json.loads(capsys.readouterr().out)}
    assert checks["Create topics"] == "ok"
    assert checks["Describe on cluster"] == "ok"
    assert execute([*servers, "--canary-topic", CANARY]) == 0
    checks = {check["name"]: check["state"] for check in json.loads(capsys.readouterr().out)}
    assert checks[f"Write on topic {CANARY}"] == checks[f"Read on topic {CANARY}"] == "ok"
    assert execute([*servers, "--canary-topic", "nowhere"]) == 1
    assert "does not exist" in capsys.readouterr().out
    assert everything(clusters[0]) == before
