"""What an audit takes at up to 100 million messages, and with which power of their number.

The ledgers are those of long runs: 10,000 streams of 10 producers, a tenth of the messages in
transactions, times with jitter, 20 faults, and planted losses that each audit must find exactly
(`audit_ledgers`). Each size is generated, audited several times, each on a fresh Spark session, and
removed; a size is not repeated once it has taken `ENOUGH_S`. Reported are the bytes that tasks sent
to the driver, the time, the CPU seconds of the whole tree, and the peak memory of the driver's
Python, of the JVM, of all Python workers together, and of the whole tree: proportional
set sizes (PSS), sampled. A growth exponent is an interval: from the lowest of the larger size over
the highest of the smaller one, to the opposite. It is shown from each size to the next, and judged
from the smallest size to the largest. A claim holds if the whole interval does.

    python -m benchmarks.audit_huge [--repeats 3] [MESSAGES…, 1e6 4e6 1e7 1e8 by default]

`--keep FOLDER` generates the runs there, and leaves them; a run that is there is used as it is.
"""

import argparse
import math
import os
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from shutil import rmtree
from typing import Any

import psutil
from pyspark import SparkContext
from pyspark.sql import SparkSession

from benchmarks.audit_ledgers import count_losses, count_torn, write_run
from benchmarks.harness import Claim, store, store_part, tree_cpu_s
from shoal.audit.usage import DriverUsage
from shoal.model.result import Result
from shoal.pipeline.audit_job import audit_run
from shoal.pipeline.session import start_session, stop_session

SIZES = (1_000_000, 4_000_000, 10_000_000, 100_000_000)
STREAMS, PRODUCERS, SPREAD_US = 10_000, 10, 60_000
REPEATS = 3
ENOUGH_S = 240.0
SAMPLE_EVERY_S, SHARE = 0.1, 20  # at most this part of the time is spent on samples
GIB = 1 << 30
# What is claimed, by measure: the highest growth exponent, and the highest value at any size.
MOST: Mapping[str, float] = {"driver_bytes": 0.1, "wall_s": 1.05, "cpu_s": 1.05}
MOST_BYTES: Mapping[str, int] = {"driver_pss_bytes": GIB, "largest_worker_pss_bytes": 2 * GIB}
CLAIM = Claim(
    name="audit_huge",
    sentence="With the number of messages, an audit's bytes to the driver grow with a power of at"
    " most 0.1, its time and CPU of at most 1.05; the driver's Python takes at most 1 GiB, and each"
    " worker at most 2 GiB.",
    packages=("pyspark", "pyarrow", "numpy"),
)


@dataclass(eq=False)
class MemoryWatch(threading.Thread):
    """Samples the memory of the driver's Python, the JVM and the Python workers; keeps peaks."""

    jvm: int
    peaks: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__(daemon=True)
        self._ended = threading.Event()

    def run(self) -> None:
        took_s = 0.0
        while not self._ended.wait(max(SAMPLE_EVERY_S, (SHARE - 1) * took_s)):
            began_s = time.monotonic()
            now = {"driver_pss_bytes": pss_bytes(os.getpid()), "jvm_pss_bytes": pss_bytes(self.jvm)}
            workers = []
            with suppress(psutil.NoSuchProcess):
                workers = psutil.Process(self.jvm).children(recursive=True)
            each = [pss_bytes(process.pid) for process in workers]
            now["workers_pss_bytes"] = sum(each)
            now["tree_pss_bytes"] = sum(now.values())
            now["largest_worker_pss_bytes"] = max(each, default=0)
            for name, value in now.items():
                self.peaks[name] = max(value, self.peaks.get(name, 0))
            took_s = time.monotonic() - began_s

    def end(self) -> dict[str, int]:
        self._ended.set()
        self.join()
        return self.peaks


def pss_bytes(pid: int) -> int:
    """The proportional set size of a process: shared pages are divided among those who share."""
    with suppress(OSError):  # it ends just now
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def measure(folder: Path, messages: int) -> dict[str, float]:
    """Audit a run once, on a session of its own."""
    session = start_session("local[2]")
    try:
        return _measure_on(session, folder, messages)
    finally:
        stop_session(session)


def _measure_on(session: SparkSession, folder: Path, messages: int) -> dict[str, float]:
    gateway = SparkContext._gateway  # noqa: SLF001 - pyspark does not tell its JVM's number
    assert gateway is not None
    usage, watch = DriverUsage(), MemoryWatch(gateway.proc.pid)
    watch.start()
    began_s, began_cpu_s = time.monotonic(), time.process_time()
    began_tree_s = _tree_cpu_s()
    try:
        result = audit_run([folder], session, usage=usage)
    finally:
        wall_s, driver_cpu_s = time.monotonic() - began_s, time.process_time() - began_cpu_s
        cpu_s = _tree_cpu_s() - began_tree_s
        peaks = watch.end()
    check(result, messages)
    return {
        "driver_bytes": sum(usage.received.values()),
        "wall_s": wall_s,
        "cpu_s": cpu_s,
        "driver_cpu_s": driver_cpu_s,
        "tasks": usage.tasks,
        **peaks,
    }


