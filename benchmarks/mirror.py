"""Claim: the mirror takes a small part of the CPU of MirrorMaker 2, at three times its speed.

The same brokers (one of Apache Kafka for each side), the same topics: 1 KiB records in batches of
64 KiB, eight partitions, acks=all, one topic for each codec. Every mirror is started by its
command line, copies a topic that is full, and is stopped. MirrorMaker 2 is tuned as its users
tune it, and keeps the codec; MirrorMaker 1 of Apache Kafka 3.9 stands beside it.

What is measured is the *warm window*: from the first look at the target that sees more than half of
the records to the last record, so that a virtual machine has compiled what it runs. Both mirrors
are measured so, and the claim is about it. The figures from the first record on, which include that
work, stand beside it (`whole`). The CPU of the mirror's whole process tree counts, per GB of
records before compression; its start is told apart, as the time until the first record. Memory is
the peak of the tree. Ours and MirrorMaker 2 copy each topic in turn, three times: the median of the
pairs' ratios counts, and their range is told. Beside it stands how many times the kernel's copy
floor (`copy_floor.py`) of the stored bytes that is, measured in the same run, because a ratio of
two mirrors says nothing of how well the better one does.

Python's byte code is kept, as on every machine where Shoal is installed, in a folder of its own.
The last case is the latency on Spark (`mirror_latency.py`). Finished cases are stored at once.
"""

import argparse
import asyncio
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from benchmarks.copy_floor import copy_floor
from benchmarks.harness import GB, MB, Claim, machine, store, store_part
from benchmarks.mirror_latency import measure_latency
from shoal.client.admin import NewTopic
from shoal.client.client import Client
from shoal.client.results import LATEST
from shoal.lite.cluster import LiteCluster
from shoal.model.topics import TopicPartition
from shoal.systems.apache.apache import ApacheCluster
from shoal.systems.mirror_kinds import MirrorOptions, MirrorRoute, make_mirror
from shoal.systems.mirrors import Mirror
from shoal.systems.processes.meters import tree_of
from shoal.wire.records.compression import Codec
from shoal.wire.records.records import Record, encode_batch

# The factor by which MirrorMaker 2 must use more CPU.
BARS = {"gzip": 45.0, "zstd": 25.0, "lz4": 24.0, "none": 17.0}
LEAST_SPEED = 3.0
BUSY_CORE = 0.9
MOST_MEMORY_BYTES = 120e6 + 4 * 64 * 1024
READY_S = 1.0
PARTITIONS = 8
RECORD_BYTES = 1024
BATCH_RECORDS = 63
PATIENCE_S = 300.0
PAIRS = 3
LATENCY = "latency"
LOOK_EVERY_S = 0.02
CLAIM = Claim(
    name="mirror",
    sentence="The mirror takes a 45th (gzip), 25th (zstd), 24th (lz4) and 17th (none) of the CPU "
    "of MirrorMaker 2 per GB at 3 times its speed, or keeps the target's broker busy; with at "
    "most 120 MB, ready within a second, and with a 99th percentile of the latency on Spark of at "
    "most 1.2 times that in plain processes.",
    packages=("crc32c", "confluent-kafka", "pyspark"),
)


@dataclass(frozen=True)
class Window:
    """One copy of one topic."""

    mirror: str
    codec: str
    ready_s: float
    wall_s: float
    copied_bytes: int
    cpu_s: float
    target_cpu_s: float
    peak_memory_bytes: int
    stored_share: float  # bytes of the stored batches for each byte of the records
    whole_cpu_s_per_gb: float  # from the first record on

    def to_json(self) -> dict[str, Any]:
        return {
            "mirror": self.mirror,
            "codec": self.codec,
            "ready_s": round(self.ready_s, 2),
            "mb_per_s": round(self.copied_bytes / MB / self.wall_s, 1),
            "cpu_s_per_gb": round(self.cpu_s_per_gb, 2),
            "whole_cpu_s_per_gb": round(self.whole_cpu_s_per_gb, 2),
            "target_broker_cores": round(self.target_cpu_s / self.wall_s, 2),
            "peak_memory_mb": round(self.peak_memory_bytes / MB, 1),
        }

    def times_the_floor(self, floor_s_per_gb: float) -> float:
        """The CPU of this mirror, in that of the kernel for the bytes that go through it."""
        return self.cpu_s_per_gb / max(self.stored_share * floor_s_per_gb, 1e-9)

    @property
    def cpu_s_per_gb(self) -> float:
        return self.cpu_s / (self.copied_bytes / GB)

    @property
    def mb_per_s(self) -> float:
        return self.copied_bytes / MB / self.wall_s


