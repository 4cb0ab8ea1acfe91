"""Consumers in real groups: rebalances, kills and resets add no finding that is not true."""

import asyncio
import os
import signal
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ForeignPartition

from shoal.audit.audit import audit
from shoal.audit.read.folder import open_ledger
from shoal.client.admin import NewTopic
from shoal.client.client import Client
from shoal.client.transport.pool import FETCH, Pool
from shoal.lite.cluster import LiteCluster
from shoal.model.findings import Verdict
from shoal.model.topics import TopicPartition
from shoal.workload.control import LocalControl
from shoal.workload.record.ledger import CommitLog, open_run
from shoal.workload.specs import FetchSettings
from support.experiment.workload_bench import PARTITIONS, TOPIC, Bench, identities

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster() -> Iterator[LiteCluster]:
    with LiteCluster(properties={"group.min.session.timeout.ms": "1000"}) as cluster:
        yield cluster


@pytest.fixture
async def bench(tmp_path: Path, cluster: LiteCluster) -> AsyncIterator[Bench]:
    async with Client({"bootstrap.servers": cluster.bootstrap}) as client:
        await client.admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])
        bench = Bench(tmp_path / "run", cluster.bootstrap)
        yield bench
        bench.log.close()
        await client.admin.delete_topics([TOPIC])


IN_RACK = FetchSettings(max_wait_ms=50, rack="b")


def count_received(bench: Bench, consumer: str) -> int:
    counts = (r["received"] for r in bench.reports if r.get("consumer") == consumer)
    return max(counts, default=0)


def count_owned_partitions(bench: Bench) -> dict[str, int]:
    """How many partitions each member says it has."""
    last = {r["consumer"]: r["partitions"] for r in bench.reports if "consumer" in r}
    return {name: count for name, count in last.items() if count}


def read_committed(bench: Bench) -> dict[int, int]:
    reader = Consumer({"bootstrap.servers": bench.bootstrap, "group.id": bench.group_id})
    asked = [ForeignPartition(TOPIC, partition) for partition in range(PARTITIONS)]
    found = {tp.partition: tp.offset for tp in reader.committed(asked, timeout=30)}
    reader.close()
    return found


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
@pytest.mark.quick("cooperative-sticky")
async def test_members_come_and_go_and_nothing_is_lost(bench: Bench, assignor: str) -> None:
    first = bench.join("c1", assignor=assignor)
    spec = bench.spec(messages=None, duration_s=3600.0, rate_per_s=2000.0, drain_timeout_s=60.0)
    producing = asyncio.create_task(bench.produce(spec))
    await bench.until(lambda: count_received(bench, "c1") > 500)
    second = bench.join("c2", assignor=assignor)
    await bench.until(lambda: count_received(bench, "c2") > 500)
    leaving = LocalControl(groups=["g"], commit=bench.log.append)
    third = bench.join("c3", control=leaving, assignor=assignor)
    await bench.until(
        lambda: len(count_owned_partitions(bench)) == 2 and count_received(bench, "c2") > 1000
    )
    await asyncio.sleep(0.5)
    leaving.stop()
    await third
    bench.control.finish()
    produced = await producing
    bench.control.stop()
    one, two = await first, await second
    await bench.scan()
    assert produced.undrained_lanes == 0
    assert (one.rebalances > 1, two.rebalances > 0) == (True, True)
    run = bench.run()
    assert set(identities(run, "receipts")) == set(identities(run, "log"))
    numbers: dict[int, list[tuple[int, str]]] = defaultdict(list)
    for row in run.read("assignments").to_pylist():
        numbers[row["partition"]].append((row["assignment"], row["consumer"]))
    for partition, pairs in numbers.items():
        given = [number for number, _ in pairs]
        assert len(set(given)) == len(given), f"two assignments of {partition} have one number"
    result = bench.judge()
    assert result.verdict is Verdict.PROVEN, result.findings
    ends = {row["partition"]: row["end"] for row in run.read("scans").to_pylist()}
    positions = {row["partition"]: row["offset"] for row in run.read("positions").to_pylist()}
    assert positions.keys() == ends.keys()
    assert all(read_committed(bench)[partition] <= ends[partition] for partition in ends)


async def test_offsets_are_committed_behind_sealed_receipts_only(bench: Bench) -> None:
    await bench.produce(bench.spec(messages=2000, drain_timeout_s=0.0))
    reading = bench.join("c1")
    sealed: dict[int, int] = {}
    for _ in range(200):
        committed_offsets = read_committed(bench)
        rows = bench.run().read("receipts").to_pylist()
        sealed = {p: sum(row["partition"] == p for row in rows) for p in range(PARTITIONS)}
        assert all(committed_offsets[partition] <= sealed[partition] for partition in sealed), (
            committed_offsets,
            sealed,
        )
        if committed_offsets == sealed == dict.fromkeys(range(PARTITIONS), 500):
            break
        await asyncio.sleep(0.05)
    else:
        pytest.fail(f"committed {committed_offsets}, sealed {sealed}")
    bench.control.stop()
    summary = await reading
    assert (summary.received, summary.open_gaps, summary.duplicates) == (2000, 0, 0)


