"""How every benchmark measures: in pairs, interleaved, by CPU seconds per GB.

Wall times on shared machines mean little: the bar is CPU seconds; MB/s are reported too.
A case has two sides that do the same work. Each side runs once to warm up, then both run in
turn, the first of a pair being the second of the next, at least 5 pairs. The result is the
median of the pairs' ratios, with the smallest and the largest. A case may have a bar of its own,
and one for its speed.

GB and MB are powers of ten. The CPU of a side is that of this process and its ended children,
or of given process trees (brokers, JVMs), or both. Peak memory is the whole peak of the given
trees during the runs, plus what Python and numpy allocated in this process, which is traced
while warming up: tracing costs time, and memory that a process has used once is hard to see.
"""

import json
import os
import platform
import statistics
import time
import tracemalloc
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import psutil

LEAST_PAIRS = 5
RESULTS = Path(__file__).parent / "results"
PART = ".json.part"  # of a result that is not whole yet
GB = 1e9
MB = 1e6
_MIB = 1024 * 1024


class Work(NamedTuple):
    """Work that timed itself, because its programs take a while to start.

    `peak_bytes` is the memory of all its processes, if the work measured that itself.
    """

    handled_bytes: int
    wall_s: float
    peak_bytes: int = 0


@dataclass(frozen=True)
class Side:
    """One of two ways to do the same work. `run` does it once and returns the bytes handled.

    `pids` gives the roots of process trees whose CPU and memory count too; it is asked at
    every run. A side whose work is done elsewhere sets `counts_this_process` to False.
    """

    name: str
    run: Callable[[], int | Work]
    pids: Callable[[], Sequence[int]] = tuple
    counts_this_process: bool = True
    # Whether the work is a `Work` with the memory of all its processes, this one included.
    measures_memory: bool = False


@dataclass(frozen=True)
class Run:
    """What one run of one side took."""

    handled_bytes: int
    cpu_s: float
    wall_s: float
    trees_peak_bytes: int

    @property
    def cpu_s_per_gb(self) -> float:
        return self.cpu_s / (self.handled_bytes / GB)

    @property
    def mb_per_s(self) -> float:
        return self.handled_bytes / MB / self.wall_s


@dataclass(frozen=True)
class Case:
    """Both sides under one set of conditions. Only judged cases count for the claim."""

    name: str
    ours: Side
    theirs: Side
    conditions: dict[str, Any] = field(default_factory=dict)
    judged: bool = True
    # How many times as much CPU theirs must take, if not as the claim says.
    bar: float | None = None
    # The least share of their MB/s.
    least_speed: float = 0.0
    # The most memory that ours may take, if there is a limit: in MiB, and as a share of theirs.
    most_memory_mib: float | None = None
    most_memory_share: float | None = None
    # Whether every pair must reach the bars, not only the median.
    needs_every_pair: bool = False


@dataclass(frozen=True)
class Claim:
    """That ours takes at most a `bar`-th of the CPU of theirs, unless the sentence says else."""

    name: str
    sentence: str
    bar: float = 1.0
    packages: Sequence[str] = ()


def warm_up(side: Side) -> int:
    """Run a side once, untimed; return the peak of its allocations in this process."""
    if not side.counts_this_process or side.measures_memory:
        side.run()
        return 0
    tracemalloc.start()
    try:
        before_bytes, _ = tracemalloc.get_traced_memory()
        side.run()
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return peak_bytes - before_bytes


def measure(side: Side) -> Run:
    """Run a side once."""
    pids = list(side.pids())
    _reset_peaks(pids)
    cpu_before_s = tree_cpu_s(pids, this_process=side.counts_this_process)
    started = time.perf_counter()
    work = side.run()
    wall_s = time.perf_counter() - started
    cpu_s = tree_cpu_s(pids, this_process=side.counts_this_process) - cpu_before_s
    if not isinstance(work, Work):
        work = Work(work, wall_s)
    peak_bytes = work.peak_bytes or sum(_peak_bytes(process) for process in _trees(pids))
    return Run(work.handled_bytes, cpu_s, work.wall_s, peak_bytes)


def compare(case: Case, *, pairs: int = LEAST_PAIRS) -> dict[str, Any]:
    """Measure a case; the result as it goes into the JSON file."""
    assert pairs >= LEAST_PAIRS, f"{pairs} pairs are too few"
    sides = (case.ours, case.theirs)
    traced_bytes = {side: warm_up(side) for side in sides}
    runs: dict[Side, list[Run]] = {side: [] for side in sides}
    for pair in range(pairs):
        for side in sides if pair % 2 == 0 else reversed(sides):
            runs[side].append(measure(side))
    ratios = [
        theirs.cpu_s_per_gb / ours.cpu_s_per_gb
        for ours, theirs in zip(runs[case.ours], runs[case.theirs], strict=True)
    ]
    speeds = [
        ours.mb_per_s / theirs.mb_per_s
        for ours, theirs in zip(runs[case.ours], runs[case.theirs], strict=True)
    ]
    return {
        "case": case.name,
        "judged": case.judged,
        "conditions": case.conditions,
        "ratio_median": round(statistics.median(ratios), 2),
        "ratio_interval": [round(min(ratios), 2), round(max(ratios), 2)],
        "speed_median": round(statistics.median(speeds), 2),
        "speed_interval": [round(min(speeds), 2), round(max(speeds), 2)],
        "ours": _summary(case.ours, runs[case.ours], traced_bytes[case.ours]),
        "theirs": _summary(case.theirs, runs[case.theirs], traced_bytes[case.theirs]),
    }