@dataclass(frozen=True)
class Clusters:
    source: ApacheCluster | LiteCluster
    target: ApacheCluster | LiteCluster

    def targetcpu_seconds(self) -> float:
        return sum(cpu_seconds(node.pid) for node in self.target.nodes() if node.pid)


def cpu_seconds(pid: int) -> float:
    """CPU seconds of a process tree so far."""
    total = 0.0
    for process in tree_of(psutil.Process(pid)):
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system
    return total


def _batches(codec: str) -> list[bytearray]:
    """Batches of 63 records that compress as ordinary data does: 2 to 3 times."""
    rng = random.Random(codec)  # noqa: S311 - the same data in every run
    words = [rng.randbytes(rng.randint(3, 12)) for _ in range(400)]
    made = []
    for _ in range(8):
        values = [
            b" ".join(rng.choices(words, k=RECORD_BYTES // 5))[:RECORD_BYTES]
            for _ in range(BATCH_RECORDS)
        ]
        now_ms = time.time_ns() // 1_000_000
        records = [Record(number, now_ms, None, value) for number, value in enumerate(values)]
        made.append(encode_batch(records, codec=Codec[codec.upper()]))
    return made


async def fill(bootstrap: str, topic: str, codec: str, records: int) -> int:
    """Fill a new topic; return its number of records."""
    batches = _batches(codec)
    rounds = max(1, records // BATCH_RECORDS // PARTITIONS)
    async with Client({"bootstrap.servers": bootstrap}) as client:
        await client.admin.create_topics([NewTopic(topic, PARTITIONS, 1)])
        for number in range(rounds):
            batch = batches[number % len(batches)]
            wanted = {TopicPartition(topic, p): batch for p in range(PARTITIONS)}
            while wanted:
                results = await client.produce(wanted, acks=-1)
                wanted = {tp: batch for tp in wanted if not results[tp].is_ok}
    return rounds * BATCH_RECORDS * PARTITIONS


def mirror_options(mirror: str, codec: str, prefix: str) -> MirrorOptions:
    if mirror == "mm2":
        alias = prefix.rstrip(".")
        return MirrorOptions(
            prefix=prefix,
            properties={
                "tasks.max": "4",
                "emit.heartbeats.enabled": "false",
                f"{alias}.consumer.max.poll.records": "4000",
                f"{alias}.consumer.max.partition.fetch.bytes": str(4 << 20),
                f"{alias}.consumer.fetch.max.bytes": str(50 << 20),
                f"{alias}.consumer.auto.offset.reset": "earliest",
                "target.producer.batch.size": str(256 << 10),
                "target.producer.linger.ms": "20",
                "target.producer.compression.type": codec,
                "target.producer.acks": "all",
            },
        )
    if mirror == "mm1":
        return MirrorOptions(
            properties={
                "num.streams": "4",
                "producer.compression.type": codec,
                "producer.batch.size": str(256 << 10),
                "producer.linger.ms": "20",
                "producer.acks": "all",
            }
        )
    return MirrorOptions(prefix=prefix)


async def measure_copy(
    clusters: Clusters, mirror: Mirror, topic: str, total: int, *, warm_up: int = 0
) -> dict[str, float]:
    """Start a mirror, and measure from the first record at the target to the last.

    With `warm_up` from the first look at which more than so many records are there; `whole_count`
    and `whole_cpu` are from the first record on.
    """
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    async with Client({"bootstrap.servers": clusters.target.bootstrap}) as client:
        mirror.start()
        # Not from the call: the guardian, which starts first, is not part of the mirror.
        began_s = psutil.Process(mirror.pids()[0]).create_time()
        deadline = time.perf_counter() + PATIENCE_S
        first: dict[str, float] | None = None
        begin: dict[str, float] | None = None
        while True:
            count = await records_at(client, partitions)
            now = {
                "at": time.perf_counter(),
                "count": count,
                "cpu": sum(cpu_seconds(pid) for pid in mirror.pids()[:1]),
                "target": clusters.targetcpu_seconds(),
            }
            if first is None and count > 0:
                first, ready_s = now, time.time() - began_s
            if begin is None and count > warm_up:
                begin = now
            if first is not None and begin is not None and count >= total:
                break
            mirror.check()
            assert now["at"] < deadline, f"{count} of {total} records after {PATIENCE_S:g} s"
            await asyncio.sleep(LOOK_EVERY_S)
    window = {key: now[key] - begin[key] for key in now}
    whole = {f"whole_{key}": now[key] - first[key] for key in ("count", "cpu")}
    return {**window, **whole, "ready": ready_s}


async def records_at(client: Client, partitions: list[TopicPartition]) -> int:
    """How many records a topic has; 0 before it exists."""
    topic = partitions[0].topic
    known = (await client.metadata([topic], refresh=True)).topics[topic]
    if known.error or len(known.partitions) < len(partitions):
        return 0
    ends = await client.list_offsets(dict.fromkeys(partitions, LATEST))
    return sum(each.offset for each in ends.values())


def _copy(clusters: Clusters, name: str, codec: str, records: int) -> Window:
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        prefix = f"{name}-{codec}-{time.time_ns()}."
        topic = f"bench-{codec}"
        source = clusters.source.bootstrap
        total = asyncio.run(_fill_once(source, topic, codec, records))
        if name == "mm1":
            # It keeps the names of topics, and needs an existing target topic.
            asyncio.run(_make(clusters.target.bootstrap, topic))
        route = MirrorRoute(
            {"bootstrap.servers": source},
            {"bootstrap.servers": clusters.target.bootstrap},
            (topic,),
            Path(folder),
        )
        mirror = make_mirror(name, route, mirror_options(name, codec, prefix))
        assert mirror is not None
        target_topic = topic if name == "mm1" else f"{prefix}{topic}"
        try:
            copying = measure_copy(clusters, mirror, target_topic, total, warm_up=total // 2)
            window = asyncio.run(copying)
        finally:
            usage = mirror.usage()
            mirror.close()
    assert usage is not None
    return Window(
        name,
        codec,
        ready_s=window["ready"],
        wall_s=max(window["at"], LOOK_EVERY_S),
        copied_bytes=int(window["count"]) * RECORD_BYTES,
        cpu_s=window["cpu"],
        target_cpu_s=window["target"],
        peak_memory_bytes=usage.peak_memory_bytes,
        stored_share=_measure_stored_share(codec),
        whole_cpu_s_per_gb=window["whole_cpu"]
        / max(window["whole_count"] * RECORD_BYTES / GB, 1e-9),
    )


def _measure_stored_share(codec: str) -> float:
    batches = _batches(codec)
    return sum(map(len, batches)) / (len(batches) * BATCH_RECORDS * RECORD_BYTES)


async def _fill_once(bootstrap: str, topic: str, codec: str, records: int) -> int:
    """The topic of a codec, filled once for all mirrors."""
    async with Client({"bootstrap.servers": bootstrap}) as client:
        partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        count = await records_at(client, partitions)
    return count or await fill(bootstrap, topic, codec, records)


async def _make(bootstrap: str, topic: str) -> None:
    async with Client({"bootstrap.servers": bootstrap}) as client:
        await client.admin.create_topics([NewTopic(topic, PARTITIONS, 1)])


def _judge(
    ours: list[Window], theirs: list[Window], old: Window | None, floors: list[float]
) -> dict[str, Any]:
    floor = statistics.median(floors)
    pairs = list(zip(ours, theirs, strict=True))
    ratios = [mm2.cpu_s_per_gb / max(own.cpu_s_per_gb, 1e-9) for own, mm2 in pairs]
    wholes = [mm2.whole_cpu_s_per_gb / max(own.whole_cpu_s_per_gb, 1e-9) for own, mm2 in pairs]
    speed = statistics.median(own.mb_per_s / mm2.mb_per_s for own, mm2 in pairs)
    cores = statistics.median(each.target_cpu_s / each.wall_s for each in ours)
    ratio, codec = statistics.median(ratios), theirs[0].codec
    checks = {
        "cpu": ratio >= BARS[codec],
        "speed": speed >= LEAST_SPEED or cores >= BUSY_CORE,
        "memory": max(each.peak_memory_bytes for each in ours) <= MOST_MEMORY_BYTES,
        "ready": statistics.median(each.ready_s for each in ours) <= READY_S,
    }
    return {
        "case": codec,
        "cpu_ratio": round(ratio, 1),
        "cpu_ratio_interval": [round(min(ratios), 1), round(max(ratios), 1)],
        "whole_cpu_ratio": round(statistics.median(wholes), 1),
        "bar": BARS[codec],
        "times_the_floor": round(statistics.median(w.times_the_floor(floor) for w in ours), 2),
        "mm2_times_the_floor": round(
            statistics.median(w.times_the_floor(floor) for w in theirs), 1
        ),
        "floor_cpu_s_per_gb": round(floor, 3),
        "speed_ratio": round(speed, 1),
        "target_broker_cores": round(cores, 2),
        "checks": checks,
        "holds": all(checks.values()),
        "windows": [each.to_json() for each in (*ours, *theirs, old) if each is not None],
    }


def _print_window(window: Window) -> Window:
    print("  ", window.to_json(), flush=True)
    return window


def _cases(records: int, names: list[str], *, with_mm1: bool) -> Iterator[dict[str, Any]]:
    with (
        tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder,
        ApacheCluster(brokers=1) as source,
        ApacheCluster(brokers=1) as target,
    ):
        copy = partial(_copy, Clusters(source, target), records=records)
        codecs = [name for name in names if name != LATENCY]
        if codecs:
            copy("shoal", "none")  # to warm the brokers up
        for codec in codecs:
            ours, theirs, floors = [], [], []
            for _ in range(PAIRS):
                ours.append(_print_window(copy("shoal", codec)))
                theirs.append(_print_window(copy("mm2", codec)))
                floors.append(copy_floor())
            old = _print_window(copy("mm1", codec)) if with_mm1 else None
            yield _judge(ours, theirs, old, floors)
        if LATENCY in names:
            yield measure_latency(source.bootstrap, target.bootstrap, Path(folder))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--records", type=int, default=500_000, help="number of records of 1 KiB, for each codec"
    )
    parser.add_argument(
        "--cases", default=",".join([*BARS, LATENCY]), help="cases to run, separated by commas"
    )
    parser.add_argument("--no-mm1", action="store_true", help="without MirrorMaker 1")
    arguments = parser.parse_args()
    arguments.cases = arguments.cases.split(",")
    for name in arguments.cases:
        if name not in (*BARS, LATENCY):
            parser.error(f"{name} is no case: {', '.join([*BARS, LATENCY])}")
    return arguments


def main() -> int:
    arguments = _arguments()
    print(CLAIM.sentence, flush=True)
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="shoal-bytecode-") as bytecode:
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = bytecode
        cases = _cases(arguments.records, arguments.cases, with_mm1=not arguments.no_mm1)
        for case in cases:
            case["load_average"] = machine()["load_average"]
            shown = {key: case[key] for key in case if not key.endswith(("windows", "runs"))}
            print(shown, flush=True)
            results.append(case)
            store_part(CLAIM, records=arguments.records, cases=results)
    if set(arguments.cases) != {*BARS, LATENCY}:
        print("not all cases: what was measured is in the part")
        return 0 if all(case["holds"] for case in results) else 1
    holds = all(case["holds"] for case in results)
    return store(CLAIM, holds=holds, records=arguments.records, cases=results)


if __name__ == "__main__":
    sys.exit(main())
