"""What a running mirror tells and does besides copying, from another terminal and by itself."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from shoal.client.results import EARLIEST
from shoal.lite.cluster import LiteCluster
from shoal.mirror.command import mirror_until
from shoal.mirror.config import CopyRules, HeartbeatRules, MirrorConfig, TopicRules
from shoal.mirror.control import send_command
from shoal.mirror.metrics import collect_proof
from shoal.mirror.mm2.heartbeats import heartbeat_key
from shoal.mirror.mm2.naming import Naming
from shoal.mirror.proof.files import read_proof
from shoal.model.errors import SystemFailure, UnreachableError
from shoal.model.exit_codes import ExitCode
from shoal.model.topics import TopicPartition
from shoal.telemetry.discovery import mirror_folder
from support.client.topic_reader import SILENT, read_topic
from support.mirror.runs import PATIENCE_S, client, fill, make, running


@pytest.fixture(autouse=True)
def state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


@pytest.fixture(scope="module", name="source")
def source_address(source: LiteCluster) -> str:
    return source.bootstrap


@pytest.fixture(scope="module", name="target")
def target_address(target: LiteCluster) -> str:
    return target.bootstrap


def _config(source: str, target: str, topic: str, **options: Any) -> MirrorConfig:
    rules = TopicRules(refresh_s=0.1, follow_log_start=True)
    clusters = {"bootstrap.servers": source}, {"bootstrap.servers": target}
    return MirrorConfig(*clusters, (topic,), **{"name": topic, "rules": rules, **options})


def _values(count: int, name: str = "value") -> list[str]:
    return [f"{name}-{number}" for number in range(count)]


@contextmanager
def _mirror(source: str, target: str, topics: str, *more: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "shoal", "mirror", "run", "--topics", topics]
    command += ["--source-bootstrap-server", source, "--target-bootstrap-server", target, *more]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=PATIENCE_S)


def _order(command: str, *more: str) -> subprocess.CompletedProcess[str]:
    arguments = [sys.executable, "-m", "shoal", "mirror", command, *more]
    return subprocess.run(
        arguments, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


def _status(name: str) -> dict[str, Any]:
    """Asks until the mirror runs and copies."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        with suppress(UnreachableError):
            (answer,) = send_command("status", name)
            if answer["flows"].get(name) is not None:
                found: dict[str, Any] = answer["flows"][name]
                return found
        assert time.monotonic() < deadline, f"no mirror {name}"
        time.sleep(0.1)


def _wait_for_status(name: str, key: str, value: object) -> dict[str, Any]:
    deadline = time.monotonic() + PATIENCE_S
    while (found := _status(name))[key] != value:
        assert time.monotonic() < deadline, found
        time.sleep(0.1)
    return found


def test_a_mirror_is_watched_paused_and_resumed_from_another_terminal(
    source: str, target: str
) -> None:
    asyncio.run(make(source, "watched", partitions=2))
    fill(source, "watched", _values(20))
    with _mirror(source, target, "watched", "--name", "watched") as process:
        status = _wait_for_status("watched", "lag", 0)
        assert [each["position"] for each in status["partitions"]] == [20, 0]
        assert (status["lag_bytes"], status["lag_s"], status["paused"]) == (0, 0, False)
        paused = _order("pause", "--name", "watched")
        assert f"watched (process {process.pid}): paused, lag 0 records" in paused.stdout
        # One fetch may have been under way; after its answer nothing more is copied.
        fill(source, "watched", _values(10, "swallowed"))
        fill(source, "watched", _values(30, "waiting"), partition=1)
        told = _order("status", "--output", "json")
        behind = json.loads(told.stdout)[0]["flows"]["watched"]
        assert behind["paused"] is True
        assert [each["last_stable_offset"] for each in behind["partitions"]] == [30, 30]
        assert _order("resume").returncode == 0
        _wait_for_status("watched", "lag", 0)
    found = read_topic(target, "watched", partitions=2, count=60)
    assert [len(records) for records in found.partitions.values()] == [30, 30]
    gone = _order("status", "--name", "watched")
    assert (gone.returncode, "no mirror named watched" in gone.stderr) == (
        ExitCode.UNREACHABLE,
        True,
    )


def test_a_proof_is_shown_by_the_status_and_by_metrics(
    source: str, target: str, tmp_path: Path
) -> None:
    asyncio.run(make(source, "proven"))
    fill(source, "proven", _values(20))
    order = ["verify", "--follow", "--name", "proven", "--topics", "proven"]
    order += ["--source-bootstrap-server", source, "--target-bootstrap-server", target]
    with _mirror(source, target, "proven", "--name", "proven"):
        _wait_for_status("proven", "lag", 0)
        command = [sys.executable, "-m", "shoal", "mirror", *order]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            deadline = time.monotonic() + PATIENCE_S
            while (proof := read_proof(mirror_folder("proven"))) is None or (
                proof.partitions[0].proven_offset < 20
            ):
                assert time.monotonic() < deadline
                time.sleep(0.1)
            assert "; proven equal up to offset 20, " in _order("status").stdout
            body = json.loads(_order("status", "-o", "json").stdout)
            shown = body[0]["proofs"]["proven"]["partitions"][0]
            assert (shown["proven_offset"], shown["difference"]) == (20, None)
            series = dict(collect_proof("proven", proof.partitions, proof.at_us + 2_000_000))
            labels = ("proven", "proven", "0")
            assert series["shoal_mirror_proven_offset"] == [(labels, 20)]
            assert series["shoal_mirror_proof_difference"] == [(labels, 0)]
            second = _order(*order)
            assert "another process proves this mirror" in second.stderr
            process.send_signal(signal.SIGTERM)
            said, _ = process.communicate(timeout=PATIENCE_S)
    assert "proven-0: proven equal up to offset 20" in said
    assert process.returncode == ExitCode.PROVEN
    assert (tmp_path / "shoal" / "mirrors" / "proven" / "proof-resume.json").exists()


