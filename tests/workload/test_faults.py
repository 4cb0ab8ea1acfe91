"""Brokers and producers that die under load: nothing is claimed that is not true."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from shoal.client.admin import NewTopic
from shoal.client.client import Client
from shoal.lite.cluster import LiteCluster
from shoal.model.ledger import FAILED, OK
from shoal.model.topics import TopicPartition
from shoal.workload.record.ledger import CommitLog, open_run
from support.experiment.workload_bench import LANES, PARTITIONS, TOPIC, Bench, identities

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster() -> Iterator[LiteCluster]:
    with LiteCluster() as cluster:
        yield cluster


@pytest.fixture
async def bench(tmp_path: Path, cluster: LiteCluster) -> AsyncIterator[Bench]:
    async with Client({"bootstrap.servers": cluster.bootstrap}) as client:
        topic = NewTopic(TOPIC, partitions=PARTITIONS, replication_factor=1)
        await client.admin.create_topics([topic])
    bench = Bench(tmp_path / "run", cluster.bootstrap)
    yield bench
    bench.log.close()


async def test_outcomes_are_true_when_the_broker_dies(bench: Bench, cluster: LiteCluster) -> None:
    """What was ok is in the log, what failed is not, and nobody is unexplained."""
    (node,) = cluster.nodes()
    spec = bench.spec(
        messages=None,
        duration_s=3600.0,
        rate_per_s=3000.0,
        request_timeout_ms=400,
        delivery_timeout_ms=900,
    )
    consuming = asyncio.create_task(bench.consume())
    producing = asyncio.create_task(bench.produce(spec))
    await bench.until_sent(1500)
    await asyncio.to_thread(cluster.kill, node.id)
    await bench.until(lambda: has_doubt(bench))
    await asyncio.to_thread(cluster.restart, node.id)
    await bench.until(lambda: ok_count(bench) > 6000)
    bench.control.finish()
    produced = await producing
    bench.control.stop()
    consumed = await consuming
    scanned = await bench.scan()

    assert produced.undrained_lanes == 0
    assert produced.ok + produced.failed + produced.unknown == produced.attempts
    assert produced.failed + produced.unknown > 0
    run = bench.run()
    attempts = run.read("attempts")
    outcomes = dict(zip(identities(run, "attempts"), attempts["outcome"].to_pylist(), strict=True))
    in_log = identities(run, "log")
    assert len(outcomes) == produced.attempts
    assert len(set(in_log)) == len(in_log) == scanned.messages, "a resent batch was written twice"
    assert {message for message, outcome in outcomes.items() if outcome == OK} <= set(in_log)
    assert not {message for message, outcome in outcomes.items() if outcome == FAILED} & set(in_log)
    assert set(in_log) <= set(outcomes)
    assert consumed.received == scanned.messages
    assert sorted(identities(run, "receipts")) == sorted(in_log)
    for lane in range(LANES):
        order = [sequence for _, _, its_lane, sequence in in_log if its_lane == lane]
        assert order == sorted(order)


def ok_count(bench: Bench) -> int:
    return max((report.get("ok", 0) for report in bench.reports), default=0)


def has_doubt(bench: Bench) -> bool:
    return any(report.get("failed", 0) + report.get("unknown", 0) for report in bench.reports)


async def test_a_paused_broker_makes_messages_late_not_lost(
    bench: Bench, cluster: LiteCluster
) -> None:
    (node,) = cluster.nodes()
    producing = asyncio.create_task(bench.produce_and_consume(bench.spec(messages=4000)))
    await bench.until_sent(500)
    await asyncio.to_thread(cluster.pause, node.id)
    await asyncio.sleep(1.0)
    await asyncio.to_thread(cluster.resume, node.id)
    produced, consumed = await producing
    assert (produced.ok, consumed.received) == (4000, 4000)
    attempts = bench.run().read("attempts")
    late_us = attempts["acked_us"].to_numpy() - attempts["intended_us"].to_numpy()
    assert late_us.max() > 800_000


PRODUCER = """
import asyncio, sys
from pathlib import Path
from support.experiment.workload_bench import Bench

async def main():
    bench = Bench(Path(sys.argv[1]), sys.argv[2])
    spec = bench.spec(messages=None, duration_s=3600.0, rate_per_s=4000.0)
    asyncio.create_task(bench.produce(spec))
    await bench.until_sent(3000)
    print("sent", flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


async def test_a_killed_producer_leaves_no_message_unexplained(
    bench: Bench, tmp_path: Path
) -> None:
    folder = tmp_path / "killed"
    producer = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PRODUCER, str(folder), bench.bootstrap),
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert producer.stdout is not None
    assert await producer.stdout.readline() == b"sent\n"
    producer.send_signal(signal.SIGKILL)
    await producer.wait()
    CommitLog(folder).close()
    dead = open_run(folder)
    reserved = {(line["lane"], line["until"]) for line in dead.commits if line["kind"] == "reserve"}
    until = {lane: max(u for its_lane, u in reserved if its_lane == lane) for lane in range(LANES)}
    await bench.scan()
    in_log = identities(bench.run(), "log")
    assert len(in_log) >= 2500
    assert all(sequence < until[lane] for _, _, lane, sequence in in_log)
    recorded = identities(dead, "attempts")
    assert len(recorded) > 0
    assert set(recorded) <= set(in_log)
    assert dead.read("manifests").num_rows == 0


async def test_reading_goes_on_where_a_log_begins_now(bench: Bench) -> None:
    """Retention may pass a reader: the jump is recorded, never hidden."""
    await bench.produce(bench.spec(messages=400, drain_timeout_s=0.0))
    async with Client({"bootstrap.servers": bench.bootstrap}) as client:
        await client.admin.delete_records({TopicPartition(TOPIC, 0): 30})
    consuming = asyncio.create_task(bench.consume())
    await bench.until(lambda: any(r.get("received") == 370 for r in bench.reports))
    bench.control.stop()
    await consuming
    await bench.scan()
    run = bench.run()
    rows = run.read("assignments").to_pylist()
    assert [row["offset"] for row in rows if row["partition"] == 0] == [0, 30]
    first, second = (row["assignment"] for row in rows if row["partition"] == 0)
    assert second == first + 1
    receipts = run.read("receipts").to_pylist()
    assert {row["assignment"] for row in receipts if row["partition"] == 0} == {second}
    assert {row["assignment"] for row in receipts if row["partition"] == 1} == {first}
    assert [row["start"] for row in run.read("scans").to_pylist()] == [30, 0, 0, 0]
