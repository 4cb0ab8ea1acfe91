"""Claim: the code here takes at most 1.05 of the CPU of another checkout of this project.

    git worktree add ../old REVISION
    python -m benchmarks.checkouts ../old [--pairs 7] [--cases produce,audit,gzip,none] [--share 1]

Producing 1 KiB records to one broker, copying gzip and uncompressed topics between two brokers of
Apache Kafka, and auditing a run. Both sides run in turn, at least 5 pairs; each side's code is
imported from its checkout, in processes of its own, whose CPU counts. Both are compiled to byte
code before, because a mirror imports modules while it copies. What is judged is the upper end of
the 95 % interval of the ratio new / old (of the mean of its logarithms, Student's t).

Cases may be measured one at a time: the stored result keeps those of the same two revisions. A
smaller share of the work is a trial, and is not stored.
"""

import argparse
import asyncio
import compileall
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

import psutil

from benchmarks import raw_load
from benchmarks.broker_cases import LARGE
from benchmarks.harness import LEAST_PAIRS, MB, Claim, read_result, store
from benchmarks.mirror import PARTITIONS, fill, records_at
from benchmarks.side_by_side import create_topic, delete_topic
from shoal.client.client import Client
from shoal.model.topics import TopicPartition
from shoal.systems.apache.apache import ApacheCluster
from shoal.systems.processes.meters import tree_of

CLAIM = Claim(
    name="checkouts",
    sentence="The code here takes at most 1.05 of the CPU of the other checkout: to take 1 KiB "
    "records, to mirror gzip and uncompressed batches, and to audit.",
    packages=("crc32c", "confluent-kafka", "pyspark"),
)
MOST_RATIO = 1.05
CASES = 4  # of a whole result
PRODUCED_BYTES = 600 * 1_000_000
MIRRORED_RECORDS = 1_000_000
AUDITED_MESSAGES = 5_000_000
PATIENCE_S = 300.0
LOOK_EVERY_S = 0.02
# The upper 97.5 % point of Student's t, by degrees of freedom.
STUDENT_T = {4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 11: 2.201, 14: 2.145}

_BROKER = """
import sys
from shoal.lite.cluster import LiteCluster
with LiteCluster(brokers=1) as cluster:
    print(cluster.bootstrap, flush=True)
    sys.stdin.readline()
"""
_AUDIT = """
import sys, tempfile
from pathlib import Path
from benchmarks.audit_ledgers import write_run
from benchmarks.audit_session import audits
messages = int(sys.argv[1])
with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder, audits() as judge:
    run = write_run(Path(folder) / "16-streams", messages, 16)
    side = judge.side(run, messages)
    side.run()
    print("ready", flush=True)
    for _ in sys.stdin:
        side.run()
        print("done", flush=True)
"""


class Side(Protocol):
    """One checkout at work."""

    def run(self) -> float:
        """Do the work once; return the CPU seconds that it took."""


