"""Fuzz the wire format: damaged batches, messages and frames must raise only `WireError`.

    python scripts/fuzz.py --count 100000 --seed 1
    python scripts/fuzz.py --count 10000000 --report docs/proofs/fuzz.md

Exit code 1 if anything but a `WireError` was raised, a process died, or one used more memory than
allowed. A finding is printed with its input in hex; `--replay TARGET HEX` runs only that input.
The targets and their seeds are in tests/support/fuzz/targets.py.
"""

import argparse
import os
import random
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from shoal.runtime.conditions import code_version, conditions  # noqa: E402
from support.fuzz.engine import (  # noqa: E402 - found by the path above
    BLOCK_INPUTS,
    FINDINGS_KEPT,
    MEMORY_LIMIT_BYTES,
    MIB,
    Outcome,
    fuzz,
    run_one,
)
from support.fuzz.targets import make_targets  # noqa: E402

PROGRESS_EVERY_INPUTS = 100 * BLOCK_INPUTS


def table(outcome: Outcome) -> str:
    """The counts as a Markdown table, one row for each target."""
    lines = ["| target | inputs | refused | accepted | failed |", "|---|---|---|---|---|"]
    for name in sorted({name for name, _ in outcome.counts}):
        counts = [outcome.counts[name, result] for result in ("refused", "accepted", "failed")]
        cells = " | ".join(f"{count:,}" for count in (sum(counts), *counts))
        lines.append(f"| {name} | {cells} |")
    return "\n".join(lines)


def report(outcome: Outcome, arguments: argparse.Namespace, *, code: str, elapsed_s: float) -> str:
    shown = conditions(
        " ".join(["scripts/fuzz.py", *sys.argv[1:]]),
        elapsed_s=elapsed_s,
        code=code,
        more={
            "inputs per second": f"{outcome.inputs / elapsed_s:,.0f}",
            "processes": f"{arguments.processes}, niceness {os.nice(0)}",
        },
        packages=("cramjam", "kio", "numba"),
    )
    return f"""# Proof: no bytes break the wire

{outcome.inputs:,} damaged record sets, messages and frames, seed {arguments.seed}: no exception
but those of the error tree, no process lost, and no process grew by more than
{outcome.memory_growth_bytes // MIB} MiB (limit {MEMORY_LIMIT_BYTES // MIB} MiB). Each batch was
read by both record codecs, which agreed on every one.

{table(outcome)}

{shown}
"""


def replay(name: str, hex_input: str) -> int:
    (target,) = [target for target in make_targets() if target.name == name]
    result, finding = run_one(target, bytearray.fromhex(hex_input), random.Random(0))  # noqa: S311
    print(finding or result)
    return 1 if finding else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1_000_000, help="number of inputs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument(
        "--report", type=Path, help="file for the report, written if nothing was found"
    )
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    parser.add_argument("--replay", nargs=2, metavar=("TARGET", "HEX"))
    arguments = parser.parse_args()
    if arguments.replay:
        return replay(*arguments.replay)
    code = code_version("src/shoal/wire", "tests/support", "scripts")
    started = time.monotonic()

    def show_progress(so_far: Outcome) -> None:
        if not arguments.quiet and so_far.inputs % PROGRESS_EVERY_INPUTS == 0:
            rate = so_far.inputs / (time.monotonic() - started)
            line = f"{so_far.inputs:,} inputs, {rate:,.0f}/s, {len(so_far.findings)} findings"
            print(line, file=sys.stderr)

    outcome = fuzz(
        arguments.count,
        seed=arguments.seed,
        processes=arguments.processes,
        progress=show_progress,
    )
    elapsed_s = time.monotonic() - started
    print(table(outcome))
    growth = f"memory grew by {outcome.memory_growth_bytes // MIB} MiB"
    found = f"{len(outcome.findings)} findings"
    print(f"{outcome.inputs:,} inputs in {elapsed_s:.1f} s; {growth}; {found}")
    for finding in outcome.findings[:FINDINGS_KEPT]:
        print(finding)
    if outcome.findings:
        return 1
    if arguments.report:
        arguments.report.parent.mkdir(parents=True, exist_ok=True)
        arguments.report.write_text(report(outcome, arguments, code=code, elapsed_s=elapsed_s))
    return 0


if __name__ == "__main__":
    sys.exit(main())
