"""Producer, consumer and scan against brokers that are not ours, and what their ledgers say."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ForeignPartition

from shoal.client.client import Client
from shoal.model.errors import UsageError
from shoal.model.ledger import OK, UNKNOWN
from shoal.model.runs import run_hash
from shoal.workload.envelope import MessageKind, decode_message
from shoal.workload.record.ledger import LedgerFolder, first_free_numbers
from shoal.workload.send.producer import produce
from shoal.workload.specs import ProducedTopic, StartingPoint
from support.client.mock_cluster import mock_cluster
from support.experiment.workload_bench import LANES, PARTITIONS, TOPIC, Bench, identities

pytestmark = pytest.mark.slow


@pytest.fixture
def bootstrap() -> Iterator[str]:
    with mock_cluster(TOPIC, "few", "many", brokers=2) as cluster:
        yield cluster.bootstrap


@pytest.fixture
async def bench(tmp_path: Path, bootstrap: str) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path / "run", bootstrap)
    yield bench
    bench.log.close()


EVERY_MESSAGE = [("p0", TOPIC, number % LANES, number // LANES) for number in range(1000)]


@pytest.mark.parametrize(
    ("use_headers", "codec"), [(False, "none"), (True, "none"), (False, "zstd"), (True, "lz4")]
)
async def test_every_message_is_accounted_for(bench: Bench, use_headers: bool, codec: str) -> None:
    spec = bench.spec(use_headers=use_headers, codec=codec)
    produced, consumed = await bench.produce_and_consume(spec)
    scanned = await bench.scan()
    run = bench.run()
    assert (produced.attempts, produced.ok, produced.undrained_lanes) == (1000, 1000, 0)
    assert (consumed.received, consumed.foreign, consumed.unreadable) == (1000, 0, 0)
    assert consumed.markers >= LANES
    assert (scanned.messages, scanned.foreign) == (1000, 0)
    for table in ("attempts", "receipts", "log"):
        assert sorted(identities(run, table)) == sorted(EVERY_MESSAGE)
    assert all(run.read("receipts")["intact"].to_pylist())
    assert all(run.read("log")["intact"].to_pylist())
    assert run.read("attempts")["outcome"].to_pylist() == [OK] * 1000
    assert run.read("manifests")["count"].to_pylist() == [125] * LANES
    assert {line["lane"] for line in run.commits if line["kind"] == "drained"} == set(range(LANES))


def places(table: Any) -> dict[tuple[int, int], int]:
    """The offset of each message by lane and sequence."""
    rows = zip(*(table[name].to_pylist() for name in ("lane", "sequence", "offset")), strict=True)
    return {(lane, sequence): offset for lane, sequence, offset in rows}


async def test_ledgers_agree_about_offsets_and_times(bench: Bench) -> None:
    started_us = time.time_ns() // 1000
    await bench.produce_and_consume(bench.spec())
    await bench.scan()
    run = bench.run()
    attempts, receipts, log = (run.read(name) for name in ("attempts", "receipts", "log"))
    assert places(attempts) == places(receipts) == places(log)
    intended, sent, acked = (
        attempts[name].to_numpy() for name in ("intended_us", "sent_us", "acked_us")
    )
    assert started_us <= intended.min()
    assert (intended <= sent).all(), "a message left before it was due"
    assert (sent <= acked).all()
    assert (receipts["received_us"].to_numpy() >= sent.min()).all()
    assert receipts["timestamp_us"].to_numpy().min() >= started_us // 1000 * 1000
    assert log["append_us"].to_pylist() == [-1] * 1000
    positions = run.read("positions").to_pylist()
    scans = run.read("scans").to_pylist()
    assert [row["offset"] for row in positions] == [row["end"] for row in scans]
    assert [row["start"] for row in scans] == [0] * PARTITIONS
    assert len(scans[0]["topic_id"]) == 36
    assert run.read("assignments")["offset"].to_pylist() == [0] * PARTITIONS


async def test_every_poll_is_recorded(bench: Bench) -> None:
    await bench.produce_and_consume(bench.spec())
    run = bench.run()
    polls, receipts = run.read("polls"), run.read("receipts").to_pylist()
    polled_us, known_us = (polls[name].to_numpy() for name in ("polled_us", "known_us"))
    assert (known_us <= polled_us).all()
    assert (polls["count"].to_numpy() >= 1).all()
    asked = {(row["partition"], row["offset"]) for row in polls.to_pylist()}
    assert {(partition, 0) for partition in range(PARTITIONS)} <= asked
    # Whatever was received first of an answer had been asked for.
    last = dict(sorted(asked))
    assert all(row["offset"] < last[row["partition"]] for row in receipts)


async def test_sequences_are_reserved_before_they_are_sent(bench: Bench) -> None:
    summary = await bench.produce(bench.spec(drain_timeout_s=0.0))
    reserved: dict[int, tuple[int, int]] = {}
    for line in bench.run().commits:
        if line["kind"] == "reserve":
            reserved.setdefault(line["lane"], (line["until"], line["at_us"]))
    assert summary.undrained_lanes == LANES
    rows = bench.run().read("attempts").to_pylist()
    assert rows
    for row in rows:
        until, at_us = reserved[row["lane"]]
        assert row["sequence"] < until
        assert row["sent_us"] >= at_us


async def test_librdkafka_reads_what_we_write(bench: Bench) -> None:
    await bench.produce(bench.spec(drain_timeout_s=0.0, use_headers=True, messages=40))
    consumer = Consumer({"bootstrap.servers": bench.bootstrap, "group.id": "x"})
    consumer.assign([ForeignPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
    seen: list[int] = []
    while len(seen) < 40:
        message = consumer.poll(10)
        assert message is not None
        assert message.error() is None
        headers: Any = message.headers()
        read = decode_message(message.key(), message.value(), headers)
        assert read is not None
        assert read.intact
        assert read.run == run_hash("r1")
        assert read.kind is MessageKind.MESSAGE
        assert read.lane % PARTITIONS == message.partition()
        seen.append(read.number)
    consumer.close()
    assert sorted(seen) == list(range(40))


async def test_foreign_records_are_counted_and_nothing_else(bench: Bench) -> None:
    stranger = Producer({"bootstrap.servers": bench.bootstrap})
    for number in range(50):
        stranger.produce(TOPIC, value=b"not ours", key=str(number), partition=number % PARTITIONS)
    assert stranger.flush(10) == 0
    _, consumed = await bench.produce_and_consume(bench.spec(messages=200))
    scanned = await bench.scan()
    assert (consumed.received, consumed.foreign) == (200, 50)
    assert (scanned.messages, scanned.foreign) == (200, 50)
    foreign = {
        (line["worker"], line["cluster"]): line["count"]
        for line in bench.run().commits
        if line["kind"] == "foreign"
    }
    assert foreign == {("c", "target"): 50, ("s", "source"): 50}


async def test_a_scan_stays_in_its_range(bench: Bench) -> None:
    await bench.produce(bench.spec(drain_timeout_s=0.0))
    starts = tuple(StartingPoint(TOPIC, p, 100, recorded_as="theirs") for p in (0, 2))
    summary = await bench.scan((*starts, StartingPoint(TOPIC, 3, 10**6)))
    assert (summary.logs, summary.messages) == (3, 300)
    log = bench.run().read("log")
    assert set(log["partition"].to_pylist()) == {0, 2}
    assert min(log["offset"].to_pylist()) == 100
    rows = [
        (row["topic"], row["start"], row["end"]) for row in bench.run().read("scans").to_pylist()
    ]
    assert rows == [("theirs", 100, 250), ("theirs", 100, 250), (TOPIC, 250, 250)]


async def test_stop_ends_at_once_and_leaves_a_true_manifest(bench: Bench) -> None:
    spec = bench.spec(messages=None, duration_s=3600.0, rate_per_s=2000.0)
    producing = asyncio.create_task(bench.produce(spec))
    await bench.until_sent(300)
    bench.control.stop()
    began_s = time.monotonic()
    summary = await producing
    assert time.monotonic() - began_s < 30
    assert 0 < summary.attempts == summary.ok
    run = bench.run()
    attempts = run.read("attempts")
    assert attempts.num_rows == summary.attempts
    counts = np.bincount(attempts["lane"].to_numpy(), minlength=LANES)
    assert run.read("manifests")["count"].to_pylist() == counts.tolist()
    assert run.read("markers").num_rows == 0


async def test_finish_sends_nothing_new_but_drains(bench: Bench) -> None:
    spec = bench.spec(messages=None, duration_s=3600.0, rate_per_s=2000.0)
    consuming = asyncio.create_task(bench.consume())
    producing = asyncio.create_task(bench.produce(spec))
    await bench.until_sent(300)
    bench.control.finish()
    produced = await producing
    bench.control.stop()
    consumed = await consuming
    assert produced.undrained_lanes == 0
    assert 0 < produced.ok == consumed.received
    assert any(report["state"] == "draining" for report in bench.reports if "state" in report)


async def test_what_is_not_sent_after_the_end_is_not_behind(bench: Bench) -> None:
    spec = bench.spec(messages=None, rate_per_s=2000.0, drain_timeout_s=2.0)
    producing = asyncio.create_task(bench.produce(spec))
    await bench.until_sent(300)
    bench.control.finish()
    ended = [(await producing).behind]
    ended += [r["behind"] for r in bench.reports if r.get("state") in {"draining", "ended"}]
    assert len(set(ended)) == 1, "nobody is behind while it drains"


async def test_drain_gives_up_when_nobody_reads(bench: Bench) -> None:
    summary = await bench.produce(bench.spec(messages=10, drain_timeout_s=1.5))
    assert summary.undrained_lanes == LANES
    assert (await bench.scan()).markers == 2 * LANES  # one round each second


async def test_a_new_incarnation_goes_on_behind_the_reservations(bench: Bench) -> None:
    await bench.produce(bench.spec(messages=300, drain_timeout_s=0.0))
    first = first_free_numbers(bench.run().commits, "p0", {TOPIC: LANES})
    assert first[TOPIC] >= 300
    spec = bench.spec(messages=first[TOPIC] + 96, first_numbers=first, drain_timeout_s=0.0)
    summary = await bench.produce(spec, epoch=2)
    assert summary.attempts == 96
    seen = identities(bench.run(), "attempts")
    assert len(set(seen)) == len(seen) == 396
    assert run_manifest(bench.run()) == {(spec.messages or 0) // LANES}


def run_manifest(run: LedgerFolder) -> set[int]:
    """The counts of the newest incarnation."""
    return set(run.read("manifests")["count"].to_pylist()[-LANES:])


async def test_without_acknowledgements_every_attempt_is_unknown(bench: Bench) -> None:
    spec = bench.spec(acks=0, idempotent=False, messages=100, drain_timeout_s=0.0)
    summary = await bench.produce(spec)
    assert (summary.attempts, summary.ok, summary.unknown) == (100, 0, 100)
    rows = bench.run().read("attempts")
    assert set(rows["outcome"].to_pylist()) == {UNKNOWN}
    assert set(rows["acked_us"].to_pylist()) == {-1}
    with pytest.raises(UsageError):
        async with Client({"bootstrap.servers": bench.bootstrap}) as client:
            await produce(spec, client, bench.recorder("q"), bench.control)


async def test_topics_with_fewer_and_more_lanes_than_partitions(bench: Bench) -> None:
    topics = (ProducedTopic("few", PARTITIONS, 3), ProducedTopic("many", PARTITIONS, 10))
    summary = await bench.produce(bench.spec(topics=topics, messages=260, drain_timeout_s=0.0))
    assert summary.ok == 260
    attempts = identities(bench.run(), "attempts")
    for topic in topics:
        expected = [(n % topic.lanes, n // topic.lanes) for n in range(130)]
        assert sorted(row[2:] for row in attempts if row[1] == topic.name) == sorted(expected)
    manifest = bench.run().read("manifests").to_pylist()
    assert sum(row["count"] for row in manifest) == 260


async def test_a_producer_that_is_behind_says_so(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    start_us = time.time_ns() // 1000 - 3_000_000
    spec = bench.spec(start_us=start_us, rate_per_s=100.0, messages=250, drain_timeout_s=0.0)
    summary = await bench.produce(spec)
    assert summary.ok == 250
    assert "producer p0 is late: 250 messages to orders are overdue" in caplog.text
    intended_us = bench.run().read("attempts")["intended_us"].to_numpy()
    assert intended_us.min() == start_us, "a late message keeps the time it was meant for"
