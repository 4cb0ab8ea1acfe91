"""Claim: the mirror is ahead of MirrorMaker 2 in its bad shapes too.

    python -m benchmarks.mirror_shapes CASE [--no-mm2]     # one case, beside the stored ones
    python -m benchmarks.mirror_shapes                     # all

| case | shape | figure |
|---|---|---|
| tiny | one 100-byte record a batch, 8 partitions | CPU per record |
| partitions | 500 partitions, 200 records/s | share of a core |
| idle | 5,000 partitions without records, on Kafka Lite | share of a core, memory |
| old | records three days old | offsets at the target / records |
| transactional | a source with transactions of ten records | CPU per record |
| slow | each write to the target takes 100 ms more, on Kafka Lite | CPU per record |
| floor | compare-and-append to Kafka Lite, uncompressed | times the kernel's copy floor |

Both mirrors are started by their command lines and copy the same topics in one run. What counts is
the CPU of the whole process tree: of a copy between the first record at the target and the last, of
a steady load in a time in which it runs. The kernel's copy floor is a relay between two sockets
with reads and sends of 1 MiB, measured in the same run.
"""

import argparse
import asyncio
import resource
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

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
from shoal.model.topics import TopicPartition
from shoal.systems.apache.apache import ApacheCluster
from shoal.systems.mirror_kinds import MirrorOptions, MirrorRoute, make_mirror
from shoal.systems.mirrors import Mirror

CLAIM = Claim(
    name="mirror_shapes",
    sentence="Tiny batches take at most 0.6 of MirrorMaker 2's CPU per record, 500 slow partitions "
    "0.3 of its CPU, 5,000 idle partitions 2 % of a core and 150 MB; old records take at most 1.02 "
    "offsets each; compare-and-append takes twice the kernel's copy floor.",
    packages=("crc32c", "confluent-kafka"),
)
# Enough for some seconds of copying: what is done before the first look at the target is not seen.
TINY_RECORDS = 400_000
TRANSACTIONAL_RECORDS = 200_000
OLD_RECORDS = 40_000
SLOW_RECORDS = 20_000
MANY = 500
RATE = 200
IDLE = 5_000
STEADY_S = 20.0
SETTLE_S = 5.0
DAY_MS = 86_400_000
FLOOR_BYTES = 1_000_000_000
FLOOR_READ_BYTES = 1 << 20
FLOOR_RECORDS = 400_000
PATIENCE_S = 240.0
RECORD = b"x" * 100

Produce = Callable[[Producer, int], None]


@contextmanager
def _started(kind: str, clusters: Clusters, topic: str, *more: str) -> Iterator[tuple[Mirror, str]]:
    """A mirror that is about to start, and the name of its target topic."""
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        prefix = f"{kind}-{time.time_ns()}."
        route = MirrorRoute(
            {"bootstrap.servers": clusters.source.bootstrap},
            {"bootstrap.servers": clusters.target.bootstrap},
            (topic,),
            Path(folder),
        )
        options = mirror_options(kind, "none", prefix)
        if more:
            options = MirrorOptions(prefix=prefix, arguments=more)
        mirror = make_mirror(kind, route, options)
        assert mirror is not None
        try:
            yield mirror, f"{prefix}{topic}"
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


def _copy(kind: str, clusters: Clusters, topic: str, count: int) -> dict[str, Any]:
    """The CPU per record of a copy of a full topic."""
    with _started(kind, clusters, topic) as (mirror, target_topic):
        window = asyncio.run(measure_copy(clusters, mirror, target_topic, count))
        usage = mirror.usage()
    return {
        "mirror": kind,
        "cpu_us_per_record": round(window["cpu"] / window["count"] * 1e6, 2),
        "records_per_s": round(window["count"] / window["at"]),
        "peak_memory_mb": round(usage.peak_memory_bytes / MB, 1) if usage else None,
    }


def _steady(
    kind: str, clusters: Clusters, topic: str, load: Callable[[float], None]
) -> dict[str, Any]:
    """The share of a core while a load runs."""
    with _started(kind, clusters, topic) as (mirror, target_topic):
        mirror.start()
        asyncio.run(_await_topic(clusters.target.bootstrap, target_topic))
        load(SETTLE_S)
        before, began = cpu_seconds(mirror.pids()[0]), time.perf_counter()
        load(STEADY_S)
        wall_s = time.perf_counter() - began
        cpu_s = cpu_seconds(mirror.pids()[0]) - before
        usage = mirror.usage()
        mirror.check()
    return {
        "mirror": kind,
        "core_percent": round(cpu_s / wall_s * 100, 2),
        "peak_memory_mb": round(usage.peak_memory_bytes / MB, 1) if usage else None,
    }


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
    """The figure of our mirror beside that of MirrorMaker 2."""
    ours = runs[0][key]
    theirs = runs[1][key] if len(runs) > 1 else None
    ratio = None if theirs is None else round(ours / max(theirs, 1e-9), 3)
    holds = bar is None or (ratio is not None and ratio <= bar)
    return {
        "case": name, "figure": key, "ours": ours, "mm2": theirs, "of_mm2": ratio,
        "bar": bar, "holds": holds, "runs": runs,
    }  # fmt: skip


