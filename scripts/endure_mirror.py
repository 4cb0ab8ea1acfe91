"""Run a mirror for hours beside a steady load and kills; judge records, memory and descriptors.

    python scripts/endure_mirror.py --hours 2 --report docs/proofs/endurance.md
    python scripts/endure_mirror.py --hours 0.1 --kill-every-s 60

Source and target are Kafka Lite. A producer sends numbered records to all partitions at a steady
rate; the target's broker, the source's broker and the mirror are killed (SIGKILL) one after the
other, and started again. At the end all records are read from the
target by librdkafka: each must be there once, in order. Memory and open files of the mirror and of
both brokers are sampled every few seconds; their slopes are fitted by least squares, with one level
for each life of a process and the 95 % interval of the slope. The samples of the first
`SETTLE_S` of a life are left out.

Exit code 1 if a record is lost, twice or out of order, or if the whole interval of a slope is above
what `LIMITS` allow; in less than half an hour slopes are those of a start, and only shown.
"""

import argparse
import asyncio
import csv
import math
import sys
import tempfile
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import psutil
from confluent_kafka import Consumer, Producer, TopicPartition

from shoal.client.admin import NewTopic
from shoal.client.client import Client
from shoal.lite.cluster import LiteCluster
from shoal.runtime.conditions import code_version, conditions
from shoal.systems.mirror_kinds import MirrorOptions, MirrorRoute, make_mirror
from shoal.systems.mirrors import Mirror

TOPIC = "endured"
SAMPLE_S = 2.0
SETTLE_S = 20.0
DRAIN_S = 120.0
BROKER_DOWN_S = 5.0
# Per hour: bytes, and open files. Page caches and logs are not in these numbers.
LIMITS = {"memory": 16e6, "files": 2.0}
NORMAL_95 = 1.96
JUDGED_HOURS = 0.5


@dataclass
class Samples:
    """Times and values of one process, by life."""

    lives: dict[int, list[tuple[float, float, float]]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def take(self, pid: int, since_s: float) -> None:
        try:
            process = psutil.Process(pid)
            if time.time() - process.create_time() >= SETTLE_S:
                memory, files = process.memory_info().rss, process.num_fds()
                self.lives[pid].append((since_s / 3600, float(memory), float(files)))
        except psutil.Error:
            return  # it was killed just now

    def slope(self, which: int) -> tuple[float, float]:
        """The slope per hour, and half of its 95 % interval."""
        centred: list[tuple[float, float]] = []
        for life in self.lives.values():
            mean_x = sum(each[0] for each in life) / len(life)
            mean_y = sum(each[which] for each in life) / len(life)
            centred += [(each[0] - mean_x, each[which] - mean_y) for each in life]
        spread = sum(x * x for x, _ in centred)
        freedom = len(centred) - len(self.lives) - 1
        if not spread or freedom < 1:
            return 0.0, math.inf
        slope = sum(x * y for x, y in centred) / spread
        rest = sum((y - slope * x) ** 2 for x, y in centred)
        return slope, NORMAL_95 * math.sqrt(rest / freedom / spread)


class Load:
    """Sends numbered records to all partitions at a steady rate, in a thread."""

    def __init__(self, bootstrap: str, partitions: int, rate: float) -> None:
        self.sent = 0
        self._partitions, self._rate = partitions, rate
        self._stop = threading.Event()
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5}
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        began = time.perf_counter()
        while not self._stop.is_set():
            due = int((time.perf_counter() - began) * self._rate)
            while self.sent < due:
                place = self.sent % self._partitions
                self._producer.produce(TOPIC, str(self.sent), partition=place)
                self.sent += 1
            self._producer.poll(0)
            self._stop.wait(0.02)

    def stop(self) -> int:
        """Deliver everything; returns how many records were sent."""
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(60) == 0
        return self.sent


