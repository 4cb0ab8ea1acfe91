"""Run simulated histories and report the first one that fails.

    python -m shoal.lite.simulation --seeds 0:1000 --steps 1000
    python -m shoal.lite.simulation --seeds 4711 --trace
    python -m shoal.lite.simulation --sabotage forgotten-vote --seeds 0:500
    python -m shoal.lite.simulation --seeds 0:30000 --plant-all --report proof.md

Exit code 0 if no history failed and each planted bug was found; otherwise 1.
"""

import argparse
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from shoal.lite.simulation.outcome import HistoryOutcome
from shoal.lite.simulation.runner import SABOTAGE_NAMES, Kind, Tally, find_sabotages, play_all
from shoal.lite.simulation.setup import CrashModel
from shoal.runtime.conditions import code_version, conditions

# What must have been reached, or the histories were too calm to prove anything.
SHOWN = {
    "elections": "elections of partition leaders",
    "truncations": "truncations by diverging epochs",
    "in-sync changes": "changes of in-sync sets",
    "eligible": "replicas that became eligible",
    "controllers": "controller fail-overs",
    "quorum elections": "elections among controllers",
    "reassignments": "reassignments finished",
    "snapshots loaded": "metadata snapshots loaded",
    "starts": "restarts of processes",
    "kills": "kills",
    "kills between writes": "kills between two writes",
    "clean stops": "clean stops",
    "power losses": "power losses",
    "disks lost": "disks lost",
    "logs cut": "logs cut or removed while their broker was down",
    "losses reported": "losses that a broker detected and reported",
    "copies restored": "disks replaced by an older copy",
    "older copies refused": "older copies refused",
    "logs failed": "logs taken offline by a disk error",
    "pauses": "pauses",
    "cuts": "network partitions of links and nodes",
    "joins": "brokers that joined",
    "unclean elections": "unclean elections, requested after all in-sync data was lost",
    "acknowledged": "records acknowledged by all in-sync replicas",
    "committed": "records committed",
    "consumed": "records read by consumers",
}
_PROGRESS_EVERY_S = 10
_TRACE_LINES = 60


def _print(line: str = "") -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def table(tally: Tally) -> str:
    """What the histories reached, as Markdown."""
    lines = ["| reached | times | in histories |", "|---|---|---|"]
    for name, words in SHOWN.items():
        if tally.counters[name]:
            lines.append(f"| {words} | {tally.counters[name]:,} | {tally.reached[name]:,} |")
    return "\n".join(lines)


def print_failure(kind: Kind, failure: HistoryOutcome) -> None:
    """Print what failed, and the shortest history found that fails in the same way."""
    _print(f"\nseed {failure.seed}: {failure.violation}")
    _print(f"  {kind.setup(failure.seed)}")
    steps = kind.shorten_history(failure)
    trace: list[str] = []
    shortest = kind.play(failure.seed, steps, trace=trace.append)
    _print(f"shortened to {len(steps)} of {failure.steps_taken} steps: {shortest.violation}")
    for step in steps:
        _print(f"  at {step.at_ms:6d} ms  {step.verb}")
    _print(f"the end of its trace ({min(len(trace), _TRACE_LINES)} of {len(trace)} lines):")
    for line in trace[-_TRACE_LINES:]:
        _print(f"  {line}")