def measure_tiny(*, with_mm2: bool) -> dict[str, Any]:
    with _apache() as clusters:
        _produce(clusters.source.bootstrap, "tiny", TINY_RECORDS)
        runs = [_copy(kind, clusters, "tiny", TINY_RECORDS) for kind in _kinds(with_mm2)]
    return _compare("tiny", runs, "cpu_us_per_record", 0.6)


def measure_transactional(*, with_mm2: bool) -> dict[str, Any]:
    with _apache() as clusters:
        _produce(
            clusters.source.bootstrap, "txn", TRANSACTIONAL_RECORDS,
            per_transaction=10, **{"transactional.id": "bench", "batch.num.messages": 10_000},
        )  # fmt: skip
        runs = [_copy(kind, clusters, "txn", TRANSACTIONAL_RECORDS) for kind in _kinds(with_mm2)]
    return _compare("transactional", runs, "cpu_us_per_record", None)


def measure_slow(*, with_mm2: bool) -> dict[str, Any]:
    with _lite(brokers=2) as clusters:
        _produce(clusters.source.bootstrap, "slow", SLOW_RECORDS, **{"batch.num.messages": 20})
        assert isinstance(clusters.target, LiteCluster)
        clusters.target.slow_link(1, 2, delay_ms=100)
        runs = [_copy(kind, clusters, "slow", SLOW_RECORDS) for kind in _kinds(with_mm2)]
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
            with _started(kind, clusters, "old") as (mirror, target_topic):
                asyncio.run(measure_copy(clusters, mirror, target_topic, OLD_RECORDS))
                offsets = asyncio.run(_settled(clusters.target.bootstrap, target_topic))
            ratio = round(offsets / OLD_RECORDS, 4)
            runs.append({"mirror": kind, "offsets_per_record": ratio})
    return {
        "case": "old", "figure": "offsets_per_record", "ours": runs[0]["offsets_per_record"],
        "mm2": runs[1]["offsets_per_record"] if with_mm2 else None, "of_mm2": None, "bar": 1.02,
        "holds": runs[0]["offsets_per_record"] <= 1.02, "runs": runs,
    }  # fmt: skip


async def _settled(bootstrap: str, topic: str) -> int:
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

            runs = [_steady(kind, clusters, "many", load) for kind in _kinds(with_mm2)]
    return _compare("partitions", runs, "core_percent", 0.3)


def measure_idle(*, with_mm2: bool) -> dict[str, Any]:
    with _lite() as clusters:
        asyncio.run(_create(clusters.source.bootstrap, "idle", IDLE))
        run = _steady("shoal", clusters, "idle", time.sleep)
    result = _compare("idle", [run], "core_percent", None)
    holds = run["core_percent"] <= 2 and run["peak_memory_mb"] <= 150
    return {**result, "bar": 2, "holds": holds}


def measure_floor(*, with_mm2: bool) -> dict[str, Any]:
    with _lite() as clusters:
        bootstrap = clusters.source.bootstrap
        count = asyncio.run(fill(bootstrap, "floor", "none", FLOOR_RECORDS))
        arguments = ("--delivery", "compare-and-append")
        with _started("shoal", clusters, "floor", *arguments) as (mirror, target_topic):
            window = asyncio.run(measure_copy(clusters, mirror, target_topic, count))
    floor = copy_floor()
    ours = window["cpu"] / (window["count"] * 1024 / GB)
    times = round(ours / floor, 2)
    return {
        "case": "floor", "figure": "times_the_floor", "ours": times, "mm2": None, "of_mm2": None,
        "bar": 2, "holds": times <= 2,
        "runs": [{"mirror": "shoal", "cpu_s_per_gb": round(ours, 3), "floor": round(floor, 3)}],
    }  # fmt: skip


def copy_floor() -> float:
    """CPU seconds per GB of a relay between two sockets; of the relay's thread alone."""
    feed, entry = socket.socketpair()
    way_out, drain = socket.socketpair()
    chunk = bytes(FLOOR_READ_BYTES)

    def send() -> None:
        for _ in range(FLOOR_BYTES // FLOOR_READ_BYTES):
            feed.sendall(chunk)
        feed.close()

    def receive() -> None:
        buffer = bytearray(FLOOR_READ_BYTES)
        while drain.recv_into(buffer):
            pass

    threads = [threading.Thread(target=each) for each in (send, receive)]
    for each in threads:
        each.start()
    buffer = memoryview(bytearray(FLOOR_READ_BYTES))
    before, copied = resource.getrusage(resource.RUSAGE_THREAD), 0
    while size := entry.recv_into(buffer):
        way_out.sendall(buffer[:size])
        copied += size
    after = resource.getrusage(resource.RUSAGE_THREAD)
    way_out.close()
    for each in threads:
        each.join()
    for end in (entry, drain):
        end.close()
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu_s / (copied / GB)


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
