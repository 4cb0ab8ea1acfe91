"""Kills, pauses, restarts, owners that die: nothing is lost, and nothing is left behind."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from shoal.lite.async_cluster import AsyncLiteCluster
from shoal.lite.cluster import LiteCluster
from shoal.model.errors import ConfigError, SystemFailure, UnreachableError, UsageError
from shoal.wire.api_keys import ApiKey
from support.lite.batches import batch_of, values_of
from support.lite.client import TIMEOUT_MS, PlainClient, at
from support.lite.clusters import eventually


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def put(bootstrap: str, *values: bytes, topic: str = "t") -> None:
    with PlainClient(bootstrap) as client:
        for value in values:
            assert client.produce(topic, batch_of(value)).error_code == 0


def everything(bootstrap: str, topic: str = "t") -> list[bytes | None]:
    with PlainClient(bootstrap) as client:
        [fetched] = client.fetch(at(topic, 0)).partitions
        assert fetched.error_code == 0
        return values_of(bytes(fetched.records))


def family(cluster: LiteCluster) -> list[psutil.Process]:
    """The supervisor and everything below it."""
    pid = json.loads((cluster.directory / "supervisor.json").read_text())["pid"]
    supervisor = psutil.Process(pid)
    return [supervisor, *supervisor.children(recursive=True)]


def have_ended_within(processes: list[psutil.Process], seconds: float) -> bool:
    """Whether all have ended; zombies have, even if nobody has taken note yet."""
    deadline = time.monotonic() + seconds
    while alive := [one for one in processes if is_alive(one)]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)
    return not alive


def is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cluster"


def test_a_killed_broker_comes_back_with_its_data_on_its_port() -> None:
    with LiteCluster() as cluster:
        before = cluster.bootstrap
        with PlainClient(before) as client:
            client.create_topic("t")
        put(before, b"a", b"b")
        [node] = cluster.nodes()
        cluster.kill(1)
        assert not psutil.pid_exists(node.pid)
        assert cluster.nodes() == []
        assert [status.state for status in cluster.status()] == ["dead"]
        assert cluster.bootstrap == before
        with pytest.raises(ConnectionRefusedError):
            PlainClient(before)
        cluster.restart(1)
        assert everything(before) == [b"a", b"b"]
        put(before, b"c")
        cluster.restart(1)
        assert everything(before) == [b"a", b"b", b"c"]
        assert cluster.nodes()[0].pid != node.pid


def test_each_start_is_a_new_leader_epoch() -> None:
    with LiteCluster() as cluster:
        with PlainClient(cluster.bootstrap) as client:
            client.create_topic("t")
        put(cluster.bootstrap, b"a")
        cluster.kill(1)
        cluster.restart(1)
        put(cluster.bootstrap, b"b")
        checkpoint = cluster.log_dirs()[1] / "t-0" / "leader-epoch-checkpoint"
        # Between the two, in epoch 1, nobody led.
        assert checkpoint.read_text() == "0\n2\n0 0\n2 1\n"
        with PlainClient(cluster.bootstrap) as client:
            stale = at("t", 0)._replace(leader_epoch=0)
            assert client.fetch(stale).partitions[0].error_code == 74


def test_producers_and_their_ids_survive_a_kill() -> None:
    def new_id(client: PlainClient) -> int:
        answer = client.request(
            ApiKey.INIT_PRODUCER_ID, 4, transactional_id=None, transaction_timeout=TIMEOUT_MS
        )
        producer_id: int = answer.producer_id
        return producer_id

    with LiteCluster() as cluster:
        with PlainClient(cluster.bootstrap) as client:
            client.create_topic("t")
            ids = [new_id(client) for _ in range(3)]
            batches = [
                batch_of(b"%d" % i, timestamp_ms=now_ms(), producer=(ids[0], 0, i))
                for i in range(3)
            ]
            for batch in batches:
                assert client.produce("t", bytes(batch)).error_code == 0
        cluster.kill(1)
        cluster.restart(1)
        with PlainClient(cluster.bootstrap) as client:
            assert client.produce("t", batches[2]).base_offset == 2
            ahead = batch_of(b"5", timestamp_ms=now_ms(), producer=(ids[0], 0, 5))
            assert client.produce("t", ahead).error_code == 45
            assert new_id(client) > max(ids)
        assert everything(cluster.bootstrap) == [b"0", b"1", b"2"]


def test_a_paused_broker_answers_when_it_is_resumed() -> None:
    with LiteCluster() as cluster:
        with PlainClient(cluster.bootstrap) as client:
            client.create_topic("t")
            cluster.pause(1)
            assert [status.state for status in cluster.status()] == ["paused"]
            process = psutil.Process(cluster.nodes()[0].pid)
            # A signal takes a moment to stop a process that runs.
            eventually(lambda: process.status() == psutil.STATUS_STOPPED)
            client.send_fetch(at("t", 0))
            time.sleep(0.2)
            cluster.resume(1)
            assert client.receive_frame()
        cluster.pause(1)
        cluster.kill(1)
        assert cluster.nodes() == []


def test_a_stopped_broker_ends_cleanly(folder: Path) -> None:
    with LiteCluster(directory=folder) as cluster:
        with PlainClient(cluster.bootstrap) as client:
            client.create_topic("t")
        put(cluster.bootstrap, b"a")
        cluster.stop_node(1)
        assert [status.state for status in cluster.status()] == ["dead"]
        marker = json.loads((folder / "broker-1" / "shutdown-marker.json").read_text())
        assert marker["state"] == "ended"
        with pytest.raises(SystemFailure, match="not running"):
            cluster.pause(1)
        cluster.restart(1)
        assert everything(cluster.bootstrap) == [b"a"]


def test_a_named_folder_is_kept_after_a_clean_end_and_after_none(folder: Path) -> None:
    cluster = LiteCluster(directory=folder)
    cluster.start()
    before = cluster.bootstrap
    with PlainClient(before) as client:
        client.create_topic("t", retention_ms="777")
    put(before, b"a")
    cluster.stop()
    cluster.start()
    assert cluster.bootstrap == before
    put(before, b"b")
    for process in family(cluster):
        # Those that see their owner die may be quicker than we are.
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)
    cluster.stop()
    with LiteCluster(directory=folder) as again:
        assert again.bootstrap == before
        assert everything(before) == [b"a", b"b"]
        with PlainClient(before) as client:
            wanted = {"resource_type": 2, "resource_name": "t", "configuration_keys": None}
            described = client.request(ApiKey.DESCRIBE_CONFIGS, 4, resources=[wanted])
        values = {config.name: config.value for config in described.results[0].configs}
        assert values["retention.ms"] == "777"


def test_a_topic_deleted_just_before_a_kill_stays_deleted(folder: Path) -> None:
    with LiteCluster(directory=folder) as cluster:
        with PlainClient(cluster.bootstrap) as client:
            client.create_topic("t")
            put(cluster.bootstrap, b"old")
            data = folder / "broker-1"
            left = data / "t-0.0-delete"
            client.request(ApiKey.DELETE_TOPICS, 5, topic_names=["t"], timeout=TIMEOUT_MS)
            assert not (data / "t-0").exists()
        cluster.kill(1)
        # As a crash leaves it: the folder is renamed, or not even that.
        left.mkdir()
        (data / "t-0").mkdir()
        (data / "t-0" / "partition.metadata").write_text(
            "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAABw"
        )
        (data / "t-0" / "00000000000000000000.log").write_bytes(b"old")
        cluster.restart(1)
        assert not left.exists()
        assert not (data / "t-0").exists()
        with PlainClient(cluster.bootstrap) as client:
            client.create_topic("t")
        assert everything(cluster.bootstrap) == []


def test_a_damaged_partition_is_offline_and_the_others_are_served(folder: Path) -> None:
    with LiteCluster(directory=folder) as cluster:
        with PlainClient(cluster.bootstrap) as client:
            client.create_topic("bad")
            client.create_topic("good")
        put(cluster.bootstrap, b"a", topic="good")
        put(cluster.bootstrap, b"b", topic="bad")
        cluster.stop_node(1)
        (folder / "broker-1" / "bad-0" / "leader-epoch-checkpoint").write_text("rubbish")
        cluster.restart(1)
        assert everything(cluster.bootstrap, "good") == [b"a"]
        with PlainClient(cluster.bootstrap) as client:
            assert client.fetch(at("bad", 0)).partitions[0].error_code == 56
            assert client.produce("bad", batch_of(b"x")).error_code == 56


def test_a_temporary_folder_is_removed() -> None:
    with LiteCluster() as cluster:
        directory = cluster.directory
        processes = family(cluster)
        assert (directory / "broker-1").is_dir()
    assert not directory.exists()
    assert have_ended_within(processes, 60)
    with pytest.raises(UsageError, match="not running"):
        cluster.status()


@pytest.mark.parametrize("paused", [False, True])
def test_brokers_end_when_the_supervisor_is_killed(folder: Path, paused: bool) -> None:
    cluster = LiteCluster(directory=folder)
    cluster.start()
    processes = family(cluster)
    if paused:
        cluster.pause(1)
    processes[0].send_signal(signal.SIGKILL)
    assert have_ended_within(processes, 60)
    with pytest.raises(UnreachableError, match=r"has ended; see .*supervisor\.log"):
        cluster.status()
    cluster.stop()


def test_a_supervisor_that_does_not_answer_is_not_taken_for_an_ended_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LiteCluster(directory=folder) as cluster:
        supervisor = family(cluster)[0]
        supervisor.suspend()
        try:
            with monkeypatch.context() as patched:
                patched.setattr("shoal.lite.cluster._COMMAND_TIMEOUT_S", 0.2)
                with pytest.raises(UnreachableError, match="did not answer 'status' within"):
                    cluster.status()
        finally:
            supervisor.resume()
        assert cluster.status()


def test_everything_ends_when_the_fork_server_is_killed(folder: Path) -> None:
    cluster = LiteCluster(directory=folder)
    cluster.start()
    [broker] = cluster.nodes()
    processes = family(cluster)
    [fork_server] = processes[0].children()
    assert fork_server.pid != broker.pid
    fork_server.send_signal(signal.SIGKILL)
    assert have_ended_within(processes, 60)
    cluster.stop()


OWNER = """
    import os, sys, time
    from shoal.lite.cluster import LiteCluster
    cluster = LiteCluster(directory=sys.argv[1] or None).start()
    if sys.argv[2] == "forks" and os.fork() == 0:
        time.sleep(20)
    print(cluster.directory, flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("kind", ["temporary", "named", "forks"])
def test_everything_ends_when_the_owner_is_killed(folder: Path, kind: str) -> None:
    directory = "" if kind == "temporary" else str(folder)
    owner = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(OWNER), directory, kind],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None
    running_in = Path(owner.stdout.readline().strip())
    pid = json.loads((running_in / "supervisor.json").read_text())["pid"]
    supervisor = psutil.Process(pid)
    processes = [supervisor, *supervisor.children(recursive=True)]
    forked = [one for one in psutil.Process(owner.pid).children() if one.pid != pid]
    assert len(processes) == 3
    owner.kill()
    owner.wait()
    assert have_ended_within(processes, 60)
    assert running_in.exists() == (kind != "temporary")
    for child in forked:
        child.kill()
    owner.stdout.close()


