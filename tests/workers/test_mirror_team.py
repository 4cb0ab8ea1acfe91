"""A mirror by several processes: shared out, killed, paused, and every record once."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

import psutil
import pytest

from shoal.lite.cluster import LiteCluster
from shoal.mirror import flow
from shoal.mirror.config import MirrorConfig, TopicRules
from shoal.mirror.flow import MakeCopyBackend
from shoal.workers import mirror_team
from shoal.workers.mirror_team import MirrorTeam
from shoal.workers.processes import ProcessHandle, ProcessPlacement
from shoal.workers.specs import Assignment
from shoal.workers.supervision import WorkerTimeouts
from shoal.workers.supervisor import WorkerSupervisor
from support.client.topic_reader import read_topic
from support.mirror.copies import config_of, make_topic
from support.mirror.copies import fill as fill_numbers
from support.mirror.runs import PATIENCE_S, client, running
from support.mirror.teams import PARTITIONS, RECORDS, check_copy, copy_all, prepare


@pytest.fixture(autouse=True)
def report_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow, "STATUS_EVERY_S", 0.05)


@pytest.fixture(scope="module")
def source() -> Iterator[str]:
    with LiteCluster() as cluster:
        yield cluster.bootstrap


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    with LiteCluster() as cluster:
        yield cluster.bootstrap


def _team() -> MakeCopyBackend:
    return partial(MirrorTeam, placement=ProcessPlacement(), workers=2)


async def _await_topic(bootstrap: str, topic: str) -> None:
    async with client(bootstrap) as asked, asyncio.timeout(PATIENCE_S):
        while topic not in (await asked.metadata()).topics:  # noqa: ASYNC110 - only asking tells
            await asyncio.sleep(0.1)


def _workers() -> list[psutil.Process]:
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # some end just now
            if "shoal.workers.main" in " ".join(process.cmdline()):
                found.append(process)
    return found


@pytest.mark.parametrize("delivery", ["idempotent", "transactional", "compare-and-append"])
@pytest.mark.quick("idempotent")
def test_every_record_once_although_a_worker_is_killed(
    source: str, target: str, delivery: str
) -> None:
    topic = f"team-{delivery}"
    config = prepare(source, target, topic, delivery=delivery)

    def harm() -> None:
        victims = _workers()
        assert len(victims) == 2
        victims[0].kill()

    status = asyncio.run(copy_all(config, _team(), harm))
    assert (status.parked, status.lag) == ((), 0)
    check_copy(target, topic)
    assert not _workers()


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


class _OutOfReach(ProcessPlacement):
    """Places workers on machines that may sleep, and do not hear that they are to be killed."""

    def start(self, assignment: Assignment) -> ProcessHandle:
        handle = super().start(assignment)
        assert isinstance(handle, ProcessHandle)
        kill = handle.kill

        def kill_if_awake() -> None:
            if psutil.Process(handle.pid).status() != psutil.STATUS_STOPPED:
                kill()

        handle.kill = kill_if_awake  # type: ignore[method-assign]
        return handle


@pytest.mark.parametrize("delivery", ["idempotent", "transactional", "compare-and-append"])
@pytest.mark.quick("transactional")
def test_a_worker_that_slept_while_another_took_its_place_writes_nothing_twice(
    source: str, target: str, delivery: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient = partial(WorkerSupervisor, limits=WorkerTimeouts(silence_s=4.0))
    monkeypatch.setattr(mirror_team, "WorkerSupervisor", impatient)
    topic = f"team-zombie-{delivery}"
    config = prepare(source, target, topic, delivery=delivery)

    def sleep_and_wake() -> None:
        _wait_for(lambda: len(_workers()) == 2)
        before = _workers()
        zombie = before[0]
        zombie.suspend()
        try:
            _wait_for(lambda: bool(set(_workers()) - set(before)))  # which takes its place
        finally:
            zombie.resume()
        with suppress(psutil.NoSuchProcess):
            zombie.wait(PATIENCE_S)

    team = partial(MirrorTeam, placement=_OutOfReach(), workers=2)
    status = asyncio.run(copy_all(config, team, sleep_and_wake))
    assert (status.parked, status.lag) == ((), 0)
    check_copy(target, topic)
    assert not _workers()


def test_the_command_with_workers_is_one_process_tree(source: str, target: str) -> None:
    config: MirrorConfig = prepare(source, target, "team-command")
    command = [sys.executable, "-m", "shoal", "mirror", "run", "--topics", "team-command"]
    command += ["--source-bootstrap-server", str(config.source["bootstrap.servers"])]
    command += ["--target-bootstrap-server", str(config.target["bootstrap.servers"])]
    with subprocess.Popen([*command, "--workers", "2"], stderr=subprocess.PIPE) as process:
        try:
            asyncio.run(_await_topic(target, "team-command"))
            found = read_topic(
                target, "team-command", partitions=PARTITIONS, count=PARTITIONS * RECORDS
            )
            assert len(psutil.Process(process.pid).children()) == 2
        finally:
            os.kill(process.pid, signal.SIGTERM)
            process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert found.count == PARTITIONS * RECORDS
    check_copy(target, "team-command")


@pytest.mark.long
def test_a_limit_is_for_all_workers_together(source: str, target: str) -> None:
    """As many bytes per second as one process would send, however many workers there are."""
    config = prepare(source, target, "team-limit")
    marks: list[float] = []
    status = asyncio.run(copy_all(config, _team(), lambda: marks.append(time.monotonic())))
    took_s = time.monotonic() - marks[0]
    # The mark is set at a quarter. A request may already be on its way then.
    assert 0.7 * status.counts.bytes <= config.limits.max_bytes_per_s * (took_s + 0.3)


@pytest.mark.parametrize("side", ["source", "target"])
async def test_workers_begin_again_with_a_topic_that_is_created_again(
    source: str, target: str, side: str
) -> None:
    topic = f"team-again-{side}"
    first, second = range(60), range(1000, 1100)
    await make_topic(source, topic, 2)
    fill_numbers(source, topic, first, partitions=2)
    config = config_of(source, target, topic, name=topic, rules=TopicRules(refresh_s=0.5))
    async with running(config, _team()) as mirror:
        await mirror.copied(60)
        async with client(source if side == "source" else target) as one:
            await one.admin.delete_topics([topic])
        if side == "source":
            await make_topic(source, topic, 2)
        fill_numbers(source, topic, second, partitions=2)
        await mirror.until(
            lambda status: (
                [each.generation for each in status.partitions] == [2, 2]
                and status.lag == 0
                and sum(status.positions.values()) == (100 if side == "source" else 160)
            )
        )
    read = read_topic(target, topic, partitions=2, count=160)
    for partition, records in read.partitions.items():
        numbers = [*first, *second][partition::2]
        assert [record.value for record in records] == [f"{number}".encode() for number in numbers]