MEMBER = """
import asyncio, sys
from pathlib import Path
from support.experiment.workload_bench import Bench

async def main():
    bench = Bench(Path(sys.argv[1]), sys.argv[2])
    reading = bench.join(sys.argv[3], session_timeout_ms=2000)
    await bench.until(lambda: any(r["received"] > 1500 for r in bench.reports))
    print("reads", flush=True)
    await reading

asyncio.run(main())
"""


async def test_a_killed_member_leaves_re_reads_and_no_finding(bench: Bench, tmp_path: Path) -> None:
    folder = tmp_path / "killed"
    spec = bench.spec(messages=None, duration_s=3600.0, rate_per_s=2000.0, drain_timeout_s=60.0)
    staying = bench.join("c1")
    producing = asyncio.create_task(bench.produce(spec))
    await bench.until(lambda: count_received(bench, "c1") > 200)
    member = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", MEMBER, str(folder), bench.bootstrap, "c2"),
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert member.stdout is not None
    assert await member.stdout.readline() == b"reads\n"
    member.send_signal(signal.SIGKILL)
    await member.wait()
    await bench.until(lambda: count_owned_partitions(bench).get("c1") == PARTITIONS)
    bench.control.finish()
    produced = await producing
    bench.control.stop()
    await staying
    await bench.scan()
    CommitLog(folder).close()
    assert produced.undrained_lanes == 0
    result = audit(open_ledger([bench.folder, folder]))
    assert result.verdict is Verdict.PROVEN, result.findings
    assert result.metrics.attempts == produced.attempts
    assert result.metrics.delivered == produced.attempts
    both = identities(bench.run(), "receipts") + identities(open_run(folder), "receipts")
    assert set(both) == set(identities(bench.run(), "log"))


async def test_where_a_log_begins_now_is_a_new_assignment(bench: Bench) -> None:
    await bench.produce(bench.spec(messages=400, drain_timeout_s=0.0))
    reading = bench.join("c1")
    await bench.until(lambda: read_committed(bench) == dict.fromkeys(range(PARTITIONS), 100))
    bench.control.stop()
    await reading
    async with Client({"bootstrap.servers": bench.bootstrap}) as client:
        more = bench.spec(messages=800, first_numbers={TOPIC: 400}, drain_timeout_s=0.0, start_us=1)
        control = LocalControl(groups=["g"], commit=bench.log.append)
        bench.control = control
        await bench.produce(more, epoch=2)
        await client.admin.delete_records({TopicPartition(TOPIC, 0): 130})
    again = bench.join("c9", control=control)
    await bench.until(lambda: read_committed(bench) == dict.fromkeys(range(PARTITIONS), 200))
    control.stop()
    summary = await again
    assert summary.received == 370
    rows = [row for row in bench.run().read("assignments").to_pylist() if row["partition"] == 0]
    assert [row["offset"] for row in rows] == [0, 100, 130]
    assert rows[2]["assignment"] == rows[1]["assignment"] + 1 > rows[0]["assignment"] + 1


async def test_several_groups_read_everything_each(bench: Bench) -> None:
    control = LocalControl(groups=["g", "h"], commit=bench.log.append)
    bench.control = control
    both = [bench.join("c1"), bench.join("d1", group="h", group_id="another-name")]
    produced = await bench.produce(bench.spec(messages=600))
    control.stop()
    summaries = await asyncio.gather(*both)
    assert produced.undrained_lanes == 0
    assert [summary.received for summary in summaries] == [600, 600]


@pytest.fixture(scope="module")
def cluster_with_racks() -> Iterator[LiteCluster]:
    properties = {
        "broker.rack": "a,b,c",
        "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    }
    with LiteCluster(brokers=3, properties=properties) as cluster:
        yield cluster


@pytest.mark.parametrize("in_group", [False, True], ids=["fixed", "group"])
@pytest.mark.parametrize("way", [{"fetching": IN_RACK}, {"broker_id": 2}], ids=["rack", "broker"])
async def test_a_zone_reads_from_its_own_broker(
    tmp_path: Path,
    cluster_with_racks: LiteCluster,
    monkeypatch: pytest.MonkeyPatch,
    in_group: bool,
    way: dict[str, Any],
) -> None:
    asked = []
    link = Pool.link

    async def recorded_polls(pool: Pool, node_id: int, channel: str) -> Any:
        asked.append((channel, node_id))
        return await link(pool, node_id, channel)

    async with Client({"bootstrap.servers": cluster_with_racks.bootstrap}) as client:
        await client.admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])
        bench = Bench(tmp_path / "run", cluster_with_racks.bootstrap)
        await bench.produce(bench.spec(messages=2000, size_bytes=1000, drain_timeout_s=0.0))
        monkeypatch.setattr(Pool, "link", recorded_polls)
        reading = (
            bench.join("c1", **way)
            if in_group
            else asyncio.create_task(bench.consume(consumer="c1", **way))
        )
        await bench.until(lambda: count_received(bench, "c1") == 2000)
        channel = FETCH if in_group else "consumer g c1"
        await bench.until(lambda: of_channel(asked, channel)[-5:] == [2] * 5)
        bench.control.stop()
        await reading
        bench.log.close()
        await client.admin.delete_topics([TOPIC])
    assert len(identities(bench.run(), "receipts")) == 2000


def of_channel(asked: list[tuple[str, int]], channel: str) -> list[int]:
    """Which nodes were asked on that channel."""
    return [node_id for its_channel, node_id in asked if its_channel == channel]
