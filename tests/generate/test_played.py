"""Generated deployments are played: their commands run, their probes answer, messages pass."""

import asyncio
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.client.client import Client
from shoal.client.consume.consumer import Consumer
from shoal.client.produce.producer import Producer
from shoal.client.results import EARLIEST
from shoal.generate.dockerfile import PRINT_JAVA_HOME, SPARK_JAVA_HOME
from shoal.generate.plan import METRICS_PORT, MIRROR_METRICS_PORT
from shoal.model.topics import TopicPartition
from support.deploy.kustomize import build_kustomization
from support.deploy.player import PATIENCE_S, Player
from support.deploy.units import ZONES, list_installed_units, list_pods, list_services

pytestmark = pytest.mark.slow
ORDERS = TopicPartition("orders", 0)


def generate(kind: str, folder: Path, *options: str) -> Path:
    command = [sys.executable, "-m", "shoal", "generate", kind, "--out", str(folder), *options]
    subprocess.run(command, check=True, capture_output=True)
    return folder


def scrape(player: Player, unit: str, port: int) -> bytes:
    url = f"http://{player.address(unit, port)}/metrics"
    with urllib.request.urlopen(url, timeout=60) as answer:
        return bytes(answer.read())


@pytest.fixture
def player(tmp_path: Path) -> Iterator[Player]:
    playing = Player(tmp_path)
    yield playing
    playing.end()


async def send(bootstrap: str, value: bytes) -> None:
    """Send to a topic that the cluster creates as its defaults say."""
    properties = {"bootstrap.servers": bootstrap, "allow.auto.create.topics": "true"}
    async with Client(properties) as client, Producer(client) as producer:
        await producer.send(ORDERS.topic, value, partition=ORDERS.partition)


async def read(bootstrap: str, count: int) -> list[bytes | None]:
    deadline = time.monotonic() + PATIENCE_S
    values: list[bytes | None] = []
    async with Client({"bootstrap.servers": bootstrap}) as client:
        while ORDERS.topic not in (await client.metadata()).topics:
            assert time.monotonic() < deadline, "the topic was not created"
            await asyncio.sleep(0.1)
        async with Consumer(client, {ORDERS: EARLIEST}) as consumer:
            while len(values) < count:
                assert time.monotonic() < deadline, values
                values += [one.record.value for one in await consumer.poll_records()]
    return values


async def test_the_small_overlay_serves_and_survives_a_kill(player: Player, tmp_path: Path) -> None:
    folder = generate("kubernetes", tmp_path / "files", "--name", "east")
    player.add(list_pods(build_kustomization(folder / "overlays" / "small")))
    player.start()
    player.wait_until_ready()
    broker = "east.broker-0"
    assert b"shoal_broker_start_time_seconds" in scrape(player, broker, METRICS_PORT)
    await send(player.address(broker, 9092), b"a")
    # The page of this machine finds the nodes.
    nodes = {each.stem for each in (tmp_path / "state" / "shoal" / "nodes").iterdir()}
    assert nodes == {"east-broker-0", "east-controller-100"}
    player.kill(broker)
    assert player.probe(broker) is not None
    player.start(broker)
    player.wait_until_ready(broker)
    await send(player.address(broker, 9092), b"b")
    assert await read(player.address(broker, 9092), 2) == [b"a", b"b"]
    assert player.end() == {"east.controller-0": 0, broker: 0}


@pytest.mark.long
async def test_the_production_overlay_replicates_mirrors_and_survives_a_kill(
    player: Player, tmp_path: Path
) -> None:
    east = generate("kubernetes", tmp_path / "east", "--name", "east")
    source = "broker-0.brokers.east.svc:9092"
    west = generate("kubernetes", tmp_path / "west", "--name", "west", "--mirror-source", source)
    player.add(list_pods(build_kustomization(east / "overlays" / "production")))
    player.start()
    player.wait_until_ready()
    brokers = [f"east.broker-{i}" for i in range(3)]
    bootstrap = player.address(brokers[0], 9092)
    await send(bootstrap, b"a")
    async with Client({"bootstrap.servers": bootstrap}) as client:
        cluster = await client.metadata()
        assert [cluster.brokers[i].rack for i in range(3)] == list(ZONES)
        assert sorted(cluster.topics["orders"].partitions[0].isr) == [0, 1, 2]

    target = Player(tmp_path / "target")
    (tmp_path / "target").mkdir()
    pods = list_pods(build_kustomization(west / "overlays" / "small"))
    mirrors = list_pods(build_kustomization(west / "mirror"))
    for mirror in mirrors:
        mirror.environment["SOURCE"] = bootstrap
        mirror.command = [bootstrap if word == source else word for word in mirror.command]
    try:
        target.add([*pods, *mirrors])
        target.start()
        target.wait_until_ready()
        for victim in (brokers[1], "east.controller-0"):
            player.kill(victim)
            player.start(victim)
            player.wait_until_ready(victim)
        await send(bootstrap, b"b")
        assert await read(target.address("west.broker-0", 9092), 2) == [b"a", b"b"]
        target.kill("west.mirror-0")
        await send(bootstrap, b"c")
        target.start("west.mirror-0")
        assert await read(target.address("west.broker-0", 9092), 3) == [b"a", b"b", b"c"]
    finally:
        codes = target.end()
    assert set(codes.values()) == {0}, target.log("west.mirror-0")
    assert set(player.end().values()) == {0}


