"""Mistakes of other testers that are made while producing and consuming: ours gives the right
number.

Kafka Mirror Tester counts gaps by the last record seen; an end-to-end benchmark takes the time
when `send()` returns for the time of sending. What is a matter of judging is tested with the
audit.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import numpy as np
import pytest

from shoal.client.admin import NewTopic
from shoal.client.client import Client
from shoal.lite.cluster import LiteCluster
from shoal.model.topics import TopicPartition
from shoal.workload.control import LocalControl
from shoal.workload.receive.live import LiveCheck, LiveCounts
from support.experiment.workload_bench import PARTITIONS, TOPIC, Bench

pytestmark = pytest.mark.slow


def make_counts(*sequences: int, count: int | None = None, from_start: bool = True) -> LiveCounts:
    """What a consumer says of one stream while it runs."""
    check = LiveCheck(from_start=from_start)
    for sequence in sequences:
        one = np.zeros(1, np.int32)
        check.add_messages(one, one, one, np.array([sequence], np.int64))
    if count is not None:
        check.add_marker(0, 0, 0, count)
    return check.counts()


def test_a_jump_from_1_to_5_leaves_three_gaps() -> None:
    assert make_counts(0, 1, 5).open_gaps == 3


def test_a_replay_of_six_is_six_duplicates() -> None:
    counts = make_counts(*range(8), *range(2, 8))
    assert (counts.duplicates, counts.late, counts.open_gaps) == (6, 0, 0)


def test_one_late_message_is_late_and_nothing_is_missing() -> None:
    counts = make_counts(0, 1, 3, 4, 5, 6, 2, 7)
    assert (counts.late, counts.open_gaps, counts.duplicates) == (1, 0, 0)


def test_what_comes_before_the_first_message_is_missed_too() -> None:
    assert make_counts(3, 4).open_gaps == 3
    assert make_counts(3, 4, from_start=False).open_gaps == 0


def test_the_last_messages_and_a_whole_stream_are_missed_by_the_marker() -> None:
    assert make_counts(0, 1, 2, count=7).missing_tails == 4
    assert make_counts(count=7).missing_tails == 7


@pytest.fixture(scope="module")
def cluster() -> Iterator[LiteCluster]:
    with LiteCluster() as cluster:
        yield cluster


@pytest.fixture
async def bench(tmp_path: Path, cluster: LiteCluster) -> AsyncIterator[Bench]:
    configs = {"message.timestamp.type": "LogAppendTime"}
    async with Client({"bootstrap.servers": cluster.bootstrap}) as client:
        await client.admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1, configs)])
        bench = Bench(tmp_path / "run", cluster.bootstrap)
        yield bench
        bench.log.close()
        await client.admin.delete_topics([TOPIC])


@pytest.mark.parametrize("driver", ["raw", "confluent"])
@pytest.mark.quick("raw")
async def test_a_blocked_send_does_not_vanish(
    bench: Bench, cluster: LiteCluster, driver: str
) -> None:
    """Messages that nobody takes on are as late as they are: by the time they were meant for."""
    (node,) = cluster.nodes()
    spec = bench.spec(
        driver=driver, messages=None, duration_s=3600.0, rate_per_s=1000.0, max_in_flight=1
    )
    consuming = asyncio.create_task(bench.consume())
    producing = asyncio.create_task(bench.produce(spec))
    await bench.until_sent(100)
    await asyncio.to_thread(cluster.pause, node.id)
    await asyncio.sleep(1.0)
    await asyncio.to_thread(cluster.resume, node.id)
    bench.reports.clear()
    await bench.until(lambda: any(r.get("behind", 1000) < 100 for r in bench.reports))
    bench.control.finish()
    produced = await producing
    bench.control.stop()
    consumed = await consuming
    assert produced.ok == consumed.received == produced.attempts
    attempts = bench.run().read("attempts")
    intended, sent, acked = (
        attempts[name].to_numpy() for name in ("intended_us", "sent_us", "acked_us")
    )
    assert (intended <= sent).all()
    assert (sent <= acked).all()
    assert (acked - intended > 500_000).sum() >= 300
    assert len(attempts) == produced.attempts, "every message has its row, however late"


async def test_order_is_by_sequence_not_by_acknowledgement(bench: Bench) -> None:
    """Rows stand in the order of answers; a message is named by its number all the same."""
    spec = bench.spec(messages=2000, rate_per_s=4000.0, max_in_flight=5)
    await bench.produce_and_consume(spec)
    await bench.scan()
    result = bench.judge()
    assert result.findings == {}
    assert (result.metrics.F, result.metrics.K) == (0, 0)


async def test_the_time_of_output_is_the_logs_own(bench: Bench) -> None:
    await bench.produce_and_consume(bench.spec(messages=300))
    await bench.scan()
    log = bench.run().read("log")
    sent = {
        (row["lane"], row["sequence"]): row["sent_us"]
        for row in bench.run().read("attempts").to_pylist()
    }
    for row in log.to_pylist():
        assert row["append_us"] >= sent[row["lane"], row["sequence"]] // 1000 * 1000
    assert bench.judge().metrics.range_us["output"] is not None


async def test_a_rebalance_hides_no_loss(bench: Bench) -> None:
    """What goes while nobody reads the partition is missed by the group's next member."""
    first = LocalControl(groups=["g"], commit=bench.log.append, on_progress=bench.reports.append)
    await bench.produce(bench.spec(messages=400, drain_timeout_s=0.0))
    reading = bench.join("c1", control=first)
    await bench.until(lambda: count_received(bench, "c1") == 400)
    first.stop()
    await reading
    more = bench.spec(messages=800, first_numbers={TOPIC: 400}, start_us=1, drain_timeout_s=0.0)
    await bench.produce(more, epoch=2)
    async with Client({"bootstrap.servers": bench.bootstrap}) as client:
        await client.admin.delete_records({TopicPartition(TOPIC, 0): 150})
    again = bench.join("c2")
    await bench.until(lambda: count_received(bench, "c2") == 350)
    bench.control.stop()
    summary = await again
    await bench.scan()
    assert summary.duplicates == 0
    findings = {name: found.count for name, found in bench.judge().findings.items()}
    assert findings == {"lost: expired": 50}


def count_received(bench: Bench, consumer: str) -> int:
    return max((r["received"] for r in bench.reports if r.get("consumer") == consumer), default=0)