def find_faults(bootstrap: str, partitions: int, sent: int) -> list[str]:
    """Read the copy; returns what is missing, twice or out of order."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "endure"}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(TOPIC, number, 0) for number in range(partitions)])
    following = list(range(partitions))  # the next value of each partition
    faults: list[str] = []
    count, deadline = 0, time.monotonic() + DRAIN_S
    while time.monotonic() < deadline and len(faults) < 10:
        for message in consumer.consume(10_000, 1.0):
            if message.error():
                continue
            place, value = message.partition(), int(message.value() or b"-1")
            if value != following[place]:
                faults.append(f"partition {place}: {value} where {following[place]} is due")
            following[place] = max(following[place], value) + partitions
            count += 1
            deadline = time.monotonic() + 10
        if count >= sent:
            deadline = min(deadline, time.monotonic() + 3)  # for records that are there twice
    consumer.close()
    if count != sent:
        faults.append(f"the target has {count:,} of {sent:,} records")
    return faults


async def _create(bootstrap: str, partitions: int) -> None:
    async with Client({"bootstrap.servers": bootstrap}) as client:
        await client.admin.create_topics([NewTopic(TOPIC, partitions)])


def run(arguments: argparse.Namespace) -> int:
    with (
        tempfile.TemporaryDirectory(prefix="shoal-endure-") as folder,
        LiteCluster() as source,
        LiteCluster() as target,
    ):
        asyncio.run(_create(source.bootstrap, arguments.partitions))
        clusters = [{"bootstrap.servers": each.bootstrap} for each in (source, target)]
        route = MirrorRoute(*clusters, (TOPIC,), Path(folder))
        mirror = make_mirror("shoal", route, MirrorOptions())
        assert mirror is not None
        mirror.start()
        load = Load(source.bootstrap, arguments.partitions, arguments.rate)
        try:
            kills, samples = _endure(arguments, mirror, (source, target))
            sent = load.stop()
            faults = find_faults(target.bootstrap, arguments.partitions, sent)
        finally:
            load.stop()
            mirror.close()
    if arguments.samples is not None:
        _write_samples(arguments.samples, samples)
    return _report(arguments, sent, kills, faults, samples)


def _endure(
    arguments: argparse.Namespace, mirror: Mirror, clusters: tuple[LiteCluster, LiteCluster]
) -> tuple[int, dict[str, Samples]]:
    samples = {name: Samples() for name in ("mirror", "source", "target")}
    began = time.monotonic()
    next_kill, kills = arguments.kill_every_s, 0
    source, target = clusters
    victims: list[Mirror | LiteCluster] = [target, source, mirror]
    while (since_s := time.monotonic() - began) < arguments.hours * 3600:
        time.sleep(SAMPLE_S)
        if since_s >= next_kill:
            next_kill += arguments.kill_every_s
            _kill(victims[kills % len(victims)])
            kills += 1
            continue
        mirror.check()
        pids = {"mirror": mirror.pids()[0]}
        for name, cluster in zip(("source", "target"), clusters, strict=True):
            pids[name] = cluster.nodes()[0].pid or 0
        for name, pid in pids.items():
            samples[name].take(pid, since_s)
    return kills, samples


def _kill(victim: Mirror | LiteCluster) -> None:
    """Kill a mirror or the one broker of a cluster, and start it again."""
    if isinstance(victim, LiteCluster):
        node_id = victim.nodes()[0].id
        victim.kill(node_id)
        time.sleep(BROKER_DOWN_S)
        victim.restart(node_id)
    else:
        victim.kill()
        victim.start()


def _write_samples(path: Path, samples: dict[str, Samples]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["process", "pid", "hours", "memory_bytes", "open_files"])
        for name, each in samples.items():
            for pid, life in each.lives.items():
                writer.writerows([name, pid, *sample] for sample in life)


def _report(
    arguments: argparse.Namespace,
    sent: int,
    kills: int,
    faults: list[str],
    samples: dict[str, Samples],
) -> int:
    lines = ["| process | memory, MB/h | open files per hour |", "|---|---|---|"]
    grows = False
    for name, each in samples.items():
        cells = []
        for which, (key, unit) in enumerate((("memory", 1e6), ("files", 1.0)), start=1):
            slope, half = each.slope(which)
            grows |= slope - half > LIMITS[key]
            cells.append(f"{slope / unit:.2f} ± {half / unit:.2f}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    verdict = "Nothing is lost, twice or out of order." if not faults else "; ".join(faults)
    head = (
        f"{datetime.now(UTC):%Y-%m-%d}: {arguments.hours:g} h at {arguments.rate:,} records/s over "
        f"{arguments.partitions} partitions, {kills} kills of target, source and mirror in turn, "
        f"{sent:,} records. {verdict}"
    )
    text = "\n".join([head, "", *lines])
    print(text, flush=True)
    if arguments.report is not None:
        command = f"scripts/endure_mirror.py --hours {arguments.hours:g}"
        command += f" --kill-every-s {arguments.kill_every_s:g}"
        ran = conditions(command, elapsed_s=arguments.hours * 3600, code=code_version())
        arguments.report.write_text(
            "# A mirror over hours\n\nWritten by `make prove-endurance`; what is judged is in "
            "`scripts/endure_mirror.py`. Slopes have their 95 % intervals; in less than half an "
            "hour they are those of a start, and not judged.\n\n"
            f"{text}\n\n{ran}\n"
        )
    is_long = arguments.hours >= JUDGED_HOURS
    return 1 if faults or (grows and is_long) else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--rate", type=int, default=1000)
    parser.add_argument("--partitions", type=int, default=100)
    parser.add_argument("--kill-every-s", type=float, default=300.0)
    parser.add_argument("--report", type=Path)
    parser.add_argument("--samples", type=Path, help="write every sample to this CSV file")
    return run(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
