"""`shoal cluster` as a user types it: up, status, faults, down; and without any extras."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
import venv
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError

import pytest

from shoal.model.events import End, Event, State, Tick
from shoal.telemetry.discovery import find_sources
from shoal.telemetry.events import EventReader
from support.apache.clusters import short_lived_jvm
from support.lite.clusters import eventually

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
READY = re.compile(r"^bootstrap\.servers=(127\.0\.0\.1:\d+)$")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A home of its own, so that nobody else's clusters show."""
    return os.environ | {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")}


def shoal(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "shoal", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


@pytest.fixture
def cluster_up(environment: dict[str, str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", "shoal", "cluster", "up", "--name", "one"]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout
        line = owner.stdout.readline().strip()
        found = READY.match(line)
        assert found, line
        yield owner, found[1]
        owner.send_signal(signal.SIGINT)
        owner.communicate(timeout=100)


def test_metrics_are_announced_and_need_the_token(
    environment: dict[str, str], tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("secret-1\n")
    command = [sys.executable, "-m", "shoal", "cluster", "up", "--name", "measured"]
    command += ["--metrics-port", "0", "--metrics-token-file", str(token)]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as owner:
        assert owner.stderr
        try:
            lines = (re.search(r"http://\S+/metrics", line) for line in owner.stderr)
            url = next(filter(None, lines)).group()
            with pytest.raises(HTTPError, match="401"):
                urllib.request.urlopen(url)  # noqa: S310 - a port of the cluster
            request = urllib.request.Request(url, headers={"Authorization": "Bearer secret-1"})  # noqa: S310
            with urllib.request.urlopen(request) as answer:  # noqa: S310
                assert b"shoal_broker_up" in answer.read()
        finally:
            owner.send_signal(signal.SIGINT)
            owner.communicate(timeout=100)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--metrics-token-file", "TOKEN"), "without --metrics-port"),
        (("--metrics-port", "0", "--metrics-token-file", "TOKEN"), "does not contain one token"),
        (("--engine", "apache", "--metrics-port", "0"), "does not support --metrics-port"),
    ],
)
def test_bad_metrics_options_are_refused_before_anything_starts(
    environment: dict[str, str], tmp_path: Path, options: tuple[str, ...], reason: str
) -> None:
    token = tmp_path / "token"
    token.write_text("\n")
    named = [str(token) if each == "TOKEN" else each for each in options]
    done = shoal(environment | {"COLUMNS": "200"}, "cluster", "up", *named)
    assert done.returncode != 0
    assert reason in done.stderr


def states(environment: dict[str, str]) -> list[str]:
    answer = shoal(environment, "cluster", "status", "--output", "json")
    return [node["state"] for entry in json.loads(answer.stdout) for node in entry["nodes"]]


def test_a_cluster_can_be_seen_and_harmed_from_another_terminal(
    environment: dict[str, str], cluster_up: tuple[subprocess.Popen[str], str]
) -> None:
    _, bootstrap = cluster_up
    assert bootstrap in shoal(environment, "cluster", "status").stdout
    assert states(environment) == ["running"]
    assert shoal(environment, "cluster", "pause", "1").returncode == 0
    assert states(environment) == ["paused"]
    assert shoal(environment, "cluster", "resume", "1").returncode == 0
    assert states(environment) == ["running"]
    assert shoal(environment, "cluster", "kill", "7").returncode == 2
    assert shoal(environment, "cluster", "kill", "1").returncode == 0
    assert states(environment) == ["down"]


def test_brokers_are_stopped_restarted_added_and_removed(
    environment: dict[str, str], cluster_up: tuple[subprocess.Popen[str], str]
) -> None:
    del cluster_up
    assert shoal(environment, "cluster", "stop", "1").returncode == 0
    assert states(environment) == ["down"]
    assert shoal(environment, "cluster", "restart", "1").returncode == 0
    assert states(environment) == ["running"]
    added = shoal(environment, "cluster", "add")
    assert added.returncode == 0
    assert added.stdout.count("127.0.0.1:") == 2
    assert states(environment) == ["running", "running"]
    assert shoal(environment, "cluster", "remove", "2").returncode == 0
    assert states(environment) == ["running"]
    refused = shoal(environment, "cluster", "remove", "1")
    assert refused.returncode != 0
    assert "only one" in refused.stderr


def test_faults_are_planted_listed_and_healed(
    environment: dict[str, str], cluster_up: tuple[subprocess.Popen[str], str]
) -> None:
    del cluster_up
    assert shoal(environment, "cluster", "add").returncode == 0

    def fault(*arguments: str) -> subprocess.CompletedProcess[str]:
        return shoal(environment, "cluster", "fault", *arguments)

    assert fault("cut", "1", "2", "--one-way").returncode == 0
    slow = ("slow", "2", "1", "--delay-ms", "20", "--bytes-per-s", "1MB", "--one-way")
    assert fault(*slow).returncode == 0
    assert fault("reset", "1", "2").returncode == 0
    assert fault("disk", "2", "--writes", "EIO").returncode == 0
    wanted = ("request", "1", "produce", "--times", "3", "--error", "NOT_ENOUGH_REPLICAS")
    assert fault(*wanted).returncode == 0
    found = json.loads(fault("list", "--output", "json").stdout)
    assert [one["kind"] for one in found] == ["link", "link", "disk", "request"]
    assert (found[0]["is_cut"], found[1]["delay_ms"]) == (True, 20)
    assert found[1]["bytes_per_s"] == 1_000_000
    assert (found[3]["api_key"], found[3]["left"], found[3]["error_code"]) == (0, 3, 19)
    assert fault("heal").returncode == 0
    assert json.loads(fault("list", "--output", "json").stdout) == []
    assert fault("disk", "1").returncode == 2
    assert fault("slow", "1", "2").returncode == 2
    for command in ("move-leader", "shrink-in-sync"):
        assert "topic-0" in fault(command, "topic", "0", "1").stderr
    assert "'teleport' is not a known name" in fault("request", "1", "teleport").stderr


@pytest.mark.system("kcat")
def test_kcat_talks_to_it(cluster_up: tuple[subprocess.Popen[str], str]) -> None:
    _, bootstrap = cluster_up
    send = ["kcat", "-b", bootstrap, "-P", "-t", "greetings", "-K:", "-z", "zstd"]
    subprocess.run(send, input="a:hello\nb:world\n", text=True, timeout=200, check=True)
    read = ["kcat", "-b", bootstrap, "-C", "-t", "greetings", "-K:", "-e", "-q"]
    answer = subprocess.run(read, capture_output=True, text=True, timeout=200, check=True)
    assert sorted(answer.stdout.split()) == ["a:hello", "b:world"]


def test_down_ends_it_and_leaves_no_trace(
    environment: dict[str, str], cluster_up: tuple[subprocess.Popen[str], str]
) -> None:
    owner, _ = cluster_up
    assert shoal(environment, "cluster", "down", "one").returncode == 0
    assert owner.wait(100) == 0
    assert states(environment) == []


def test_a_detached_cluster_outlives_the_command(environment: dict[str, str]) -> None:
    started = shoal(environment, "cluster", "up", "--detach", "--name", "away")
    try:
        assert READY.match(started.stdout.strip()), started.stderr
        assert states(environment) == ["running"]
    finally:
        ended = shoal(environment, "cluster", "down", "away")
    assert ended.returncode == 0
    assert states(environment) == []


def test_a_name_can_be_used_once_at_a_time(
    environment: dict[str, str], cluster_up: tuple[subprocess.Popen[str], str]
) -> None:
    del cluster_up
    again = shoal(environment, "cluster", "up", "--name", "one")
    assert again.returncode == 2
    assert "is already running" in again.stderr
    # And the one that runs is still found.
    assert states(environment) == ["running"]


def test_without_a_name_there_can_be_several(environment: dict[str, str]) -> None:
    try:
        for name in ("lite", "lite-2"):
            started = shoal(environment, "cluster", "up", "--detach")
            assert f"cluster {name} is running" in started.stderr
    finally:
        for name in ("lite", "lite-2"):
            shoal(environment, "cluster", "down", name)


def test_up_ends_when_its_cluster_does(
    environment: dict[str, str], cluster_up: tuple[subprocess.Popen[str], str]
) -> None:
    owner, _ = cluster_up
    children = Path(f"/proc/{owner.pid}/task/{owner.pid}/children")
    if not children.exists():
        pytest.skip("children are not listed here")
    os.kill(int(children.read_text().split()[0]), signal.SIGKILL)
    assert owner.wait(100) == 3
    assert owner.stderr
    assert "the supervisor of" in owner.stderr.read()
    assert states(environment) == []


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (
            ("up", "--dir", "FILE/below"),
            1,
            "/below: not a directory\n  what to do: choose a folder that can be written",
        ),
        (("up", "--dir", "OTHERS"), 2, "is not a shoal cluster and not empty"),
        (("up", "--advertise", ""), 2, "clients cannot connect to the advertised host"),
        (("up", "--advertise", "a b"), 2, "cannot connect to the advertised host 'a b'"),
    ],
)
def test_wrong_input_gets_one_message(
    environment: dict[str, str],
    tmp_path: Path,
    arguments: tuple[str, ...],
    code: int,
    message: str,
) -> None:
    (tmp_path / "FILE").touch()
    (tmp_path / "OTHERS").mkdir()
    (tmp_path / "OTHERS" / "thesis.txt").touch()
    named = [word.replace("FILE", f"{tmp_path}/FILE") for word in arguments]
    named = [word.replace("OTHERS", f"{tmp_path}/OTHERS") for word in named]
    answer = shoal(environment, "cluster", *named)
    assert (answer.returncode, answer.stdout) == (code, "")
    assert message in answer.stderr
    assert "Traceback" not in answer.stderr


def test_a_node_that_is_not_there_is_a_wrong_command_line(
    environment: dict[str, str], cluster_up: tuple[subprocess.Popen[str], str]
) -> None:
    del cluster_up
    assert shoal(environment, "cluster", "fault", "cut", "1", "9").returncode == 2
    assert shoal(environment, "cluster", "fault", "move-leader", "no", "0", "1").returncode == 2


@pytest.mark.long
def test_the_base_package_runs_without_extras(tmp_path: Path, environment: dict[str, str]) -> None:
    """The built wheel, installed with nothing but its own dependencies, starts a cluster."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=200)
    bare = tmp_path / "bare"
    venv.create(bare, with_pip=True)
    install = [str(bare / "bin" / "python"), "-m", "pip", "install", "-q", "--no-deps"]
    lock = ["--require-hashes", "-r", str(ROOT / "requirements" / "base.txt")]
    # What was downloaded for set-up is in pip's cache, which a home of its own would hide.
    subprocess.run([*install, *lock], check=True, capture_output=True, timeout=200)
    subprocess.run(
        [*install, *tmp_path.glob("*.whl")], check=True, capture_output=True, timeout=200
    )
    command = [str(bare / "bin" / "shoal"), "cluster", "up"]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout
        line = owner.stdout.readline().strip()
        owner.send_signal(signal.SIGINT)
        _, said = owner.communicate(timeout=100)
    assert READY.match(line), said
    demo = subprocess.run(
        [str(bare / "bin" / "shoal"), "demo"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert demo.returncode == 1
    assert "shoal[spark]" in demo.stderr


@pytest.mark.apache
def test_an_apache_kafka_writes_events_that_pages_find(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its jars are in the user's cache, so only the state is its own."""
    short_lived_jvm(monkeypatch)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    environment = dict(os.environ)
    directory = tmp_path / "kept"
    up = ("cluster", "up", "--engine", "apache", "--name", "ap", "--dir", str(directory), "-d")
    started = shoal(environment, *up)
    assert started.returncode == 0, started.stderr
    reader, events = EventReader(directory), list[Event]()

    def has_state(word: str) -> bool:
        events.extend(reader.read().events)
        states = [each.state for each in events if isinstance(each, State)]
        return bool(states) and states[-1] == word

    try:
        eventually(lambda: has_state("running"), 100)
        [source] = [each for each in find_sources(tmp_path) if each.name == "ap"]
        assert (source.subject, source.is_alive) == ("cluster", True)
        assert shoal(environment, "cluster", "pause", "1", "--name", "ap").returncode == 0
        eventually(lambda: has_state("paused"), 100)
        assert shoal(environment, "cluster", "resume", "1", "--name", "ap").returncode == 0
        eventually(lambda: has_state("running"), 100)
        refused = shoal(environment, "cluster", "trace", "--name", "ap")
        assert "only Kafka Lite can be traced" in refused.stderr
    finally:
        assert shoal(environment, "cluster", "down", "--name", "ap").returncode == 0

    def has_ended() -> bool:
        events.extend(reader.read().events)
        return isinstance(events[-1], End)

    eventually(has_ended, 100)
    reader.close()
    used = {p.name for each in events if isinstance(each, Tick) for p in each.processes}
    assert used == {"broker 1"}
