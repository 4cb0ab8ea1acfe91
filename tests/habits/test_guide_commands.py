"""Every command in the documents runs here as it stands, or is listed with the test that runs it.

Only what differs between two machines is replaced: addresses, names of runs, how many messages.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from shoal.lite.cluster import LiteCluster
from support.lite.clusters import create_topic, eventually, send

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted((ROOT / "docs").rglob("*.md"))  # the README has its own test
A_TO_B = "--source-bootstrap-server a:9092 --target-bootstrap-server b:9092"
NODES = "101@host-a:9093,102@host-b:9093,103@host-c:9093"

# Run until they are stopped, between two clusters that have the topics.
MIRRORS = [
    f"shoal mirror run {A_TO_B} --topics 'orders,pay.*'",
    "shoal mirror run mm2.properties",
    "shoal mirror run mm2.properties --workers 4",
]
# Run beside the first of them.
BESIDE_A_MIRROR = [
    "shoal mirror status",
    "shoal mirror pause",
    "shoal mirror resume",
    "shoal mirror translate --target-bootstrap-server b:9092 orders:0:1234",
    f"shoal mirror translate {A_TO_B} --group billing --commit",
    f"shoal mirror verify {A_TO_B} --topics orders",
    (
        "shoal mirror verify --source-bootstrap-server SOURCE --target-bootstrap-server TARGET"
        " --topics orders"
    ),
    "shoal doctor --bootstrap-server SOURCE",
    "shoal ready --id 1 127.0.0.1:9092",
    "shoal mirror run mm2.properties --help",
]
FOLLOWING = f"shoal mirror verify --follow --name default {A_TO_B} --topics orders"
CONSUME = "shoal consume --bootstrap-server TARGET --topics orders --idle 30 --ledger there"
PRODUCE = (
    "shoal produce --bootstrap-server SOURCE --topics orders --throughput 1000 --messages 100000"
    " --ledger here"
)
AUDIT = "shoal audit here there"
TRACE = [
    "shoal cluster up --brokers 3 --trace --name t1 --detach",
    "shoal cluster kill 1 --name t1",
    "shoal cluster restart 1 --name t1",
    "shoal cluster trace --name t1 --output trace.log",
]
GENERATED = [
    (
        "shoal generate systemd --hosts host-a@zone-1,host-b@zone-2,host-c@zone-3 --name east"
        " --out deploy/hosts"
    ),
    "shoal generate dockerfile --out .",
    "shoal generate compose --out deploy",
    "shoal generate kubernetes --name east --out deploy/kubernetes",
    *(
        f"shoal generate cloud --provider {provider} --name east --out deploy/{provider}"
        for provider in ("aws", "gcp", "azure")
    ),
    (
        "shoal generate prometheus --cluster 127.0.0.1:9644 --mirror 127.0.0.1:9645"
        " --out deploy/prometheus"
    ),
    "shoal generate grafana --out deploy/grafana",
    "shoal generate alerts --out deploy/alerts",
]
_NODE = "--listen 0.0.0.0:{} --advertise host-a --controllers " + NODES + " --cluster-id east"
# Why they do not run here, or the test in which they do.
ELSEWHERE = {
    "shoal cluster up --brokers 3 --metrics-port 9644": "tests/cli/test_cluster.py, on a free port",
    "shoal mirror run mm2.properties --metrics-port 9645": "tests/mirror/test_mirror_metrics.py",
    "shoal run mirror-correctness --metrics-port 9646": "tests/experiment/test_run_metrics.py",
    "shoal audit --follow RUN": "tests/pipeline/test_follow_run.py: it needs a run that goes",
    "shoal run FILE --follow": "tests/pipeline/test_follow_run.py",
    "shoal serve": "tests/web/test_server.py",
    "shoal mirror run mm2.properties --master spark://host:7077 --workers 4": (
        "tests/pipeline/test_mirror_spark.py: it needs a Spark cluster"
    ),
    f"shoal controller --id 101 --dir data/c {_NODE.format(9093)}": (
        "tests/generate/test_played.py: it needs three hosts"
    ),
    f"shoal broker     --id 1   --dir data/b {_NODE.format(9092)}": (
        "tests/generate/test_played.py: it needs three hosts"
    ),
    "systemctl restart shoal-broker && shoal ready --id 1 127.0.0.1:9092 --wait 300": (
        "it needs systemd; the second half runs without --wait"
    ),
    "shoal run shoal-vs-mm2 --dry-run": "tests/habits/test_guides.py",
    "shoal doctor": "tests/habits/test_guides.py",
    "shoal run first.toml --dry-run": "tests/habits/test_guides.py",
    "shoal run first.toml": "tests/habits/test_guides.py",
    "shoal runs list": "tests/habits/test_guides.py",
    "shoal runs show": "tests/habits/test_guides.py",
    "shoal run first.toml --set mirror.delivery=at-least-once --dry-run": (
        "tests/habits/test_guides.py"
    ),
    "shoal run first.toml --set mirror.kind=mm2 --engine apache --dry-run": (
        "tests/habits/test_guides.py"
    ),
}
HERE = {*MIRRORS, *BESIDE_A_MIRROR, FOLLOWING, CONSUME, PRODUCE, AUDIT, *TRACE, *GENERATED}


def list_blocks(text: str) -> Iterator[tuple[str, list[str]]]:
    """The language and the lines of each fenced block."""
    language, lines = None, []
    for line in text.splitlines():
        if not line.startswith("```"):
            lines.append(line)
        elif language is None:
            language, lines = line[3:], []
        else:
            yield language, lines
            language = None


def is_command(line: str) -> bool:
    return line.startswith("shoal ") or "&& shoal " in line


def test_commands_stand_in_shell_blocks() -> None:
    """Other tests look for commands there."""
    for path in DOCUMENTS:
        for language, lines in list_blocks(path.read_text(encoding="utf-8")):
            found = [line for line in lines if is_command(line)]
            assert language == "sh" or not found, f"{path.name}: {found}"


def test_every_documented_command_is_run_or_listed() -> None:
    blocks = (lines for path in DOCUMENTS for _, lines in list_blocks(path.read_text("utf-8")))
    joined = "\n".join("\n".join(lines) for lines in blocks).replace("\\\n", " ")
    found = {line.partition(" #")[0].strip() for line in joined.splitlines() if is_command(line)}
    assert found - HERE - ELSEWHERE.keys() == set(), "add it to a list of this file"
    assert (HERE | ELSEWHERE.keys()) - found == set(), "no document has it any more"
    for reason in ELSEWHERE.values():
        if reason.startswith("tests/"):
            assert (ROOT / re.split("[:,]", reason)[0]).is_file(), reason


class Shell:
    """A folder in which commands run, with its own state."""

    def __init__(self, folder: Path, **replaced: str) -> None:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.folder = folder
        self._replaced = replaced
        state = {"PATH": path, "COLUMNS": "200", "XDG_STATE_HOME": str(folder / "state")}
        self._environment = os.environ | state

    def start(self, command: str) -> "subprocess.Popen[str]":
        words = [self._replace(word) for word in shlex.split(command)]
        return subprocess.Popen(
            words,
            cwd=self.folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, command: str) -> str:
        with self.start(command) as process:
            output, _ = process.communicate(timeout=300)
        assert process.returncode == 0, f"{command}: {output}"
        return output

    @contextmanager
    def running(self, command: str) -> Iterator["subprocess.Popen[str]"]:
        """A command that runs until it is stopped."""
        with self.start(command) as process:
            try:
                yield process
            finally:
                process.send_signal(signal.SIGINT)
                output, _ = process.communicate(timeout=300)
        assert process.returncode == 0, f"{command}: {output}"

    def succeeds(self, command: str) -> bool:
        with self.start(command) as process:
            process.communicate(timeout=300)
        return process.returncode == 0

    def _replace(self, word: str) -> str:
        return self._replaced.get(word, word)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """Two clusters with topics and a committed group on the first."""
    with LiteCluster() as source, LiteCluster() as target:
        create_topic(source, "orders", 1, 1)
        create_topic(source, "payments", 1, 1)
        assert set(send(source, "orders", *[b"x"] * 1300)) == {None}
        settings = {"bootstrap.servers": source.bootstrap, "group.id": "billing"}
        billing = Consumer(settings | {"enable.auto.commit": False})
        billing.commit(offsets=[TopicPartition("orders", 0, 1200)], asynchronous=False)
        billing.close()
        (tmp_path / "mm2.properties").write_text(
            f"clusters = a, b\na.bootstrap.servers = {source.bootstrap}\n"
            f"b.bootstrap.servers = {target.bootstrap}\na->b.enabled = true\ntopics = orders\n"
            "replication.policy.class ="
            " org.apache.kafka.connect.mirror.IdentityReplicationPolicy\n"
        )
        a, b = source.bootstrap, target.bootstrap
        names = {"a:9092": a, "b:9092": b, "SOURCE": a, "TARGET": b, "127.0.0.1:9092": a}
        yield Shell(tmp_path, **names, **{"100000": "2000", "30": "8"})


@pytest.mark.slow
def test_commands_about_a_mirror(shell: Shell) -> None:
    verify = f"shoal mirror verify {A_TO_B} --topics orders"
    with shell.running(MIRRORS[0]):
        eventually(lambda: shell.succeeds(verify), 200)
        shown = {command: shell.run(command) for command in BESIDE_A_MIRROR}
        with shell.start(FOLLOWING) as following:
            assert following.stdout
            assert following.stdout.readline()
            following.send_signal(signal.SIGINT)
            following.communicate(timeout=100)
    assert shown[BESIDE_A_MIRROR[3]].split().count("1234") == 2
    assert "orders-0 1200 -> orders-0 1200" in shown[BESIDE_A_MIRROR[4]]


@pytest.mark.slow
@pytest.mark.parametrize("command", MIRRORS[1:])
def test_mirrors_of_a_file(shell: Shell, command: str) -> None:
    verify = f"shoal mirror verify {A_TO_B} --topics orders"
    with shell.running(command):
        eventually(lambda: shell.succeeds(verify), 200)


@pytest.mark.slow
def test_two_ends_and_their_verdict(shell: Shell) -> None:
    with shell.running(MIRRORS[0]):
        eventually(lambda: shell.succeeds(f"shoal mirror verify {A_TO_B} --topics orders"), 200)
        with shell.start(CONSUME) as reading:
            shell.run(PRODUCE)
            output, _ = reading.communicate(timeout=300)
            assert reading.returncode == 0, output
    assert "PROVEN: All 2,000" in shell.run(AUDIT)


@pytest.mark.slow
def test_the_trace_of_a_cluster(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    try:
        for command in TRACE:
            shell.run(command)
    finally:
        shell.run("shoal cluster down --name t1")
    assert (tmp_path / "trace.log").stat().st_size > 0


@pytest.mark.parametrize("command", GENERATED)
def test_files_are_generated(command: str, tmp_path: Path) -> None:
    Shell(tmp_path).run(command)
    assert any(path.is_file() for path in tmp_path.rglob("*"))
