"""Runs damaged inputs through targets, in several processes, and says what came out.

Inputs come in blocks, each from a seed of its own, so that a run gives the same inputs however
many processes share it. A finding is any exception but a `WireError`, a process that died, or
more memory than allowed.
"""

import faulthandler
import os
import random
import resource
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

from shoal.wire.errors import WireError
from support.fuzz.mutations import damage
from support.fuzz.targets import Target, make_targets

BLOCK_INPUTS = 1000
FINDINGS_KEPT = 5
MIB = 1024 * 1024
# Beyond what a process has once its seeds are made and every decoder has run once.
MEMORY_LIMIT_BYTES = 64 * MIB
# Address space: decompressors reserve windows of up to 128 MiB that they never touch.
ADDRESS_LIMIT_BYTES = 1024 * MIB


@dataclass
class Outcome:
    """Counts by (target, "refused" or "accepted" or "failed"), and what was found."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    memory_growth_bytes: int = 0

    @property
    def inputs(self) -> int:
        return self.counts.total()

    def add(self, other: "Outcome") -> None:
        self.counts += other.counts
        self.findings += other.findings
        self.memory_growth_bytes = max(self.memory_growth_bytes, other.memory_growth_bytes)


class Fuzzer:
    """Targets with their seeds, and the memory of the process before the first input."""

    def __init__(self, targets: list[Target]) -> None:
        self._targets = targets
        self._shares = [target.share for target in targets]
        dice = random.Random(0)
        for target in targets:
            for seed in target.seeds:
                run_one(target, bytearray(seed), dice)
        self._memory_before_bytes = peak_memory_bytes()

    def run_block(self, seed: int, block: int) -> Outcome:
        """1000 inputs, the same for the same seed and block."""
        dice = random.Random(f"{seed}/{block}")
        outcome = Outcome()
        for target in dice.choices(self._targets, self._shares, k=BLOCK_INPUTS):
            result, finding = run_one(target, damage(target.seeds, dice), dice)
            outcome.counts[target.name, result] += 1
            if finding is not None and len(outcome.findings) < FINDINGS_KEPT:
                outcome.findings.append(f"block {block}: {finding}")
        growth_bytes = peak_memory_bytes() - self._memory_before_bytes
        outcome.memory_growth_bytes = growth_bytes
        if growth_bytes > MEMORY_LIMIT_BYTES:
            outcome.findings.append(f"block {block}: memory grew by {growth_bytes // MIB} MiB")
        return outcome


def run_one(target: Target, data: bytearray, dice: random.Random) -> tuple[str, str | None]:
    """What became of one input, and the finding if it is one."""
    given = bytes(data)
    try:
        target.decode(data, dice)
    except WireError:
        return "refused", None
    except Exception:  # noqa: BLE001 - whatever else comes out is what we are looking for
        return "failed", f"--replay {target.name!r} {given.hex()}\n{traceback.format_exc()}"
    return "accepted", None


def peak_memory_bytes() -> int:
    """The most that this process ever held."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


_in_this_process: list[Fuzzer] = []


def _start_process() -> None:
    faulthandler.enable()
    _in_this_process.append(Fuzzer(make_targets()))
    _limit_address_space()


def _limit_address_space() -> None:
    """Make an over-allocation fail where it happens; only Linux can tell how much there is."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        used_bytes = int(statm.read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        limit_bytes = used_bytes + ADDRESS_LIMIT_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))


def _run_block(seed: int, block: int) -> Outcome:
    return _in_this_process[0].run_block(seed, block)


def fuzz(inputs: int, *, seed: int, processes: int, progress: Callable[[Outcome], None]) -> Outcome:
    """At least `inputs` inputs over several processes; `progress` is told after each block."""
    blocks = -(-inputs // BLOCK_INPUTS)
    outcome = Outcome()
    context = get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context, initializer=_start_process) as pool:
        try:
            for found in pool.map(_run_block, [seed] * blocks, range(blocks), chunksize=4):
                outcome.add(found)
                progress(outcome)
        except BrokenProcessPool:
            near = outcome.inputs // BLOCK_INPUTS
            outcome.findings.append(f"a process died, near block {near} or soon after")
    return outcome