def test_a_mirror_that_was_killed_is_not_shown(source: str, target: str, tmp_path: Path) -> None:
    asyncio.run(make(source, "shot"))
    with _mirror(source, target, "shot", "--name", "shot") as process:
        _status("shot")
        os.kill(process.pid, signal.SIGKILL)
        process.wait(PATIENCE_S)
        folder = tmp_path / "shoal" / "mirrors"
        assert list(folder.glob("*.json"))
        with pytest.raises(UnreachableError, match="no mirror is running on this machine"):
            send_command("status", None)
        assert not list(folder.glob("*.json"))


def test_an_open_transaction_is_shown_as_what_holds_records_back(source: str, target: str) -> None:
    asyncio.run(make(source, "open"))
    fill(source, "open", _values(10))
    producer = Producer({"bootstrap.servers": source, "transactional.id": "open", **SILENT})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    for value in _values(7):
        producer.produce("open", value)
    assert producer.flush(PATIENCE_S) == 0
    with _mirror(source, target, "open", "--name", "open"):
        (partition,) = _wait_for_status("open", "lag", 0)["partitions"]
        assert (partition["position"], partition["held_back"]) == (10, 7)
        producer.commit_transaction(PATIENCE_S)
        producer.close()
        deadline = time.monotonic() + PATIENCE_S
        while _status("open")["counts"]["records"] < 17:
            assert time.monotonic() < deadline
            time.sleep(0.1)


async def test_heartbeats_are_those_of_mirrormaker(source: str, target: str) -> None:
    await make(source, "beating")
    rules = TopicRules(naming=Naming("default", source_alias="us", target_alias="eu"))
    config = _config(source, target, "beating", rules=rules)
    async with running(replace(config, heartbeats=HeartbeatRules(emit=True, every_s=0.1))):
        await _await_heartbeats(target)
    found = await asyncio.to_thread(read_topic, target, "heartbeats", partitions=1, count=3)
    before_ms = 0
    for record in found.partitions[0]:
        # In the order of MirrorMaker 2's schema: source alias, target alias; version, time.
        assert record.key == b"\0\x02us\0\x02eu" == heartbeat_key("us", "eu")
        assert record.value is not None
        assert len(record.value) == 10
        assert record.value[:2] == b"\0\0"
        at_ms = int.from_bytes(record.value[2:], "big")
        assert before_ms <= at_ms <= time.time() * 1000 + 1000
        before_ms = at_ms


async def _await_heartbeats(target: str) -> None:
    tp = TopicPartition("heartbeats", 0)
    async with client(target) as asked, asyncio.timeout(PATIENCE_S):
        while tp.topic not in (await asked.metadata()).topics:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        while (await asked.list_offsets({tp: -1}))[tp].offset < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_the_target_forgets_what_the_source_has_deleted(source: str, target: str) -> None:
    await make(source, "cut")
    fill(source, "cut", _values(100))
    tp = TopicPartition("cut", 0)
    async with running(_config(source, target, "cut")) as mirror:
        await mirror.copied(100)
        async with client(source) as asked:
            await asked.admin.delete_records({tp: 37})
        async with client(target) as asked, asyncio.timeout(PATIENCE_S):
            while not (start := (await asked.list_offsets({tp: EARLIEST}))[tp].offset):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
    assert start == 37


async def test_records_that_the_source_deleted_too_early_are_told_as_lost(
    source: str, target: str
) -> None:
    await make(source, "early")
    fill(source, "early", _values(50))
    config = _config(source, target, "early")
    async with running(config) as mirror:
        await mirror.copied(50)
    fill(source, "early", _values(50, "late"))
    async with client(source) as asked:
        await asked.admin.delete_records({TopicPartition("early", 0): 80})
    fatal = replace(config, copy=CopyRules(on_loss="fail"))
    with pytest.raises(SystemFailure, match="deleted the offsets from 50 to 79") as caught:
        await mirror_until(asyncio.Event().wait, fatal)
    assert caught.value.remedy
    async with running(config) as mirror:
        status = await mirror.copied(20)
    assert (status.counts.lost, status.parked) == (30, ())
    fill(source, "early", _values(1, "last"))
    async with running(config) as mirror:
        status = await mirror.copied(1)
    assert status.counts.lost == 30  # of all starts
    # What came before went with the log start, which follows by choice; nothing came twice.
    found = await asyncio.to_thread(_from_start, target)
    expected = _values(50) + _values(50, "late")[30:] + _values(1, "last")
    assert found == expected[-len(found) :]
    assert len(found) >= 20


def _from_start(target: str) -> list[str]:
    found = read_topic(target, "early", partitions=1, count=20)
    return [(record.value or b"").decode() for record in found.partitions[0]]