def _tree_cpu_s() -> float:
    """CPU seconds of this process, the JVM and its workers so far."""
    return tree_cpu_s([os.getpid()], this_process=False)


def check(result: Result, messages: int) -> None:
    """Require the exact counts that were planted."""
    found = {name: each.count for name, each in result.findings.items()}
    wanted = {f"lost: {n.replace('_', '-')}": c for n, c in count_losses(messages).items()}
    wanted["torn transaction"] = count_torn(messages)
    for name, count in wanted.items():
        assert found.get(name, 0) == count, (name, count, found)
    assert result.metrics.attempts == result.metrics.ok == messages


def measure_size(folder: Path, messages: int, repeats: int, *, keep: bool) -> dict[str, Any]:
    """Generate a run, audit it and remove it; the lowest and the highest of each measure."""
    began_s = time.monotonic()
    run = folder / str(messages)
    if not (run / "commits.jsonl").exists():  # it is written last
        rmtree(run, ignore_errors=True)
        write_run(run, messages, STREAMS, producers=PRODUCERS, spread_us=SPREAD_US, mixed=True)
    generated_s = time.monotonic() - began_s
    size = sum(path.stat().st_size for path in (run / "ledger").rglob("*.parquet"))
    try:
        runs = [measure(run, messages)]
        while len(runs) < repeats and sum(each["wall_s"] for each in runs) < ENOUGH_S:
            runs.append(measure(run, messages))
    finally:
        if not keep:
            rmtree(run)
    intervals = {name: [min(r[name] for r in runs), max(r[name] for r in runs)] for name in runs[0]}
    print(f"{messages:>13,} messages, {size / 1e6:,.0f} MB, generated in {generated_s:.0f} s")
    for name, (low, high) in intervals.items():
        print(f"    {name:<20} {_show(name, low)} to {_show(name, high)}", flush=True)
    shown = {"messages": messages, "streams": STREAMS, "ledger_bytes": size}
    return {**shown, "generated_s": round(generated_s, 1), "runs": runs, "intervals": intervals}


def _show(name: str, value: float) -> str:
    if name.endswith("pss_bytes"):
        return f"{value / 2**20:,.0f} MiB"
    if name == "cpu_s":
        return f"{value:,.1f} CPU s"
    return f"{value:,.1f} s" if name.endswith("_s") else f"{value:,.0f}"


def grow(small: Mapping[str, Any], large: Mapping[str, Any]) -> dict[str, list[float]]:
    """Return the interval of the growth exponent of each measure from one size to the next."""
    times = math.log(large["messages"] / small["messages"])
    found = {}
    for name, (low, high) in small["intervals"].items():
        larger = large["intervals"][name]
        ends = [larger[0] / max(high, 1e-9), larger[1] / max(low, 1e-9)]
        found[name] = [round(math.log(max(end, 1e-9)) / times, 2) for end in ends]
    return found


def main(sizes: Sequence[int], repeats: int = REPEATS, keep: Path | None = None) -> int:
    print(CLAIM.sentence, flush=True)
    measured: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        for messages in sizes:
            place = keep or Path(folder)
            measured.append(measure_size(place, messages, repeats, keep=keep is not None))
            store_part(CLAIM, sizes=measured)
    steps = [*pairwise(measured), (measured[0], measured[-1])]
    growth = [
        {"from": a["messages"], "to": b["messages"], "exponents": grow(a, b)}
        for a, b in steps[: len(steps) if len(measured) > 2 else 1]
        if a["messages"] < b["messages"]
    ]
    for step in growth:
        for name, (low, high) in step["exponents"].items():
            limit = f", at most {MOST[name]}" if name in MOST and step is growth[-1] else ""
            print(f"{step['from']:,} to {step['to']:,}: {name} {low} to {high}{limit}")
    holds = bool(growth) and all(
        growth[-1]["exponents"][name][1] <= most for name, most in MOST.items()
    )
    holds &= all(
        each["intervals"][name][1] <= most for each in measured for name, most in MOST_BYTES.items()
    )
    limits = {"most_exponents": dict(MOST), "most_bytes": dict(MOST_BYTES)}
    return store(CLAIM, holds=holds, **limits, sizes=measured, growth=growth)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("messages", nargs="*", type=float)
    given = parser.parse_args()
    sys.exit(main([int(number) for number in given.messages] or SIZES, given.repeats, given.keep))
