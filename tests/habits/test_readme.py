"""Every command of the README runs as it stands, and what it shows is what it prints."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.client.admin import NewTopic
from shoal.client.client import Client
from shoal.lite.cluster import LiteCluster

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def commands() -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    lines = [line.partition("#")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line]


def test_the_readme_names_only_commands_that_are_tried_here() -> None:
    tried = {
        "make demo",
        "make test",
        "shoal cluster up",
        UP_APACHE,
        MIRROR,
        CONSUME,
        PRODUCE,
        AUDIT_BOTH,
        BENCH,
        EXPERIMENT,
        SERVE,
        *CHECKED,
        *FROM_ELSEWHERE,
        *RUNS,
    }
    assert set(commands()) <= tried


UP_APACHE = "shoal cluster up --engine apache"
MIRROR = (
    "shoal mirror run --source-bootstrap-server $SOURCE --target-bootstrap-server $TARGET"
    " --topics orders,payments"
)
CONSUME = (
    "shoal consume --bootstrap-server $TARGET --topics orders --create-topics 4 --idle 8"
    " --ledger there"
)
PRODUCE = (
    "shoal produce --bootstrap-server $SOURCE --topics orders --create-topics 4 --throughput 1000"
    " --messages 5000 --ledger here"
)
AUDIT_BOTH = "shoal audit here there"
BENCH = "shoal bench --producers 2 --consumers 2 --messages 20000"
EXPERIMENT = "shoal run mirror-correctness"
SERVE = "shoal serve"
# These take minutes: whether they would run is checked.
CHECKED = [
    "shoal run --list",
    "shoal run source-broker-killed --engine apache --set mirror.kind=mm2",
    "shoal sweep consistency --vary producer.acks=0,1,all --vary in_flight=1,5 --repeat 3",
]
FROM_ELSEWHERE = [
    "shoal cluster status",
    "shoal cluster pause 1",
    "shoal cluster resume 1",
    "shoal cluster kill 1",
    "shoal cluster restart 1",
    "shoal cluster down",
]
RUNS = ["shoal runs list", "shoal runs show", "shoal audit RUN", "shoal doctor"]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return os.environ | {"PATH": path, "XDG_STATE_HOME": str(tmp_path / "state")}


def shell(command: str, environment: dict[str, str], folder: Path = ROOT) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["sh", "-c", f"exec {command}"],  # noqa: S607 - any POSIX shell will do
        env=environment,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_cluster_comes_up_and_obeys_another_terminal(environment: dict[str, str]) -> None:
    with shell("shoal cluster up", environment) as owner:
        assert owner.stdout
        assert owner.stdout.readline().startswith("bootstrap.servers=127.0.0.1:")
        for command in FROM_ELSEWHERE:
            assert command in commands()
            with shell(command, environment) as other:
                _, said = other.communicate(timeout=100)
            assert other.returncode == 0, said
        assert owner.wait(100) == 0


@pytest.fixture
def two_clusters() -> Iterator[tuple[str, str]]:
    with LiteCluster() as source, LiteCluster() as target:
        yield source.bootstrap, target.bootstrap


async def test_the_mirror_copies_between_two_clusters(
    environment: dict[str, str], two_clusters: tuple[str, str], tmp_path: Path
) -> None:
    source, target = two_clusters
    async with Client({"bootstrap.servers": source}) as client:
        await client.admin.create_topics([NewTopic("orders", 1, 1), NewTopic("payments", 1, 1)])
    assert MIRROR in commands()
    with shell(MIRROR, environment | {"SOURCE": source, "TARGET": target}) as mirror:
        async with Client({"bootstrap.servers": target}) as client:
            deadline = time.monotonic() + 120
            while not {"orders", "payments"} <= set((await client.metadata(refresh=True)).topics):
                assert time.monotonic() < deadline, "the mirror made no topics"
        mirror.send_signal(signal.SIGINT)
        _, said = mirror.communicate(timeout=100)
    assert mirror.returncode == 0, said


async def create_orders(bootstrap: str) -> None:
    async with Client({"bootstrap.servers": bootstrap}) as client:
        if "orders" not in (await client.metadata(refresh=True)).topics:
            await client.admin.create_topics([NewTopic("orders", 4, 1)])


@pytest.mark.spark
@pytest.mark.long
def test_two_ends_of_a_test_are_judged_together(
    environment: dict[str, str], two_clusters: tuple[str, str], tmp_path: Path
) -> None:
    source, target = two_clusters
    environment |= {"SOURCE": source, "TARGET": target}
    asyncio.run(create_orders(source))  # a mirror refuses a topic that is not there
    mirror = shell(MIRROR.replace(",payments", ""), environment)
    ends = [shell(command, environment, tmp_path) for command in (CONSUME, PRODUCE)]
    for end in ends:
        _, said = end.communicate(timeout=500)
        assert end.returncode == 0, said
    mirror.send_signal(signal.SIGINT)
    mirror.communicate(timeout=100)
    with shell(AUDIT_BOTH, environment, tmp_path) as audit:
        verdict, said = audit.communicate(timeout=500)
    assert verdict.startswith("PROVEN: All 5,000 acknowledged messages were delivered"), said


@pytest.mark.spark
@pytest.mark.long
def test_a_cluster_is_measured(environment: dict[str, str], tmp_path: Path) -> None:
    with shell(BENCH, environment, tmp_path) as bench:
        shown, said = bench.communicate(timeout=500)
    assert bench.returncode == 0, said
    for text in ("PROVEN", "from sent to consumed", "sent range", "output range", "every message"):
        assert text in shown


@pytest.mark.spark
@pytest.mark.long
def test_an_experiment_runs(environment: dict[str, str], tmp_path: Path) -> None:
    with shell(EXPERIMENT, environment, tmp_path) as run:
        shown, said = run.communicate(timeout=500)
    assert run.returncode == 0, said
    assert "PROVEN: All 20,000 acknowledged messages were delivered" in shown


@pytest.mark.parametrize("command", [EXPERIMENT, *CHECKED])
def test_longer_experiments_could_run(
    command: str, environment: dict[str, str], tmp_path: Path
) -> None:
    with shell(f"{command} --dry-run", environment, tmp_path) as run:
        shown, said = run.communicate(timeout=100)
    assert run.returncode == 0, said
    assert shown
    assert not list(tmp_path.glob("runs/*"))


def test_the_python_example_runs() -> None:
    example = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert example
    command = [sys.executable, "-c", example[1]]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True)
    assert re.fullmatch(r"127\.0\.0\.1:\d+\n", shown.stdout)


def test_the_doctor_answers(environment: dict[str, str]) -> None:
    with shell("shoal doctor", environment) as doctor:
        said, _ = doctor.communicate(timeout=100)
    assert "Python" in said


def test_the_page_is_served(environment: dict[str, str], tmp_path: Path) -> None:
    # The port of the README may be in use here.
    command = [*SERVE.split(), "--port", "0"]
    with subprocess.Popen(
        command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("http://127.0.0.1:")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
