"""How late messages are behind a mirror: in plain processes, and as tasks of a local Spark.

Part of the claim of `mirror.py`. Both mirrors run at the same time between the same clusters, each
by two workers, and each has topics of its own. 1,000 messages of 1 KiB per second go through one
of them, then through the other, in turn; the one that has nothing to copy is idle. What counts is
the median of the pairs' ratios of 99th percentiles.
"""

import asyncio
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.harness import LEAST_PAIRS
from benchmarks.lite_latency import PARTITIONS, measure_between
from shoal.client.admin import NewTopic
from shoal.client.client import Client
from shoal.systems.mirrors import ProcessMirror

MOST_TIMES = 1.2
PAIRS = LEAST_PAIRS
# Each pair has topics of its own, and so has the warm-up.
ROUNDS = PAIRS + 1
RUN_S = 6
WORKERS = 2
PATIENCE_S = 180.0
SIDES = {"processes": (), "spark": ("--master", f"local[{WORKERS}]")}


def measure_latency(source: str, target: str, folder: Path) -> dict[str, Any]:
    """The whole case, between two clusters."""
    runs: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    asyncio.run(_make_topics(source))
    with ExitStack() as running:
        for side in SIDES:
            running.enter_context(_mirror(side, source, target, folder / side))
        for number in range(ROUNDS):
            for side in SIDES if number % 2 else reversed(SIDES):
                topic = _topic(side, number)
                found = measure_between((source, topic), (target, topic), RUN_S)
                print(f"   latency, {side}: {found}", flush=True)
                if number:  # the first is to warm up
                    runs[side].append(found)
    ratios = [
        spark["p99_ms"] / plain["p99_ms"]
        for plain, spark in zip(runs["processes"], runs["spark"], strict=True)
    ]
    times = round(statistics.median(ratios), 2)
    return {
        "case": "latency",
        "p99_times_median": times,
        "p99_times_interval": [round(min(ratios), 2), round(max(ratios), 2)],
        "bar": MOST_TIMES,
        "holds": times <= MOST_TIMES,
        **{f"{side}_runs": each for side, each in runs.items()},
    }


def _topic(side: str, number: int) -> str:
    return f"latency-{side}-{number}"


async def _make_topics(bootstrap: str) -> None:
    async with Client({"bootstrap.servers": bootstrap}) as client:
        topics = [
            NewTopic(_topic(side, number), PARTITIONS, 1)
            for side in SIDES
            for number in range(ROUNDS)
        ]
        await client.admin.create_topics(topics)


@contextmanager
def _mirror(side: str, source: str, target: str, folder: Path) -> Iterator[None]:
    """A mirror that copies the topics of its side; it has made them at the target."""
    folder.mkdir()
    command = [sys.executable, "-m", "shoal", "mirror", "run", "--name", side]
    command += ["--source-bootstrap-server", source, "--target-bootstrap-server", target]
    command += ["--topics", f"latency-{side}-.*", "--workers", str(WORKERS), *SIDES[side]]
    mirror = ProcessMirror("shoal", lambda: command, folder=folder)
    mirror.start()
    try:
        asyncio.run(_wait_for(target, {_topic(side, number) for number in range(ROUNDS)}, mirror))
        yield
        mirror.stop()
    finally:
        mirror.close()


async def _wait_for(bootstrap: str, topics: set[str], mirror: ProcessMirror) -> None:
    deadline = time.monotonic() + PATIENCE_S
    async with Client({"bootstrap.servers": bootstrap}) as client:
        while not topics <= set((await client.metadata(refresh=True)).topics):
            mirror.check()
            assert time.monotonic() < deadline, "the mirror makes no topics"
            await asyncio.sleep(0.2)