def test_a_detached_cluster_is_found_by_its_folder(folder: Path) -> None:
    starter = LiteCluster(directory=folder, detached=True)
    starter.start()
    other = LiteCluster.attach(folder)
    assert other.bootstrap == starter.bootstrap
    with PlainClient(other.bootstrap) as client:
        client.create_topic("t")
    processes = family(other)
    assert os.getpid() not in {one.ppid() for one in processes}
    other.kill(1)
    other.restart(1)
    put(other.bootstrap, b"a")
    other.stop()
    assert have_ended_within(processes, 60)
    starter.stop()
    with pytest.raises(UnreachableError, match="no cluster is running"):
        LiteCluster.attach(folder)
    with LiteCluster(directory=folder) as again:
        assert everything(again.bootstrap) == [b"a"]


def test_a_folder_has_one_cluster_at_a_time(folder: Path) -> None:
    with LiteCluster(directory=folder) as cluster:
        with pytest.raises(SystemFailure, match=r"already running in"):
            LiteCluster(directory=folder).start()
        assert len(cluster.nodes()) == 1


def test_strange_folders_are_refused(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("precious")
    with pytest.raises(SystemFailure, match=r"thesis\.txt"):
        LiteCluster(directory=foreign).start()
    assert (foreign / "thesis.txt").read_text() == "precious"
    newer = tmp_path / "newer"
    newer.mkdir()
    (newer / "cluster.json").write_text('{"format": 99}')
    with pytest.raises(SystemFailure, match="format 99"):
        LiteCluster(directory=newer).start()


def test_a_port_that_is_taken_is_named(folder: Path) -> None:
    with LiteCluster(directory=folder) as cluster:
        [node] = cluster.nodes()
    with LiteCluster() as other:
        taken = other.nodes()[0].port
        description = json.loads((folder / "cluster.json").read_text())
        description["ports"]["1"] = taken
        (folder / "cluster.json").write_text(json.dumps(description))
        with pytest.raises(SystemFailure, match=str(taken)):
            LiteCluster(directory=folder).start()
    assert node.port != taken


def test_a_node_that_is_stopped_in_its_first_moment_ends(folder: Path) -> None:
    """Its signal came while it was the fork server still, was lost, and 30 s were waited."""
    with LiteCluster(brokers=3, directory=folder) as cluster:
        port = cluster.status()[2].port
    with socket.create_server(("127.0.0.1", port)):
        for _ in range(3):
            began_s = time.monotonic()
            with pytest.raises(SystemFailure, match=f"port {port}"):
                LiteCluster(directory=folder).start()
            assert time.monotonic() - began_s < 29


def test_an_address_of_another_machine_is_named() -> None:
    with pytest.raises(SystemFailure, match=r"cannot listen on 192\.0\.2\.1"):
        LiteCluster(host="192.0.2.1").start()


def test_wrong_arguments_are_refused_before_anything_starts() -> None:
    with pytest.raises(UsageError, match="0 brokers"):
        LiteCluster(brokers=0)
    with pytest.raises(UsageError, match="unknown profile"):
        LiteCluster(profile="brave")
    with pytest.raises(UsageError, match="needs a folder"):
        LiteCluster(detached=True)
    with pytest.raises(ConfigError, match=r"num\.partition") as wrong:
        LiteCluster(properties={"num.partition": "3"})
    assert wrong.value.remedy == "did you mean num.partitions?"
    with pytest.raises(ConfigError, match="many"):
        LiteCluster(properties={"num.partitions": "many"})


def test_nobody_commands_a_cluster_without_its_token() -> None:
    with LiteCluster() as cluster:
        control = json.loads((cluster.directory / "supervisor.json").read_text())
        assert (cluster.directory / "supervisor.json").stat().st_mode & 0o077 == 0
        for line in (
            b'{"token": "guess", "command": "kill", "node": 1}\n',
            b"not json\n",
            b"[]\n",
            b"x" * 100_000 + b"\n",
        ):
            with PlainClient(f"127.0.0.1:{control['port']}") as stranger:
                stranger.send(line)
                assert stranger.is_hung_up()
        with pytest.raises(SystemFailure, match="unknown node 7"):
            cluster.kill(7)
        assert len(cluster.nodes()) == 1


async def test_the_async_form() -> None:
    async with LiteCluster() as cluster:
        assert len(cluster.nodes()) == 1
        directory = cluster.directory
    assert not directory.exists()


async def test_the_event_loop_goes_on_while_a_cluster_is_started_and_harmed() -> None:
    beats: list[float] = []

    async def beat() -> None:
        while True:
            beats.append(asyncio.get_running_loop().time())
            await asyncio.sleep(0.001)

    heart = asyncio.create_task(beat())
    async with AsyncLiteCluster(brokers=2) as cluster:
        at_start = len(beats)
        await cluster.kill(1)
        await cluster.restart(1)
        await cluster.cut_link(1, 2)
        assert len(await cluster.faults()) == 2
        await cluster.heal()
        assert [node.state for node in await cluster.status()] == ["running", "running"]
        assert (await cluster.bootstrap()).count(":") == 2
        directory = cluster.directory
    assert at_start > 20
    assert len(beats) > at_start + 20
    heart.cancel()
    assert not directory.exists()


def test_the_asyncio_form_can_do_what_the_other_can() -> None:
    def public(cls: type) -> set[str]:
        return {name for name in vars(cls) if not name.startswith("_")}

    assert public(LiteCluster) - public(AsyncLiteCluster) == {"attach"}


async def test_a_start_that_is_cancelled_leaves_nothing(folder: Path) -> None:
    cluster = AsyncLiteCluster(directory=folder)
    starting = asyncio.create_task(cluster.start())
    await asyncio.sleep(0.05)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    with pytest.raises(UnreachableError):
        LiteCluster.attach(folder)