def sabotage_table(found: dict[str, HistoryOutcome | None]) -> str:
    """Each planted bug, and the first history that shows it, as Markdown."""
    lines = ["| planted bug | found by seed | broken invariant |", "|---|---|---|"]
    for name, outcome in found.items():
        if outcome is None:
            lines.append(f"| {name} | not found | |")
        else:
            invariant = str(outcome.violation).partition(":")[0]
            lines.append(f"| {name} | {outcome.seed} | {invariant} |")
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class PlayedHistories:
    """What was played. `found` has the planted bugs, if any were played."""

    kind: Kind
    seeds: range
    tally: Tally
    found: dict[str, HistoryOutcome | None]
    elapsed_s: float
    # Taken before the first history.
    code: str
    jobs: int

    def describe(self) -> str:
        """The proof as Markdown, with its date and conditions."""
        tally, seeds, kind = self.tally, self.seeds, self.kind
        crash = "process kills and power losses" if kind.crash is None else kind.crash.value
        command = " ".join(["python -m shoal.lite.simulation", *sys.argv[1:]])
        speed = {"events per second": f"{tally.events / self.elapsed_s:,.0f}"}
        shown = conditions(
            command,
            elapsed_s=self.elapsed_s,
            code=self.code,
            more={**speed, "processes": self.jobs},
        )
        played = (
            f"{tally.histories:,} random histories (seeds {seeds.start:,} to {seeds.stop - 1:,}) "
            f"of at least {kind.events:,} events each, over the state machines and shells that run "
            f"in production ({crash}). After each of {tally.events:,} events all invariants held, "
            "and at the end each cluster healed."
        )
        title = "# Proof: nothing that was acknowledged is lost, in simulation"
        parts = [title, played, table(tally)]
        if self.found:
            parts += ["Each planted bug was found:", sabotage_table(self.found)]
        return "\n\n".join([*parts, shown]) + "\n"


def write_report(path: Path, proof: str) -> None:
    """Replace the proof in a file, and keep what people wrote below its first heading."""
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    _, heading, kept = before.partition("\n## ")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(proof + heading + kept, encoding="utf-8")


def _seeds(text: str) -> range:
    first, colon, end = text.partition(":")
    return range(int(first), int(end) if colon else int(first) + 1)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m shoal.lite.simulation", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--seeds", type=_seeds, default=range(1000), metavar="FIRST:END")
    parser.add_argument("--steps", type=int, default=1000, help="number of events in each history")
    parser.add_argument(
        "--crash",
        choices=[model.value for model in CrashModel],
        help="what a crash loses; default: both, chosen by the seed",
    )
    parser.add_argument(
        "--sabotage", choices=SABOTAGE_NAMES, help="run with a planted bug, which must be found"
    )
    parser.add_argument(
        "--plant-all",
        action="store_true",
        help="then play histories with each planted bug, all of which must be found",
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--report", type=Path, help="write a Markdown report to this file if no history failed"
    )
    parser.add_argument(
        "--trace", action="store_true", help="print the full trace of the first seed"
    )
    return parser.parse_args()


def _show_trace(kind: Kind, seed: int) -> int:
    _print(f"seed {seed}: {kind.setup(seed)}")
    outcome = kind.play(seed, trace=_print)
    _print(f"{outcome.events} events; {outcome.violation or 'all invariants held'}")
    return 0 if outcome.violation is None else 1


def main() -> int:
    arguments = _arguments()
    crash = None if arguments.crash is None else CrashModel(arguments.crash)
    kind = Kind(arguments.steps, crash, arguments.sabotage)
    if arguments.trace:
        return _show_trace(kind, arguments.seeds.start)
    started = last_shown = time.monotonic()

    def progress(tally: Tally) -> None:
        nonlocal last_shown
        if time.monotonic() - last_shown > _PROGRESS_EVERY_S:
            last_shown = time.monotonic()
            sys.stderr.write(f"{tally.histories:,} histories, {tally.events:,} events\n")

    code = code_version("src")
    tally = play_all(kind, arguments.seeds, jobs=arguments.jobs, progress=progress)
    elapsed_s = time.monotonic() - started
    _print(table(tally))
    _print(f"\n{tally.histories:,} histories, {tally.events:,} events in {elapsed_s:.1f} s")
    if tally.failures:
        print_failure(kind, tally.failures[0])
        return int(arguments.sabotage is None)
    found = find_sabotages(arguments.steps) if arguments.plant_all else {}
    if found:
        _print("\n" + sabotage_table(found))
    if None in found.values() or arguments.sabotage is not None:
        return 1
    if arguments.report:
        played = PlayedHistories(
            kind, arguments.seeds, tally, found, elapsed_s, code, arguments.jobs
        )
        write_report(arguments.report, played.describe())
    return 0


if __name__ == "__main__":
    sys.exit(main())