def _environment(checkout: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{checkout / 'src'}:{checkout}"}


@contextmanager
def _child(checkout: Path, program: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A Python process with the code of a checkout, which ends with its standard input."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        cwd=checkout,
        env=_environment(checkout),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(PATIENCE_S)


def _cpu_s(pid: int) -> float:
    """CPU seconds of a process, its descendants, and those of them that ended."""
    total = 0.0
    for process in tree_of(psutil.Process(pid)):
        times = process.cpu_times()
        total += times.user + times.system + times.children_user + times.children_system
    return total


def _read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, "the process ended"
    return line.strip()


class Produce:
    """Take 1 KiB records, acks=all."""

    def __init__(self, checkout: Path, stack: ExitStack, share: float) -> None:
        self._process = stack.enter_context(_child(checkout, _BROKER))
        self._bootstrap = _read_line(self._process)
        self._size_bytes = int(PRODUCED_BYTES * share)

    def run(self) -> float:
        topic = create_topic(self._bootstrap, PARTITIONS)
        before_s = _cpu_s(self._process.pid)
        raw_load.produce(self._bootstrap, topic, LARGE, self._size_bytes)
        taken_s = _cpu_s(self._process.pid) - before_s
        delete_topic(self._bootstrap, topic)
        return taken_s


class Audit:
    """Judge a run on a Spark session that is up."""

    def __init__(self, checkout: Path, stack: ExitStack, share: float) -> None:
        messages = int(AUDITED_MESSAGES * share)
        self._process = stack.enter_context(_child(checkout, _AUDIT, str(messages)))
        assert _read_line(self._process) == "ready"

    def run(self) -> float:
        assert self._process.stdin is not None
        before_s = _cpu_s(self._process.pid)
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        assert _read_line(self._process) == "done"
        return _cpu_s(self._process.pid) - before_s


class Copy:
    """Mirror a full topic, from the first record at the target to the last."""

    def __init__(self, checkout: Path, route: tuple[str, str], topic: str, total: int) -> None:
        """`route` is the bootstrap of the source and of the target."""
        self._checkout = checkout
        self._route = route
        self._topic = topic
        self._total = total

    def run(self) -> float:
        source, target = self._route
        alias = f"c{time.time_ns()}"
        shoal = Path(sys.executable).with_name("shoal")
        with tempfile.TemporaryFile() as log:
            process = subprocess.Popen(
                [
                    *(str(shoal), "mirror", "run"),
                    *("--source-bootstrap-server", source, "--target-bootstrap-server", target),
                    *("--topics", self._topic, "--source-alias", alias),
                    *("--replication-policy", "default", "--name", alias),
                ],
                env=_environment(self._checkout),
                stdout=log,
                stderr=log,
            )
            try:
                return asyncio.run(self._measure(process, target, f"{alias}.{self._topic}"))
            except AssertionError as error:
                log.seek(0)
                said = log.read().decode(errors="replace").strip() or "it said nothing"
                raise AssertionError(f"{error} ({self._checkout.name}): {said}") from error
            finally:
                process.terminate()
                process.wait(PATIENCE_S)

    async def _measure(self, process: subprocess.Popen[bytes], bootstrap: str, topic: str) -> float:
        partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        deadline = time.monotonic() + PATIENCE_S
        began_s: float | None = None
        began = 0
        async with Client({"bootstrap.servers": bootstrap}) as client:
            while (count := await records_at(client, partitions)) < self._total:
                if count and began_s is None:
                    began_s, began = _cpu_s(process.pid), count
                assert process.poll() is None, "the mirror ended"
                assert time.monotonic() < deadline, f"{count} of {self._total} records"
                await asyncio.sleep(LOOK_EVERY_S)
            assert began_s is not None, "too few records: all were there at the first look"
            return (_cpu_s(process.pid) - began_s) / (self._total - began) * self._total


def _compare(name: str, new: Side, old: Side, pairs: int) -> dict[str, Any]:
    """Run both in turn; the one that is first in a pair is second in the next."""
    taken: dict[Side, list[float]] = {new: [], old: []}
    for side in (new, old):
        side.run()
    for pair in range(pairs):
        for side in (new, old) if pair % 2 == 0 else (old, new):
            taken[side].append(side.run())
    logs = [math.log(a / b) for a, b in zip(taken[new], taken[old], strict=True)]
    mean = statistics.mean(logs)
    margin = STUDENT_T[pairs - 1] * statistics.stdev(logs) / math.sqrt(pairs)
    low, ratio, high = (round(math.exp(mean + sign * margin), 3) for sign in (-1, 0, 1))
    result = {
        "case": name,
        "ratio": ratio,
        "ratio_interval": [low, high],
        "median_ratio": round(math.exp(statistics.median(logs)), 3),
        "holds": high <= MOST_RATIO,
        "new_cpu_s": [round(each, 2) for each in taken[new]],
        "old_cpu_s": [round(each, 2) for each in taken[old]],
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }
    print(f"  {name}: {ratio} ({low} to {high}) of the CPU", flush=True)
    return result


def _cases(
    new: Path, old: Path, names: list[str], *, pairs: int, share: float
) -> Iterator[dict[str, Any]]:
    for name, kind in (("produce", Produce), ("audit", Audit)):
        if name in names:
            with ExitStack() as stack:
                sides = kind(new, stack, share), kind(old, stack, share)
                yield _compare(name, *sides, pairs)
    codecs = [name for name in names if name in ("gzip", "none")]
    if not codecs:
        return
    with ApacheCluster(brokers=1) as source, ApacheCluster(brokers=1) as target:
        for codec in codecs:
            topic = f"bench-{codec}"
            records = int(MIRRORED_RECORDS * share)
            total = asyncio.run(fill(source.bootstrap, topic, codec, records))
            here, there = (
                Copy(each, (source.bootstrap, target.bootstrap), topic, total)
                for each in (new, old)
            )
            yield _compare(f"mirror {codec}", here, there, pairs)


def _revision(checkout: Path) -> str:
    command = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", type=Path, help="the other checkout")
    parser.add_argument("--pairs", type=int, default=7, choices=[n + 1 for n in STUDENT_T])
    parser.add_argument("--cases", default="produce,audit,gzip,none")
    parser.add_argument("--share", type=float, default=1.0, help="of the work; below 1 a trial")
    arguments = parser.parse_args()
    assert arguments.pairs >= LEAST_PAIRS
    new, old = Path(__file__).parents[1], arguments.old.resolve()
    print(CLAIM.sentence, flush=True)
    for checkout in (new, old):
        compileall.compile_dir(checkout / "src", quiet=1)
    names = arguments.cases.split(",")
    found = list(_cases(new, old, names, pairs=arguments.pairs, share=arguments.share))
    if arguments.share < 1:
        return 0 if all(case["holds"] for case in found) else 1
    revisions = {"new": _revision(new), "old": _revision(old)}
    cases = _add_stored(found, revisions)
    return store(
        CLAIM,
        holds=len(cases) == CASES and all(case["holds"] for case in cases),
        **revisions,
        produced_mb=PRODUCED_BYTES / MB,
        mirrored_records=MIRRORED_RECORDS,
        audited_messages=AUDITED_MESSAGES,
        cases=cases,
    )


def _add_stored(found: list[dict[str, Any]], revisions: dict[str, str]) -> list[dict[str, Any]]:
    """Add the cases of these revisions that were measured before."""
    stored = read_result(CLAIM)
    if not revisions.items() <= stored.items():
        return found
    names = {case["case"] for case in found}
    return [*(case for case in stored["cases"] if case["case"] not in names), *found]


if __name__ == "__main__":
    sys.exit(main())