def prove(claim: Claim, cases: Iterable[Case], *, pairs: int = LEAST_PAIRS) -> int:
    """Measure, print and store all cases; 0 if every judged one reaches the bar, else 1."""
    print(claim.sentence, flush=True)
    results = []
    for case in cases:
        result = compare(case, pairs=pairs)
        bar = claim.bar if case.bar is None else case.bar
        result |= {"bar": round(bar, 2), "least_speed": case.least_speed}
        result["most_memory_mib"] = case.most_memory_mib
        if case.most_memory_share is not None:
            result["most_memory_share"] = case.most_memory_share
        result["holds"] = _does_hold(case, bar, result)
        results.append(result)
        print(_lines(result), flush=True)
        store_part(claim, bar=claim.bar, pairs=pairs, cases=results)
    holds = all(result["holds"] for result in results if result["judged"])
    return store(claim, holds=holds, bar=claim.bar, pairs=pairs, cases=results)


def _does_hold(case: Case, bar: float, result: dict[str, Any]) -> bool:
    ratio, speed = (
        result[f"{name}_interval"][0] if case.needs_every_pair else result[f"{name}_median"]
        for name in ("ratio", "speed")
    )
    ours, theirs = (result[side]["peak_memory_mib"] for side in ("ours", "theirs"))
    limits = [case.most_memory_mib]
    if case.most_memory_share is not None:
        limits.append(case.most_memory_share * theirs)
    is_small = all(limit is None or ours <= limit for limit in limits)
    return bool(ratio >= bar and speed >= case.least_speed and is_small)


def store_part(claim: Claim, **measured: Any) -> None:
    """Store the finished cases, in case the benchmark is interrupted."""
    _write(f"{claim.name}{PART}", _document(claim, holds=False, **measured))


def store(claim: Claim, *, holds: bool, **measured: Any) -> int:
    """Store a result with its conditions; 0 if the claim holds, else 1."""
    path = _write(f"{claim.name}.json", _document(claim, holds=holds, **measured))
    (RESULTS / f"{claim.name}{PART}").unlink(missing_ok=True)
    print(f"{'holds' if holds else 'DOES NOT HOLD'}; stored in {path.name}")
    return 0 if holds else 1


def read_result(claim: Claim) -> dict[str, Any]:
    """The stored result; empty if there is none."""
    path = RESULTS / f"{claim.name}.json"
    stored: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return stored


def _document(claim: Claim, *, holds: bool, **measured: Any) -> dict[str, Any]:
    return {
        "name": claim.name,
        "claim": claim.sentence,
        "holds": holds,
        "measured": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": {name: version(name) for name in claim.packages},
        **measured,
    }


def _write(name: str, document: dict[str, Any]) -> Path:
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / name
    path.write_text(json.dumps(document, indent=2) + "\n")
    return path


def machine() -> dict[str, Any]:
    """The machine and the versions on which the numbers depend."""
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        # The build of Python: optimisations make a difference of a fifth of the CPU.
        "python_build": " ".join((*platform.python_build(), platform.python_compiler())),
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }


def _cpu_name() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def _summary(side: Side, runs: list[Run], traced_bytes: int) -> dict[str, Any]:
    peak_bytes = traced_bytes + max(run.trees_peak_bytes for run in runs)
    return {
        "name": side.name,
        "cpu_s_per_gb_median": round(statistics.median(run.cpu_s_per_gb for run in runs), 4),
        "mb_per_s_median": round(statistics.median(run.mb_per_s for run in runs), 1),
        "peak_memory_mib": round(peak_bytes / _MIB, 1),
        "runs": [asdict(run) for run in runs],
    }


def _lines(result: dict[str, Any]) -> str:
    low, high = result["ratio_interval"]
    judged = "" if result["judged"] else " (not judged)"
    judged += "" if result.get("holds", True) else ", MISSES ITS BAR"
    times = f"{result['ratio_median']} times ({low} to {high})"
    speed = f"{result['speed_median']} of the speed"
    lines = [f"  {result['case']}{judged}: {times}, {speed}"]
    lines += [
        f"    {side['name']:<24} {side['cpu_s_per_gb_median']:>9.3f} CPU s/GB "
        f"{side['mb_per_s_median']:>10,.0f} MB/s {side['peak_memory_mib']:>8,.1f} MiB"
        for side in (result["ours"], result["theirs"])
    ]
    return "\n".join(lines)


def _trees(pids: Iterable[int]) -> list[psutil.Process]:
    """The processes and their descendants that are running."""
    found: dict[int, psutil.Process] = {}
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            root = psutil.Process(pid)
            for process in (root, *root.children(recursive=True)):
                found[process.pid] = process
    return list(found.values())


def tree_cpu_s(pids: Iterable[int], *, this_process: bool) -> float:
    """CPU seconds so far; those of ended children are counted by their parents."""
    total = 0.0
    for process in _trees(pids):
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
            total += getattr(times, "children_user", 0) + getattr(times, "children_system", 0)
    if this_process:
        ended = os.times()
        total += time.process_time() + ended.children_user + ended.children_system
    return total


def _reset_peaks(pids: Iterable[int]) -> None:
    """Reset the peak memory of processes, where the system can (Linux)."""
    for process in _trees(pids):
        with suppress(OSError):
            Path(f"/proc/{process.pid}/clear_refs").write_text("5")


def _peak_bytes(process: psutil.Process) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024
    with suppress(psutil.NoSuchProcess):
        held_bytes: int = process.memory_info().rss
        return held_bytes
    return 0
