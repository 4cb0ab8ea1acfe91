"""Claim: the mirror is ahead of MirrorMaker 2 in its bad shapes too.

    python -m benchmarks.mirror_shapes CASE [--no-mm2]     # one case, beside the stored ones
    python -m benchmarks.mirror_shapes                     # all

| case | shape | figure |
|---|---|---|
| tiny | one 100-byte record a batch, 8 partitions | CPU per record |
| partitions | 500 partitions, 200 records/s | share of a core; p99 of the latency beside it |
| idle | 5,000 partitions without records, on Kafka Lite | share of a core, memory |
| old | records three days old | offsets at the target / records; time until idempotent |
| transactional | a source with transactions of ten records | CPU per record |
| slow | each write to the target takes 100 ms more, on Kafka Lite | CPU per record |
| floor | compare-and-append to Kafka Lite, uncompressed | times the kernel's copy floor |

Both mirrors are started by their command lines and copy the same topics in one run. What counts is
the CPU of the whole process tree: of a copy between half of the records at the target and the last,
so that a virtual machine has compiled what it runs; of a steady load in a time in which it runs,
after a warm-up. Copies are repeated in pairs, in turn: the median counts, with the range of the
pairs' ratios. The kernel's copy floor (`copy_floor.py`) is measured in the same run.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_END, Consumer, Producer
from confluent_kafka import TopicPartition as ConfluentPartition

from benchmarks.copy_floor import copy_floor
from benchmarks.harness import GB, MB, Claim, machine, read_result, store
from benchmarks.mirror import (
    PARTITIONS,
    Clusters,
    cpu_seconds,
    fill,
    measure_copy,
    mirror_options,
    records_at,
)
from shoal.client.admin import NewTopic
from shoal.client.client import Client
from shoal.lite.cluster import LiteCluster
from shoal.mirror.copy.delivery.names import IDEMPOTENT
from shoal.mirror.offsets.checkpoints import CheckpointTopic
from shoal.model.topics import TopicPartition
from shoal.systems.apache.apache import ApacheCluster
from shoal.systems.mirror_kinds import MirrorOptions, MirrorRoute, make_mirror
from shoal.systems.mirrors import Mirror

CLAIM = Claim(
    name="mirror_shapes",
    sentence="Tiny batches take at most 0.6 of MirrorMaker 2's CPU per record, 500 slow partitions "
    "0.3 of its CPU, 5,000 idle partitions 2 % of a core and 150 MB; old records take at most 1.02 "
    "offsets each and are idempotent a minute after the last; compare-and-append takes twice the "
    "kernel's copy floor.",
    packages=("crc32c", "confluent-kafka"),
)
# Enough for some seconds of copying: what is done before the first look at the target is not seen.
TINY_RECORDS = 800_000
TRANSACTIONAL_RECORDS = 400_000
OLD_RECORDS = 40_000
SLOW_RECORDS = 40_000
PAIRS = 3
MANY = 500
RATE = 200
IDLE = 5_000
STEADY_S = 20.0
WARM_UP_S = 30.0
SLOW_COPIES = 2  # replicas of a slow topic, one of them behind the slow link
IDEMPOTENT_WITHIN_S = 60.0
DAY_MS = 86_400_000
FLOOR_RECORDS = 400_000
PATIENCE_S = 240.0
RECORD = b"x" * 100

Produce = Callable[[Producer, int], None]


@contextmanager
def _prepare_mirror(
    kind: str, clusters: Clusters, topic: str, *more: str, copies: int = 1
) -> Iterator[tuple[Mirror, str, str]]:
    """A mirror that is about to start, its name, and the name of its target topic."""
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        prefix = f"{kind}-{time.time_ns()}."
        route = MirrorRoute(
            {"bootstrap.servers": clusters.source.bootstrap},
            {"bootstrap.servers": clusters.target.bootstrap},
            (topic,),
            Path(folder),
            copies=copies,
        )
        options = mirror_options(kind, "none", prefix)
        if kind == "shoal":
            more = ("--replication-factor", str(copies), *more)
            options = MirrorOptions(prefix=prefix, arguments=more)
        mirror = make_mirror(kind, route, options)
        assert mirror is not None
        try:
            yield mirror, route.run, f"{prefix}{topic}"
        finally:
            mirror.close()


def _produce(bootstrap: str, topic: str, count: int, **properties: Any) -> None:
    """Records of 100 bytes over all partitions, one a batch unless `properties` say otherwise."""
    asyncio.run(_create(bootstrap, topic, PARTITIONS))
    at_ms = properties.pop("at_ms", 0)
    per_transaction = properties.pop("per_transaction", 0)
    settings = {"bootstrap.servers": bootstrap, "linger.ms": 0, "batch.num.messages": 1}
    settings |= {"enable.idempotence": True, **properties}
    producer = Producer(settings)
    if per_transaction:
        producer.init_transactions(60)
    for number in range(count):
        if per_transaction and number % per_transaction == 0:
            producer.begin_transaction()
        while True:
            try:
                producer.produce(topic, RECORD, partition=number % PARTITIONS, timestamp=at_ms)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
        if per_transaction and number % per_transaction == per_transaction - 1:
            producer.commit_transaction(60)
    assert producer.flush(120) == 0


async def _create(bootstrap: str, topic: str, partitions: int) -> None:
    async with Client({"bootstrap.servers": bootstrap}) as client:
        await client.admin.create_topics([NewTopic(topic, partitions)])


def _copy(
    kind: str, clusters: Clusters, topic: str, count: int, *, copies: int = 1
) -> dict[str, Any]:
    """The CPU per record of a copy of a full topic."""
    with _prepare_mirror(kind, clusters, topic, copies=copies) as (mirror, _, target_topic):
        copying = measure_copy(clusters, mirror, target_topic, count, warm_up=count // 2)
        window = asyncio.run(copying)
        usage = mirror.usage()
    return {
        "mirror": kind,
        "cpu_us_per_record": round(window["cpu"] / window["count"] * 1e6, 2),
        "records_per_s": round(window["count"] / window["at"]),
        "peak_memory_mb": round(usage.peak_memory_bytes / MB, 1) if usage else None,
    }


def _copies(
    clusters: Clusters, topic: str, count: int, *, with_mm2: bool, copies: int = 1
) -> list[dict[str, Any]]:
    """Copies by both mirrors, in turn."""
    runs = []
    for _ in range(PAIRS):
        for kind in _kinds(with_mm2):
            runs.append(_copy(kind, clusters, topic, count, copies=copies))
            print("  ", runs[-1], flush=True)
    return runs


def _steady(
    kind: str,
    clusters: Clusters,
    topic: str,
    load: Callable[[float], None],
    *,
    partitions: int,
    has_records: bool = True,
) -> dict[str, Any]:
    """The share of a core while a load runs, once all partitions are copied."""
    with _prepare_mirror(kind, clusters, topic) as (mirror, name, target_topic):
        mirror.start()
        bootstrap = clusters.target.bootstrap
        asyncio.run(_await_topic(bootstrap, target_topic))
        if kind == "shoal":
            asyncio.run(_await_checkpoints(bootstrap, name, partitions))
        load(WARM_UP_S)
        reading: AbstractContextManager[list[float]] = nullcontext([])
        if has_records:
            reading = _latencies(bootstrap, target_topic, partitions)
        with reading as delays_ms:
            before, began = cpu_seconds(mirror.pids()[0]), time.perf_counter()
            load(STEADY_S)
            wall_s = time.perf_counter() - began
            cpu_s = cpu_seconds(mirror.pids()[0]) - before
        usage = mirror.usage()
        mirror.check()
    p99 = statistics.quantiles(delays_ms, n=100)[98] if len(delays_ms) > 100 else None
    return {
        "mirror": kind,
        "core_percent": round(cpu_s / wall_s * 100, 2),
        "p99_ms": p99,
        "messages": len(delays_ms),
        "peak_memory_mb": round(usage.peak_memory_bytes / MB, 1) if usage else None,
    }


@contextmanager
def _latencies(bootstrap: str, topic: str, partitions: int) -> Iterator[list[float]]:
    """How long after its creation each record is read at the target, in ms, until the end.

    The clock is the same on both sides. Most of it is the clients' own waiting.
    """
    delays_ms: list[float] = []
    is_over = threading.Event()
    settings = {"bootstrap.servers": bootstrap, "group.id": "latency", "fetch.wait.max.ms": 20}
    consumer = Consumer({**settings, "enable.auto.commit": False})
    consumer.assign([ConfluentPartition(topic, n, OFFSET_END) for n in range(partitions)])
    consumer.consume(1, timeout=2.0)  # its positions are known then

    def read() -> None:
        while not is_over.is_set():
            messages = consumer.consume(500, timeout=0.1)
            now_ms = time.time() * 1000
            delays_ms.extend(now_ms - m.timestamp()[1] for m in messages if m.error() is None)

    reading = threading.Thread(target=read)
    reading.start()
    try:
        yield delays_ms
        time.sleep(1)
    finally:
        is_over.set()
        reading.join()
        consumer.close()


async def _await_checkpoints(
    bootstrap: str, name: str, partitions: int, delivery: str | None = None
) -> float:
    """Wait until our mirror has claimed all partitions, with this delivery; returns how long."""
    began = time.perf_counter()
    async with asyncio.timeout(PATIENCE_S), Client({"bootstrap.servers": bootstrap}) as client:
        topic = CheckpointTopic(client, name)
        while True:
            await topic.read_decided()
            found = [one for one in topic.found.values() if delivery in (None, one.delivery)]
            if len(found) >= partitions:
                return time.perf_counter() - began
            await asyncio.sleep(0.2)


async def _await_topic(bootstrap: str, topic: str) -> None:
    async with asyncio.timeout(PATIENCE_S), Client({"bootstrap.servers": bootstrap}) as client:
        while (await client.metadata([topic], refresh=True)).topics[topic].error:  # noqa: ASYNC110
            await asyncio.sleep(0.2)


@contextmanager
def _apache() -> Iterator[Clusters]:
    with ApacheCluster(brokers=1) as source, ApacheCluster(brokers=1) as target:
        yield Clusters(source, target)


@contextmanager
def _lite(brokers: int = 1) -> Iterator[Clusters]:
    with LiteCluster() as source, LiteCluster(brokers=brokers) as target:
        yield Clusters(source, target)


def _kinds(with_mm2: bool) -> list[str]:
    return ["shoal", "mm2"] if with_mm2 else ["shoal"]


def _compare(name: str, runs: list[dict[str, Any]], key: str, bar: float | None) -> dict[str, Any]:
    """The median figure of our mirror beside that of MirrorMaker 2."""
    ours = [run[key] for run in runs if run["mirror"] == "shoal"]
    theirs = [run[key] for run in runs if run["mirror"] == "mm2"]
    ratios = [one / max(other, 1e-9) for one, other in zip(ours, theirs, strict=False)]
    ratio = round(statistics.median(ratios), 3) if ratios else None
    holds = bar is None or (ratio is not None and ratio <= bar)
    return {
        "case": name, "figure": key, "ours": statistics.median(ours),
        "mm2": statistics.median(theirs) if theirs else None, "of_mm2": ratio,
        "of_mm2_interval": [round(min(ratios), 3), round(max(ratios), 3)] if ratios else None,
        "bar": bar, "holds": holds, "runs": runs,
    }  # fmt: skip


def measure_tiny(*, with_mm2: bool) -> dict[str, Any]:
    with _apache() as clusters:
        _produce(clusters.source.bootstrap, "tiny", TINY_RECORDS)
        runs = _copies(clusters, "tiny", TINY_RECORDS, with_mm2=with_mm2)
    return _compare("tiny", runs, "cpu_us_per_record", 0.6)


def measure_transactional(*, with_mm2: bool) -> dict[str, Any]:
    with _apache() as clusters:
        _produce(
            clusters.source.bootstrap, "txn", TRANSACTIONAL_RECORDS,
            per_transaction=10, **{"transactional.id": "bench", "batch.num.messages": 10_000},
        )  # fmt: skip
        runs = _copies(clusters, "txn", TRANSACTIONAL_RECORDS, with_mm2=with_mm2)
    return _compare("transactional", runs, "cpu_us_per_record", None)


def measure_slow(*, with_mm2: bool) -> dict[str, Any]:
    with _lite(brokers=2) as clusters:
        _produce(clusters.source.bootstrap, "slow", SLOW_RECORDS, **{"batch.num.messages": 20})
        assert isinstance(clusters.target, LiteCluster)
        clusters.target.slow_link(1, 2, delay_ms=100)
        runs = _copies(clusters, "slow", SLOW_RECORDS, with_mm2=with_mm2, copies=SLOW_COPIES)
    return _compare("slow", runs, "cpu_us_per_record", None)


def measure_old(*, with_mm2: bool) -> dict[str, Any]:
    runs: list[dict[str, Any]] = []
    with _apache() as clusters:
        at_ms = time.time_ns() // 1_000_000 - 3 * DAY_MS
        _produce(
            clusters.source.bootstrap, "old", OLD_RECORDS, at_ms=at_ms,
            **{"batch.num.messages": 100, "linger.ms": 5},
        )  # fmt: skip
        for kind in _kinds(with_mm2):
            bootstrap, after_s = clusters.target.bootstrap, None
            with _prepare_mirror(kind, clusters, "old") as (mirror, name, target_topic):
                asyncio.run(measure_copy(clusters, mirror, target_topic, OLD_RECORDS))
                if kind == "shoal":
                    waiting = _await_checkpoints(bootstrap, name, PARTITIONS, IDEMPOTENT)
                    after_s = round(asyncio.run(waiting), 1)
                offsets = asyncio.run(_await_end_offset(bootstrap, target_topic))
            ratio = round(offsets / OLD_RECORDS, 4)
            runs.append(
                {"mirror": kind, "offsets_per_record": ratio, "idempotent_after_s": after_s}
            )
    return {
        "case": "old", "figure": "offsets_per_record", "ours": runs[0]["offsets_per_record"],
        "mm2": runs[1]["offsets_per_record"] if with_mm2 else None, "of_mm2": None, "bar": 1.02,
        "idempotent_after_s": runs[0]["idempotent_after_s"],
        "holds": runs[0]["offsets_per_record"] <= 1.02
        and runs[0]["idempotent_after_s"] <= IDEMPOTENT_WITHIN_S,
        "runs": runs,
    }  # fmt: skip


async def _await_end_offset(bootstrap: str, topic: str) -> int:
    """How many offsets a topic takes when nothing has been added for three seconds."""
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    async with Client({"bootstrap.servers": bootstrap}) as client:
        count = -1
        while (now := await records_at(client, partitions)) != count:
            count = now
            await asyncio.sleep(3)
    return count


def measure_partitions(*, with_mm2: bool) -> dict[str, Any]:
    with _apache() as clusters:
        bootstrap = clusters.source.bootstrap
        asyncio.run(_create(bootstrap, "many", MANY))
        with ExitStack() as stack:
            producer = stack.enter_context(
                Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
            )
            sent = iter(range(1 << 30))

            def load(duration_s: float) -> None:
                began = time.perf_counter()
                for number in range(int(duration_s * RATE)):
                    time.sleep(max(0.0, began + number / RATE - time.perf_counter()))
                    producer.produce("many", RECORD, partition=next(sent) % MANY)
                    producer.poll(0)

            runs = [
                _steady(kind, clusters, "many", load, partitions=MANY) for kind in _kinds(with_mm2)
            ]
    return _compare("partitions", runs, "core_percent", 0.3) | {
        "p99_ms": {run["mirror"]: run["p99_ms"] for run in runs}
    }


def measure_idle(*, with_mm2: bool) -> dict[str, Any]:
    with _lite() as clusters:
        asyncio.run(_create(clusters.source.bootstrap, "idle", IDLE))
        run = _steady("shoal", clusters, "idle", time.sleep, partitions=IDLE, has_records=False)
    result = _compare("idle", [run], "core_percent", None)
    holds = run["core_percent"] <= 2 and run["peak_memory_mb"] <= 150
    return {**result, "bar": 2, "holds": holds}


def measure_floor(*, with_mm2: bool) -> dict[str, Any]:
    with _lite() as clusters:
        bootstrap = clusters.source.bootstrap
        count = asyncio.run(fill(bootstrap, "floor", "none", FLOOR_RECORDS))
        arguments = ("--delivery", "compare-and-append")
        with _prepare_mirror("shoal", clusters, "floor", *arguments) as (mirror, _, target_topic):
            window = asyncio.run(measure_copy(clusters, mirror, target_topic, count))
    floor = copy_floor()
    ours = window["cpu"] / (window["count"] * 1024 / GB)
    times = round(ours / floor, 2)
    return {
        "case": "floor", "figure": "times_the_floor", "ours": times, "mm2": None, "of_mm2": None,
        "bar": 2, "holds": times <= 2,
        "runs": [{"mirror": "shoal", "cpu_s_per_gb": round(ours, 3), "floor": round(floor, 3)}],
    }  # fmt: skip


CASES: dict[str, Callable[..., dict[str, Any]]] = {
    "tiny": measure_tiny,
    "partitions": measure_partitions,
    "idle": measure_idle,
    "old": measure_old,
    "transactional": measure_transactional,
    "slow": measure_slow,
    "floor": measure_floor,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", nargs="*", choices=[*CASES, []], help="all by default")
    parser.add_argument("--no-mm2", action="store_true", help="ours alone; nothing is stored")
    arguments = parser.parse_args()
    known = {case["case"]: case for case in read_result(CLAIM).get("cases", [])}
    for name in arguments.case or CASES:
        case = CASES[name](with_mm2=not arguments.no_mm2)
        conditions = machine()
        case["measured"] = time.strftime("%Y-%m-%d", time.gmtime())
        case["load_average"] = conditions["load_average"]
        print(case, flush=True)
        known[name] = case
    if arguments.no_mm2:
        return 0
    cases = [known[name] for name in CASES if name in known]
    holds = len(cases) == len(CASES) and all(case["holds"] for case in cases)
    return store(CLAIM, holds=holds, cases=cases)


if __name__ == "__main__":
    sys.exit(main())