@pytest.mark.long
@pytest.mark.parametrize("kind", ["compose", "systemd"])
async def test_nodes_and_mirror_of_a_deployment(kind: str, player: Player, tmp_path: Path) -> None:
    source = Player(tmp_path / "source")
    (tmp_path / "source").mkdir()
    small = generate("kubernetes", tmp_path / "small")
    source.add(list_pods(build_kustomization(small / "overlays" / "small")))
    try:
        source.start()
        source.wait_until_ready()
        start = source.address("shoal.broker-0", 9092)
        await send(start, b"a")
        options = ["--mirror-source", start, "--topics", "orders"]
        if kind == "compose":
            folder = generate(kind, tmp_path / "files", *options)
            player.add(list_services(folder / "compose.yaml"))
            broker, port = "broker-2", 9102
        else:
            program = Path(sys.executable).with_name("shoal")
            hosts = "host-a@zone-a,host-b@zone-b,host-c@zone-c"
            options += ["--hosts", hosts, "--program", str(program)]
            player.add(list_installed_units(generate(kind, tmp_path / "files", *options)))
            broker, port = "host-b.broker", 9092
        player.start()
        player.wait_until_ready()
        bootstrap = player.address(broker, port)
        assert await read(bootstrap, 1) == [b"a"]
        assert b"shoal_broker_start_time_seconds" in scrape(player, broker, METRICS_PORT)
        mirror = "mirror" if kind == "compose" else "host-c.mirror"
        assert b"shoal_mirror_" in scrape(player, mirror, MIRROR_METRICS_PORT)
        player.kill(broker)
        player.start(broker)
        player.wait_until_ready(broker)
        await send(start, b"b")
        assert await read(bootstrap, 2) == [b"a", b"b"]
    finally:
        source.end()
    codes = player.end()
    assert set(codes.values()) == {0}, codes


@pytest.mark.spark
@pytest.mark.long
async def test_a_run_as_a_job_is_judged(player: Player, tmp_path: Path) -> None:
    folder = generate("kubernetes", tmp_path / "files")
    cluster = list_pods(build_kustomization(folder / "overlays" / "small"))
    [job] = list_pods(build_kustomization(folder / "run"))
    player.add([*cluster, job])
    nodes = [unit.name for unit in cluster]
    player.start(*nodes)
    player.wait_until_ready(*nodes)
    player.start(job.name)
    assert player.running.pop(job.name).wait(500) == 0, player.log(job.name)
    assert "PROVEN: All 5,000 acknowledged messages" in player.log(job.name)
    assert list(player.folder_of(job.name, "/runs").glob("*/report.html"))


@pytest.mark.spark
@pytest.mark.long
def test_spark_workers_find_their_master(player: Player, tmp_path: Path) -> None:
    folder = generate("kubernetes", tmp_path / "files")
    units = list_pods(build_kustomization(folder / "spark"))
    # As the Dockerfile makes it.
    code = [sys.executable, "-c", PRINT_JAVA_HOME]
    java_home = subprocess.run(code, check=True, capture_output=True, text=True).stdout.strip()
    for unit in units:
        assert unit.environment["JAVA_HOME"] == SPARK_JAVA_HOME
        unit.environment["JAVA_HOME"] = java_home
    player.add(units)
    player.start()
    player.wait_until_ready("shoal.spark-master-0")
    deadline = time.monotonic() + PATIENCE_S
    while player.log("shoal.spark-master-0").count("Registering worker") < 2:
        assert time.monotonic() < deadline, player.log("shoal.spark-worker-0")
        time.sleep(0.2)
    assert len(player.running) == 3
