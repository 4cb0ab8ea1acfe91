"""Both drivers, with every promise that a producer can make: outcomes are true, and judged so."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ForeignPartition

from shoal.client.admin import NewTopic
from shoal.client.client import Client
from shoal.client.config import ClientConfig
from shoal.lite.cluster import LiteCluster
from shoal.model.findings import Verdict
from shoal.model.ledger import ABORTED, COMMITTED, FAILED, OK, OPEN, UNKNOWN
from shoal.workload.envelope import MessageKind, decode_message
from shoal.workload.send.librdkafka import librdkafka_properties
from shoal.workload.specs import FetchSettings, ProducedTopic
from support.experiment.workload_bench import LANES, PARTITIONS, TOPIC, Bench, identities

pytestmark = pytest.mark.slow

COMMITTED_ONLY = FetchSettings("read_committed", max_wait_ms=50)
drivers = pytest.mark.parametrize("driver", ["raw", "confluent"])


@pytest.fixture(scope="module")
def cluster() -> Iterator[LiteCluster]:
    with LiteCluster() as cluster:
        yield cluster


@pytest.fixture
async def bench(tmp_path: Path, cluster: LiteCluster) -> AsyncIterator[Bench]:
    async with Client({"bootstrap.servers": cluster.bootstrap}) as client:
        await client.admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])
        bench = Bench(tmp_path / "run", cluster.bootstrap)
        yield bench
        bench.log.close()
        await client.admin.delete_topics([TOPIC])


@pytest.mark.parametrize(
    "wishes",
    [
        {},
        {"acks": 1, "idempotent": False, "max_in_flight": 10, "codec": "lz4"},
        {"idempotent": False, "use_headers": True, "codec": "gzip", "max_in_flight": 1},
    ],
    ids=["default", "leader-only", "not-idempotent"],
)
@drivers
async def test_every_message_is_accounted_for(
    bench: Bench, driver: str, wishes: dict[str, Any]
) -> None:
    spec = bench.spec(driver=driver, messages=600, **wishes)
    produced, consumed = await bench.produce_and_consume(spec)
    await bench.scan()
    assert (produced.attempts, produced.ok, produced.undrained_lanes) == (600, 600, 0)
    assert (consumed.received, consumed.foreign, consumed.unreadable) == (600, 0, 0)
    run = bench.run()
    every = sorted(("p0", TOPIC, n % LANES, n // LANES) for n in range(600))
    for table in ("attempts", "receipts", "log"):
        assert sorted(identities(run, table)) == every
    attempts = {
        (row["lane"], row["sequence"]): row["offset"] for row in run.read("attempts").to_pylist()
    }
    log = {(row["lane"], row["sequence"]): row["offset"] for row in run.read("log").to_pylist()}
    assert attempts == log
    times = run.read("attempts")
    intended, sent, acked = (
        times[name].to_numpy() for name in ("intended_us", "sent_us", "acked_us")
    )
    assert (intended <= sent).all()
    assert (sent <= acked).all()
    assert bench.judge().verdict is Verdict.PROVEN


async def test_librdkafka_without_acknowledgements_knows_nothing(bench: Bench) -> None:
    spec = bench.spec(driver="confluent", acks=0, idempotent=False, messages=80)
    produced, consumed = await bench.produce_and_consume(spec)
    assert (produced.ok, produced.unknown, consumed.received) == (0, 80, 80)
    assert set(bench.run().read("attempts")["outcome"].to_pylist()) == {UNKNOWN}


async def test_librdkafka_refused_or_in_doubt(bench: Bench, cluster: LiteCluster) -> None:
    """What is too large has failed; what was on its way when all ended is unknown."""
    async with Client({"bootstrap.servers": cluster.bootstrap}) as client:
        await client.admin.create_topics([NewTopic("narrow", 1, 1, {"max.message.bytes": "150"})])
    narrow = (ProducedTopic("narrow", 1, 1),)
    spec = bench.spec(driver="confluent", topics=narrow, messages=20, drain_timeout_s=0.0)
    produced = await bench.produce(spec)
    assert (produced.attempts, produced.failed) == (20, 20)
    rows = bench.run().read("attempts").to_pylist()
    assert {(row["outcome"], row["error"], row["offset"]) for row in rows} == {(FAILED, 10, -1)}


@drivers
async def test_transactions_and_their_planned_aborts(bench: Bench, driver: str) -> None:
    spec = bench.spec(
        driver=driver, messages=1000, transaction_messages=100, abort_every=3, codec="zstd"
    )
    produced, consumed = await bench.produce_and_consume(spec, fetching=COMMITTED_ONLY)
    await bench.scan()
    assert (produced.transactions_committed, produced.transactions_aborted) == (7, 3)
    assert (produced.ok, produced.failed, produced.unknown) == (700, 300, 0)
    assert (consumed.received, produced.undrained_lanes) == (700, 0)
    run = bench.run()
    outcomes = {
        (row["lane"], row["sequence"]): row["outcome"] for row in run.read("attempts").to_pylist()
    }
    for (lane, sequence), outcome in outcomes.items():
        is_aborted = (sequence * LANES + lane) // 100 % 3 == 2
        assert outcome == (FAILED if is_aborted else OK)
    ended = [row for row in run.read("transactions").to_pylist() if row["fate"] != OPEN]
    assert Counter(row["fate"] for row in ended) == {COMMITTED: 700, ABORTED: 300}
    assert len({row["transaction"] for row in ended}) == 10
    assert all((row["requested_us"] > 0) == (row["fate"] == COMMITTED) for row in ended)
    result = bench.judge()
    assert result.verdict is Verdict.PROVEN, result.findings
    assert read_by_librdkafka(bench, "read_committed") == {
        m for m, o in outcomes.items() if o == OK
    }
    assert read_by_librdkafka(bench, "read_uncommitted") == set(outcomes)


def read_by_librdkafka(bench: Bench, isolation: str) -> set[tuple[int, int]]:
    consumer = Consumer(
        {"bootstrap.servers": bench.bootstrap, "group.id": "x", "isolation.level": isolation}
        | {"enable.partition.eof": True}
    )
    consumer.assign([ForeignPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
    seen, ended = set(), 0
    while ended < PARTITIONS:
        message = consumer.poll(30)
        assert message is not None
        if message.error() is not None:
            ended += 1
            continue
        headers: Any = message.headers() or ()
        read = decode_message(message.key(), message.value(), headers)
        assert read is not None
        if read.kind is MessageKind.MESSAGE:
            seen.add((read.lane, read.sequence))
    consumer.close()
    return seen


@drivers
async def test_a_stopped_producer_aborts_what_is_open(bench: Bench, driver: str) -> None:
    spec = bench.spec(
        driver=driver,
        messages=None,
        duration_s=3600.0,
        rate_per_s=2000.0,
        transaction_messages=400,
    )
    producing = asyncio.create_task(bench.produce(spec))
    await bench.until_sent(1000)
    bench.control.stop()
    produced = await producing
    assert produced.ok + produced.failed == produced.attempts
    assert produced.transactions_aborted == 1
    assert produced.ok == 400 * produced.transactions_committed


async def test_membership_is_recorded_before_anything_is_sent(bench: Bench) -> None:
    spec = bench.spec(messages=500, transaction_messages=50, drain_timeout_s=0.0)
    await bench.produce(spec)
    run = bench.run()
    planned = {
        (row["lane"], row["sequence"]): row["transaction"]
        for row in run.read("transactions").to_pylist()
        if row["fate"] == OPEN
    }
    known = {
        (row["lane"], row["sequence"]): row["transaction"]
        for row in run.read("transactions").to_pylist()
        if row["fate"] != OPEN
    }
    assert len(known) == 500
    assert all(planned[message] == transaction for message, transaction in known.items())
    kinds = [line.get("table", line["kind"]) for line in run.commits]
    assert kinds.index("transactions") < kinds.index("reserve") < kinds.index("attempts")


async def test_a_new_incarnation_ends_what_the_old_one_left_open(bench: Bench) -> None:
    """An open transaction is aborted by the next producer with its transactional id."""
    spec = bench.spec(messages=None, duration_s=3600.0, transaction_messages=100_000)
    producing = asyncio.create_task(bench.produce(spec))
    await bench.until_sent(500)
    producing.cancel()
    await asyncio.gather(producing, return_exceptions=True)
    first = {TOPIC: 100_000}
    again = bench.spec(messages=100_100, first_numbers=first, start_us=time.time_ns() // 1000)
    again = replace(again, rate_per_s=5_000_000.0, transaction_messages=50)
    consuming = asyncio.create_task(bench.consume(fetching=COMMITTED_ONLY))
    produced = await bench.produce(again, epoch=2)
    bench.control.stop()
    consumed = await consuming
    assert (produced.ok, consumed.received) == (100, 100)


def test_one_configuration_for_both_clients(bench: Bench) -> None:
    config = ClientConfig.from_properties(
        {
            "bootstrap.servers": "a:1,b:2",
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required"
            ' username="u" password="p";',
            "ssl.truststore.location": "ca.pem",
            "ssl.endpoint.identification.algorithm": "",
        }
    )
    properties = librdkafka_properties(bench.spec(transaction_messages=5, linger_us=500), config)
    assert properties["bootstrap.servers"] == "a:1,b:2"
    assert (properties["sasl.username"], properties["sasl.password"]) == ("u", "p")
    assert properties["ssl.ca.location"] == "ca.pem"
    assert properties["ssl.endpoint.identification.algorithm"] == "none"
    assert properties["transactional.id"] == "shoal.r1.p0"
    assert properties["linger.ms"] == 0.5
